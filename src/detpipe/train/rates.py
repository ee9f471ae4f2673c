"""The learning rate over a run, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from detpipe.train.build import build_update
from detpipe.train.config import TrainConfig
from detpipe.train.plan import Plan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def learning_rates(
    config: TrainConfig, model: nn.Module, *, images_per_epoch: int, points: int = 1000
) -> pd.DataFrame:
    """The learning rates that a run will use, warm-up included, by the update that uses them.

    Args:
        config: the ``train`` section.
        model: the detector: which groups its parameters form depends on it. Only its gradients
            are dropped.
        images_per_epoch: training images.
        points: a run of more steps has this many rows, evenly spread; the first and the last step
            are among them.

    Returns:
        ``step`` (1 is the first) and one column a learning rate, named after the groups that have
        it.
    """
    import numpy as np
    import pandas as pd

    plan = Plan.of(config, images_per_epoch=images_per_epoch)
    # The precision has no part in it, and a gradient scaler wants its device.
    config = config.model_copy(update={"precision": "fp32"})
    update = build_update(config, model, plan=plan, device=torch.device("cpu"))
    groups = update.optimizer.param_groups
    by_rate: dict[float, list[int]] = {}
    for number, group in enumerate(groups):
        by_rate.setdefault(group["lr"], []).append(number)
    names = {
        same[0]: ", ".join(str(groups[number].get("name", "all")) for number in same)
        for same in by_rate.values()
    }
    rows = []
    for step in np.unique(np.linspace(0, plan.total_steps - 1, points).round()).tolist():
        update.begin(step / plan.total_steps)
        rows.append(
            {
                "step": int(step) + 1,
                **{name: float(groups[number]["lr"]) for number, name in names.items()},
            }
        )
    return pd.DataFrame(rows)


def plot(rates: pd.DataFrame) -> Figure:
    """What :func:`learning_rates` gives, a curve a column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    groups = rates.drop(columns="step")
    for name, values in groups.items():
        label = str(name).replace("$", r"\$")  # a pattern's end is no mathematics
        axes.step(rates["step"], values, where="post", label=label)
    last = rates["step"].iloc[-1]
    axes.set(xlabel="step", ylabel="learning rate", title=f"Learning rate over {last} steps")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(groups.columns) > 1:
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure
