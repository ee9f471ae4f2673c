"""The built-in sample set: small pictures of shapes, made on first use.

It is a real COCO data set on disk, so its folder also shows what one's own should look like. What
is where is decided by Python's ``random.random`` and arithmetic alone, so the annotations are the
same on every machine; the JPEG bytes may differ between versions of libjpeg.
"""

from __future__ import annotations

import json
import logging
import math
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from detpipe.core.errors import ConfigError, DataError
from detpipe.data.formats import coco
from detpipe.data.formats.base import Annotations
from detpipe.data.shapes import AREAS, SHAPES, Floats, background, texture

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

CLASSES = tuple(SHAPES)
"""The classes of the sample set, by name."""

_VERSION = 2
"""Changes whenever the pictures do, so that an older set is not taken for this one."""
_MARKER = "sample.json"
_SPLITS = (("train", 0.7), ("val", 0.15), ("test", 0.15))
_MOST_OBJECTS = 7
_EMPTY_EVERY = 20
"""One picture in so many shows nothing."""
_LEAST_VISIBLE = 0.75
"""Share of an object that must stay visible beside other objects and the picture's edge."""
_MOST_ON_OTHERS = 0.25
"""Share of an object that may lie on another one."""
_README = """\
The sample set of detpipe: {images} pictures of {size} x {size} pixels with shapes, made by
detpipe.data.sample (seed {seed}). It may be deleted: it is made again when it is missing.

A data set of your own can have the same form (COCO):

  images/train/*.jpg                   the pictures, in one folder a split
  images/val/*.jpg
  images/test/*.jpg
  annotations/instances_train.json     what is where in them, one file a split
  annotations/instances_val.json
  annotations/instances_test.json

Each JSON file holds three lists:

  images        id, file_name, width, height
  annotations   id, image_id, category_id, bbox [x, y, width, height] in pixels, area, iscrowd
  categories    id, name

Pictures in which nothing is to be found stay in "images" and have no annotation.
"""


def read(root: Path, *, images: int = 400, size: int = 192, seed: int = 0) -> Annotations:
    """Makes the sample set in ``root`` unless it is there, and reads it.

    Args:
        root: folder of the set; must not exist, be empty, or hold this set.
        images: how many pictures; 70 % train, 15 % val, 15 % test.
        size: height and width of the pictures, pixels.
        seed: same seed, same set.

    Raises:
        DataError: ``root`` holds something else (nothing is touched).
        ConfigError: too few images, or too small ones.
    """
    if images < 20 or size < 96:
        raise ConfigError(
            f"detpipe.data.sample.read: images must be 20 or more and size 96 or more, got "
            f"{images} and {size}"
        )
    root = Path(root)
    made = {"made_by": __name__, "version": _VERSION, "images": images, "size": size, "seed": seed}
    if not _is_there(root, made):
        _make(root, made)
    return coco.read(root)


def _is_there(root: Path, made: dict[str, Any]) -> bool:
    """Whether ``root`` holds the set that ``made`` describes; False if there is nothing.

    Raises:
        DataError: it holds something else.
    """
    marker = root / _MARKER
    if marker.is_file():
        try:
            found = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        if found == made:
            return True
        raise DataError(
            f"{root} holds a sample set made with other settings ({marker.name}: {found}; asked "
            f"for: {made}). Delete the folder, or set another path in the catalog"
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(
            f"{root} holds something that is not the sample set. For your own data set "
            f"data.reader to its format (such as detpipe.data.formats.coco.read); for the sample "
            f"set give a folder that does not exist yet"
        )
    return False


def _make(root: Path, made: dict[str, Any]) -> None:
    """Makes the set in a folder beside ``root`` and moves it there when it is whole."""
    root.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        folder = workshop / root.name
        folder.mkdir()
        _write_set(folder, **{key: made[key] for key in ("images", "size", "seed")})
        (folder / _MARKER).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        (folder / "README.txt").write_text(_README.format(**made), encoding="utf-8")
        try:
            if root.exists():
                root.rmdir()  # empty, see _is_there
            folder.rename(root)
        except OSError:
            if not _is_there(root, made):  # another process may have made it meanwhile
                raise
        logger.info("made the sample set of %d pictures in %s", made["images"], root)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _write_set(folder: Path, *, images: int, size: int, seed: int) -> None:
    counts = {name: round(images * share) for name, share in _SPLITS[1:]}
    counts = {"train": images - sum(counts.values()), **counts}
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, start=1)]
    (folder / "annotations").mkdir()
    number, annotation_id = 0, 0
    for split, count in counts.items():
        (folder / "images" / split).mkdir(parents=True)
        records, annotations = [], []
        for _ in range(count):
            number += 1
            empty = number % _EMPTY_EVERY == 0
            pixels, objects = _picture(size, random.Random(f"{seed}/{number}"), empty=empty)
            name = f"{number:06d}.jpg"
            data = simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420")
            (folder / "images" / split / name).write_bytes(data)
            records.append({"id": number, "file_name": name, "width": size, "height": size})
            for class_name, visible in objects:
                annotation_id += 1
                annotations.append(
                    {
                        "id": annotation_id,
                        "image_id": number,
                        "category_id": CLASSES.index(class_name) + 1,
                        "bbox": _bounds(visible),
                        "area": int(visible.sum()),
                        "iscrowd": 0,
                    }
                )
        content = {"images": records, "annotations": annotations, "categories": categories}
        path = folder / "annotations" / f"instances_{split}.json"
        path.write_text(json.dumps(content), encoding="utf-8")


