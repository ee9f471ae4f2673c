"""Thin twins on a GPU: nothing waits between log points, precisions, resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from detpipe.core.config import Duration
from detpipe.hooks.measure import Callback, StepTimer
from detpipe.hooks.record import Record
from detpipe.hooks.update import EMA
from detpipe.hooks.writers import Json
from detpipe.train.config import Clip
from detpipe.train.contract import Phase
from detpipe.train.loop import fit
from detpipe.train.update import GradientUpdate

from .toys import ToyStream, config, detector, same, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nothing_waits_for_the_gpu_between_log_points(tmp_path: Path, precision: str) -> None:
    """torch itself raises where a step would wait; waiting is allowed in RECORD only."""
    watch = torch.cuda.set_sync_debug_mode
    hooks = {
        "ema": EMA(decay=0.9),
        "timer": StepTimer(),
        "allow": Callback(phase=Phase.DECIDE, on_step=lambda ctx: watch("default")),
        "record": Record({"json": Json(tmp_path)}, every=Duration(steps=5)),
        "forbid": Callback(phase=Phase.SAVE, on_step=lambda ctx: watch("error")),
    }
    model = detector(norm=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    update = GradientUpdate(
        optimizer, accumulate=2, clip=Clip(norm=1.0), precision=precision, device="cuda"
    )
    try:
        ctx = fit(
            model, ToyStream(), update,
            total_steps=20, images_per_step=8, hooks=hooks, device="cuda",
        )  # fmt: skip
    finally:
        watch("default")
    rows = Json(tmp_path).rows()
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert ctx.scalars.latest("train/lr") == 0.01


def test_losses_equal_those_of_the_cpu(tmp_path: Path) -> None:
    settings = {"duration": "10 steps", "log_every": "1 steps"}
    model = {"norm": True}
    on_cpu = train(tmp_path / "cpu", config(**settings), model=detector(**model)).history
    with torch.backends.cudnn.flags(allow_tf32=False):
        on_gpu = train(
            tmp_path / "gpu", config(**settings, device="cuda"), model=detector(**model)
        ).history
    assert list(on_gpu["train/loss"]) == pytest.approx(list(on_cpu["train/loss"]), rel=1e-3)


def test_resumed_equals_unbroken(tmp_path: Path) -> None:
    """With deterministic kernels; without them a GPU promises no bits."""

    class Killed(BaseException):
        pass

    def die(model: torch.nn.Module) -> dict[str, float]:
        raise Killed

    settings = {"device": "cuda", "precision": "fp16"}
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        unbroken = train(tmp_path / "a", config(**settings))
        with pytest.raises(Killed):
            train(tmp_path / "b", config(**settings), evaluate=die)
        resumed = train(tmp_path / "b", config(**settings, resume=True))
    assert same(resumed.weights, unbroken.weights)
