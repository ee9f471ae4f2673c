"""The check of the whole: classes, splits, crowded images, and names that nobody can read."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.data.check_boxes import Boxes
from detpipe.data.findings import Findings

_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\ufeff\ufffd\ud800-\udfff]")
"""Control characters, a byte order mark, the replacement character, halves of surrogate pairs."""


def check_sets(
    images: pd.DataFrame,
    boxes: Boxes,
    classes: pd.DataFrame,
    findings: Findings,
    *,
    max_detections: int | None,
) -> None:
    """Names what is odd about the data set as a whole.

    Args:
        images: those that can be used.
        boxes: likewise.
        classes: of the data set.
        findings: gets what is found.
        max_detections: how many objects of an image can be found at all; None does not ask.
    """
    _check_splits(images, boxes, findings)
    _check_classes(images, boxes, classes["class_name"].tolist(), findings)
    if max_detections is not None:
        _check_number(images, boxes, findings, max_detections=max_detections)


def check_names(images: pd.DataFrame, classes: pd.DataFrame, findings: Findings) -> None:
    """Names of classes, and of images as they were read, that look alike or cannot be read."""
    names = classes["class_name"].tolist()
    alike = defaultdict(list)
    for name in names:
        alike["".join(filter(str.isalnum, name.casefold())) or name].append(name)
    for group in alike.values():
        if len(group) > 1:
            findings.add_one(
                "similar_class_names", " / ".join(group),
                way_out="give them one name, or names that differ in more", done="kept apart",
            )  # fmt: skip
    bad = [{"value": f"class {text}"} for name in names if (text := _unreadable(name))]
    columns = (images[column].tolist() for column in ("path", "image_id"))
    bad += [
        {"value": text, "file": path, "image_id": image_id}
        for path, image_id in zip(*columns, strict=True)
        if (text := _unreadable(path) or _unreadable(image_id))
    ]
    if bad:
        findings.add(
            "unreadable_text", pd.DataFrame(bad).fillna(""),
            way_out="write the name anew, or read the file in its own encoding",
        )  # fmt: skip


def _unreadable(text: str) -> str:
    """The text as it can be shown, and what it may mean, if it cannot be read; else empty."""
    if text.isascii() and text.isprintable():
        return ""
    for encoding in ("cp1252", "latin-1"):
        try:
            meant = text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        if meant != text:
            return f"{text!r}: UTF-8 read as {encoding}, perhaps {meant!r}"
    return repr(text) if _UNREADABLE.search(text) else ""


def _check_splits(images: pd.DataFrame, boxes: Boxes, findings: Findings) -> None:
    with_boxes = np.bincount(boxes.image, minlength=len(images)) > 0
    for split, has in pd.Series(with_boxes).groupby(images["split"].to_numpy()):
        name, empty = str(split) or "the data set", int((~has).sum())
        if empty == len(has):
            findings.add_one(
                "split_without_boxes", name, way_out="annotate it, or leave it out",
                done="no ground truth: its scores will be empty",
            )  # fmt: skip
        elif empty:
            findings.add_one(
                "images_without_boxes", f"{empty} of {len(has)} in {name}",
                way_out="annotate them, or take them out", done="kept as images without objects",
            )  # fmt: skip


def _check_classes(
    images: pd.DataFrame, boxes: Boxes, names: list[str], findings: Findings
) -> None:
    split_of, found = pd.factorize(images["split"])
    splits = found.tolist()
    cell = split_of[boxes.image] * len(names) + boxes.label
    counts: npt.NDArray[np.intp] = np.bincount(cell, minlength=len(splits) * len(names))
    counts = counts.reshape(len(splits), len(names))
    empty = np.flatnonzero(counts.sum(axis=0) == 0)
    findings.add(
        "class_without_boxes", pd.DataFrame({"value": [names[at] for at in empty]}),
        way_out="annotate it, or take it out of the list",
        done="kept as an output of the model", dropped="left out of the model",
    )  # fmt: skip
    filled = np.flatnonzero(counts.sum(axis=1))
    partly = [at for at in range(len(names)) if 0 < (counts[filled, at] > 0).sum() < len(filled)]
    values = [
        f"{names[at]}: " + ", ".join(f"{splits[row]} {counts[row, at]}" for row in filled)
        for at in partly
    ]
    findings.add(
        "class_not_in_split", pd.DataFrame({"value": values}),
        way_out="share out the images anew (data.split), or leave the class out",
    )  # fmt: skip


def _check_number(
    images: pd.DataFrame, boxes: Boxes, findings: Findings, *, max_detections: int
) -> None:
    objects = boxes.image[~boxes.table["iscrowd"].to_numpy()]
    counts = np.bincount(objects, minlength=len(images))
    crowded = np.flatnonzero(counts > max_detections)
    rows = images.iloc[crowded][["image_id", "path"]].rename(columns={"path": "file"})
    findings.add(
        "many_boxes", rows.assign(value=[f"{counts[at]} objects" for at in crowded]),
        way_out=f"more than {max_detections}: raise evaluate.max_detections",
        done=f"kept; of more than {max_detections} the rest counts as missed: raise "
        "evaluate.max_detections",
    )  # fmt: skip