def _bounds(mask: Mask) -> list[int]:
    """[x, y, width, height] around the mask."""
    ys, xs = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [int(xs[0]), int(ys[0]), int(xs[-1] - xs[0] + 1), int(ys[-1] - ys[0] + 1)]


@dataclass(frozen=True)
class _Drawn:
    """One object.

    Attributes:
        class_name: what it is.
        window: rows and columns of the picture that hold it.
        alpha: how much of each pixel of the window it covers, 0..1.
        mask: the pixels of the whole picture that it covers at least by half.
        whole: how many these would be without the picture's edge.
    """

    class_name: str
    window: tuple[slice, slice]
    alpha: Floats
    mask: Mask
    whole: float


def _picture(
    size: int, chance: random.Random, *, empty: bool
) -> tuple[npt.NDArray[np.uint8], list[tuple[str, Mask]]]:
    """A picture ``uint8 [size, size, 3]``; (class, visible pixels) of each object, back first."""
    drawn: list[_Drawn] = []
    visible: list[Mask] = []
    wanted = 0 if empty else 1 + int(chance.random() * _MOST_OBJECTS)
    for _ in range(wanted):
        for _ in range(10):
            new = _object(size, chance)
            left = [mask & ~new.mask for mask in visible] + [new.mask]
            if _well_seen([*drawn, new], left) and _well_apart(new, visible):
                drawn.append(new)
                visible = left
                break
    # Colours and noise come from numpy: they may change with its version, the boxes must not.
    paint = np.random.default_rng(int(chance.random() * 2**32))
    canvas = background(size, paint)
    for thing in drawn:
        behind, alpha = canvas[thing.window], thing.alpha[..., None]
        hue = CLASSES.index(thing.class_name) / len(CLASSES)  # neighbours overlap: a hint only
        paint_on = texture(alpha.shape[:2], paint, hue=hue, behind=behind.mean((0, 1)))
        behind += (paint_on - behind) * alpha
    canvas += paint.standard_normal(canvas.shape, np.float32) * np.float32(paint.uniform(2, 6))
    pixels = np.clip(canvas, 0, 255).astype(np.uint8)
    return pixels, [(t.class_name, mask) for t, mask in zip(drawn, visible, strict=True)]


def _well_seen(things: list[_Drawn], visible: list[Mask]) -> bool:
    """Whether enough of every object is visible for its box to be a matter of fact."""
    pairs = zip(things, visible, strict=True)
    return all(mask.sum() >= _LEAST_VISIBLE * thing.whole for thing, mask in pairs)


def _well_apart(new: _Drawn, visible: list[Mask]) -> bool:
    """Whether most of ``new`` lies on the background: one disc within another is a riddle."""
    return all((mask & new.mask).sum() <= _MOST_ON_OTHERS * new.whole for mask in visible)


def _object(size: int, chance: random.Random) -> _Drawn:
    """A shape somewhere in the picture, from small to large."""
    class_name = CLASSES[int(chance.random() * len(CLASSES))]
    small, large = 13.0 * size / 192, 44.0 * size / 192
    radius = small * (large / small) ** chance.random()
    x, y = (radius * 0.8 + (size - radius * 1.6) * chance.random() for _ in range(2))
    turn = (chance.random() - 0.5) * math.pi / 6
    top, left = max(0, int(y - radius - 1)), max(0, int(x - radius - 1))
    bottom, right = min(size, int(y + radius + 2)), min(size, int(x + radius + 2))
    ys, xs = np.mgrid[top:bottom, left:right].astype(np.float64)
    xs, ys = xs + (0.5 - x), ys + (0.5 - y)
    cos, sin = math.cos(turn), math.sin(turn)
    distance = SHAPES[class_name](xs * cos + ys * sin, ys * cos - xs * sin, radius)
    alpha = np.clip(0.5 - distance, 0, 1).astype(np.float32)
    window = slice(top, bottom), slice(left, right)
    mask = np.zeros((size, size), np.bool_)
    mask[window] = alpha >= 0.5
    return _Drawn(class_name, window, alpha, mask, AREAS[class_name] * radius**2)
