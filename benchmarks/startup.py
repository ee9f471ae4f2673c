"""What a person waits for between ``kedro run --pipeline train`` and the first training step.

Runs the real command on a small sample set in a temporary project, with a hook that notes the time
at the first step, and once more under ``-X importtime`` for what the imports cost.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from detpipe.train.contract import Hook, LoopContext, Phase

ROOT = Path(__file__).resolve().parents[1]
PARAMS = (
    "data.reader.images=40,data.reader.size=96,data.check.workers=0,model.width=16,"
    "train.batch_size=4,train.duration=2 steps,train.hooks.evaluate=null,train.hooks.best=null"
)
PACKAGES = (
    "torch", "torchvision", "mlflow", "pandas", "pyarrow", "kedro", "kedro_viz", "matplotlib",
    "pydantic", "rich", "tensorboard", "cv2", "sqlalchemy", "detpipe",
)  # fmt: skip


class FirstStep(Hook):
    """Writes when the loop started and when its first step was done, in seconds since the epoch."""

    phase = Phase.MEASURE

    def __init__(self, *, file: str) -> None:
        self._file = Path(file)
        self._times: dict[str, float] = {}

    def on_start(self, ctx: LoopContext) -> None:
        self._note("loop")

    def on_step(self, ctx: LoopContext) -> None:
        if ctx.state.step == 1:
            self._note("step")

    def _note(self, what: str) -> None:
        self._times[what] = time.time()
        self._times[f"{what}_cpu"] = time.process_time()
        self._file.write_text(json.dumps(self._times))


def run(project: Path, *arguments: str, options: tuple[str, ...] = ()) -> tuple[float, str]:
    started = time.time()
    done = subprocess.run(
        [sys.executable, *options, "-m", "kedro", "run", *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return started, done.stderr


def imports(trace: str) -> Counter[str]:
    """Seconds of importing by package, each module's own time; others under 'everything else'."""
    own: Counter[str] = Counter()
    for line in trace.splitlines():
        found = re.match(r"import time:\s*(\d+) \|\s*\d+ \|\s*([\w.]+)", line)
        if found:
            package = found[2].split(".")[0]
            own[package if package in PACKAGES else "everything else"] += int(found[1]) / 1e6
    return own


def main(rounds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        shutil.copytree(ROOT / "conf", project / "conf")
        shutil.copy(ROOT / ".telemetry", project)
        # The sample set's expected results are those of its whole training.
        (project / "conf/local/parameters_verify.yml").write_text("verify: {expected: []}\n")
        settings = (ROOT / "pyproject.toml").read_text()
        (project / "pyproject.toml").write_text(
            settings.replace('source_dir = "src"', 'source_dir = "."')
        )
        note = project / "times.json"
        hook = f"train.hooks.first.use=startup.FirstStep,train.hooks.first.file={note}"
        run(project, "--pipelines", "data", "--params", PARAMS)
        rows: list[dict[str, Any]] = []
        for _ in range(rounds):
            started, _ = run(project, "--pipelines", "train", "--params", f"{PARAMS},{hook}")
            times = json.loads(note.read_text())
            rows.append({k: v if k.endswith("cpu") else v - started for k, v in times.items()})
        _, trace = run(
            project, "--pipelines", "train", "--params", f"{PARAMS},{hook}",
            options=("-X", "importtime"),
        )  # fmt: skip
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {rounds} runs")
    for key, title in (("loop", "command → loop starts"), ("step", "command → first step done")):
        wall = sorted(row[key] for row in rows)[rounds // 2]
        cpu = sorted(row[f"{key}_cpu"] for row in rows)[rounds // 2]
        print(f"{title:28} median {wall:5.1f} s wall, {cpu:5.1f} s CPU")
    own = imports(trace)
    print(f"imports, under the tracer: {sum(own.values()):.1f} s, of which")
    for package, seconds in own.most_common():
        print(f"  {package:18} {seconds:5.2f} s")


if __name__ == "__main__":
    main()
