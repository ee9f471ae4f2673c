"""Settings of the ``train`` section that cannot work are refused when it is read."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from detpipe.train.config import TrainConfig

from .toys import config

HOOKS = "detpipe.hooks"
WRITERS = f"{HOOKS}.writers"
SCHEDULE = "detpipe.train.schedule"
NO_EVALUATION = {"evaluate": None, "best": None}


def refused(**changes: Any) -> str:
    """What is said about a run of the toys with ``changes``."""
    with pytest.raises(ValidationError) as error:
        config(**changes)
    return "; ".join(
        f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.value.errors()
    )  # fmt: skip


def hook(use: str, **options: Any) -> dict[str, Any]:
    return {"x": {"use": f"{HOOKS}.{use}", **options}}


class Own:
    """A hook that may evaluate, for all the program knows."""

    def on_step(self, ctx: Any) -> None:
        ctx.scalars.put("val/bbox/AP", 1.0)


def doubled(progress: float) -> float:
    return math.nan if progress > 0.5 else 2.0


def by_length(progress: float, *, to_progress: Any) -> float:
    raise AssertionError("the length of the run is not known yet")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # What the program gives
        ({"hooks": {"checkpoint": {"folder": "/tmp/x"}}}, "'folder' is given by the program"),
        ({"hooks": {"evaluate": {"publish": "best"}}}, "'publish' is given by the program"),
        ({"writers": {"json": {"folder": None}}}, "'folder' is given by the program, got None"),
        ({"sampler": {"use": "detpipe.data.sampler.shuffle", "seed": 1}},
         "train.sampler: .*'seed' is given by the program"),
        ({"schedule": {"use": f"{SCHEDULE}.multi_step", "milestones": [0.5], "to_progress": 1}},
         "'to_progress' is given by the program"),
        # Twice the same
        ({"hooks": hook("save.Checkpoint")}, "checkpoint and x are both .*share one folder"),
        ({"hooks": hook("decide.Best", metric="train/loss")}, "best and x are both .*one mark"),
        ({"hooks": hook("update.EMA")}, "ema and x are both .*only one average"),
        ({"writers": {"x": {"use": f"{WRITERS}.Json"}}}, "json and x are .*the same file"),
        # One without the other
        ({"publish": "best", "hooks": {"checkpoint": {"best": False}}},
         "train.hooks.checkpoint.best is false.* write publish: final"),
        ({"publish": "best", "hooks": {"best": None}}, f"best needs the hook {HOOKS}.decide.Best"),
        ({"hooks": {"evaluate": None}}, f"train.hooks.best looks at 'val/bbox/AP'.*needs the hook "
         f"{HOOKS}.measure.Evaluate"),
        ({"hooks": {**NO_EVALUATION, **hook("decide.EarlyStop", metric="val/bbox/AP50")}},
         "train.hooks.x looks at 'val/bbox/AP50', but nothing evaluates"),
        ({"hooks": {**NO_EVALUATION, "ema": {"beside": True}}}, "train.hooks.ema.beside needs"),
        ({"hooks": {"checkpoint": None, **hook("decide.MaxTime", hours=1)}},
         f"train.hooks.x needs the hook {HOOKS}.save.Checkpoint"),
        ({"hooks": {"checkpoint": None}, "non_finite": {"action": "reload"}},
         "reload needs the hook"),
        ({"dry_run": True, "overfit": 1}, "two different tests"),
        ({"non_finite": {"limit": 3}}, "non_finite: .*limit has no meaning with action: stop"),
        # The program's own names
        ({"hooks": {"record": {"use": f"{HOOKS}.measure.StepTimer"}}}, "hooks.record: .*another"),
        ({"writers": {"history": {"use": f"{WRITERS}.Csv", "name": "a.csv"}}},
         f"train.writers.history: .*{WRITERS}.Csv is not {WRITERS}.Json; choose another name"),
        # Numbers
        ({"seed": 2**63}, f"seed: .*{2**63} is more than {2**63 - 1}: random generators"),
        ({"seed": True}, "seed: .*true is no number"),
        ({"batch_size": True}, "batch_size: .*true is no number"),
        ({"batch_size": 10**6 + 1}, "batch_size: .*1000001 is more than 1000000: no machine"),
        ({"accumulate": 10**30}, "accumulate: .*a number of 31 digits is more than 1000000"),
        ({"reference_batch": 10**400}, "reference_batch: .*a number of 401 digits is more"),
        ({"reference_batch": 0}, "reference_batch: Input should be greater than 0"),
        ({"overfit": 10**7}, "overfit: .*10000000 is more than"),
        ({"duration": "1e300 steps"}, "duration: .*at most 1e\\+12 steps, got 1e\\+300"),
        ({"clip": {"norm": math.inf}}, "clip.norm: Input should be a finite number"),
        ({"warmup": {"factor": math.nan}}, "warmup.factor: Input should be a finite number"),
        ({"groups": {"bias_weight_decay": math.inf}}, "groups.bias_weight_decay: .*finite"),
        ({"groups": {"patterns": {"a": {"lr_factor": math.inf}}}}, "a.lr_factor: .*finite"),
        ({"groups": {"patterns": {"[": {}}}}, r"groups.patterns: .*'\[' is no regular expression"),
        ({"device": "gpu"}, "device: .*device 'gpu' is none; write auto, cpu, cuda"),
        ({"precision": "O1"}, "precision: .*another program's word"),
        # The schedule is tried, if it need not know the run's length
        ({"schedule": {"use": f"{__name__}.doubled"}}, r"schedule gives nan at progress 0\.5"),
        ({"schedule": {"use": "math.log"}}, "train.schedule: 'log' has no signature"),
        ({"schedule": {"use": f"{SCHEDULE}.one_cycle", "div_factor": 0}}, "div_factor: .*got 0"),
        ({"hooks": {"x": {"use": "builtins.len"}}}, "train.hooks.x: builtins.len takes 'obj'"),
        ({"optimizer": {"lr": -1}}, "train.optimizer.lr is -1"),
        ({"augment": {"flip": {"use": "detpipe.data.augment.flop"}}}, "train.augment.flip: .*flop"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    message = refused(**changes)
    assert re.search(said, message, re.DOTALL), message


@pytest.mark.parametrize(
    "changes",
    [
        {"publish": "best"},
        {"publish": "final", "hooks": {"checkpoint": {"best": False}}},
        {"hooks": {"checkpoint": None}},
        {"hooks": NO_EVALUATION},
        {"hooks": {**NO_EVALUATION, **hook("decide.EarlyStop", metric="train/loss", mode="min")}},
        {"hooks": {"evaluate": None, "mine": {"use": f"{__name__}.Own"}}},
        {"hooks": hook("decide.MaxTime", hours=1)},
        {"hooks": {"record": None}},
        {"writers": {"json": None, "history": {"use": f"{WRITERS}.Json"}}},
        {"writers": {"x": {"use": f"{WRITERS}.Json", "name": "x.jsonl"}}},
        {"non_finite": {"action": "stop", "limit": 10}},
        {"non_finite": {"action": "skip", "limit": 3}},
        {"seed": 2**63 - 1, "batch_size": 10**6, "accumulate": 10**6, "duration": "1e12 epochs"},
        {"schedule": {"use": f"{__name__}.by_length"}},
        {"device": "cuda:1"},
        {"optimizer": {"betas": [0.9, 0.99], "weight_decay": 0}},
    ],
)
def test_what_may_work_is_taken_and_survives_a_dump(changes: dict[str, Any]) -> None:
    settings = config(**changes)
    assert TrainConfig.model_validate(settings.model_dump()) == settings
    assert TrainConfig.model_validate(settings.model_dump(mode="json")) == settings


def test_all_mistakes_come_together() -> None:
    said = refused(
        batch_size=0,
        non_finite={"action": "wait"},
        optimizer={"use": "torch.optim.SGD", "lr": 0},
        schedule={"use": f"{SCHEDULE}.cosine", "final": -1},
        augment={
            "flip": {"use": "detpipe.data.augment.flop", "until": 7},
            "off": None,
            "fine": {"use": "detpipe.data.augment.HorizontalFlip", "until": 0.5},
        },
        hooks={"x": {"use": "nowhere.Hook"}, "y": {}},
        writers={"z": {"use": f"{WRITERS}.Jsn"}},
    )
    places = ["batch_size: Input should be greater", "non_finite.action:", "augment.flip.until",
              "hooks.y.use: Field required", "train.optimizer.lr is 0", "train.schedule:",
              "train.augment.flip:", "train.hooks.x:", "train.writers.z:"]  # fmt: skip
    assert [place for place in places if place not in said] == []
    assert "fine" not in said


def test_clashes_and_specs_come_together() -> None:
    said = refused(dry_run=True, overfit=1, optimizer={"lr": 0}, hooks={"x": {"use": "no.Hook"}})
    for place in ("dry_run and overfit", "train.optimizer.lr is 0", "train.hooks.x:"):
        assert place in said


def test_a_check_does_not_start_torchs_compiler() -> None:
    code = (
        "import sys; from detpipe.train.config import TrainConfig; TrainConfig.model_validate("
        "{'duration': '1 epochs', 'optimizer': {'use': 'torch.optim.AdamW', 'lr': 0.1}}); "
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
