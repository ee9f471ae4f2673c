"""Folders, names of files and pictures, whatever the format."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from detpipe.core.errors import DataError
from detpipe.data.writers import base
from tests.data.writers.sets import FORMATS, on_disk, write

BOX = {
    "image": 0, "class_name": "cat", "x1": 1.0, "y1": 1.0, "x2": 4.0, "y2": 4.0, "area": 9.0,
    "iscrowd": False, "difficult": False, "extra": "",
}  # fmt: skip
ONE = (["a.jpg"], [(9, 9)], ["train"], [""], [BOX], ["cat"])


# --- the folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", FORMATS)
def test_a_folder_that_holds_something_is_left_alone(target, tmp_path):
    found = on_disk(ONE, tmp_path / "source")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(DataError, match="out is there already: remove it, or choose another"):
        write(target, found, tmp_path / "source", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_folder_or_none_is_filled_and_the_source_is_as_before(there, tmp_path):
    found = on_disk(ONE, tmp_path / "source")
    before = (tmp_path / "source/a.jpg").read_bytes()
    (tmp_path / "new/out").mkdir(parents=True) if there else None
    write("parquet", found, tmp_path / "source", tmp_path / "new/out")
    assert (tmp_path / "new/out/images/a.jpg").read_bytes() == before
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]
    assert [p.name for p in (tmp_path / "source").iterdir()] == ["a.jpg"]
    assert (tmp_path / "source/a.jpg").read_bytes() == before


@pytest.mark.parametrize("place", ["source", "source/out", "link/out"])
def test_nothing_is_written_into_the_data_set_that_is_read(place, tmp_path):
    found = on_disk(ONE, tmp_path / "source")
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(DataError, match="lies in the data set that is read"):
        write("coco", found, tmp_path / "source", tmp_path / place)
    assert [p.name for p in (tmp_path / "source").iterdir()] == ["a.jpg"]


def test_a_broken_run_leaves_nothing_and_a_killed_ones_rest_is_no_hindrance(tmp_path, monkeypatch):
    found = on_disk(ONE, tmp_path / "source")
    seen = []

    def full(*_):
        seen.extend(p.name for p in tmp_path.iterdir())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(base.shutil, "copyfile", full)
        with pytest.raises(DataError, match=r"out cannot be written: .*No space left"):
            write("coco", found, tmp_path / "source", tmp_path / "out")
    assert ".out.detpipe-unfinished" in seen
    assert "out" not in seen
    assert [p.name for p in tmp_path.iterdir()] == ["source"]
    (tmp_path / ".out.detpipe-unfinished").mkdir()
    (tmp_path / ".out.detpipe-unfinished/half.json").write_text("{")
    write("coco", found, tmp_path / "source", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["annotations", "images"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


# --- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", FORMATS)
def test_missing_pictures_are_counted(target, tmp_path, caplog):
    made = (["[a].jpg", "b.jpg"], [(9, 9)] * 2, ["train"] * 2, ["", ""], [BOX], ["cat"])
    found = on_disk(made, tmp_path / "source")
    (tmp_path / "source/[a].jpg").unlink()
    write(target, found, tmp_path / "source", tmp_path / "out")
    assert "1 picture(s) are missing: (a).jpg" in caplog.text  # rich would take [a] for markup
    assert [p.name for p in (tmp_path / "out").rglob("*.jpg")] == ["b.jpg"]


def test_unknown_sizes_are_those_of_the_files_and_unreadable_ones_stay_unknown(tmp_path):
    found = on_disk((["a.jpg", "b.jpg"], [(9, 7)] * 2, ["train"] * 2, ["", ""], [], ["cat"]),
                    tmp_path)  # fmt: skip
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    images = base.writable(
        found._replace(images=found.images.assign(width=0, height=0)), tmp_path
    ).images
    assert images[["width", "height"]].to_numpy().tolist() == [[9, 7], [0, 0]]


# --- names -------------------------------------------------------------------------------------


def test_common_folders_go_and_others_stay():
    assert base.below_common_folder(["a/b/x.jpg", "a/b/c/y.jpg"]) == ["x.jpg", "c/y.jpg"]
    assert base.below_common_folder(["a/b/x.jpg", "a/bc/x.jpg"]) == ["b/x.jpg", "bc/x.jpg"]
    assert base.below_common_folder(["a/x.jpg", "b/a/x.jpg"]) == ["a/x.jpg", "b/a/x.jpg"]
    assert base.below_common_folder(["p1/a/x.jpg"]) == ["x.jpg"]
    assert base.below_common_folder(["../b/é 1.jpg", "/abs/é 1.jpg"]) == [
        "b/é 1.jpg",
        "abs/é 1.jpg",
    ]
    assert base.below_common_folder(["a/x\ny.jpg"]) == ["x_y.jpg"]
    assert base.below_common_folder([]) == []


@pytest.mark.parametrize("name", ["a.jpg", "b.c/a", "a.b/c.d.e", "..jpg", ".jpg", "a.", "a/..b"])
def test_endings_are_those_of_pathlib(name):
    path = PurePosixPath(name)
    folder = f"{path.parent}/" if "/" in name else ""
    assert base.without_ending(name) == (folder + path.stem, path.suffix)


def test_flat_names_are_the_files_own_where_they_can():
    assert base.flat_names(["a/x.jpg", "b/y.jpg"]) == ["x.jpg", "y.jpg"]
    assert base.flat_names(["a/x.jpg", "b/x.jpg", "y.jpg"]) == ["a_x.jpg", "b_x.jpg", "y.jpg"]
    assert base.flat_names(["x.jpg", "x.png"]) == ["x.jpg", "x_2.png"]
    assert base.flat_names(["a/x.jpg", "A/X.JPG"]) == ["a_x.jpg", "A_X_2.JPG"]
    assert base.flat_names(["a/x.jpg", "a_x.jpg", "b/x.jpg"]) == ["a_x.jpg", "a_x_2.jpg", "b_x.jpg"]
    long = "d" * 150
    assert base.flat_names([f"{long}/{long}.jpg", f"e/{long}.jpg"]) == [
        f"{long}.jpg", f"e_{long}.jpg",
    ]  # fmt: skip


def test_names_that_a_file_system_cannot_tell_apart_are_numbered():
    names = ["x.jpg", "X.jpg", "x_2.jpg", "e\u0301.jpg", "é.jpg"]
    got = base.unique_names(names, range(5))
    assert got == ["x.jpg", "X_2.jpg", "x_2_2.jpg", "e\u0301.jpg", "é_2.jpg"]
    assert base.unique_names(["x.jpg", "x.jpg"], ["same", "same"]) == ["x.jpg", "x.jpg"]


def test_many_files_of_one_name_take_linear_time():
    calls = []
    key = base._key
    base._key, counted = (lambda name: calls.append(name) or key(name)), 3000
    try:
        names = base.unique_names(["a.jpg"] * counted, range(counted))
    finally:
        base._key = key
    assert len(set(names)) == counted
    assert len(calls) < 3 * counted


def test_links_are_absolute_so_they_outlive_the_renaming(tmp_path):
    found = on_disk(ONE, tmp_path / "source")
    write("voc", found, tmp_path / "source", tmp_path / "out", pictures="link")
    link = tmp_path / "out/JPEGImages/a.jpg"
    assert link.readlink() == (tmp_path / "source/a.jpg").resolve()
