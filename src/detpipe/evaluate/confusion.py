"""Which class is taken for which."""

from __future__ import annotations

import numpy as np
import pandas as pd

from detpipe.core.tables import positions
from detpipe.evaluate.matches import matches
from detpipe.evaluate.overlaps import overlaps

BACKGROUND = "background"


def confusion_table(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float = 0.5,
    score_threshold: float = 0.25,
    max_detections: int = 100,
) -> pd.DataFrame:
    """How often a true class (row) was taken for which class (column), as counts.

    What COCO calls right is on the diagonal: first each detection takes a box of its own class.
    Then those left, best first, take the box of another class, of those left, that they overlap
    most. The row ``background`` counts detections that took none, the column ``background`` boxes
    that none took. Were a detection to take the nearest box of any class at once, a rider found
    well would count as a horse.

    Crowd regions are left out, and so are detections that lie on one of their class: a row's sum
    is the number of the class's objects, a column's the number of detections that count.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        iou: the least overlap, reached or exceeded.
        score_threshold: detections below it are left out: a detector's many faint guesses would
            fill the background row.
        max_detections: best detections that count, per image and class.

    Returns:
        ``[C + 1, C + 1]``; index ``truth``, columns ``detected``. Should a class be called
        ``background``, the background is ``(background)``.
    """
    names = [*classes["class_name"], BACKGROUND]
    if names.count(BACKGROUND) > 1:
        names[-1] = f"({BACKGROUND})"
    detections = detections[detections["score"] >= score_threshold]
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    truth = found.truth.copy()
    free = ~boxes["iscrowd"].to_numpy()
    free[truth[found.right]] = False
    label = positions(boxes["class_name"], classes["class_name"])

    near = overlaps(boxes, detections.iloc[found.row], least=iou)
    wrong = ~(found.right | found.ignored)
    others = label[near.box] != found.label[near.detection]
    near = near.where(wrong[near.detection] & free[near.box] & others)
    best_first = np.argsort(-found.score[near.detection], kind="stable")
    for d, t in zip(near.detection[best_first], near.box[best_first], strict=True):
        if truth[d] < 0 and free[t]:
            truth[d], free[t] = t, False

    background = len(names) - 1
    counted = ~found.ignored
    rows = np.append(label, background)[truth]  # -1, no box, is the last: background
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (rows[counted], found.label[counted]), 1)
    np.add.at(counts, (label[free], background), 1)
    return pd.DataFrame(
        counts, index=pd.Index(names, name="truth"), columns=pd.Index(names, name="detected")
    )
