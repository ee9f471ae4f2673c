"""The report as one HTML file: all tables and pictures of an evaluation, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from detpipe.core.page import contents, facts, grid, html, paragraph, picture, section, table, text
from detpipe.evaluate.config import ReportConfig
from detpipe.evaluate.gallery import LEGEND, Tile
from detpipe.evaluate.plots import ece
from detpipe.evaluate.report import Diagnosis, Part, overview, per_class, threshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

WORST = 50
"""Images in the table of the page; the csv file has all."""
Pictures = Mapping[str, "Figure | Image"]


@dataclass(frozen=True)
class Report:
    """All that is on the page.

    Attributes:
        parts: the data sets.
        scores: the scores table.
        diagnosis: of :func:`detpipe.evaluate.report.diagnose`.
        curves: pictures by name, with or without ``.png``: those of
            :func:`detpipe.evaluate.report.figures`, as are the next two.
        confusion: likewise.
        errors: likewise.
        tiles: data set → what :func:`detpipe.evaluate.gallery.tiles` gives.
        config: of the report.
        max_detections: the limit of detections per image.
        verdict: the verdict table, or None where nothing is verified.
        timing: dataset, part, ms_per_image, images; None where nothing was timed.
        made: what it was made of, such as the digest of the weights: name → text.
    """

    parts: Sequence[Part]
    scores: pd.DataFrame
    diagnosis: Diagnosis
    curves: Pictures
    confusion: Pictures
    errors: Pictures
    tiles: Mapping[str, Mapping[str, Sequence[Tile]]]
    config: ReportConfig
    max_detections: int
    verdict: pd.DataFrame | None = None
    timing: pd.DataFrame | None = None
    made: Mapping[str, str] = field(default_factory=dict)


def page(report: Report, *, title: str) -> str:
    """The whole page; what there is nothing of is left out, or said.

    Args:
        report: what is on it.
        title: plain text.
    """
    if not report.parts:
        nothing = "No split that is evaluated has images: there is nothing to report."
        return html(title, [paragraph(nothing, "warning"), *_verdict(report)])
    sections = {
        "Overview": _overview(report),
        "Classes": _classes(report),
        "Errors": _errors(report),
        "Confusion": _confusion(report),
        "Curves": _curves(report),
        "Calibration": _calibration(report),
        "Slices": _slices(report),
        "Gallery": _gallery(report),
        "Images": _images(report),
        "How it was made": _made(report),
    }
    parts = {name: list(made) for name, made in sections.items()}
    return html(
        title,
        [
            *_headline(report),
            *_verdict(report),
            contents([name for name, made in parts.items() if made]),
            *(section(name, made) for name, made in parts.items() if made),
        ],
    )


# --- what was reached ---------------------------------------------------------------------------


def _headline(report: Report) -> Iterator[str]:
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


def _verdict(report: Report) -> Iterator[str]:
    verdict = report.verdict
    if verdict is None:
        return
    if verdict.empty:
        yield paragraph("Nothing was expected of this run (verify.expected).", "soft")
        return
    met, kind = int(verdict["ok"].sum()), "good" if verdict["ok"].all() else "bad"
    yield paragraph(f"{met} of {len(verdict)} expected results are met.", kind)
    empty = [c for c in verdict if verdict[c].isna().all() or (verdict[c] == "").all()]
    yield table(verdict.drop(columns=empty))


def _overview(report: Report) -> Iterator[str]:
    if report.scores.empty:
        return
    yield paragraph(
        "All metrics of evaluate.metrics in percent, except losses and thresholds: mean over all "
        "classes. s, m and l are small, medium and large objects. – means that there is nothing "
        "to count."
    )
    yield table(overview(report.scores))


def _classes(report: Report) -> Iterator[str]:
    keys, numbers = ["dataset", "class_name"], ["score_threshold", "precision", "recall", "f1"]
    best = report.diagnosis.thresholds[[*keys, *numbers]]
    best = best[best["class_name"] != ""]
    if best.empty:
        return
    yield paragraph(
        "best threshold is the score from which on detections of the class have the best F1, the "
        "harmonic mean of precision (how many of them are right) and recall (how many objects are "
        f"found); right is an IoU of {report.config.iou:g}. A click on a header sorts."
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


# --- why ----------------------------------------------------------------------------------------


def _errors(report: Report) -> Iterator[str]:
    yield paragraph(
        "What AP would gain if one kind of error were repaired and nothing else (TIDE): a "
        "classification error has the right place and the wrong class, a localisation error the "
        "right class and the wrong place, both have neither; a duplicate is a second detection of "
        "an object, background a detection of nothing, and missed objects nobody found. Faint "
        "detections count here, so that there may be many."
    )
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.errors, dataset, "errors")


def _confusion(report: Report) -> Iterator[str]:
    yield paragraph(
        "Rows are what is there, columns what it was taken for; the last row are detections of "
        "nothing, the last column missed objects. Scores count from the threshold in the title."
    )
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.confusion, dataset, "confusion matrix")


def _curves(report: Report) -> Iterator[str]:
    yield paragraph(
        "Left of the best threshold there is more found and less of it right; the area under the "
        "curve of precision over recall is AP at this overlap."
    )
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.curves, f"{dataset}_scores", "over the score threshold")
        yield from _drawing(report.curves, f"{dataset}_precision_recall", "precision over recall")
    yield from _drawing(report.curves, "loss", "the training's losses")


def _calibration(report: Report) -> Iterator[str]:
    yield paragraph(
        "Whether a score is the probability to be right: bars on the diagonal say yes, bars below "
        "it that scores are too high. ECE is the mean distance from the diagonal over all "
        "detections, 0 at best."
    )
    for dataset, heading in _named(report):
        yield heading
        every = report.diagnosis.calibration
        rows = every[every["dataset"] == dataset]
        whole = rows[rows["class_name"] == ""]
        if not whole["detections"].sum():
            yield paragraph("There are no detections.", "warning")
            continue
        yield from _drawing(report.curves, f"{dataset}_calibration", "calibration")
        yield table(
            pd.DataFrame(
                [
                    {
                        "class_name": name or "all classes",
                        "detections": int(own["detections"].sum()), "ECE": ece(own),
                    }
                    for name, own in rows.groupby("class_name", sort=False)
                ]
            )
        )  # fmt: skip


def _slices(report: Report) -> Iterator[str]:
    yield paragraph(
        "AP of parts of the data set: by the size of objects (small is up to 32 × 32 pixels, large "
        "from 96 × 96), by their shape (width / height below 0.5 is tall, above 2 wide), and by "
        "how many objects are in an image. Numbers of few objects say little."
    )
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.curves, f"{dataset}_slices", "AP by slice")
        own = report.diagnosis.slices
        yield table(own[own["dataset"] == dataset].drop(columns="dataset"))


# --- pictures -----------------------------------------------------------------------------------


def _gallery(report: Report) -> Iterator[str]:
    if not any(tiles for kinds in report.tiles.values() for tiles in kinds.values()):
        return
    yield paragraph(f"Boxes: {LEGEND}.")
    for dataset, heading in _named(report):
        yield heading
        score = threshold(report.diagnosis.thresholds, dataset, report.config)
        yield paragraph(f"Detections with a score of {score:.2f} and more.")
        for kind, tiles in report.tiles.get(dataset, {}).items():
            if tiles:
                yield f"<h4>{text(kind)}</h4>\n"
                yield grid([picture(tile.picture, tile.caption) for tile in tiles])


def _images(report: Report) -> Iterator[str]:
    yield paragraph(
        f"The worst {WORST} images of each data set by F1; right, wrong and missed count from the "
        "score threshold on, AP50 all detections. per_image.csv has them all."
    )
    for dataset, heading in _named(report):
        yield heading
        own = report.diagnosis.per_image
        own = own[own["dataset"] == dataset].head(WORST)
        yield table(own.drop(columns=["dataset", "image_id"]), decimals=1)


def _made(report: Report) -> Iterator[str]:
    config = report.config
    rows = dict(report.made)
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
            "Milliseconds an image of waiting for data, of the model, and of what comes after it; "
            "without the first batches."
        )
        yield table(report.timing[["dataset", "part", "ms_per_image", "images"]])


# --- parts of the page --------------------------------------------------------------------------


def _named(report: Report) -> Iterator[tuple[str, str]]:
    """The data sets, with headings where there is more than one."""
    several = len(report.parts) > 1
    for part in report.parts:
        yield part.dataset, f"<h3>{text(part.dataset)}</h3>\n" if several else ""


def _drawing(pictures: Pictures, name: str, caption: str) -> Iterator[str]:
    for key in (name, f"{name}.png"):
        if key in pictures:
            yield picture(pictures[key], caption, "png")


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"
