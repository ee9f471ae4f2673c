from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from detpipe.datasets import FiguresDataset


@pytest.mark.parametrize("suffix, kind", [(".png", b"\x89PNG"), (".jpg", b"\xff\xd8\xff")])
def test_pictures_and_figures_are_files_of_the_kind(
    tmp_path: Path, suffix: str, kind: bytes
) -> None:
    dataset = FiguresDataset(path=str(tmp_path / "new"), suffix=suffix)  # type: ignore[arg-type]
    assert not dataset.exists() and dataset.load() == {}
    dataset.save({"a/b": Image.new("RGB", (9, 5)), "c": Figure(figsize=(1, 1))})
    assert [file.name for file in dataset.files()] == [f"a_b{suffix}", f"c{suffix}"]
    assert all(file.read_bytes().startswith(kind) for file in dataset.files())
    assert dataset.load()[f"a_b{suffix}"].size == (9, 5)


def test_what_an_earlier_save_left_is_removed(tmp_path: Path) -> None:
    dataset = FiguresDataset(path=str(tmp_path))
    dataset.save({"old": Image.new("RGB", (9, 5))})
    dataset.save({"new": Image.new("RGB", (9, 5))})
    assert list(dataset.load()) == ["new.png"]


def test_a_preview_is_no_wider_than_a_screen(tmp_path: Path) -> None:
    dataset = FiguresDataset(path=str(tmp_path), suffix=".jpg")
    dataset.save({"wide": Image.new("RGB", (2400, 100)), "small": Image.new("RGB", (60, 40))})
    preview = Image.open(io.BytesIO(base64.b64decode(dataset.preview())))
    assert preview.size == (1200, 40 + 50)
