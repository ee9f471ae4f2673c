"""The check of boxes: to what they belong, whether they lie in their images, what is odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.config import Resize
from detpipe.data.findings import Findings
from detpipe.data.formats.base import box_rows
from detpipe.data.rules import Action

_ROUNDING = 0.01
"""Pixels by which a box may leave its image without a word, and up to which a side is none: shares
and 32-bit floats round."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: mixes bits (Knuth's multiplicative hashing)."""

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]


class Boxes(NamedTuple):
    """The boxes that can be used, with the rows of ``images`` and ``classes`` they belong to.

    Attributes:
        table: the ``boxes`` table, N rows.
        image: ``[N]``, positions in the ``images`` table.
        label: ``[N]``, positions in the ``classes`` table.
    """

    table: pd.DataFrame
    image: Codes
    label: Codes


@dataclass
class _Sieve:
    """What is left of N boxes, rule by rule.

    Attributes:
        boxes: the ``boxes`` table as it came.
        image: ``[N]``, positions in the table of usable images; -1 for none.
        label: ``[N]``, positions in the ``classes`` table; -1 for none.
        corners: ``[4, N]``, x1 y1 x2 y2 as they will be.
        area: ``[N]``, as it will be.
        kept: ``[N]``, whether a box is still there.
        files: image_id → path.
        findings: where findings go.
    """

    boxes: pd.DataFrame
    image: Codes
    label: Codes
    corners: Numbers
    area: Numbers
    kept: Mask
    files: Mapping[str, str]
    findings: Findings

    def judge(self, rule: str, bad: Mask, *, way_out: str, done: str = "") -> Action | None:
        """Reports those of the boxes that are ``bad``, and what to do; None if there are none."""
        found = np.flatnonzero(bad & self.kept)
        if not len(found):
            return None
        rows = box_rows(self.boxes.iloc[found], self.files)
        action = self.findings.add(rule, rows, way_out=way_out, done=done)
        if action in ("drop", "error"):
            self.kept[found] = False
        return action


def check_boxes(
    listed: pd.DataFrame,
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    findings: Findings,
    *,
    mismatched: set[str],
    resize: Resize | None,
) -> Boxes:
    """The boxes of usable images, inside of them and with area; what else was done is a finding.

    Args:
        listed: the ``images`` table as it was read.
        images: those that can be used, with their true sizes.
        boxes: as they were read.
        classes: of the data set.
        findings: gets what is found.
        mismatched: ids of images whose listed size was not their file's.
        resize: how images get the size at which the model sees them.
    """
    boxes = _number(boxes, findings)
    sieve = _Sieve(
        boxes,
        image=pd.Index(images["image_id"]).get_indexer(pd.Index(boxes["image_id"])),
        label=pd.Index(classes["class_name"]).get_indexer(pd.Index(boxes["class_name"])),
        corners=np.array([boxes[column] for column in BOX_COLUMNS]),
        area=boxes["area"].to_numpy("float64").copy(),
        kept=np.ones(len(boxes), dtype=bool),
        files=dict(zip(listed["image_id"].tolist(), listed["path"].tolist(), strict=True)),
        findings=findings,
    )
    _check_references(sieve)
    shares = _check_unit(sieve, images)
    _check_shape(sieve)
    _check_place(sieve, images, mismatched)
    _check_area(sieve)
    if not shares:
        _check_size(sieve, images, resize)
    _check_repeats(sieve)
    kept = sieve.kept
    moved = dict(zip(BOX_COLUMNS, sieve.corners[:, kept], strict=True))
    table = boxes[kept].reset_index(drop=True).assign(**moved, area=sieve.area[kept])
    return Boxes(table, sieve.image[kept], sieve.label[kept])


