"""The report's page, in numbers: what was reached, by what limits, and how long it took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

import detpipe
from detpipe.core.page import facts, paragraph, table, text
from detpipe.evaluate.report import by_metric, per_class, threshold
from detpipe.evaluate.verify import FEW

if TYPE_CHECKING:
    from detpipe.evaluate.page import Report


def headline(report: Report) -> Iterator[str]:
    """The few numbers of each data set that matter, and what is lacking."""
    for part in report.parts:
        objects = int((~part.boxes["iscrowd"]).sum())
        yield f"<h2>{text(part.dataset)}</h2>\n"
        intervals = report.diagnosis.intervals
        rows = intervals[intervals["dataset"] == part.dataset].to_dict("records")
        yield facts(
            [
                *((row["metric"], _number(row["value"]), _range(row)) for row in rows),
                ("images", str(len(part.images)), ""),
                ("objects", str(objects), ""),
                ("detections", str(len(part.detections)), "of any score"),
            ]
        )
        if not objects:
            yield paragraph("There is no ground truth in it: no number can be made.", "warning")
        elif part.detections.empty:
            yield paragraph("Nothing was detected in it.", "warning")
    config = report.config
    yield paragraph(
        "AP is COCO's average precision, the mean over classes and overlaps (IoU 0.50 to 0.95): "
        "0 is nothing found, 100 is everything found, in its place, and nothing else. AP50 and "
        "AP75 ask for one overlap; AR is how much of the truth is found. "
        + (
            f"Below each number: where it lay in {100 * config.confidence:g}% of "
            f"{config.samples} bootstrap samples of the images."
            if config.samples else ""
        )
    )  # fmt: skip


def _range(row: Mapping[Any, Any]) -> str:
    low, high = row["low"], row["high"]
    return "" if math.isnan(low) else f"{low:.1f} to {high:.1f}"


def verdict(report: Report) -> Iterator[str]:
    """What was expected: the misses, then what is met, folded where it is much."""
    rows = report.verdict
    if rows is None:
        return
    if rows.empty:
        yield paragraph("Nothing was expected of this run (verify.expected).", "soft")
        return
    kind = "good" if rows["ok"].all() else "bad"
    yield paragraph(f"{rows['ok'].sum()} of {len(rows)} expected results are met.", kind)
    empty = [c for c in rows if rows[c].isna().all() or (rows[c] == "").all()]
    shown = rows.drop(columns=empty).sort_values("ok", kind="stable")
    if len(rows) <= FEW:
        yield table(shown)
        return
    missed, met = (shown[shown["ok"] == ok] for ok in (False, True))
    if len(missed):
        yield table(missed)
    if len(met):
        summary = f"<summary>The {len(met)} that are met</summary>"
        yield f"<details>{summary}\n{table(met)}</details>\n"


def overview(report: Report) -> Iterator[str]:
    """Every metric over all classes."""
    if report.scores.empty:
        return
    yield paragraph(
        "All metrics of evaluate.metrics in percent, except losses and thresholds: mean over all "
        "classes. s, m and l are small, medium and large objects. – means that there is nothing "
        "to count."
    )
    yield table(by_metric(report.scores))


def classes(report: Report) -> Iterator[str]:
    """A row a class: its objects, its scores, its best threshold."""
    keys, numbers = ["dataset", "class_name"], ["score_threshold", "precision", "recall", "f1"]
    best = report.diagnosis.thresholds[[*keys, *numbers]]
    best = best[best["class_name"] != ""]
    if best.empty:
        return
    yield paragraph(
        "best threshold is the score from which on detections of the class have the best F1, the "
        "harmonic mean of precision (how many of them are right) and recall (how many objects are "
        f"found); right is an IoU of {report.config.iou:g}. It is chosen on the data set of its "
        "row: on other images F1 at it is lower, as a rule. A click on a header sorts."
    )
    counts = pd.concat(
        [
            part.boxes[~part.boxes["iscrowd"]].groupby("class_name").size().rename("objects")
            .reset_index().assign(dataset=part.dataset)
            for part in report.parts
        ]
    )  # fmt: skip
    best = best.rename(
        columns={
            "score_threshold": "best threshold", "precision": "precision there",
            "recall": "recall there", "f1": "F1 there",
        }
    )  # fmt: skip
    rows = best[keys].merge(counts, how="left", on=keys)
    rows["objects"] = rows["objects"].fillna(0).astype("int64")
    scores = per_class(report.scores)
    if scores["task"].nunique() < 2:
        scores = scores.drop(columns="task")
    yield table(rows.merge(scores, how="left", on=keys).merge(best, how="left", on=keys))


def made(report: Report) -> Iterator[str]:
    """What the page was made of and with, and how long the images took."""
    config = report.config
    rows = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "detpipe": detpipe.__version__}
    rows |= {str(name): str(value) for name, value in report.made.items()}
    rows["max_detections"] = str(report.max_detections)
    rows["right from IoU"] = f"{config.iou:g}"
    for part in report.parts:
        score = threshold(report.diagnosis.thresholds, part.dataset, config)
        words = " (best F1)" if config.score_threshold == "best_f1" else ""
        rows[f"score threshold of {part.dataset}"] = f"{score:.4f}{words}"
    if config.samples:
        rows["bootstrap samples"] = f"{config.samples}, seed {config.seed}"
    yield table(pd.DataFrame({"what": rows.keys(), "value": rows.values()}), sortable=False)
    if report.timing is not None and len(report.timing):
        yield paragraph(
            "Milliseconds an image of waiting for data, of the model, and of what comes after it. "
            + _warmup(report, report.timing)
        )
        yield table(report.timing[["dataset", "part", "ms_per_image", "images"]])


def _warmup(report: Report, timing: pd.DataFrame) -> str:
    """Whether the first batches, which take longer, are in the times."""
    images = {part.dataset: len(part.images) for part in report.parts}
    timed = {str(name): own.max() for name, own in timing.groupby("dataset", sort=False)["images"]}
    whole = [name for name, count in timed.items() if count >= images.get(name, math.inf)]
    if not whole:
        return "The first batches, which take longer, are left out."
    which = "" if len(whole) == len(timed) else f" of {' and '.join(whole)}"
    return f"The first batches{which}, which take longer, are counted too."


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"
