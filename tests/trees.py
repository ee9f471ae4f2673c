"""Comparing what checkpoints and records hold."""

from __future__ import annotations

import torch


def equal_trees(a: object, b: object, where: str = "") -> None:
    """Bit for bit, type for type; NaN equals NaN."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            equal_trees(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            equal_trees(x, y, f"{where}/{number}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b or a != a, where  # NaN is NaN
