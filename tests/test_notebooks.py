"""Every notebook runs from top to bottom."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient


def execute(path, folder):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


def shown(notebook) -> str:
    return " ".join(
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


def test_the_plain_loop_lowers_the_loss_and_scores(project_root, tmp_path):
    text = shown(execute(project_root / "notebooks/plain_loop.ipynb", tmp_path))
    first, last = text.split("loss ")[1].split("'")[0].split(" → ")
    assert float(last) < float(first)
    assert "AP50" in text


@pytest.mark.slow
def test_a_run_can_be_looked_at(project_root, tmp_path):
    from tests.pipelines.conftest import Project

    project = Project(tmp_path, project_root)
    project.run("train")
    notebooks = project.folder / "notebooks"
    notebooks.mkdir()
    text = shown(execute(project_root / "notebooks/look_at_a_run.ipynb", notebooks))
    assert "40 images" in text
    assert "train tiny sample" in text
    assert "FINISHED" in text
