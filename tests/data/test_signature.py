from __future__ import annotations

import os

import pytest

from detpipe.core.errors import DataError
from detpipe.data.signature import places_outside, require_same, signature


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "set"
    (folder / "labels").mkdir(parents=True)
    (folder / "data.yaml").write_text("names: [a]")
    (folder / "labels/1.txt").write_text("0 .5 .5 .1 .1")
    (folder / "labels/1.jpg").write_bytes(b"picture")
    (folder / "README.dataset.txt").write_text("about")
    return folder


def test_only_the_content_of_annotations_counts(root):
    before = signature(root)
    assert set(before) == {".", "labels"}
    os.utime(root / "labels/1.txt", (1, 1))
    (root / "labels/1.jpg").write_bytes(b"another picture")
    (root / "README.dataset.txt").write_text("changed")
    assert signature(root) == before
    require_same(root, before)


@pytest.mark.parametrize(
    ("change", "folder"),
    [
        (lambda r: (r / "labels/1.txt").write_text("1 .5 .5 .1 .1"), "labels"),
        (lambda r: (r / "labels/2.txt").write_text(""), "labels"),
        (lambda r: (r / "labels/1.txt").unlink(), "labels"),
        (lambda r: (r / "labels/1.txt").rename(r / "labels/2.txt"), "labels"),
        (lambda r: (r / "new.PARQUET").write_bytes(b""), "set"),
    ],
)
def test_what_was_edited_added_removed_or_renamed_is_refused_by_its_folder(root, change, folder):
    before = signature(root)
    change(root)
    with pytest.raises(DataError, match=f"(?s)files have changed .*Changed in:.*{folder}"):
        require_same(root, before)


def test_places_elsewhere_that_the_readers_options_name_count_too(root):
    other = root.parent / "other"
    other.mkdir()
    (other / "boxes.csv").write_text("x")
    single = root.parent / "one.json"
    single.write_text("{}")
    options = {
        "sets": [{"path": "../other", "use": "csv"}, {"path": "labels", "use": "yolo"}],
        "annotations": {"train": str(single)},
        "encoding": "utf-8",
    }
    places = places_outside(root, options)
    assert [place.resolve() for place in places] == [other, single]
    known = signature(root, places)
    require_same(root, known)
    (other / "boxes.csv").write_text("y")
    with pytest.raises(DataError, match="other"):
        require_same(root, known)
    (other / "boxes.csv").write_text("x")
    require_same(root, known)
    single.unlink()
    with pytest.raises(DataError, match="Changed in"):
        require_same(root, known)


def test_a_data_set_that_is_not_there_is_not_looked_at(root):
    known = signature(root)
    require_same(root.parent / "gone", known)


def test_names_that_are_not_utf_8(root):
    file = root / "labels" / os.fsdecode(b"caf\xe9.txt")
    file.write_text("0 .5 .5 .1 .1")
    before = signature(root)
    file.unlink()
    assert signature(root) != before
