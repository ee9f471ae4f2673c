"""Hooks that produce scalars."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Literal

import torch
from torch import nn

from detpipe.core.config import Duration, Every, locate
from detpipe.core.errors import ConfigError
from detpipe.train.contract import Hook, LoopContext, Phase, due
from detpipe.train.launch import rng_state, set_rng_state

logger = logging.getLogger(__name__)


class StepTimer(Hook):
    """``time/step``, ``time/data`` and ``time/eta`` (seconds), ``time/images_per_second``.

    ``time/step`` leaves out evaluation; ``time/eta``, what is left of the run, does not.
    """

    phase = Phase.MEASURE

    def __init__(self) -> None:
        self._began = self._last = self._aside = 0.0
        self._first_step = 0

    def on_start(self, ctx: LoopContext) -> None:
        """The clock starts."""
        self._began = self._last = perf_counter()
        self._first_step = ctx.state.step

    def on_step(self, ctx: LoopContext) -> None:
        """One lap."""
        now, put = perf_counter(), ctx.scalars.put
        seconds = now - self._last - (ctx.aside_seconds - self._aside)
        self._last, self._aside = now, ctx.aside_seconds
        put("time/step", seconds)
        put("time/data", ctx.data_seconds)
        mean = ctx.scalars.mean("time/step")
        put("time/images_per_second", ctx.images_per_step / max(mean, 1e-9), how="last")
        done = ctx.state.step - self._first_step
        put("time/eta", (now - self._began) / done * (ctx.total_steps - ctx.state.step), how="last")


class Memory(Hook):
    """``memory/gpu_peak_mb`` (allocated, since the start) on a GPU, ``memory/rss_peak_mb`` else."""

    phase = Phase.MEASURE

    def on_step(self, ctx: LoopContext) -> None:
        """The peak so far."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() / 2**20
            ctx.scalars.put("memory/gpu_peak_mb", peak, how="last")
        elif (resident := _peak_rss()) is not None:
            ctx.scalars.put("memory/rss_peak_mb", resident, how="last")


class Evaluate(Hook):
    """Evaluates during training and puts the results as scalars.

    The final weights are evaluated by the pipeline, exactly once; so nothing is evaluated after
    the last step, unless a choice of weights to publish depends on it.

    Args:
        evaluate: model → name → value (``val/bbox/AP``), given by the program; None without a
            data set to evaluate on.
        every: the period; 0 for never.
        publish: given by the program, see ``train.publish``.
        compare: the metric by which the better of raw and averaged weights is chosen, with
            an EMA that is evaluated ``beside``. Then ``val/…`` is of the better ones, and
            ``val_model/…`` and ``val_ema/…`` are of each. At a tie the average counts.
        mode: whether more (``max``) or less (``min``) of it is better.
    """

    phase = Phase.MEASURE

    def __init__(
        self,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
        *,
        every: Every,
        publish: Literal["final", "best"] = "final",
        compare: str = "val/bbox/AP",
        mode: Literal["max", "min"] = "max",
    ) -> None:
        self._evaluate, self._every, self._publish = evaluate, every, publish
        self._compare, self._sign = compare, 1 if mode == "max" else -1
        self._period = 0
        self._owed = False

    def on_start(self, ctx: LoopContext) -> None:
        """Says when there will be evaluations; makes up for one that a signal broke off."""
        self._period = ctx.steps(self._every) if self._evaluate else 0
        logger.info(self._plan(ctx))
        if self._owed:
            self._run(ctx)

    def on_step(self, ctx: LoopContext) -> None:
        """Evaluates when it is time; see the class for the last step."""
        if self._at_end(ctx) if ctx.is_last else due(ctx.state.step, self._period):
            self._run(ctx)

    def state_dict(self) -> dict[str, Any]:
        """Whether an evaluation was broken off."""
        return {"owed": self._owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._owed = state["owed"]

    def _run(self, ctx: LoopContext) -> None:
        if self._evaluate is None:
            return
        ctx.scalars.read_losses()  # nothing is measured on weights that are not finite
        self._owed = True
        started = perf_counter()
        try:
            with ctx.aside():
                results = self._both(ctx) if ctx.beside else self._of(ctx.eval_model)
        except (KeyboardInterrupt, SystemExit) as signal:
            logger.warning("the evaluation at step %d is broken off", ctx.state.step)
            ctx.interruption = signal
            return
        self._owed = False
        for name, value in results.items():
            try:
                ctx.scalars.put(name, float(value), how="exact")
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"the evaluation gives {name} = {value!r}; a number is needed"
                ) from error
        ctx.scalars.put("time/evaluate", perf_counter() - started, how="exact")

    def _of(self, model: nn.Module) -> Mapping[str, float]:
        assert self._evaluate is not None  # noqa: S101 - the caller looked
        with undisturbed(model):
            return self._evaluate(model)

    def _both(self, ctx: LoopContext) -> Mapping[str, float]:
        """Results of the better of trained and averaged weights; it becomes ``eval_model``.

        Raises:
            ConfigError: the evaluation does not give the metric to compare by.
        """
        assert ctx.average is not None  # noqa: S101 - it is what stands beside
        models = {"ema": ctx.average, "model": ctx.model}
        results = {name: self._of(model) for name, model in models.items()}
        values = {name: result.get(self._compare) for name, result in results.items()}
        if any(value is None for value in values.values()):
            raise ConfigError(
                f"Evaluate: the evaluation gives no metric '{self._compare}' to compare by; it "
                f"gives {', '.join(results['ema'])}"
            )
        ema, raw = float(values["ema"] or 0), float(values["model"] or 0)
        better = "model" if (raw - ema) * self._sign > 0 or math.isnan(ema) else "ema"
        ctx.eval_model = models[better]
        logger.info(
            "step %d: the %s weights are %s (%s: EMA %.4g, raw %.4g): they count",
            ctx.state.step, "EMA" if better == "ema" else "raw",
            "as good" if ema == raw else "better", self._compare, ema, raw,
        )  # fmt: skip
        each = {}
        for which, result in results.items():
            for name, value in result.items():
                group, slash, rest = name.partition("/")
                each[f"{group}_{which}{slash}{rest}"] = value
        return {**results[better], **each}

    def _at_end(self, ctx: LoopContext) -> bool:
        """Whether a choice of weights waits for an evaluation of the last step."""
        return self._publish == "best" or ctx.beside

    def _plan(self, ctx: LoopContext) -> str:
        total = ctx.total_steps
        if self._evaluate is None:
            return "nothing is evaluated during training: there are no images to evaluate on"
        at = list(range(self._period, total, self._period)) if self._period else []
        if self._at_end(ctx):
            at.append(total)
            chosen = "best" if self._publish == "best" else "better"
            after = f"the {chosen} weights are evaluated once more, after training"
        else:
            after = "the final weights are evaluated once, after training"
        if not at:
            period = f"every {self._every}" if self._period else "a period of 0"
            return f"evaluation: {period} gives none within {total} steps; {after}"
        steps = ", ".join(map(str, at if len(at) < 8 else [*at[:3], "…", *at[-2:]]))
        return f"evaluation: {len(at)} during training, at step {steps} of {total}; {after}"


