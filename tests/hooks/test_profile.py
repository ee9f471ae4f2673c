"""The profile of a few steps, read back from its files."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from detpipe.core.errors import ConfigError
from detpipe.hooks.profile import Profile
from detpipe.train.contract import Phase


class Steps:
    """A run of steps without a loop; each step is one convolution."""

    def __init__(self, context, advance) -> None:
        self.context, self.advance = context, advance
        self.layer = nn.Conv2d(3, 3, 3)

    def run(self, hook: Profile, *, steps: int, first: int = 0, stop: bool = False) -> None:
        ctx = self.context(first, self.layer)
        ctx.total_steps = first + (100 if stop else steps)
        hook.on_start(ctx)
        for step in range(first + 1, first + steps + 1):
            self.layer(torch.zeros(1, 3, 8, 8))
            self.advance(ctx, step)
            if stop and step == first + steps:
                ctx.stop("enough")
            hook.on_step(ctx)
        hook.on_end(ctx)


@pytest.fixture
def steps(context, advance) -> Steps:
    return Steps(context, advance)


def events(file: Path) -> Counter[str]:
    with gzip.open(file, "rt") as text:
        return Counter(event.get("name") for event in json.load(text)["traceEvents"])


def written(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "profile").iterdir())


def test_the_steps_asked_for_are_recorded_and_no_others(tmp_path, steps):
    steps.run(Profile(tmp_path, start=3, steps=2), steps=9)
    assert written(tmp_path) == ["steps_4-5.json.gz", "steps_4-5.txt"]
    found = events(tmp_path / "profile/steps_4-5.json.gz")
    assert found["aten::convolution"] == 2
    assert {name for name in found if str(name).startswith("ProfilerStep")} == {
        "ProfilerStep#3", "ProfilerStep#4",  # torch counts from 0
    }  # fmt: skip
    table = (tmp_path / "profile/steps_4-5.txt").read_text()
    assert "aten::convolution" in table
    assert "Self CPU time total" in table


def test_rows_limit_the_table(tmp_path, steps):
    steps.run(Profile(tmp_path, start=1, steps=1, rows=1), steps=3)
    table = (tmp_path / "profile/steps_2-2.txt").read_text()
    assert sum(line.lstrip().startswith("aten::") for line in table.splitlines()) <= 1


def test_a_run_that_is_too_short_says_so_and_writes_nothing(tmp_path, steps, caplog):
    with caplog.at_level(logging.WARNING):
        steps.run(Profile(tmp_path, start=10, steps=3), steps=10)
    assert "it begins after 10 steps, and this run has 10" in caplog.text
    assert not (tmp_path / "profile").exists()


def test_a_run_that_ends_within_gives_what_there_is(tmp_path, steps):
    steps.run(Profile(tmp_path, start=10, steps=3), steps=11)
    assert written(tmp_path)[0] == "steps_11-11.json.gz"
    assert events(tmp_path / "profile/steps_11-11.json.gz")["aten::convolution"] == 1


@pytest.mark.parametrize("last", [2, 4])
def test_a_run_that_is_stopped_before_says_so(tmp_path, steps, caplog, last):
    with caplog.at_level(logging.WARNING):
        steps.run(Profile(tmp_path, start=4, steps=3), steps=last, stop=True)
    assert "ended before anything was recorded" in caplog.text
    assert not (tmp_path / "profile").exists()


def test_a_resumed_run_counts_from_there_and_keeps_the_earlier_profile(tmp_path, steps):
    steps.run(Profile(tmp_path, start=1, steps=1), steps=5)
    steps.run(Profile(tmp_path, start=1, steps=1), steps=5, first=5)
    assert [n for n in written(tmp_path) if n.endswith("gz")] == [
        "steps_2-2.json.gz", "steps_7-7.json.gz",
    ]  # fmt: skip


def test_a_new_run_does_not_keep_the_profile_of_another(tmp_path, steps):
    steps.run(Profile(tmp_path, start=1, steps=1), steps=5)
    steps.run(Profile(tmp_path, start=2, steps=1), steps=5)
    assert written(tmp_path) == ["steps_3-3.json.gz", "steps_3-3.txt"]


def test_a_run_that_dies_frees_the_profiler(tmp_path, context, advance):
    hook = Profile(tmp_path, start=1, steps=3)
    ctx = context(0)
    hook.on_start(ctx)
    advance(ctx, 1)
    hook.on_step(ctx)
    assert torch.autograd._profiler_enabled()
    hook.on_error(ctx, RuntimeError())
    assert not torch.autograd._profiler_enabled()
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("option", ["start", "steps", "rows"])
def test_options_are_checked(tmp_path, option):
    with pytest.raises(ConfigError, match=f"{option} must be 1 or more, got 0"):
        Profile(tmp_path, **{option: 0})


def test_it_writes_when_the_folder_is_ready():
    assert Profile.phase == Phase.RECORD
