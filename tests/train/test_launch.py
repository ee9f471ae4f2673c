"""Devices, seeds, signals."""

from __future__ import annotations

import random
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from detpipe.core.errors import ConfigError
from detpipe.train import launch
from detpipe.train.launch import pick_device, seeded


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device("auto").type in (best, "mps")
    with pytest.raises(ConfigError, match="device 'gpu' is none; write auto"):
        pick_device("gpu")
    with pytest.raises(ConfigError, match=r"device 'cuda:99' is not there \(CUDA devices: \d+\)"):
        pick_device("cuda:99")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_is_scoped() -> None:
    with seeded(5):
        reference = [draw() for _ in range(3)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    unbroken = [draw() for _ in range(4)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = [draw() for _ in range(2)]
    with seeded(5):
        assert [draw() for _ in range(3)] == reference
    with pytest.raises(RuntimeError), seeded(6):
        raise RuntimeError
    assert first + [draw() for _ in range(2)] == unbroken


def test_random_state_survives_a_checkpoint(tmp_path) -> None:
    torch.save(launch.rng_state(), tmp_path / "rng.pt")
    expected = draw()
    launch.set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == expected


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    seen = []

    def body() -> None:
        with launch.graceful_interrupts() as interruption:
            seen.append((interruption.error, signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(None, before)]


def test_long_work_is_broken_off_at_once() -> None:
    with launch.graceful_interrupts() as interruption:
        with pytest.raises(SystemExit), interruption.breaks():
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("it went on")
        assert isinstance(interruption.error, SystemExit)
        with pytest.raises(SystemExit), interruption.breaks():
            pytest.fail("long work began although the run is ending")


def test_unwrapped() -> None:
    class Compiled(nn.Module):  # as torch.compile wraps (importing that takes seconds)
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

    model = nn.Linear(1, 1)
    assert launch.unwrapped(model) is model
    assert launch.unwrapped(Compiled(model)) is model
