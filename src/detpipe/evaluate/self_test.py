"""The truth scored as if it had been detected: what the best possible detector would get."""

from __future__ import annotations

import logging

import pandas as pd

from detpipe.core.tables import positions
from detpipe.evaluate import coco
from detpipe.evaluate.common import records

logger = logging.getLogger(__name__)

_COLUMNS = ["dataset", "class_name", "AP", "reason"]


def self_test(
    images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame, *, max_detections: int
) -> pd.DataFrame:
    """Every box of the truth as a detection of score 1, scored by COCO's rule, split by split.

    Crowd regions are not detected: they are neither right nor wrong.

    Args:
        images: the ``images`` table, with splits.
        boxes: the ``boxes`` table.
        classes: the ``classes`` table.
        max_detections: the limit of detections per image, as in the evaluation.

    Returns:
        One row a split and class ('' for all): ``dataset``, ``class_name``, ``AP`` (percent; NaN
        where there is no truth) and ``reason``, why it is not 100 ('' where it is). Anything below
        100 is logged: no model can reach it with these settings.
    """
    rows = []
    for dataset in images["split"].unique():
        pictures = images[images["split"] == dataset]
        truth = boxes[positions(boxes["image_id"], pictures["image_id"]) >= 0]
        objects = truth[~truth["iscrowd"]].assign(score=1.0)
        counts = objects["image_id"].value_counts()
        found = objects
        if len(counts) and counts.iloc[0] > max_detections:  # the evaluation keeps no more
            found = objects.groupby("image_id").head(max_detections)
        scores = coco.score(
            pictures, truth, found, classes, dataset=str(dataset), max_detections=max_detections
        )
        for name, value in scores.loc[scores["metric"] == "AP", ["class_name", "value"]].itertuples(
            index=False
        ):
            reason = ""
            if not value > 100 - 1e-6:  # NaN neither
                mine = truth if name == "" else truth[truth["class_name"] == name]
                reason = _reason(mine, counts, max_detections)
            rows.append((str(dataset), name, float(value), reason))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for row in records(table[table["reason"] != ""]):
        if row.class_name == "" or row.AP < 100:
            what = f"'{row.dataset}'" + (f", class '{row.class_name}'" if row.class_name else "")
            # Square brackets would be taken for markup by rich's log handler.
            logger.warning(
                "self-test: a perfect detector gets AP %.2f on %s: %s",
                row.AP, what.replace("[", "("), row.reason,
            )  # fmt: skip
    return table


def _reason(truth: pd.DataFrame, counts: pd.Series, max_detections: int) -> str:
    """Why ``truth`` cannot reach 100; ``counts`` are the objects of each image, all classes."""
    if truth.empty:
        return "no object"
    if truth["iscrowd"].all():
        return "only crowd regions"
    mine = counts[counts.index.isin(truth["image_id"].unique())]
    over = mine[mine > max_detections]
    if len(over):
        return (
            f"{len(over)} image(s) hold more than evaluate.max_detections = {max_detections} "
            f"objects, {int(over.max())} at most: {int((over - max_detections).sum())} cannot be "
            f"found"
        )
    return "objects whose boxes COCO's rule does not match with themselves: look at data_issues.csv"
