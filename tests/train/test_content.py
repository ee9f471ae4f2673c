"""The content of a checkpoint: whatever is saved can be loaded, or is refused when it is saved."""

from __future__ import annotations

import datetime
import enum
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision import tv_tensors

from detpipe.core.errors import CheckpointError
from detpipe.train.content import load_checkpoint, to_cpu
from detpipe.train.contract import Hook, Phase

from .toys import config, same, timeless, train

Pair = namedtuple("Pair", "a b")


class Shape(enum.IntEnum):
    ROUND = 1


def saved_and_loaded(tree: Any, file: Path) -> Any:
    torch.save({"format": 1, "state": {}, "tree": to_cpu(tree)}, file)
    return load_checkpoint(file)["tree"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(0.1), float),
        (np.float32(0.1), float),
        (np.int64(7), int),
        (np.bool_(True), bool),
        (np.str_("seven"), str),
        (np.complex128(1j), complex),
    ],
)
def test_numbers_of_numpy_become_those_of_python(tmp_path: Path, value: Any, kind: type) -> None:
    tree = {"deep": [({value: value},)]}
    ((loaded,),) = saved_and_loaded(tree, tmp_path / "file.pt")["deep"]
    for part in (*loaded.keys(), *loaded.values()):
        assert type(part) is kind
        assert part == value


def test_everything_plain_comes_back(tmp_path: Path) -> None:
    tree = {
        "a": [None, True, 1, 0.5, 1j, "x", b"x", (1, [2]), {3, "y"}],
        ("b", 1): {"size": torch.Size([1, 2]), "type": torch.float16, "on": torch.device("cpu")},
    }
    assert saved_and_loaded(tree, tmp_path / "file.pt") == tree


def test_kinds_of_tensors_and_dicts_become_plain_ones(tmp_path: Path) -> None:
    image = tv_tensors.Image(torch.ones(3, 2, 2))
    tree = OrderedDict(a=image, b=torch.nn.Parameter(torch.ones(2)))
    loaded = saved_and_loaded(tree, tmp_path / "file.pt")
    assert type(loaded) is dict
    assert {type(tensor) for tensor in loaded.values()} == {torch.Tensor}
    assert torch.equal(loaded["a"], torch.ones(3, 2, 2))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.dtype("float32"), r"a numpy\.dtype.* cannot be kept.*names it is made of"),
        (np.zeros(3), r"a numpy\.ndarray cannot be kept.*torch\.from_numpy"),
        (np.datetime64("2020-01-01"), r"a numpy\.datetime64 "),
        (datetime.timedelta(1), r"a datetime\.timedelta "),
        (Path("x"), r"a pathlib\.PosixPath "),
        (Pair(1, 2), r"a .*test_content\.Pair "),
        (Shape.ROUND, r"a .*test_content\.Shape "),
        (object(), "a object "),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^hooks\.mine\.values\.1: {message}"):
        to_cpu({"state": {}, "hooks": {"mine": {"values": [1, value]}}})
    with pytest.raises(CheckpointError, match=rf"^the content: {message}"):
        to_cpu(value)


class Remembers(Hook):
    """A hook that anybody may write, with a state of NumPy."""

    phase = Phase.MEASURE

    def __init__(self, *, array: bool = False) -> None:
        self._state = np.zeros(2) if array else np.float32(0.25)

    def on_step(self, ctx: Any) -> None:
        ctx.scalars.put("mine/mean", np.mean([ctx.state.step, 1]))
        ctx.scalars.put("mine/last", np.float32(0.5), how="last")

    def state_dict(self) -> dict[str, Any]:
        return {"value": self._state}

    def load_state_dict(self, state: Any) -> None:
        assert state["value"] == 0.25


def half(progress: float) -> Any:
    """A schedule of NumPy."""
    return 0.5 * (1 + np.cos(np.pi * progress))


def test_a_run_of_numpys_numbers_can_be_resumed(tmp_path: Path) -> None:
    changes = {
        "optimizer": {"use": "torch.optim.SGD", "lr": 0.01},
        "schedule": {"use": f"{__name__}.half"},
        "hooks": {"mine": {"use": f"{__name__}.Remembers"}},
    }
    whole = train(tmp_path / "a", config(**changes))
    train(tmp_path / "b", config(**changes))
    (tmp_path / "b" / "step_00000050.pt").unlink()
    resumed = train(tmp_path / "b", config(**changes, resume=True))
    assert same(resumed.weights, whole.weights)
    a, b = timeless(resumed.history), timeless(whole.history)
    pd.testing.assert_frame_equal(a, b, check_like=True)
    assert a["mine/mean"].notna().any()


def test_a_state_that_cannot_be_kept_ends_the_run_at_its_first_checkpoint(tmp_path: Path) -> None:
    hooks = {"mine": {"use": f"{__name__}.Remembers", "array": True}}
    with pytest.raises(CheckpointError, match=r"^hooks\.mine\.value: a numpy\.ndarray"):
        train(tmp_path, config(hooks=hooks))
    assert not list(tmp_path.glob("*.pt"))
