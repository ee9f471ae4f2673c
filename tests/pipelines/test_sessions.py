"""Every pipeline in a real Kedro session with a real SQLite MLflow store."""

from __future__ import annotations

import json

import pandas as pd
import pytest

REPORTS = (
    "data_issues.csv", "data.html", "self_test.csv", "data_summary.csv", "history.csv",
    "scores.csv", "overview.csv", "per_class.csv", "per_image.csv", "verdict.csv", "timing.csv",
    "thresholds.csv", "errors.csv", "slices.csv", "calibration.csv", "intervals.csv",
    "report.html", "data", "curves", "confusion", "errors", "gallery",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(project):
    """The project after ``kedro run --pipeline train`` of 8 steps."""
    project.run("train")
    return project


def latest(project) -> str:
    return project.rows("select run_uuid from runs order by start_time desc limit 1")[0][0]


def metrics(project, run: str) -> dict[str, dict[int, float]]:
    history: dict[str, dict[int, float]] = {}
    for key, step, value, is_nan in project.rows(
        "select key, step, value, is_nan from metrics where run_uuid = ?", [run]
    ):
        assert step not in history.setdefault(key, {}), f"{key} twice at step {step}"
        history[key][step] = float("nan") if is_nan else value
    return history


def test_train_writes_every_report(trained):
    there = {path.name for path in trained.path("08_reporting/sample").iterdir()}
    assert set(REPORTS) <= there


def test_train_is_one_finished_run_named_after_what_it_did(trained):
    runs = trained.rows("select name, status from runs")
    assert ("train tiny sample", "FINISHED") in runs
    assert len(runs) == 1 or {status for _, status in runs} == {"FINISHED"}


def test_step_metrics_are_in_the_run_once_a_log_row(trained):
    run = trained.rows("select run_uuid from runs where name = 'train tiny sample'")[0][0]
    logged = metrics(trained, run)
    assert sorted(logged["train/loss"]) == [2, 4, 6, 8]
    history = pd.read_csv(trained.path("08_reporting/sample/history.csv")).set_index("step")
    assert logged["train/loss"] == pytest.approx(history["train/loss"].to_dict())


def test_scores_are_in_the_run_at_the_step_of_the_weights(trained):
    run = trained.rows("select run_uuid from runs where name = 'train tiny sample'")[0][0]
    logged = metrics(trained, run)
    scores = pd.read_csv(trained.path("08_reporting/sample/scores.csv"), keep_default_na=False)
    whole = scores[(scores["class_name"] == "") & (scores["value"] != "")]
    for row in whole.itertuples():
        assert logged[f"{row.dataset}/{row.task}/{row.metric}"][8] == pytest.approx(
            float(row.value)
        )


def test_the_loop_evaluates_in_between_and_the_pipeline_at_the_end_never_both(trained):
    run = trained.rows("select run_uuid from runs where name = 'train tiny sample'")[0][0]
    assert sorted(metrics(trained, run)["val/bbox/AP"]) == [4, 8]


def test_parameters_are_flat_with_defaults(trained):
    parameters = dict(trained.rows("select key, value from params"))
    assert parameters["train.optimizer.use"] == "torch.optim.AdamW"
    assert parameters["train.accumulate"] == "1"
    assert parameters["data.check.workers"] == "0"


def test_artifacts_are_uploaded(trained):
    run = trained.rows("select artifact_uri from runs where name = 'train tiny sample'")[0][0]
    folder = trained.folder / "mlartifacts"
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert str(folder) in run
    assert {"weights.safetensors", "step_00000008.pt", "overview.csv", "report.html"} <= files


def test_overview_has_one_row_a_data_set(trained):
    overview = pd.read_csv(trained.path("08_reporting/sample/overview.csv"))
    assert list(overview["dataset"]) == ["val", "test"]
    assert {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR100"} <= set(overview.columns)


def test_evaluate_alone_gives_the_same_scores(trained):
    file = trained.path("08_reporting/sample/scores.csv")
    before = file.read_text()
    file.unlink()
    trained.run("evaluate")
    assert file.read_text() == before
    logged = metrics(trained, latest(trained))
    assert set(logged["test/bbox/AP"]) == {8}, "at the step of the weights"


def test_in_loop_evaluation_equals_the_pipelines(trained, tmp_path):
    """The evaluation that the loop calls gives the very numbers of the evaluate pipeline."""
    from detpipe.models.restore import restore
    from detpipe.pipelines.train import evaluator

    catalog, parameters = catalog_of(trained)
    args = [catalog.load(n) for n in ("store", "images", "boxes", "classes", "raw")]
    names = args[0].class_names
    model = restore(catalog.load("weights"), parameters["model"], names)
    in_loop = evaluator("val", *args, parameters["stream"], parameters["evaluate"])(model)
    table = pd.read_csv(trained.path("08_reporting/sample/scores.csv"), keep_default_na=False)
    table = table[
        (table["dataset"] == "val") & (table["class_name"] == "") & (table["value"] != "")
    ]
    assert len(table) >= 6
    for row in table.itertuples():
        assert in_loop[f"val/{row.task}/{row.metric}"] == pytest.approx(float(row.value), abs=1e-9)


def catalog_of(project):
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(project.folder)
    with KedroSession.create(
        project_path=project.folder, runtime_params=dict(project.SMALL)
    ) as session:
        context = session.load_context()
        return context.catalog, context.params


@pytest.mark.parametrize("pipeline", ["data", "report", "verify"])
def test_each_pipeline_runs_alone_on_what_is_there(trained, pipeline):
    trained.run(pipeline)
    assert trained.rows("select status from runs where run_uuid = ?", [latest(trained)]) == [
        ("FINISHED",)
    ]


def test_predict_draws_every_picture_and_writes_both_forms(trained):
    pictures = trained.path("01_raw/sample/images/test")
    trained.run("predict", params=trained.SMALL | {"predict": {"score_threshold": 0.01}})
    output = trained.path("07_model_output/sample")
    drawn = {path.stem for path in (output / "predictions_drawn").rglob("*.jpg")}
    assert drawn == {path.stem for path in pictures.glob("*.jpg")}
    table = pd.read_csv(output / "predictions.csv", dtype={"image_id": str})
    coco = json.loads((output / "predictions_coco.json").read_text())
    assert len(table) == len(coco) > 0
    assert set(table["image_id"]) <= drawn


def test_evaluate_files_scores_a_file_of_the_truth_with_100(trained, tmp_path):
    catalog, _ = catalog_of(trained)
    images, boxes = catalog.load("images"), catalog.load("boxes")
    test = boxes[boxes["image_id"].isin(images[images["split"] == "test"]["image_id"])]
    file = tmp_path / "somebodys.csv"
    test.assign(score=1.0)[["image_id", "class_name", "x1", "y1", "x2", "y2", "score"]].to_csv(
        file, index=False
    )
    trained.run("evaluate_files", params={**trained.SMALL, "detections_file": str(file)})
    overview = pd.read_csv(trained.path("08_reporting/sample/file_overview.csv"))
    assert overview["AP"].tolist() == [100.0]
    logged = metrics(trained, latest(trained))
    assert logged["test/bbox/AP"] == {0: 100.0}, "no weights of an earlier session have a part"


def test_export_writes_files_that_find_what_the_model_finds(trained):
    trained.run("export", params=trained.SMALL | {"export": {"parity_images": 2}})
    report = pd.read_csv(trained.path("08_reporting/sample/export_report.csv"))
    assert report["ok"].all()
    for file in report["file"]:
        assert trained.path("06_models/sample/exports").joinpath(file).exists()


def test_a_missed_expectation_fails_the_run_after_everything_is_written(project, tmp_path):
    from detpipe.core.errors import VerificationError

    verdict = project.path("08_reporting/sample/verdict.csv")
    impossible = {"verify": {"expected": [{"metric": "AP", "value": 100, "tolerance": 0.1}]}}
    with pytest.raises(VerificationError, match="AP"):
        project.run("evaluate", params=project.SMALL | impossible)
    assert pd.read_csv(verdict)["ok"].tolist() == [False]
    run = latest(project)
    assert project.rows("select status from runs where run_uuid = ?", [run]) == [("FAILED",)]
    tags = dict(project.rows("select key, value from tags where run_uuid = ?", [run]))
    assert tags["verdict"] == "failed"
    assert tags["error"].startswith("VerificationError")


def test_every_mistake_of_the_configuration_comes_before_any_node(project):
    from kedro.validation.exceptions import ParameterValidationError

    wrong = {
        "train": {"duration": "8 stepps", "batchsize": 3},
        "model": {"widht": 3},
        "evaluate": {"max_detections": 0},
    }
    with pytest.raises(ParameterValidationError) as error:
        project.run("train", params=wrong)
    for part in ("8 stepps", "batch_size", "width", "max_detections"):
        assert part in str(error.value)


def test_evaluating_with_another_model_than_was_trained_is_refused(trained):
    from detpipe.core.errors import WeightsError

    with pytest.raises(WeightsError, match=r"model.width: the weights were trained with 16"):
        trained.run("evaluate", params=trained.SMALL | {"model": {"width": 24}})


def test_a_set_without_a_val_split_is_trained_and_scored_on_the_other(tmp_path, project_root):
    from tests.pipelines.conftest import Project

    project = Project(tmp_path, project_root)
    no_val = {"split": {"rename": {"train": "train", "val": "train", "test": "test"}}}
    data = project.SMALL["data"] | no_val
    short = project.SMALL["train"] | {"duration": "2 steps"}
    project.run("train", params=project.SMALL | {"data": data, "train": short})
    overview = pd.read_csv(project.path("08_reporting/sample/overview.csv"))
    assert list(overview["dataset"]) == ["test"]


def test_what_is_wrong_with_a_data_set_is_written_before_it_is_refused(
    tmp_path, project_root, caplog
):
    from detpipe.data.check import CheckError
    from tests.pipelines.conftest import Project

    project = Project(tmp_path, project_root)
    project.run("data")
    picture = next(project.path("01_raw/sample/images/train").glob("*.jpg"))
    picture.write_bytes(picture.read_bytes()[:500])
    with pytest.raises(CheckError, match=picture.name):
        project.run("data")
    issues = pd.read_csv(project.path("08_reporting/sample/data_issues.csv"))
    errors = issues[issues["severity"] == "error"]
    assert errors["file"].str.contains(picture.name).any()
    page = project.path("08_reporting/sample/data.html").read_text("utf-8")
    assert f"{len(errors)} error(s): not usable yet" in page
    assert picture.name in page
    assert "everything that was found: " in caplog.text
    assert "08_reporting/sample/data.html" in caplog.text


def test_the_sample_set_is_not_made_where_a_mistyped_path_points(project, tmp_path):
    from detpipe.core.errors import DataError

    with pytest.raises(DataError, match="name its reader"):
        project.run("data", params={**project.SMALL, "raw": str(tmp_path / "typo")})
    assert not (tmp_path / "typo").exists()


def test_a_model_that_cannot_detect_is_refused_before_training(project):
    from detpipe.core.errors import ConfigError

    model = {"use": "torch.nn.Identity", "width": None}
    with pytest.raises(ConfigError, match="without the method 'detect'"):
        project.run("train", params=project.SMALL | {"model": model})


def test_predict_takes_one_picture_and_forgets_what_it_drew_before(trained):
    pictures = sorted(trained.path("01_raw/sample/images/test").glob("*.jpg"))
    trained.run("predict", params={**trained.SMALL, "pictures": str(pictures[0])})
    drawn = trained.path("07_model_output/sample/predictions_drawn").rglob("*.jpg")
    assert [path.stem for path in drawn] == [pictures[0].stem]


def test_predict_leaves_out_a_broken_picture_when_told_to(trained, tmp_path):
    import shutil

    from detpipe.core.errors import DataError

    shutil.copytree(trained.path("01_raw/sample/images/test"), tmp_path / "new")
    (tmp_path / "new/broken.jpg").write_bytes(b"no picture")
    params = {**trained.SMALL, "pictures": str(tmp_path / "new")}
    with pytest.raises(DataError, match=r"broken\.jpg"):
        trained.run("predict", params=params)
    trained.run("predict", params=params | {"predict": {"bad_image": "drop"}})
    drawn = trained.path("07_model_output/sample/predictions_drawn").rglob("*.jpg")
    assert len(list(drawn)) == 6


def test_kedro_viz_shows_every_picture_and_table(trained):
    catalog, _ = catalog_of(trained)
    for name in (
        "gallery",
        "errors_plots",
        "curves",
        "confusion",
        "data_plots",
        "overview",
        "history",
    ):
        dataset = catalog.get(name)
        arguments = dataset.metadata["kedro-viz"].get("preview_args", {})
        assert dataset.preview(**arguments), name


def test_tables_of_labels_that_were_edited_since_are_refused(tmp_path, project_root):
    from detpipe.core.errors import DataError
    from tests.pipelines.conftest import Project

    project = Project(tmp_path, project_root)
    short = project.SMALL["train"] | {"duration": "2 steps"}
    project.run("train", params=project.SMALL | {"train": short})
    file = project.path("01_raw/sample/annotations/instances_test.json")
    content = json.loads(file.read_text())
    content["annotations"][0]["bbox"] = [1, 1, 5, 5]
    before = file.read_text()
    file.write_text(json.dumps(content))
    for pipeline in ("evaluate", "evaluate_files"):
        with pytest.raises(DataError, match="annotation files have changed since"):
            project.run(pipeline, params={**project.SMALL, "detections_file": str(file)})
    file.write_text(before)
    file.touch()
    project.run("evaluate")  # content decides, not time

    file = project.path("01_raw/sample/annotations/instances_train.json")
    content = json.loads(file.read_text())
    content["annotations"].pop()
    file.write_text(json.dumps(content))
    from detpipe.core.errors import CheckpointError

    longer = short | {"duration": "4 steps", "resume": True}
    with pytest.raises(CheckpointError, match=r"data\.digest"):
        project.run("train", params=project.SMALL | {"train": longer})


def test_pictures_that_differ_in_their_ending_only_are_both_drawn(trained, tmp_path):
    import shutil

    from PIL import Image

    first = sorted(trained.path("01_raw/sample/images/test").glob("*.jpg"))[0]
    shutil.copy(first, tmp_path / "x.jpg")
    Image.open(first).save(tmp_path / "x.png")
    trained.run("predict", params={**trained.SMALL, "pictures": str(tmp_path)})
    drawn = trained.path("07_model_output/sample/predictions_drawn").rglob("*.jpg")
    assert sorted(path.name for path in drawn) == ["x.jpg.jpg", "x.png.jpg"]


def test_layers_do_not_go_in_circles_so_that_kedro_viz_draws_them(trained):
    from graphlib import TopologicalSorter

    from kedro.framework.project import pipelines

    catalog, _ = catalog_of(trained)

    def layers_below(name, seen):
        """Layers of the nearest datasets with one, downstream of a dataset."""
        for node in pipelines["__default__"].only_nodes_with_inputs(name).nodes:
            for output in node.outputs:
                metadata = getattr(catalog.get(output), "metadata", None) or {}
                layer = metadata.get("kedro-viz", {}).get("layer")
                if layer:
                    yield layer
                elif output not in seen:
                    yield from layers_below(output, seen | {output})

    graph: dict[str, set[str]] = {}
    whole = pipelines["__default__"]
    for name in whole.datasets():
        metadata = getattr(catalog.get(name), "metadata", None) or {}
        layer = metadata.get("kedro-viz", {}).get("layer")
        users = [node for node in whole.nodes if name in node.inputs]
        if layer and users:
            graph.setdefault(layer, set()).update(set(layers_below(name, {name})) - {layer})
    order = list(TopologicalSorter(graph).static_order())
    assert order[::-1][0] == "raw"
    assert set(order) == {"raw", "intermediate", "primary", "models", "model_output", "reporting"}