def _number(boxes: pd.DataFrame, findings: Findings) -> pd.DataFrame:
    """The boxes with ids that name one each."""
    ids = boxes["annotation_id"]
    repeated = ids.duplicated() | (ids == "")
    if not repeated.any():
        return boxes
    findings.add_one(
        "duplicate_annotation_id",
        f"{int(repeated.sum())} box(es), first id '{ids[repeated].iloc[0]}'",
        way_out="give each box its own id", done="all numbered anew",
    )  # fmt: skip
    return boxes.assign(annotation_id=[str(n) for n in range(1, len(boxes) + 1)])


def _check_references(sieve: _Sieve) -> None:
    """To what boxes belong."""
    nowhere = sieve.image < 0
    stray = nowhere.copy()
    stray[nowhere] = [image not in sieve.files for image in sieve.boxes["image_id"][nowhere]]
    sieve.judge("box_of_unknown_image", stray, way_out="list the image, or remove the box")
    sieve.kept &= ~nowhere
    unknown = sieve.label < 0
    nameless = unknown & (sieve.boxes["class_name"] == "").to_numpy()
    sieve.judge("no_class_name", nameless, way_out="name the object's class")
    sieve.judge(
        "unknown_class", unknown & ~nameless,
        way_out="add the class to the data set's list of classes, or correct the box",
    )  # fmt: skip


def _check_unit(sieve: _Sieve, images: pd.DataFrame) -> bool:
    """Whether boxes are shares of the image (0..1) instead of pixels; names such a set."""
    x1, y1, x2, y2 = sieve.corners
    usual = np.flatnonzero(np.isfinite(sieve.corners).all(axis=0) & (sieve.image >= 0)
                           & (x2 > x1) & (y2 > y1))  # fmt: skip
    if len(usual) < 3 or images[["width", "height"]].to_numpy().max(initial=0) <= 8:
        return False
    # -1: a reader that counts from pixel 1 has taken one off.
    low, high = np.minimum(x1, y1)[usual] >= -1, np.maximum(x2, y2)[usual] <= 1 + 1e-6
    shares = low & high
    if shares.mean() < 0.95:
        return False
    first = sieve.boxes.iloc[usual[shares][0]]
    sieve.findings.add_one(
        "boxes_are_shares",
        f"{int(shares.sum())} of {len(usual)} boxes lie within 0..1, the first: "
        + ", ".join(f"{first[column]:g}" for column in BOX_COLUMNS),
        file=sieve.files[first["image_id"]], image_id=first["image_id"],
        annotation_id=first["annotation_id"],
        way_out="coordinates must be pixels: multiply x and width by the image's width, y and "
        "height by its height (or use the yolo reader for YOLO's label files)",
    )  # fmt: skip
    return True


def _check_shape(sieve: _Sieve) -> None:
    """Whether boxes are boxes."""
    corners = sieve.corners
    no_number = np.logical_not(np.isfinite(corners).all(axis=0))
    sieve.judge("box_not_a_number", no_number, way_out="correct the box")
    with np.errstate(invalid="ignore"):
        inverted: Mask = np.logical_or(*(corners[2:] < corners[:2])) & sieve.kept
    done = "corners exchanged"
    way_out = "correct the box (x2 < x1 or y2 < y1)"
    if sieve.judge("box_inverted", inverted, way_out=way_out, done=done) == "fix":
        ends = corners[:, inverted].reshape(2, 2, -1)  # [corner, axis, box]
        corners[:, inverted] = np.sort(ends, axis=0).reshape(4, -1)
        sieve.area[inverted] = np.abs(sieve.area[inverted])
    flat = _flat(corners)
    sieve.judge("box_without_area", flat, way_out="correct the box")


