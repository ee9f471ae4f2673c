from __future__ import annotations

import pytest

from detpipe.core.config import Spec
from detpipe.core.errors import DataError
from detpipe.data.sampler import sequential, shuffle


def test_every_image_once_an_epoch_each_in_its_own_order() -> None:
    sampler = shuffle(length=50, seed=1)
    epochs = [[sampler.index(50 * e + i) for i in range(50)] for e in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_order_is_a_function_of_seed_and_position_only() -> None:
    straight, jumping = shuffle(length=7, seed=5), shuffle(length=7, seed=5)
    order = [straight.index(p) for p in range(40)]
    for position in (39, 3, 20, 3, 0, 14, 39):
        assert jumping.index(position) == order[position]
    assert [shuffle(length=7, seed=6).index(p) for p in range(40)] != order


def test_sequential() -> None:
    assert [sequential(length=3).index(p) for p in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", ["shuffle", "sequential"])
def test_built_from_a_spec_with_what_the_program_offers(name: str) -> None:
    spec = Spec(use=f"detpipe.data.sampler.{name}")
    sampler = spec.build(length=4, seed=0, store=None)
    assert {sampler.index(p) for p in range(4)} == {0, 1, 2, 3}


def test_empty_store_is_an_error() -> None:
    with pytest.raises(DataError, match="train split is empty"):
        shuffle(length=0, seed=0)
