"""What a detector costs: parameters, FLOPs, activations, memory of a training step, latency.

Everything is measured on a copy: weights, statistics of normalisation layers, modes and random
numbers of the caller's model stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from detpipe.core.errors import ConfigError
from detpipe.core.types import Batch, Detector

if TYPE_CHECKING:
    import pandas as pd

Precision = Literal["fp32", "bf16", "fp16"]

_aten = torch.ops.aten
_PRODUCERS = {_aten.convolution, _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
"""Convolutions and matrix products: the layers whose outputs are counted as activations."""


def describe_model(
    model: nn.Module,
    batch: Batch,
    *,
    depth: int = 2,
    latency_runs: int = 20,
    warm_up: int = 3,
    precision: Precision = "fp32",
) -> pd.DataFrame:
    """One row for the whole model and one for each module down to ``depth``, children included.

    * ``parameters``, ``trainable``: numbers of elements; shared ones count once.
    * ``flops``: of ``detect`` on the batch's first image, a multiply-add counted as 2, by
      ``torch.utils.flop_counter``: convolutions, matrix products and attention; all else is 0.
      Where torchvision's tables or papers count multiply-adds as 1, theirs is half of it.
    * ``activations``: elements that convolutions and matrix products put out in it (the measure
      of "Designing Network Design Spaces", Radosavovic et al. 2020).
    * ``training_mib``: what autograd keeps of ``batch`` for the backward pass (MiB, each storage
      once, parameters and buffers left out): it grows with the batch, and comes on top of weights,
      gradients and the optimiser's state.
    * ``detect_ms`` and its quartiles ``detect_ms_25``, ``detect_ms_75``: milliseconds of
      ``detect`` on that image, on the device that the model is on; for the whole model only. How
      many boxes untrained weights find is not how many trained ones find.
    * ``image`` (height × width), ``batch_size``, ``precision`` (of the training pass), ``device``:
      what it was measured with.

    Args:
        model: a :class:`~detpipe.core.types.Detector`, on the device to measure.
        batch: images as training gives them.
        depth: how deep modules are listed; 0 lists the whole model only.
        latency_runs: calls of ``detect`` that are timed; 0 for none.
        warm_up: calls before them that are not.
        precision: autocast of the training pass, as ``train.precision``.

    Raises:
        ConfigError: ``depth``, ``latency_runs`` or ``warm_up`` is negative, the batch is empty, or
            the model is no detector.
    """
    import pandas as pd

    for name, value in {"depth": depth, "latency_runs": latency_runs, "warm_up": warm_up}.items():
        if value < 0:
            raise ConfigError(f"describe_model: {name} is {value}; it must be 0 or more")
    if not len(batch):
        raise ConfigError("describe_model needs a batch with at least one image")
    if not isinstance(model, Detector):
        raise ConfigError(f"a {type(model).__name__} is no detector: it has no method 'detect'")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = batch.to(device)
    probe = copy.deepcopy(model)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        measured = _measure(probe, batch, precision=precision)
        latency = _latency(probe, batch.images[0], runs=latency_runs, warm_up=warm_up)
    height, width = batch.images[0].shape[-2:]
    conditions = {
        "image": f"{height} × {width}",
        "batch_size": len(batch),
        "precision": precision,
        "device": str(device),
    }
    unknown = dict.fromkeys(latency, math.nan)
    rows = [
        {
            "module": name or "(whole model)",
            **_counts(module, measured[name]),
            **(unknown if name else latency),
            **conditions,
        }
        for name, module in model.named_modules()
        if not name or name.count(".") < depth
    ]
    return pd.DataFrame(rows)


def _counts(module: nn.Module, costs: _Costs) -> dict[str, Any]:
    """What does not depend on the machine."""
    parameters = list(module.parameters())
    return {
        "type": type(module).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "flops": costs.flops,
        "activations": costs.activations,
        "training_mib": costs.saved / 2**20,
    }


class _Costs(NamedTuple):
    """Of one module, or counted so far."""

    flops: int = 0
    activations: int = 0
    saved: int = 0

    def __add__(self, other: Any) -> _Costs:
        return _Costs(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: _Costs) -> _Costs:
        return _Costs(*(a - b for a, b in zip(self, other, strict=True)))


def _measure(probe: nn.Module, batch: Batch, *, precision: Precision) -> dict[str, _Costs]:
    """Costs by the name of the module, everything that runs inside it included."""
    counter, activations = FlopCounterMode(display=False), _Activations()
    saved = _Saved(
        {t.untyped_storage().data_ptr() for t in (*probe.parameters(), *probe.buffers())}
    )

    def so_far() -> _Costs:
        return _Costs(counter.get_total_flops(), activations.total, saved.total)

    with _by_module(probe, so_far) as costs:
        probe.eval()
        with torch.no_grad(), counter, activations:
            probe.detect(batch.images[:1])  # type: ignore[operator]
        probe.train()
        with _autocast(precision, batch.images[0].device), saved.watch():
            losses = probe(batch)
        del losses
    return {**_with_containers(probe, costs), "": so_far()}


def _with_containers(model: nn.Module, costs: dict[str, _Costs]) -> dict[str, _Costs]:
    """Modules that are not called themselves, such as a ``ModuleList``, cost what is in them."""
    modules = dict(model.named_modules())
    whole = dict(costs)
    for name in reversed(modules):  # children come after their parents
        if name not in whole:
            children = (
                f"{name}.{child}".lstrip(".") for child, _ in modules[name].named_children()
            )
            whole[name] = sum((whole[c] for c in children if c in whole), start=_Costs())
    return whole


@contextlib.contextmanager
def _by_module(model: nn.Module, so_far: Callable[[], _Costs]) -> Iterator[dict[str, _Costs]]:
    """Adds up what is counted between the beginning and the end of each module's calls."""
    costs: dict[str, _Costs] = {}
    began: list[_Costs] = []
    handles = []
    for name, module in model.named_modules():

        def before(*_: Any) -> None:
            began.append(so_far())

        def after(*_: Any, name: str = name) -> None:
            costs[name] = costs.get(name, _Costs()) + so_far().minus(began.pop())

        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after))
    try:
        yield costs
    finally:
        for handle in handles:
            handle.remove()


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements that convolutions and matrix products put out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCERS:
            self.total += out.numel()
        return out


