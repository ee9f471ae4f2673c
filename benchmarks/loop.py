"""The loop's own cost: ``fit`` with its hooks and writers beside a bare PyTorch loop.

The model is one linear layer with four losses, so that nothing but the loops is measured. Both run
in this process, in turn; CPU time of this thread, one torch thread; weights compared bit by bit.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn, optim

from detpipe.core.config import Duration
from detpipe.core.types import Batch, Target
from detpipe.hooks.measure import StepTimer
from detpipe.hooks.record import Record
from detpipe.hooks.writers import Console, Json, TensorBoard
from detpipe.train.contract import Hook
from detpipe.train.loop import fit
from detpipe.train.update import GradientUpdate

BATCH = 4


class Null(nn.Module):
    """Four losses of one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        out = self.layer(torch.stack(batch.images)).square().mean(0)
        return {f"loss_{i}": out[i] for i in range(4)}


class Memory:
    """Batches from memory, addressed by position."""

    images_per_epoch = 64

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        none = torch.zeros(0)
        target = Target(
            image_id="", boxes=torch.zeros(0, 4), labels=none.long(), area=none,
            iscrowd=none.bool(), difficult=none.bool(), original_size=(1, 8),
        )  # fmt: skip
        self._batches = [
            Batch(tuple(torch.randn(BATCH, 8, generator=generator)), (target,) * BATCH)
            for _ in range(16)
        ]

    def batches(self, start: int) -> Iterator[Batch]:
        number = start // BATCH
        while True:
            yield self._batches[number % len(self._batches)]
            number += 1


def bare(model: nn.Module, steps: int) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    for _, batch in zip(range(steps), Memory().batches(0), strict=False):
        loss = sum(model(batch).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ours(model: nn.Module, steps: int, hooks: dict[str, Hook]) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    update = GradientUpdate(optimizer)
    fit(model, Memory(), update, total_steps=steps, images_per_step=BATCH, hooks=hooks)


def everything(folder: Path, steps: int) -> dict[str, Hook]:
    writers = {
        "console": Console(total_steps=steps),
        "json": Json(folder),
        "tensorboard": TensorBoard(folder),
    }
    return {"timer": StepTimer(), "record": Record(writers, every=Duration(steps=20))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    quick = parser.parse_args().quick
    steps, rounds = (200, 3) if quick else (2000, 9)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Null()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variants: dict[str, Callable[[nn.Module], None]] = {
            "bare PyTorch loop, fused SGD": lambda m: bare(m, steps),
            "fit": lambda m: ours(m, steps, {}),
            "fit, timer, Console + Json + TensorBoard": lambda m: ours(
                m, steps, everything(folder, steps)
            ),
        }
        seconds: dict[str, list[float]] = {title: [] for title in variants}
        weights = {}
        for number in range(rounds + 1):
            for title, call in variants.items():
                copied = copy.deepcopy(model)
                before = time.thread_time()
                call(copied)
                if number:  # the first round warms up
                    seconds[title].append(time.thread_time() - before)
                weights[title] = copied.layer.weight.detach()
    first, *others = weights.values()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {steps} steps, {rounds} rounds")
    print(f"weights equal bit by bit: {all(torch.equal(first, other) for other in others)}")
    base = next(iter(seconds.values()))
    for title, values in seconds.items():
        ratio = statistics.median(v / b for v, b in zip(values, base, strict=True))
        print(f"{title:42} {1e6 * statistics.median(values) / steps:7.0f} µs/step  × {ratio:.2f}")


if __name__ == "__main__":
    main()
