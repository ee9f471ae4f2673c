"""The run's numbers between the moment they are made and the moment they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from detpipe.core.errors import NonFiniteLoss

Value = float | Tensor
How = Literal["mean", "last", "exact"]

_MOST_UNREAD = 1000
"""Losses of this many passes are read even when nobody asks, so that memory stays bounded."""


class _UnreadLosses(NamedTuple):
    step: int
    names: tuple[str, ...]
    values: Tensor
    paths: Sequence[str]


class Scalars:
    """Numbers by name. Tensors stay where they are (on the GPU) until somebody needs the number.

    Attributes:
        step: the step that new values belong to (1 is the first); the loop sets it.
    """

    def __init__(self) -> None:
        self.step = 0
        self._unread: list[_UnreadLosses] = []
        self._tensors: dict[str, list[Tensor]] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._last: dict[str, Value] = {}
        self._exact: dict[int, dict[str, Value]] = {}
        self._latest: dict[str, tuple[int, Value]] = {}
        self._failure: NonFiniteLoss | None = None

    def put(self, name: str, value: Value, *, how: How = "mean") -> None:
        """A new value of ``name`` at the current step.

        Args:
            name: grouped by slashes: ``train/loss``, ``val/bbox/AP``, ``time/data``.
            value: a number (of NumPy too) or a tensor of one element.
            how: what is written: ``mean`` over the log interval, the ``last`` one of the interval
                (learning rate), or each one at its ``exact`` step (evaluation results).

        Raises:
            TypeError: it is not one number.
            ValueError: the name is that of the column which says the step.
        """
        if name == "step":
            raise ValueError("scalars.put: 'step' says each row's step; call it 'mine/step' or so")
        value = _one_number(name, value)
        self._latest[name] = (self.step, value)
        if how == "mean":
            if isinstance(value, Tensor):
                self._tensors.setdefault(name, []).append(value)
            else:
                self._add(name, value)
        elif how == "last":
            self._last[name] = value
        else:
            self._exact.setdefault(self.step, {})[name] = value

    def put_losses(self, names: tuple[str, ...], values: Tensor, paths: Sequence[str]) -> None:
        """The losses of one forward pass; nothing waits for them, see :meth:`read_losses`.

        Args:
            names: of the losses.
            values: ``[len(names)]``, detached.
            paths: the pass's images, for the message when a loss is not finite.
        """
        self._unread.append(_UnreadLosses(self.step, names, values, paths))
        if len(self._unread) >= _MOST_UNREAD:
            self.read_losses()

    def read_losses(self) -> None:
        """Looks at all losses not yet looked at; on a GPU this waits for them.

        Raises:
            NonFiniteLoss: one of them is NaN or infinite: the first such step. Every later call
                raises it again, so nothing is saved after it.
        """
        if self._failure is not None:
            raise self._failure
        unread, self._unread = self._unread, []
        for losses, row in zip(unread, _as_rows(unread), strict=True):
            total = math.fsum(row)
            by_name = dict(zip(losses.names, row, strict=True))
            if not math.isfinite(total):
                self._failure = NonFiniteLoss(losses.step, by_name, losses.paths)
                raise self._failure
            for name, value in {"train/loss": total, **_metric_names(by_name)}.items():
                self._add(name, value)
                self._latest[name] = (losses.step, value)

    def take_exact(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Rows ``(step, values)`` of what was put as ``exact`` since the last call."""
        rows, self._exact = self._exact, {}
        for step, values in rows.items():
            yield step, {name: float(value) for name, value in values.items()}

    def take_interval(self) -> dict[str, float]:
        """Means since the last call, and last values; begins a new interval.

        Raises:
            NonFiniteLoss: see :meth:`read_losses`.
        """
        self._read_all()
        row = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        return row | {name: float(value) for name, value in self._last.items()}

    def mean(self, name: str) -> float:
        """The mean of ``name`` in the interval so far, of values already read; NaN without any."""
        total, count = self._sums.get(name, (math.nan, 1))
        return total / count

    def latest(self, name: str) -> float:
        """The newest value of ``name``; NaN if there was none."""
        return float(self._latest[name][1]) if name in self._latest else math.nan

    def put_now(self, name: str) -> bool:
        """Whether ``name`` got a value at the current step."""
        return name in self._latest and self._latest[name][0] == self.step

    def names(self, *, at: int | None = None) -> list[str]:
        """Names that ever got a value, or got their newest one at step ``at``."""
        return [name for name, (step, _) in self._latest.items() if at is None or step == at]

    @property
    def pending(self) -> bool:
        """Whether the interval holds anything that a row would show."""
        return bool(self._sums or self._tensors or self._unread)

    def state_dict(self) -> dict[str, Any]:
        """The unfinished interval and the newest values, as plain numbers."""
        self._read_all()
        return {
            "sums": dict(self._sums),
            "last": {name: float(value) for name, value in self._last.items()},
            "latest": {name: (step, float(v)) for name, (step, v) in self._latest.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._sums = dict(state["sums"])
        self._last = dict(state["last"])
        self._latest = dict(state["latest"])

    def _add(self, name: str, value: float) -> None:
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def _read_all(self) -> None:
        self.read_losses()
        tensors, self._tensors = self._tensors, {}
        for name, values in tensors.items():
            for value in torch.stack(values).flatten().tolist():
                self._add(name, value)


def _one_number(name: str, value: object) -> Value:
    """A tensor is not read."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach()
    try:
        if not isinstance(value, (Tensor, str)):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise TypeError(f"scalars.put('{name}', …) takes one number, got {value!r}")


def _as_rows(unread: Sequence[_UnreadLosses]) -> list[list[float]]:
    """The values of each entry, with one read for all where their numbers of losses agree."""
    if len({len(losses.names) for losses in unread}) > 1:
        return [losses.values.tolist() for losses in unread]
    return torch.stack([losses.values for losses in unread]).tolist() if unread else []


def _metric_names(losses: Mapping[str, float]) -> dict[str, float]:
    """``loss_box`` and ``box`` both become ``train/loss_box``."""
    return {f"train/loss_{name.removeprefix('loss_')}": value for name, value in losses.items()}
