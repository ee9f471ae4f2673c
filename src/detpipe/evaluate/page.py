"""The report as one HTML file: all tables and pictures of an evaluation, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from detpipe.core.page import contents, grid, html, paragraph, picture, section, table, text
from detpipe.evaluate import page_numbers as numbers
from detpipe.evaluate.config import ReportConfig
from detpipe.evaluate.gallery import LEGEND, Tile
from detpipe.evaluate.plots import ece
from detpipe.evaluate.report import Diagnosis, Part, threshold

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
        made: what it was made of, such as the digest of the weights: name → text; all is shown.
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
        return html(title, [paragraph(nothing, "warning"), *numbers.verdict(report)])
    sections = {
        "Overview": numbers.overview(report),
        "Classes": numbers.classes(report),
        "Errors": _errors(report),
        "Confusion": _confusion(report),
        "Curves": _curves(report),
        "Calibration": _calibration(report),
        "Slices": _slices(report),
        "Gallery": _gallery(report),
        "Images": _images(report),
        "How it was made": numbers.made(report),
    }
    parts = {name: list(made) for name, made in sections.items()}
    return html(
        title,
        [
            *numbers.headline(report),
            *numbers.verdict(report),
            contents([name for name, made in parts.items() if made]),
            *(section(name, made) for name, made in parts.items() if made),
        ],
    )


# --- why ----------------------------------------------------------------------------------------


def _errors(report: Report) -> Iterator[str]:
    yield paragraph(
        "What AP would gain if one kind of error were repaired and nothing else (TIDE): a "
        "classification error has the right place and the wrong class, a localisation error the "
        "right class and the wrong place, both have neither; a duplicate is a second detection of "
        "an object, background a detection of nothing, and missed objects nobody found. An object "
        "not found at which a classification or localisation error points counts there, so that "
        "missed is less than false negative, all objects not found. Faint detections count here, "
        "so that there may be many."
    )
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.errors, dataset, "errors", caption=False)


def _confusion(report: Report) -> Iterator[str]:
    yield paragraph(
        "Rows are what is there, columns what it was taken for; the last row are detections of "
        "nothing, the last column missed objects. Scores count from the threshold in the title."
        + (
            " It is the best for this very data set: on other images there are more errors, as a "
            "rule."
            if report.config.score_threshold == "best_f1" else ""
        )
    )  # fmt: skip
    for dataset, heading in _named(report):
        yield heading
        yield from _drawing(report.confusion, dataset, "confusion matrix", caption=False)


def _curves(report: Report) -> Iterator[str]:
    yield paragraph(
        "Left of the best threshold there is more found and less of it right; the area under the "
        "curve of precision over recall is AP at this overlap. The best threshold is chosen on the "
        "data set itself: on other images F1 at it is lower, as a rule."
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
        yield from _drawing(report.curves, f"{dataset}_calibration", "calibration", caption=False)
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


# --- parts of the page --------------------------------------------------------------------------


def _named(report: Report) -> Iterator[tuple[str, str]]:
    """The data sets, with headings where there is more than one."""
    several = len(report.parts) > 1
    for part in report.parts:
        yield part.dataset, f"<h3>{text(part.dataset)}</h3>\n" if several else ""


def _drawing(pictures: Pictures, name: str, words: str, *, caption: bool = True) -> Iterator[str]:
    """The picture of that name; without ``caption`` the words are its alt text alone."""
    below = "" if caption else f"<figcaption>{text(words)}</figcaption>"
    for key in (name, f"{name}.png"):
        if key in pictures:
            yield picture(pictures[key], words, "png").replace(below, "")