def _check_place(sieve: _Sieve, images: pd.DataFrame, mismatched: set[str]) -> None:
    """Brings boxes into their images."""
    corners, cut = sieve.corners, np.empty_like(sieve.corners)
    for first, column in enumerate(("width", "height")):
        side = images[column].to_numpy("float64")[sieve.image]
        for row in (first, first + 2):
            np.clip(corners[row], 0, side, out=cut[row])
    gone = _flat(cut)
    wrong = gone & images["image_id"].isin(mismatched).to_numpy()[sieve.image]
    sieve.judge(
        "box_outside_mismatched_image", wrong,
        way_out="the listed size was not the file's, so the boxes were made for another picture: "
        "restore the right file, or correct the annotations",
    )  # fmt: skip
    sieve.judge("box_outside", gone, way_out="correct the box")
    with np.errstate(invalid="ignore"):  # of infinite ones, left out already
        moved = np.abs(cut - corners).max(axis=0)
    sieve.judge("box_partly_outside", moved > _ROUNDING, way_out="correct the box")
    # A segment's area is less than its box's: what is cut off is the same share of both.
    changed = (moved > 0) & sieve.kept
    before, after = corners[:, changed], cut[:, changed]
    with np.errstate(over="ignore", invalid="ignore"):  # of areas that are none: see below
        shares = (after[2:] - after[:2]) / (before[2:] - before[:2])
        sieve.area[changed] *= shares[0] * shares[1]
    sieve.corners = cut


def _check_area(sieve: _Sieve) -> None:
    x1, y1, x2, y2 = sieve.corners
    bad = ~(np.isfinite(sieve.area) & (sieve.area > 0)) & sieve.kept
    sieve.judge(
        "area_not_positive",
        bad,
        way_out="correct the area",
        done="the area of the box is used",
    )
    sieve.area[bad] = ((x2 - x1) * (y2 - y1))[bad]


def _check_size(sieve: _Sieve, images: pd.DataFrame, resize: Resize | None) -> None:
    """Names boxes that are tiny where the model sees them."""
    least = sieve.findings.config.tiny
    if not least or images.empty:
        return
    sides = sieve.corners[2:] - sieve.corners[:2]
    if resize is not None:
        sides *= _scales(images, resize)[:, sieve.image]
    small = (sides.min(axis=0) < least) & ~sieve.boxes["iscrowd"].to_numpy()
    sieve.judge(
        "tiny_box", small, done=f"kept; under {least:g} pixels where the model sees it",
        way_out=f"under {least:g} pixels where the model sees it: correct the box, or let the "
        "model see more (stream.resize)",
    )  # fmt: skip


def _scales(images: pd.DataFrame, resize: Resize) -> Numbers:
    """``[2, M]``: what width and height of each image are multiplied by."""
    sizes = images[["height", "width"]].to_numpy("int64")
    different, which = np.unique(sizes, axis=0, return_inverse=True)
    targets = np.array([resize.target_size(int(h), int(w)) for h, w in different])
    return np.ascontiguousarray((targets / different)[which.ravel(), ::-1].T)


def _check_repeats(sieve: _Sieve) -> None:
    kept = np.flatnonzero(sieve.kept)
    crowd = sieve.boxes["iscrowd"].to_numpy().astype(np.intp)
    columns = [sieve.image, sieve.label, crowd, *(sieve.corners + 0.0)]  # -0.0 is 0.0
    key = np.zeros(len(kept), dtype=np.uint64)
    for column in columns:
        key = key * _ODD + column.view(np.uint64)[kept]
    # What differs in its key is different, and nearly all does; the rest is compared whole.
    alike = kept[pd.Series(key).duplicated(keep=False).to_numpy()]
    rows = pd.DataFrame({n: column[alike] for n, column in enumerate(columns)})
    repeated = np.zeros(len(sieve.kept), dtype=bool)
    repeated[alike] = rows.duplicated().to_numpy()
    sieve.judge(
        "duplicate_box", repeated, way_out="remove one of the two",
        done="kept; the same object is counted twice",
    )  # fmt: skip


def _flat(corners: Numbers) -> Mask:
    """``[N]``: whether a box has no width or no height."""
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite ones, left out already
        flat: Mask = ~np.logical_and(*(corners[2:] - corners[:2] > _ROUNDING))
    return flat
