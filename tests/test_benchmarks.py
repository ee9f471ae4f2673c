"""The benchmarks of the data side and of scoring run on a hundredth of their set, not judged."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


def run(project_root, script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, project_root / "benchmarks" / script, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_every_node_of_the_data_pipeline_is_timed(project_root):
    from detpipe.pipelines.data import create_pipeline

    shown = run(project_root, "data_pipeline.py", "--scale", "0.01")
    timed = set(re.findall(r"^(\w+) +[\d.]+ s", shown, re.M))
    # accept only raises; the two scripts' own steps stand beside the nodes.
    nodes = {node.short_name for node in create_pipeline().nodes} - {"accept"}
    assert nodes <= timed


@pytest.mark.slow
def test_the_store_and_the_reader_are_measured_beside_others(project_root):
    shown = run(project_root, "annotations.py", "--scale", "0.01")
    assert re.search(r"store, opened by each process +[\d.]+ ms", shown)
    assert re.search(r"ours / pycocotools: time × [\d.]+, memory × [\d.]+", shown)


@pytest.mark.slow
def test_decoding_is_measured_beside_others(project_root):
    assert "opencv" in run(project_root, "decode.py", "--quick").lower()


@pytest.mark.slow
def test_scoring_is_measured_beside_pycocotools(project_root):
    shown = run(project_root, "evaluation.py", "--scale", "0.01")
    assert re.search(
        r"^92 numbers equal to the last bit. ours / pycocotools: CPU × [\d.]+", shown, re.M
    )
