"""Where and how training runs: device, seeds, signals, processes."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from detpipe.core.errors import ConfigError

logger = logging.getLogger(__name__)


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device '{name}' is none; write auto, cpu, cuda, cuda:1 or mps"
        ) from error
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.backends.mps.is_available()}
    if (device.index or 0) >= there.get(device.type, 0):
        raise ConfigError(
            f"device '{name}' is not there (CUDA devices: {torch.cuda.device_count()}); write auto "
            f"to take what there is, or install the PyTorch build for your GPU"
        )
    return device


@contextlib.contextmanager
def torch_threads(number: int | str) -> Iterator[None]:
    """torch works with ``number`` CPU threads; put back afterwards.

    Args:
        number: how many; ``auto`` is ``OMP_NUM_THREADS`` if it is set, else half the cores. Two
            threads on a busy machine of two cores were seven times slower than one, because each
            waits for the other to get a core.
    """
    before = torch.get_num_threads()
    if number == "auto":
        chosen = os.environ.get("OMP_NUM_THREADS") or (os.cpu_count() or 1) // 2
    else:
        chosen = number
    torch.set_num_threads(max(1, int(chosen)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's global generators start from ``seed``; put back afterwards.

    What a model draws (weights, dropout, sampled proposals) then depends on ``seed`` alone, and
    the caller's own random numbers do not depend on whether a model was trained in between.
    """
    before = rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_rng_state(before)


def rng_state() -> dict[str, Any]:
    """The global generators' states, as tensors and plain types."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.array(keys)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Takes back what :func:`rng_state` gave. GPUs that are no longer there are left out."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    for device, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda_state, device)


@dataclass
class Interruption:
    """A signal that asked the run to end.

    Attributes:
        error: what to raise once the state is safe; None while nothing was asked for.
        saves: whether something in the run saves a checkpoint then.
    """

    error: BaseException | None = None
    saves: bool = True
    _breakable: bool = False

    @contextlib.contextmanager
    def breaks(self) -> Iterator[None]:
        """Inside, the signal is raised at once: for long work that leaves no trace half done."""
        self._breakable = True
        try:
            if self.error is not None:
                raise self.error
            yield
        finally:
            self._breakable = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: notes the first signal, raises the second one."""
        error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if self.error is not None:
            raise error
        self.error = error
        if self._breakable:
            raise error
        logger.warning(
            "%s: the run ends after this step, %s; a second one ends it at once",
            signal.Signals(number).name,
            "with a checkpoint" if self.saves else "without a checkpoint (no hook saves one)",
        )


@contextlib.contextmanager
def graceful_interrupts(*, saves: bool = True) -> Iterator[Interruption]:
    """Ctrl-C and SIGTERM become a request that the loop meets after the current step.

    Python lets only the main thread handle signals; elsewhere they keep their usual effect.

    Args:
        saves: whether something saves a checkpoint then; the log line says it.
    """
    interruption = Interruption(saves=saves)
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {
        number: signal.signal(number, interruption.handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and ``torch.compile``."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model
