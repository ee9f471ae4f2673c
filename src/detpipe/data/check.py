"""The check between a reader and everything else: what is wrong is found before training starts.

Findings become rows of the ``issues`` table. What has one right answer is put right (and said),
what :class:`CheckConfig` decides is done its way, and all errors are raised together. The user's
files are never changed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS, BOXES, CLASSES, IMAGES
from detpipe.data.check_images import check_images
from detpipe.data.config import CheckConfig
from detpipe.data.formats.base import Annotations, IssueLog, Severity

logger = logging.getLogger(__name__)

_ROUNDING = 0.01
"""Pixels by which a box may leave its image without a word: shares and 32-bit floats round."""
_SHOWN = 20
"""Errors spelled out in the message; the table has all of them."""


class CheckError(DataError):
    """The data set cannot be used as it is.

    Attributes:
        issues: the whole ``issues`` table, warnings too.
    """

    def __init__(self, message: str, issues: pd.DataFrame) -> None:
        super().__init__(message)
        self.issues = issues


def check(found: Annotations, root: Path, config: CheckConfig) -> Annotations:
    """:func:`inspect`, then :func:`require_valid`.

    Raises:
        CheckError: something is an error.
    """
    checked = inspect(found, root, config)
    require_valid(checked.issues, root)
    return checked


def require_valid(issues: pd.DataFrame, root: Path) -> None:
    """Refuses a data set in which something is an error.

    Raises:
        CheckError: the message spells out the first 20 and counts the rest; ``issues`` has all.
    """
    errors = issues[issues["severity"] == "error"]
    if len(errors):
        raise CheckError(_message(errors, Path(root)), issues)


def inspect(found: Annotations, root: Path, config: CheckConfig) -> Annotations:
    """Looks at every annotation and every image, and puts right what can be.

    Args:
        found: what a reader gave.
        root: the folder that ``images.path`` is relative to.
        config: what to do about findings.

    Returns:
        The tables with true image sizes (the files', EXIF applied), boxes inside their images and
        with area, and every finding, the reader's too.
    """
    log = IssueLog()
    images, classes = IMAGES.make(found.images), CLASSES.make(found.classes)
    boxes = BOXES.make(found.boxes)
    if images.empty:
        log.add("error", "no_images", action="the data set holds no image: look at its path")
    else:
        images, mismatched = check_images(images, Path(root), config, log)
        if images.empty:
            log.add("error", "no_images", action="not one image of the data set can be used")
        boxes = _check_references(found.images, images, boxes, classes, config, log)
        _check_unit(images, boxes, log)
        boxes = _check_boxes(images, boxes, mismatched, config, log)
        _check_sets(images, boxes, classes, log)
    issues = pd.concat([found.issues, log.table()], ignore_index=True)
    _report(issues)
    return Annotations(images.reset_index(drop=True), boxes.reset_index(drop=True), classes, issues)


# --- boxes -------------------------------------------------------------------------------------


def _check_references(
    listed: pd.DataFrame,
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    config: CheckConfig,
    log: IssueLog,
) -> pd.DataFrame:
    """The boxes that belong to a usable image; names strays, unknown classes and repeated ids."""
    files = dict(zip(listed["image_id"], listed["path"], strict=True))
    stray = boxes[~boxes["image_id"].isin(listed["image_id"])]
    log.add_boxes(
        _severity(config.bad_box), "box_of_unknown_image", stray, files=files,
        action=_done(config.bad_box, "list the image, or remove the box", "dropped"),
    )  # fmt: skip
    boxes = boxes[boxes["image_id"].isin(images["image_id"])]
    nameless = boxes["class_name"] == ""
    log.add_boxes(
        "error", "no_class_name", boxes[nameless], files=files, action="name the object's class"
    )
    unknown = boxes[~nameless & ~boxes["class_name"].isin(classes["class_name"])]
    log.add_boxes(
        "error", "unknown_class", unknown, files=files,
        action="add the class to the data set's list of classes, or correct the box",
    )  # fmt: skip
    repeated = boxes["annotation_id"].duplicated()
    if repeated.any():
        log.add(
            "warning", "duplicate_annotation_id", value=f"{int(repeated.sum())} box(es), first "
            f"id {boxes['annotation_id'][repeated].iloc[0]}", action="all numbered anew",
        )  # fmt: skip
        boxes = boxes.assign(annotation_id=[str(n) for n in range(1, len(boxes) + 1)])
    same = boxes.duplicated(["image_id", "class_name", *BOX_COLUMNS])
    log.add_boxes(
        "warning", "duplicate_box", boxes[same], files=files,
        action="kept; the same object is counted twice",
    )  # fmt: skip
    return boxes


def _check_unit(images: pd.DataFrame, boxes: pd.DataFrame, log: IssueLog) -> None:
    """Names a set whose boxes are shares of the image (0..1) instead of pixels."""
    x1, y1, x2, y2 = (boxes[column] for column in BOX_COLUMNS)
    finite = boxes[BOX_COLUMNS].apply(np.isfinite).all(axis=1)
    boxes = boxes[finite & (x2 > x1) & (y2 > y1)]
    sizes = images[["width", "height"]].max(axis=1).to_numpy()
    if len(boxes) < 3 or sizes.max(initial=0) <= 8:
        return
    # -1: a reader that counts from pixel 1 has taken one off.
    shares = boxes[BOX_COLUMNS].min(axis=1).ge(-1) & boxes[BOX_COLUMNS].max(axis=1).le(1 + 1e-6)
    if shares.mean() >= 0.95:
        first = boxes[shares].iloc[0]
        log.add(
            "error", "boxes_are_shares",
            file=dict(zip(images["image_id"], images["path"], strict=True))[first["image_id"]],
            image_id=first["image_id"], annotation_id=first["annotation_id"],
            value=f"{int(shares.sum())} of {len(boxes)} boxes lie within 0..1, the first: "
            + ", ".join(f"{first[column]:g}" for column in BOX_COLUMNS),
            action="coordinates must be pixels: multiply x and width by the image's width, y and "
            "height by its height (or use the yolo reader for YOLO's label files)",
        )  # fmt: skip


@dataclass(frozen=True)
class _Rule:
    """A kind of wrong box: where, and what to do about it."""

    name: str
    bad: pd.Series
    error: bool
    way_out: str


def _check_boxes(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    mismatched: set[str],
    config: CheckConfig,
    log: IssueLog,
) -> pd.DataFrame:
    """The boxes inside their images and with area."""
    files = dict(zip(images["image_id"], images["path"], strict=True))
    sizes = images.set_index("image_id")[["width", "height"]].astype("float64")
    width, height = (boxes["image_id"].map(sizes[c]).astype("float64") for c in sizes)
    x1, y1, x2, y2 = (boxes[column] for column in BOX_COLUMNS)
    no_number = ~boxes[BOX_COLUMNS].apply(np.isfinite).all(axis=1)
    inverted = ~no_number & ((x2 < x1) | (y2 < y1))
    flat = ~no_number & ~inverted & ((x2 == x1) | (y2 == y1))
    fine = ~no_number & ~inverted & ~flat
    gone = fine & ((x2 <= 0) | (y2 <= 0) | (x1 >= width) | (y1 >= height))
    misfit = gone & boxes["image_id"].isin(mismatched)
    way_out = "correct the box, or set data.check.bad_box: drop"
    strict = config.bad_box == "error"
    rules = [
        _Rule("box_not_a_number", no_number, strict, way_out),
        _Rule("box_inverted", inverted, strict, f"{way_out} (x2 < x1 or y2 < y1)"),
        _Rule("box_without_area", flat, strict, way_out),
        _Rule("box_outside_mismatched_image", misfit, True,
              "the listed size was not the file's, so the boxes were made for another picture: "
              "restore the right file, or correct the annotations"),
        _Rule("box_outside", gone & ~misfit, strict, way_out),
    ]  # fmt: skip
    for rule in rules:
        log.add_boxes(
            "error" if rule.error else "warning", rule.name, boxes[rule.bad], files=files,
            action=rule.way_out if rule.error else "dropped",
        )  # fmt: skip
    keep = fine & ~gone
    return _clip(boxes[keep], width[keep], height[keep], files, config, log)


def _clip(
    boxes: pd.DataFrame,
    width: pd.Series,
    height: pd.Series,
    files: dict[str, str],
    config: CheckConfig,
    log: IssueLog,
) -> pd.DataFrame:
    """The boxes cut to their images."""
    limits = {"x1": width, "y1": height, "x2": width, "y2": height}
    clipped = boxes.assign(
        **{column: boxes[column].clip(0, limit) for column, limit in limits.items()}
    )
    moved = (clipped[BOX_COLUMNS] - boxes[BOX_COLUMNS]).abs().max(axis=1)
    log.add_boxes(
        _severity(config.outside), "box_partly_outside", boxes[moved > _ROUNDING], files=files,
        action=_done(config.outside, "correct the box, or set data.check.outside: clip",
                     "clipped"),
    )  # fmt: skip
    changed = moved > 0
    before = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    after = (clipped["x2"] - clipped["x1"]) * (clipped["y2"] - clipped["y1"])
    # A segment's area is less than its box's: what is cut off is the same share of both.
    clipped["area"] = boxes["area"].where(~changed, boxes["area"] * after / before)
    return clipped


# --- the whole ---------------------------------------------------------------------------------


def _check_sets(
    images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame, log: IssueLog
) -> None:
    with_boxes = images["image_id"].isin(boxes["image_id"].unique())
    for split, rows in images.groupby("split"):
        none = int((~with_boxes[rows.index]).sum())
        name = str(split) or "the data set"
        if none == len(rows):
            log.add(
                "warning", "split_without_boxes", value=name,
                action="no ground truth: its scores will be empty",
            )  # fmt: skip
        elif none:
            log.add(
                "info", "images_without_boxes", value=f"{none} of {len(rows)} in {name}",
                action="kept as images without objects",
            )  # fmt: skip
    empty = classes[~classes["class_name"].isin(boxes["class_name"].unique())]["class_name"]
    for name in empty:
        log.add("info", "class_without_boxes", value=name, action="see data.check.empty_classes")


def _severity(setting: str) -> Severity:
    return "error" if setting == "error" else "warning"


def _done(setting: str, way_out: str, action: str) -> str:
    return way_out if setting == "error" else action


def _report(issues: pd.DataFrame) -> None:
    """One log line a rule, with its count and its first finding."""
    levels = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
    for (severity, rule), rows in issues.groupby(["severity", "rule"], sort=False):
        # Square brackets would be taken for markup by rich's log handler.
        text = _spelled(rows.iloc[0]).replace("[", "(").replace("]", ")")
        logger.log(
            levels[str(severity)],
            "data check: %s, %d time(s); the first: %s",
            rule,
            len(rows),
            text,
        )


def _spelled(row: pd.Series) -> str:
    where = row["file"] or (f"image {row['image_id']}" if row["image_id"] else "the data set")
    annotation = f", annotation {row['annotation_id']}" if row["annotation_id"] else ""
    value = f": {row['value']}" if row["value"] else ""
    return f"{where}{annotation}{value} ({row['action']})"


def _message(errors: pd.DataFrame, root: Path) -> str:
    lines = [f"{row['rule']}: {_spelled(row)}" for _, row in errors.head(_SHOWN).iterrows()]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    counts = ", ".join(f"{rule} {count}" for rule, count in errors["rule"].value_counts().items())
    return one_message(
        f"the data set in {root} cannot be used as it is, {len(errors)} error(s) ({counts}):", lines
    )
