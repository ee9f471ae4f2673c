"""COCO's matching at one IoU a second time: loops, in exact fractions, from its definition."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import hypothesis.strategies as st

Box = tuple[int, int, int, int]
IMAGES, CLASSES = ["10", "2"], ["a", "b-c", "d"]


class Truth(NamedTuple):
    """A box of the truth."""

    image: str
    label: str
    box: Box
    crowd: bool


class Found(NamedTuple):
    """A detection; the score is a fraction of twelve."""

    image: str
    label: str
    box: Box
    twelfths: int


class Counted(NamedTuple):
    """A detection with the overlap it was right with, or None where it was wrong."""

    label: str
    score: Fraction
    iou: Fraction | None


# Few boxes, whose overlaps are often alike and often just 1/4, 1/2 or 3/4.
_box = st.sampled_from(
    [(0, 0, 4, 4), (0, 0, 4, 3), (0, 1, 4, 4), (0, 0, 4, 2), (0, 2, 4, 4), (0, 0, 4, 1),
     (2, 0, 6, 4), (0, 0, 5, 4), (7, 7, 9, 9)]
)  # fmt: skip
_image, _label = st.sampled_from(IMAGES), st.sampled_from(CLASSES)
truths = st.lists(st.builds(Truth, _image, _label, _box, st.sampled_from([False, False, True])),
                  max_size=10)  # fmt: skip
founds = st.lists(st.builds(Found, _image, _label, _box, st.integers(0, 12)), max_size=16)
ious = st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)])
limits = st.sampled_from([1, 2, 100])


def match(
    truth: Sequence[Truth], found: Sequence[Found], *, iou: Fraction, limit: int
) -> dict[int, tuple[int, Fraction] | str]:
    """Place of a detection → (place of the box it took, their IoU), ``wrong`` or ``ignored``."""
    outcomes: dict[int, tuple[int, Fraction] | str] = {}
    for image in IMAGES:
        for label in CLASSES:
            mine = [n for n, f in enumerate(found) if (f.image, f.label) == (image, label)]
            best_first = sorted(mine, key=lambda n: -found[n].twelfths)[:limit]
            free = [n for n, t in enumerate(truth) if t[:2] == (image, label) and not t.crowd]
            crowds = [t for t in truth if t[:2] == (image, label) and t.crowd]
            for n in best_first:
                box = found[n].box
                rivals = [(_overlap(box, truth[m].box), m) for m in free]
                best = max(rivals, default=(Fraction(0), -1))  # of equals the later, as COCO does
                if best[0] >= iou:
                    free.remove(best[1])
                    outcomes[n] = (best[1], best[0])
                elif any(_overlap(box, c.box, of_first=True) >= iou for c in crowds):
                    outcomes[n] = "ignored"
                else:
                    outcomes[n] = "wrong"
    return outcomes


def counted(
    truth: Sequence[Truth], found: Sequence[Found], *, iou: Fraction, limit: int
) -> list[Counted]:
    """The detections that are right or wrong."""
    return [
        Counted(found[n].label, Fraction(found[n].twelfths, 12),
                None if outcome == "wrong" else outcome[1])
        for n, outcome in match(truth, found, iou=iou, limit=limit).items()
        if outcome != "ignored"
    ]  # fmt: skip


def tables(make: Any, truth: Sequence[Truth], found: Sequence[Found]) -> Any:
    """The four tables."""
    return make.tables(
        make.images(IMAGES),
        make.boxes(*((t.image, t.label, *t.box) for t in truth), iscrowd=[t.crowd for t in truth]),
        make.detections(*((f.image, f.label, *f.box, f.twelfths / 12) for f in found)),
        make.classes(*CLASSES),
    )


@cache
def _overlap(a: Box, b: Box, *, of_first: bool = False) -> Fraction:
    """Shared pixels over those of the union, or over those of the first."""

    def pixels(box: Box) -> set[tuple[int, int]]:
        x1, y1, x2, y2 = box
        return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}

    return Fraction(
        len(pixels(a) & pixels(b)), len(pixels(a) if of_first else pixels(a) | pixels(b))
    )
