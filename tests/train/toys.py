"""A detector and a stream small enough to train in milliseconds, and a bare PyTorch loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from detpipe.core.types import Batch, Target
from detpipe.train.build import train_detector
from detpipe.train.config import TrainConfig
from detpipe.train.launch import seeded
from detpipe.train.result import TrainResult

IMAGES = 20


class ToyDetector(nn.Module):
    """Two losses, each a mean over images; batch norm and (by choice) dropout."""

    def __init__(self, *, dropout: float = 0.0, norm: bool = False, fail_at: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(4 * 4 * 4, 2),
        )
        self.fail_at, self.calls = fail_at, 0

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        self.calls += 1
        images = torch.stack(batch.images).float() / 255
        a, b = self.layers(images).unbind(1)
        loss_a = (a - images.mean((1, 2, 3))).square().mean()
        loss_b = (b - 1).square().mean()
        if self.calls == self.fail_at:
            loss_b = loss_b * torch.nan
        return {"loss_a": loss_a, "b": loss_b}


class ToyStream:
    """Batches addressed by position, read here or by workers."""

    images_per_epoch = IMAGES

    def __init__(self, *, batch_size: int = 4, workers: int = 0, end: int | None = None) -> None:
        self.batch_size, self.workers, self.end = batch_size, workers, end

    def batches(self, start: int) -> Iterator[Batch]:
        end = self.end if self.end is not None else 10**6
        loader = DataLoader(
            _Batches(self.batch_size),
            batch_size=None,
            sampler=range(start, end, self.batch_size),
            num_workers=self.workers,
            generator=torch.Generator(),
        )
        yield from loader


class _Batches(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, position: int) -> Batch:
        items = [image_at(position + k) for k in range(self.size)]
        return Batch(
            tuple(image for image, _ in items),
            tuple(target for _, target in items),
            tuple(f"image_{(position + k) % IMAGES}.jpg" for k in range(self.size)),
        )


def image_at(position: int) -> tuple[Tensor, Target]:
    generator = torch.Generator().manual_seed(position % IMAGES)
    image = torch.randint(0, 256, (3, 6, 6), generator=generator, dtype=torch.uint8)
    nothing = Target(
        image_id=str(position % IMAGES),
        boxes=torch.zeros(0, 4),
        labels=torch.zeros(0, dtype=torch.int64),
        area=torch.zeros(0),
        iscrowd=torch.zeros(0, dtype=torch.bool),
        difficult=torch.zeros(0, dtype=torch.bool),
        original_size=(6, 6),
    )
    return image, nothing


def detector(seed: int = 0, **options: Any) -> ToyDetector:
    with seeded(seed):
        return ToyDetector(**options)


def bare_loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int, batch_size: int = 4
) -> None:
    """What anybody would write without detpipe."""
    model.train()
    for batch in islice(ToyStream(batch_size=batch_size).batches(0), steps):
        optimizer.zero_grad()
        sum(model(batch).values()).backward()
        optimizer.step()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def config(**changes: Any) -> TrainConfig:
    """A run of 50 steps with everything on."""
    settings: dict[str, Any] = {
        "duration": "50 steps",
        "batch_size": 4,
        "optimizer": {"use": "torch.optim.AdamW", "lr": 0.01},
        "schedule": {"use": "detpipe.train.schedule.cosine"},
        "warmup": {"duration": "5 steps"},
        "log_every": "7 steps",
        "device": "cpu",
        "hooks": {
            "ema": {"use": "detpipe.hooks.update.EMA", "decay": 0.9},
            "timer": {"use": "detpipe.hooks.measure.StepTimer"},
            "evaluate": {"use": "detpipe.hooks.measure.Evaluate", "every": "2 epochs"},
            "best": {"use": "detpipe.hooks.decide.Best"},
            "checkpoint": {"use": "detpipe.hooks.save.Checkpoint", "every": "1 epochs"},
        },
        "writers": {
            "json": {"use": "detpipe.hooks.writers.Json"},
            "csv": {"use": "detpipe.hooks.writers.Csv"},
            "tensorboard": {"use": "detpipe.hooks.writers.TensorBoard"},
        },
    }
    return TrainConfig.model_validate(_merged(settings, changes))


def train(folder: Path, settings: TrainConfig, **changes: Any) -> TrainResult:
    """``train_detector`` on toys; ``changes`` replace arguments."""
    arguments: dict[str, Any] = {
        "model": detector(dropout=0.2, norm=True),
        "stream": ToyStream(batch_size=settings.batch_size),
        "classes": ["a", "b"],
        "evaluate": evaluate,
        "run_config": {"train": settings.model_dump(mode="json")},
        **changes,
    }
    model, stream = arguments.pop("model"), arguments.pop("stream")
    return train_detector(model, stream, config=settings, folder=folder, **arguments)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Any function of the weights; it draws random numbers, as a careless one may."""
    torch.rand(3)
    with torch.no_grad():
        return {"val/bbox/AP": 100 * float(torch.sin(sum(p.sum() for p in model.parameters())))}


def timeless(history: pd.DataFrame) -> pd.DataFrame:
    """A history without what differs between two equal runs."""
    return history[[c for c in history.columns if not c.startswith("time/")]].dropna(how="all")


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
