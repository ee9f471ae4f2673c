"""Made-up data sets for the writers' tests, and what two sets have in common."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from PIL import Image

from detpipe.core.config import Spec
from detpipe.core.tables import BOX_COLUMNS, BOXES, CLASSES, IMAGES, ISSUES
from detpipe.data.formats.base import Annotations

FORMATS = ("coco", "voc", "yolo", "csv", "parquet")

CLASS_NAMES = (
    "cat", "Cat", "traffic light", "a, b", 'quo"te', "it's", "x/y", "-", "NO", "null", "1.0", "0",
    "été", "猫", "<b>&amp;", "k: v", "# x", "{}",
)  # fmt: skip
_LETTERS = "abAé猫"
_INSIDE = _LETTERS + " -_.,;:'\"()&%#+=@!{}~$<>"


def picture(path: Path, number: int, *, width: int, height: int) -> None:
    """A picture of its own colour, so that each file's bytes differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, 3), (number % 256, number // 256, 7), np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")  # readers go by content


@st.composite
def sets(draw, *, splits=("train", "val", "test")):
    """(relative paths, sizes, splits, groups, rows of boxes, class names) of a data set."""
    stem = st.builds(
        lambda first, inside, last: first + inside + last,
        st.sampled_from(_LETTERS), st.text(_INSIDE, max_size=5), st.sampled_from(_LETTERS),
    )  # fmt: skip
    folder = st.sampled_from(["", "a/", "a/b/", "b c/", "images/", "é/images/", "../beside/"])
    ending = st.sampled_from([".jpg", ".JPG", ".png", ".jpeg"])
    path = st.builds(lambda *parts: "".join(parts), folder, stem, ending)
    paths = draw(st.lists(path, min_size=1, max_size=5, unique=True))
    names = draw(st.lists(st.sampled_from(CLASS_NAMES), min_size=1, max_size=5, unique=True))
    side = st.integers(8, 60)
    sizes = [(draw(side), draw(side)) for _ in paths]
    boxes = []
    for image, (width, height) in enumerate(sizes):
        for _ in range(draw(st.integers(0, 3))):
            xs, ys = (
                sorted(draw(st.lists(st.floats(0, n, width=32), min_size=2, max_size=2)))
                for n in (width, height)
            )
            if xs[1] - xs[0] < 0.01 or ys[1] - ys[0] < 0.01:
                xs, ys = [0.1, 0.1 + 0.2], [height - 1.7, height]
            share = draw(st.sampled_from([1.0, 0.37]))
            more = draw(st.sampled_from(["", "", '{"pose":"left","truncated":"1"}']))
            boxes.append(
                {
                    "image": image, "class_name": draw(st.sampled_from(names)),
                    "x1": xs[0], "y1": ys[0], "x2": xs[1], "y2": ys[1],
                    "area": (xs[1] - xs[0]) * (ys[1] - ys[0]) * share,
                    "iscrowd": draw(st.booleans()), "difficult": draw(st.booleans()),
                    "extra": more,
                }
            )  # fmt: skip
    groups = draw(st.sampled_from([[""], ["patient é/1", "b"]]))
    return (
        paths, sizes, [draw(st.sampled_from(splits)) for _ in paths],
        [draw(st.sampled_from(groups)) for _ in paths], boxes, names,
    )  # fmt: skip


def on_disk(made, root: Path, *, ids: str = "number") -> Annotations:
    """The tables of what :func:`sets` gave, with its pictures below ``root``."""
    paths, sizes, splits, groups, boxes, names = made
    for number, (path, (width, height)) in enumerate(zip(paths, sizes, strict=True)):
        picture(root / path, number, width=width, height=height)
    keys = [f"{n + 1}" if ids == "number" else f"i{n}" for n in range(len(paths))]
    images = pd.DataFrame(
        {
            "image_id": keys, "path": paths, "width": [w for w, _ in sizes],
            "height": [h for _, h in sizes], "split": splits, "group": groups,
        }
    )  # fmt: skip
    rows = [
        {**box, "image_id": keys[box["image"]], "annotation_id": f"{number + 1}"}
        for number, box in enumerate(boxes)
    ]
    table = BOXES.make(rows) if rows else BOXES.empty().assign(extra=pd.Series(dtype="str"))
    classes = CLASSES.make([{"class_name": name} for name in names])
    return Annotations(IMAGES.make(images), table, classes, ISSUES.empty())


def write(target: str, found: Annotations, root: Path, folder: Path, **options) -> None:
    """Writes by a writer's short name, options checked as those of a recipe are."""
    Spec(use=f"detpipe.data.writers.{target}.write", **options).build(found, root, folder)


def read(source: str, root: Path, **options) -> Annotations:
    """Reads by a reader's short name, with all that its files say."""
    return Spec(use=f"detpipe.data.formats.{source}.read", **options).build(root, extra=True)


def content(found: Annotations, root: Path) -> dict[str, dict]:
    """Digest of a picture's bytes → what is said of it; so files may have any names."""
    images = {}
    groups = found.images["group"] if "group" in found.images else [""] * len(found.images)
    for row, group in zip(found.images.to_dict("records"), groups, strict=True):
        digest = hashlib.sha256((root / row["path"]).read_bytes()).hexdigest()
        boxes = found.boxes[found.boxes["image_id"] == row["image_id"]]
        extra = boxes["extra"] if "extra" in boxes else [""] * len(boxes)
        assert digest not in images
        images[digest] = {
            "size": (row["width"], row["height"]), "split": row["split"], "group": group,
            "class_name": boxes["class_name"].tolist(),
            "boxes": boxes[BOX_COLUMNS].to_numpy(), "area": boxes["area"].to_numpy(),
            "iscrowd": boxes["iscrowd"].tolist(), "difficult": boxes["difficult"].tolist(),
            "extra": [json.loads(text) if text else {} for text in extra],
        }  # fmt: skip
    return images


def differences(found: dict, back: dict, *, keys: tuple[str, ...], pixels: float) -> list[str]:
    """What two results of :func:`content` differ in."""
    assert found.keys() == back.keys()
    wrong = []
    for digest, mine in found.items():
        theirs = back[digest]
        for key in keys:
            if key not in ("boxes", "area"):
                same = mine[key] == theirs[key]
            else:
                tolerance = pixels * (1 if key == "boxes" else 200)
                same = mine[key].shape == theirs[key].shape and bool(
                    np.allclose(mine[key], theirs[key], rtol=0, atol=tolerance)
                )
            wrong += [] if same else [f"{key}: {mine[key]} became {theirs[key]}"]
    return wrong
