from __future__ import annotations

import os

import pytest

from detpipe.core.errors import DataError
from detpipe.data.formats import folder

from .conftest import rules


def test_every_picture_below_is_listed(tmp_path, picture):
    picture("b.jpg", width=20, height=10)
    picture("x/a.png")
    picture("x/a.jpg")
    (tmp_path / "notes.txt").touch()
    found = folder.read(tmp_path, split="new")
    assert found.images[["image_id", "path", "width", "height"]].to_numpy().tolist() == [
        ["b", "b.jpg", 20, 10], ["x/a.jpg", "x/a.jpg", 64, 48], ["x/a.png", "x/a.png", 64, 48],
    ]  # fmt: skip
    assert set(found.images["split"]) == {"new"}
    assert found.boxes.empty and found.classes.empty and found.issues.empty
    assert folder.read(tmp_path / "b.jpg").images["path"].tolist() == ["b.jpg"]


def test_pictures_that_do_not_decode(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"(?s)1 picture.*b\.jpg"):
        folder.read(tmp_path)
    found = folder.read(tmp_path, bad_image="drop")
    assert found.images["path"].tolist() == ["a.jpg"]
    assert rules(found) == {"undecodable_image": 1}
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match=r"b\.jpg"):
        folder.read(tmp_path, bad_image="drop")
    with pytest.raises(DataError, match="'bad_image' must be"):
        folder.read(tmp_path, bad_image="keep")


def test_nothing_to_read(tmp_path):
    with pytest.raises(DataError, match=r"does not exist"):
        folder.read(tmp_path / "nowhere")
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"no pictures.* 1 other file"):
        folder.read(tmp_path)


def test_hidden_copies_links_and_names(tmp_path, picture, tmp_path_factory):
    """Copies of the system's are left out, links followed or named, odd bytes named."""
    picture("a.jpg")
    picture(".thumbnails/a.jpg")
    (tmp_path / "._a.jpg").write_bytes(b"\0\5\26\7")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "a.jpg").rename(elsewhere / "b.jpg")
    (tmp_path / "linked").symlink_to(elsewhere)
    assert folder.read(tmp_path).images["path"].tolist() == ["linked/b.jpg"]
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    with pytest.raises(DataError, match=r"gone\.jpg: there is no such file"):
        folder.read(tmp_path)
    (tmp_path / "gone.jpg").unlink()
    (elsewhere / "b.jpg").rename(elsewhere / os.fsdecode(b"caf\xe9.jpg"))
    with pytest.raises(DataError, match=r"not in UTF-8.*\n- linked/caf\\udce9\.jpg"):
        folder.read(tmp_path)
