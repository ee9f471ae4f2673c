"""``kedro run`` as a person types it: exit codes, messages, signals."""

from __future__ import annotations

import os
import signal
import time

import pytest

SMALL = (
    "data.reader.images=40,data.reader.size=96,data.check.workers=0,model.width=16,"
    "train.batch_size=4,train.hooks.evaluate.every=0 steps,train.hooks.checkpoint.every=5 steps,"
    "train.log_every=2 steps"
)


def finish(process) -> str:
    out, _ = process.communicate(timeout=300)
    return out


@pytest.mark.slow
def test_a_mistake_in_the_configuration_ends_with_1_and_no_traceback(project):
    process = project.command("run", "--pipeline", "data", "--params", "data.reader.imagess=4")
    out = finish(process)
    assert process.returncode == 1
    assert "has no option 'imagess' (did you mean 'images'?)" in out
    assert "Traceback" not in out
    assert not (project.folder / "data").exists()


@pytest.mark.slow
def test_both_spellings_of_the_pipeline_option_work(project):
    for option in ("--pipeline", "--pipelines"):
        process = project.command("run", option, "data", "--params", SMALL)
        assert process.wait(timeout=300) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_leaves_a_checkpoint_a_killed_run_and_its_exit_code_and_resumes(
    tmp_path, project_root, sent, code
):
    from tests.pipelines.conftest import Project

    project = Project(tmp_path, project_root)
    arguments = ("run", "--pipeline", "train", "--params")
    process = project.command(
        *arguments, f"{SMALL},train.duration=4000 steps", start_new_session=True
    )
    folder = project.path("06_models/sample/checkpoints")
    deadline = time.monotonic() + 240
    while not list(folder.glob("step_*.pt")):
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(process.pid, sent)
    out = finish(process)
    assert process.returncode == code, out
    assert project.rows("select status from runs") == [("KILLED",)]
    step = max(int(path.stem[5:]) for path in folder.glob("step_*.pt"))

    process = project.command(
        *arguments, f"{SMALL},train.duration={step + 6} steps,train.resume=true"
    )
    out = finish(process)
    assert process.returncode == 0, out
    assert f"resuming at step {step}" in out
    assert project.rows("select status from runs") == [("FINISHED",)], "one run, continued"
    steps = [s for (s,) in project.rows("select step from metrics where key = 'train/loss'")]
    assert len(steps) == len(set(steps))
    assert sorted(steps)[-1] == step + 6
