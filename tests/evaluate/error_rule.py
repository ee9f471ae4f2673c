"""TIDE's errors and the confusion a second time: loops, in exact fractions, from the definitions.

Of tidecv 1.0.1 with what the module says it does otherwise; the matching is coco_rule's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from . import coco_rule
from .coco_rule import CLASSES, IMAGES, Box, Found, Truth

Meaning = tuple[str, int | None]
"""What a detection is, and the place of the box that it took or means."""


def overlap(a: Box, b: Box) -> Fraction:
    """Shared pixels over those of the union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = ((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return Fraction(shared, sum(areas) - shared)


def judge(
    truth: Sequence[Truth], found: Sequence[Found], *, iou: Fraction, background: Fraction,
    limit: int,
) -> tuple[dict[int, Meaning], set[int], set[int]]:  # fmt: skip
    """(place of a detection → its meaning, places of free boxes, places of missed boxes)."""
    outcomes = coco_rule.match(truth, found, iou=iou, limit=limit)
    taken = {outcome[0] for outcome in outcomes.values() if isinstance(outcome, tuple)}
    meanings: dict[int, Meaning] = {}
    for n, outcome in outcomes.items():
        if outcome == "ignored":
            meanings[n] = ("ignored", None)
            continue
        if isinstance(outcome, tuple):
            meanings[n] = ("right", outcome[0])
            continue
        here = [m for m, t in enumerate(truth) if t.image == found[n].image and not t.crowd]
        rivals = [(overlap(found[n].box, truth[m].box), -m) for m in here]  # the first of equals
        own = [r for r in rivals if truth[-r[1]].label == found[n].label]
        same, other = max(own, default=(0, 0)), max(set(rivals) - set(own), default=(0, 0))
        if background <= same[0] <= iou:
            meanings[n] = ("localisation", -same[1])
        elif other[0] >= iou:
            meanings[n] = ("classification", -other[1])
        elif same[0] >= iou:
            assert -same[1] in taken
            meanings[n] = ("duplicate", -same[1])
        elif max(same[0], other[0]) <= background:
            meanings[n] = ("background", None)
        else:
            meanings[n] = ("both", -other[1])
    free = {m for m, t in enumerate(truth) if not t.crowd} - taken
    means = {m for kind, m in meanings.values() if kind in ("localisation", "classification")}
    return meanings, free, free - means


def gains(
    truth: Sequence[Truth], found: Sequence[Found], meanings: dict[int, Meaning],
    free: set[int], missed: set[int],
) -> dict[str, float]:  # fmt: skip
    """Error → points of AP, each repaired alone."""
    points = [  # best first
        (n, found[n].label, *meanings[n])
        for n in sorted(meanings, key=lambda n: (-found[n].twelfths, int(found[n].image), n))
        if meanings[n][0] != "ignored"
    ]
    best: dict[int, int] = {}
    for n, _, kind, m in points:
        if kind in ("localisation", "classification") and m in free:
            best.setdefault(m, n)
    everything = [m for m, t in enumerate(truth) if not t.crowd]

    def ap(fix: str = "", without: set[int] = frozenset()) -> float:
        flags = defaultdict(list)
        for n, label, kind, m in points:
            if kind != fix:
                flags[label].append(kind == "right")
            elif m is not None and best.get(m) == n:
                flags[truth[m].label].append(True)
        return mean(flags, without)

    def mean(flags: dict[str, list[bool]], without: set[int]) -> float:
        labels = [truth[m].label for m in everything]
        asked = [truth[m].label for m in everything if m not in without]
        values = [
            average_precision(flags[name], asked.count(name)) if name in asked else 1.0
            for name in CLASSES if name in labels
        ]  # fmt: skip
        return 100 * float(np.mean(values)) if values else float("nan")

    only_right = defaultdict(list)
    for _, label, kind, _ in points:
        if kind == "right":
            only_right[label].append(True)
    kinds = ("classification", "localisation", "both", "duplicate", "background")
    values = {kind: ap(kind) for kind in kinds}
    values["missed"], values["false_positive"] = ap(without=missed), mean(only_right, set())
    values["false_negative"] = ap(without=free)
    return {error: value - ap() for error, value in values.items()}


def average_precision(right: Sequence[bool], objects: int) -> float:
    """pycocotools' AP of one class at one IoU, 0..1; NaN without objects."""
    if not objects:
        return float("nan")
    best = []
    for recall in np.linspace(0, 1, 101):
        reached = [
            sum(right[: k + 1]) / (k + 1)
            for k in range(len(right)) if sum(right[: k + 1]) / objects >= recall
        ]  # fmt: skip
        best.append(max(reached, default=0.0))
    return float(np.mean(best))


def confusion(
    truth: Sequence[Truth], found: Sequence[Found], *, iou: Fraction, limit: int
) -> list[list[int]]:
    """Counts ``[C + 1][C + 1]``."""
    background = len(CLASSES)
    counts = [[0] * (background + 1) for _ in range(background + 1)]
    outcomes = coco_rule.match(truth, found, iou=iou, limit=limit)
    free = {m for m, t in enumerate(truth) if not t.crowd}
    for outcome in outcomes.values():
        if isinstance(outcome, tuple):
            free.remove(outcome[0])
            label = CLASSES.index(truth[outcome[0]].label)
            counts[label][label] += 1
    for image in IMAGES:
        wrong = [n for n, o in outcomes.items() if o == "wrong" and found[n].image == image]
        for n in sorted(wrong, key=lambda n: (-found[n].twelfths, n)):
            near = [
                (overlap(found[n].box, truth[m].box), -m) for m in free if truth[m].image == image
            ]
            most, place = max(near, default=(Fraction(0), 0))
            row = background
            if most >= iou:
                free.remove(-place)
                row = CLASSES.index(truth[-place].label)
            counts[row][CLASSES.index(found[n].label)] += 1
    for m in free:
        counts[CLASSES.index(truth[m].label)][background] += 1
    return counts