@dataclass
class _Saved:
    """Bytes that autograd keeps for the backward pass.

    Attributes:
        known: addresses of storages that do not count: those of parameters and buffers.
        kept: address → storage; held so that no address is used twice.
        total: bytes so far.
    """

    known: set[int]
    kept: dict[int, Any] = field(default_factory=dict)
    total: int = 0

    def watch(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _never_needed)

    def _pack(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self.known and address not in self.kept:
            self.kept[address] = storage
            self.total += storage.nbytes()


def _never_needed(_: Any) -> Tensor:
    raise RuntimeError("this graph is only looked at; it has no backward pass")


def _latency(probe: nn.Module, image: Tensor, *, runs: int, warm_up: int) -> dict[str, float]:
    """Median and quartiles of ``detect`` on one image, in milliseconds; NaN without runs."""
    import numpy as np

    probe.eval()
    times = []
    with torch.no_grad():
        for run in range(warm_up + runs if runs else 0):
            _wait_for(image.device)
            started = perf_counter()
            probe.detect([image])  # type: ignore[operator]
            _wait_for(image.device)
            if run >= warm_up:
                times.append(1000 * (perf_counter() - started))
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75]) if times else [math.nan] * 3
    return {"detect_ms": middle, "detect_ms_25": low, "detect_ms_75": high}


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if precision == "fp32":
        return contextlib.nullcontext()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return torch.autocast(device.type, dtype=dtype)
