"""Pictures that look the same: a perceptual hash of 64 bits, and who is near whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import cv2
import numpy as np
import numpy.typing as npt

NO_HASH = 0
"""The hash of a picture with too little in it to be told from others."""

_LEVELS = 2.0
"""Grey levels by which neighbouring cells must differ to say something: noise stays below."""
_TELLING = 24
"""Cells of 64 that must say something. Photographs of the real sets have 38 and more."""


def perceptual_hash(grey: npt.NDArray[np.uint8]) -> int:
    """The difference hash: is each cell of a 9 × 8 grid brighter than its left neighbour?

    It stands scaling, recompression and other exposure, not turning or cropping.

    Args:
        grey: ``[H, W]``, upright.

    Returns:
        64 bits as a signed integer; :data:`NO_HASH` for a picture that is nearly flat.
    """
    cells = cv2.resize(grey.astype(np.float32), (9, 8), interpolation=cv2.INTER_AREA)
    steps = np.diff(cells, axis=1)
    if (np.abs(steps) >= _LEVELS).sum() < _TELLING:
        return NO_HASH
    return int(np.packbits(steps > 0).view(np.int64)[0])


def near_pairs(hashes: npt.NDArray[np.int64], *, bits: int) -> npt.NDArray[np.int64]:
    """All pairs of hashes that differ in at most ``bits`` of their 64 bits.

    The bits are dealt to ``bits + 2`` blocks. Two hashes that are near agree in two whole blocks at
    least, so only those which share a pair of blocks are compared: with few bits, nearly linear.

    Args:
        hashes: ``[N]``, each value once.
        bits: 0..62.

    Returns:
        ``[pairs, 2]``, positions in ``hashes``, smaller first, each pair once.
    """
    values = hashes.view(np.uint64)
    blocks = bits + 2
    # Bit i goes to block i mod blocks: neighbouring bits depend on one another.
    masks = [sum(1 << i for i in range(block, 64, blocks)) for block in range(blocks)]
    found = np.empty(0, np.int64)  # first * N + second
    for one, other in combinations(masks, 2):
        keys = values & np.uint64(one | other)
        order = np.argsort(keys, kind="stable")
        keys, ordered = keys[order], values[order]
        at, gap, here = np.arange(len(keys)), 0, [found]
        while len(at):
            gap += 1
            at = at[at + gap < len(keys)]
            at = at[keys[at] == keys[at + gap]]
            near = at[np.bitwise_count(ordered[at] ^ ordered[at + gap]) <= bits]
            ends = order[near], order[near + gap]
            here.append(np.minimum(*ends) * len(keys) + np.maximum(*ends))
        found = np.unique(np.concatenate(here))
    return np.stack(np.divmod(found, max(len(values), 1)), axis=1)


def groups(pairs: Iterable[Sequence[int]]) -> list[list[int]]:
    """What hangs together by pairs: sorted groups of two and more, by their first members."""
    root: dict[int, int] = {}

    def find(member: int) -> int:
        while (above := root.setdefault(member, member)) != member:
            root[member] = member = root[above]
        return member

    for one, other in pairs:
        first, second = sorted((find(int(one)), find(int(other))))
        root[second] = first
    together: dict[int, list[int]] = defaultdict(list)
    for member in sorted(root):
        together[find(member)].append(member)
    return [together[key] for key in sorted(together)]
