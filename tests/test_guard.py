"""What is refused before a run starts."""

from __future__ import annotations

import fcntl
import io
import logging
import sys

import pytest
from rich.console import Console
from rich.logging import RichHandler

from detpipe.core.errors import ConfigError, DataError, DetpipeError
from detpipe.guard import only_kedros_markup
from tests.pipelines.conftest import Project


@pytest.fixture
def project(tmp_path, project_root):
    return Project(tmp_path, project_root)


def test_a_mistyped_section_or_path_is_refused(project):
    typos = {"trian": {"batch_size": 4}, "detections_flie": "x.json", "nonsense": 1}
    with pytest.raises(ConfigError) as error:
        project.run("data", params=project.SMALL | typos)
    for part in ("did you mean 'train'", "did you mean 'detections_file'", "'nonsense': nothing"):
        assert part in str(error.value)


def test_a_section_of_ones_own_in_the_configuration_is_allowed(project):
    (project.folder / "conf/local/parameters_mine.yml").write_text("my_pipeline: {x: 1}\n")
    project.run("data")


def test_a_second_run_in_the_same_folders_is_refused_and_names_the_first(project):
    folder = project.path("06_models/sample")
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        lock.write("the run of process 123,")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DetpipeError, match="the run of process 123, works in the folders"):
            project.run("data")
    project.run("data")
    project.run("data")  # the lock was given back


def test_brackets_in_a_line_survive_richs_markup():
    screen = io.StringIO()
    handler = RichHandler(console=Console(file=screen, width=100), markup=True)
    handler.addFilter(only_kedros_markup)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("class [/x] of [train/loss]")
    assert "class [/x] of [train/loss]" in screen.getvalue()


def test_the_end_of_a_run_says_where_its_results_lie(project, caplog):
    project.run("data")
    line = next(line for line in caplog.messages if line.startswith("results: "))
    for folder in ("02_intermediate", "03_primary", "08_reporting"):
        assert str(project.path(f"{folder}/sample")) in line


def test_a_mistake_in_a_section_that_the_pipeline_does_not_read_is_refused(project):
    typos = {"predict": {"score_treshold": 0.3}, "export": {"parity_images": 0}}
    with pytest.raises(ConfigError) as error:
        project.run("data", params=project.SMALL | typos)
    for part in ("did you mean 'score_threshold'", "export.parity_images"):
        assert part in str(error.value)


def test_a_mistake_in_mlflow_yml_is_refused(project):
    (project.folder / "conf/local/mlflow.yml").write_text("experimnt: mine\n")
    with pytest.raises(ConfigError, match="did you mean 'experiment'"):
        project.run("data")


@pytest.mark.parametrize(
    ("pipeline", "missing"),
    [("preview", "classes, store"), ("report", "boxes, classes, images"),
     ("evaluate", "boxes, classes, .*, images, store")],
)  # fmt: skip
def test_what_is_not_there_yet_is_named_with_the_pipeline_that_makes_it(project, pipeline, missing):
    with pytest.raises(DetpipeError, match=f"{missing}: kedro run --pipeline data makes"):
        project.run(pipeline)


def test_where_there_are_no_locks_everything_else_is_looked_at(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with pytest.raises(DetpipeError, match="kedro run --pipeline data makes"):
        project.run("preview")
    project.run("data")
    assert "results: " in project.path("08_reporting/sample/run.log").read_text()


def test_no_pipeline_works_on_tables_of_labels_that_were_edited_since(project):
    project.run("data")
    (file,) = project.path("01_raw/sample").rglob("*train.json")
    file.write_text(file.read_text().replace('"iscrowd": 0', '"iscrowd": 1', 1))
    for pipeline in ("preview", "lr_range"):
        with pytest.raises(DataError, match="have changed since the tables"):
            project.run(pipeline)


def annotations(project):
    (file,) = project.path("01_raw/sample").rglob("*train.json")
    return file


@pytest.mark.parametrize("end", ["refused", "broken off", "stopped before the end"])
def test_a_data_run_that_does_not_finish_leaves_no_tables_to_others(project, end, monkeypatch):
    """Old tables, or old ones mixed with new ones, and reports on them."""
    project.run("data")
    if end == "refused":
        file = annotations(project)
        picture = next((file.parents[1] / "images/train").iterdir())
        kept = picture.read_bytes()
        picture.unlink()
        with pytest.raises(DataError, match=picture.name):
            project.run("data")
        picture.write_bytes(kept)
        assert project.path("08_reporting/sample/data_issues.csv").exists()
    elif end == "broken off":
        monkeypatch.setattr("detpipe.data.describe.draw", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            project.run("data")
        monkeypatch.undo()
    else:
        project.run("data", to_nodes=["data.describe"])
    assert not project.path("03_primary/sample/store.detpipe").exists()
    with pytest.raises(DetpipeError, match="run --pipeline data"):
        project.run("preview")
    project.run("data", only_missing_outputs=True)
    project.run("preview")


def test_what_is_missing_is_not_made_of_edited_files(project):
    project.run("data")
    project.path("08_reporting/sample/data_summary.csv").unlink()
    file = annotations(project)
    text = file.read_text()
    file.write_text(text.replace('"iscrowd": 0', '"iscrowd": 1', 1))
    with pytest.raises(DataError, match="have changed since the tables"):
        project.run("data", only_missing_outputs=True)
    file.write_text(text)
    project.run("data", only_missing_outputs=True)
    assert project.path("08_reporting/sample/data_summary.csv").exists()


def test_a_path_that_the_recipes_catalog_takes_no_notice_of(project, tmp_path, caplog, monkeypatch):
    project.run("data")
    raw = project.path("01_raw/sample")
    entry = f"raw:\n  type: detpipe.datasets.FolderDataset\n  path: {raw}\n  missing: pass\n"
    (project.folder / "conf/local/catalog.yml").write_text(entry)
    with pytest.raises(ConfigError, match="raw=/elsewhere has no effect: the catalog of this env"):
        project.run("data", params={**project.SMALL, "raw": "/elsewhere"})
    project.run("data", params={**project.SMALL, "raw": f"{raw}/"})
    monkeypatch.setenv("DETPIPE_RAW", "/elsewhere")
    project.run("data")
    assert "DETPIPE_RAW=/elsewhere has no effect" in caplog.text


def test_advice_that_would_begin_a_training_anew_is_not_shown(project, capsys):
    import kedro.framework.project  # noqa: F401 - it sets up logging

    with pytest.raises(DetpipeError):
        project.run("train", params={**project.SMALL, "train": {"batch_size": 5000}})
    assert "You can resume the pipeline run" not in capsys.readouterr().out