class Callback(Hook):
    """Plain functions as a hook, each called with the :class:`LoopContext`.

    Args:
        phase: when it runs within a step.
        on_start: a function or its import path, as the others.
        on_gradients: see :class:`~detpipe.train.contract.Hook`.
        on_step: see :class:`~detpipe.train.contract.Hook`.
        on_end: see :class:`~detpipe.train.contract.Hook`.
        every: the period of ``on_step``; each step by default.
    """

    def __init__(
        self,
        *,
        phase: Phase | str = Phase.MEASURE,
        on_start: Callable[[LoopContext], None] | str | None = None,
        on_gradients: Callable[[LoopContext], None] | str | None = None,
        on_step: Callable[[LoopContext], None] | str | None = None,
        on_end: Callable[[LoopContext], None] | str | None = None,
        every: Every = Duration(steps=1),  # noqa: B008 - it is frozen
    ) -> None:
        known = Phase.__members__
        found = known.get(phase.upper()) if isinstance(phase, str) else phase
        if found is None:
            raise ConfigError(f"Callback: phase '{phase}' is none of {', '.join(known)}")
        self.phase = found
        self._every = every
        given = {
            "on_start": on_start, "on_gradients": on_gradients,
            "on_step": on_step, "on_end": on_end,
        }  # fmt: skip
        if not any(given.values()):
            raise ConfigError(f"Callback: there is no function; give one of {', '.join(given)}")
        functions = {
            moment: locate(function) if isinstance(function, str) else function
            for moment, function in given.items()
            if function is not None
        }
        if "on_step" in functions:
            functions["on_step"] = self._periodic(functions["on_step"])
        vars(self).update(functions)  # hides the methods that do nothing

    def _periodic(self, function: Callable[[LoopContext], Any]) -> Callable[[LoopContext], Any]:
        def on_step(ctx: LoopContext) -> None:
            if due(ctx.state.step, ctx.steps(self._every)):
                function(ctx)

        return on_step


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients; then everything is put back.

    Its modules' modes, its device and the random generators: training goes on as if nothing had
    happened in between.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    modes = {module: module.training for module in model.modules()}
    random_numbers = rng_state()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        model.to(device)
        set_rng_state(random_numbers)


def _peak_rss() -> float | None:
    """Of this process, in MiB; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)
