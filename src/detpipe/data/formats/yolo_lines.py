"""The lines of YOLO's label files as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from detpipe.data.formats.yolo_config import Keypoints


@dataclass
class Parsed:
    """What some lines say.

    Attributes:
        numbers: ``int64 [N]``, the class's number of each line; -1 where there is none.
        corners: ``float64 [N, 4]``, x1 y1 x2 y2 as shares of the image.
        mistakes: index of a line that cannot be read → why.
        polygons: index of a line → x y of its points, shares.
        poses: index of a line → the numbers of its keypoints.
    """

    numbers: npt.NDArray[np.int64]
    corners: npt.NDArray[np.float64]
    mistakes: dict[int, str] = field(default_factory=dict)
    polygons: dict[int, list[float]] = field(default_factory=dict)
    poses: dict[int, list[float]] = field(default_factory=dict)


def parse(lines: Sequence[str], keypoints: Keypoints | None) -> Parsed:
    """Reads lines that are not empty: a box, a polygon, or a box with keypoints each."""
    words = [line.split() for line in lines]
    parsed = Parsed(np.full(len(lines), -1), np.full((len(lines), 4), np.nan))
    boxes = [at for at, line in enumerate(words) if len(line) == 5]
    try:
        flat = list(map(float, chain.from_iterable(words[at] for at in boxes)))
    except ValueError:
        boxes, flat = [], []  # one by one, so that each mistake is named
    values = np.array(flat, np.float64).reshape(-1, 5)
    whole = (values[:, 0] % 1 == 0) & (np.abs(values[:, 0]) < 2**62)
    plain = np.array(boxes, np.int64)[whole]
    parsed.numbers[plain] = values[whole, 0].astype(np.int64)
    parsed.corners[plain] = _corners(values[whole, 1:])
    done = set(plain.tolist())
    for at, line in enumerate(words):
        if at not in done:
            try:
                _read(line, at, keypoints, parsed)
            except ValueError as error:
                parsed.mistakes[at] = str(error)
    return parsed


def _corners(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x1 y1 x2 y2 of centre and size."""
    half = boxes[:, 2:] / 2
    return np.hstack([boxes[:, :2] - half, boxes[:, :2] + half])


def _read(words: Sequence[str], at: int, keypoints: Keypoints | None, parsed: Parsed) -> None:
    values = [_number(word) for word in words]
    if not (values[0].is_integer() and abs(values[0]) < 2**62):
        raise ValueError("the class number must be a whole number")
    rest = values[1:]
    if keypoints is not None and len(rest) == 4 + keypoints[0] * keypoints[1]:
        parsed.corners[at] = _corners(np.array([rest[:4]]))[0]
        parsed.poses[at] = rest[4:]
    elif len(rest) == 4:
        parsed.corners[at] = _corners(np.array([rest]))[0]
    elif keypoints is not None:
        raise ValueError(
            f"write 'class x y width height' and, as kpt_shape says, {keypoints[1]} numbers for "
            f"each of {keypoints[0]} keypoints"
        )
    elif len(rest) >= 6 and len(rest) % 2 == 0:
        points = np.array(rest).reshape(-1, 2)  # numpy's min and max pass a NaN on
        parsed.corners[at] = [*points.min(axis=0), *points.max(axis=0)]
        parsed.polygons[at] = rest
    elif len(rest) == 5:
        raise ValueError(
            "a sixth number, the confidence: this is a file of predictions, not the truth; give "
            "the folder of the labels"
        )
    else:
        raise ValueError(
            "write 'class x y width height', or 'class' and three or more points of a polygon; "
            "for keypoints the YAML must have kpt_shape"
        )
    parsed.numbers[at] = int(values[0])


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"'{word}' is no number") from None


def extra_of(parsed: Parsed, at: int, width: int, height: int, keypoints: Keypoints | None) -> str:
    """Polygon or keypoints of a line in pixels, as COCO writes them, as JSON; '' for a box."""
    if at in parsed.polygons:
        points = parsed.polygons[at]
        xs, ys = [x * width for x in points[0::2]], [y * height for y in points[1::2]]
        outline = [value for pair in zip(xs, ys, strict=True) for value in pair]
        return msgspec.json.encode({"segmentation": [outline]}).decode()
    if at not in parsed.poses or keypoints is None:
        return ""
    numbers = np.array(parsed.poses[at]).reshape(keypoints)
    seen = numbers[:, 2] if keypoints[1] == 3 else 2.0 * (numbers > 0).all(axis=1)
    points3 = np.column_stack([numbers[:, 0] * width, numbers[:, 1] * height, seen])
    return msgspec.json.encode(
        {"keypoints": points3.ravel().tolist(), "num_keypoints": int((seen > 0).sum())}
    ).decode()
