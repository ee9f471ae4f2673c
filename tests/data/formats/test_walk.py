from __future__ import annotations

import os

import pytest

from detpipe.core.errors import DataError
from detpipe.data.formats import walk


@pytest.fixture
def tree(tmp_path):
    for name in ("a/1.jpg", "a/.hidden/2.jpg", "a/._1.jpg", "__MACOSX/3.jpg", "b/4.jpg", "0.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_hidden_names_are_left_out(tree):
    assert list(walk.files_below(tree)) == ["0.txt", "a/1.jpg", "b/4.jpg"]
    assert walk.files_in(tree / "a") == ["1.jpg"]
    assert walk.visible(tree, "*/*.jpg") == [tree / "a/1.jpg", tree / "b/4.jpg"]


def test_the_folder_itself_may_be_hidden(tree):
    assert list(walk.files_below(tree / "a/.hidden")) == ["2.jpg"]
    assert walk.visible(tree / "a/.hidden", "*.jpg") == [tree / "a/.hidden/2.jpg"]


def test_links_are_followed_but_not_round_in_circles(tree, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "5.jpg").touch()
    (tree / "link").symlink_to(elsewhere)
    (tree / "a/up").symlink_to(tree)
    (tree / "a/over").symlink_to(tree / "b")
    (tree / "b/over").symlink_to(tree / "a")
    (tree / "b/itself").symlink_to(tree / "b/itself")
    found = list(walk.files_below(tree))
    assert found == [
        "0.txt", "a/1.jpg", "a/over/4.jpg", "a/over/itself", "b/4.jpg", "b/itself",
        "b/over/1.jpg", "link/5.jpg",
    ]  # fmt: skip


def test_a_link_to_a_folder_above_is_not_followed(tree):
    (tree / "a/above").symlink_to(tree)
    assert list(walk.files_below(tree / "a")) == ["1.jpg"]


def test_a_link_to_nothing_is_there(tree):
    (tree / "a/gone.jpg").symlink_to(tree / "nowhere")
    assert walk.files_in(tree / "a") == ["1.jpg", "gone.jpg"]
    assert list(walk.files_below(tree / "a")) == ["1.jpg", "gone.jpg"]
    with pytest.raises(DataError, match=r"gone\.jpg cannot be read: it is a link to .*nowhere"):
        walk.read_bytes(tree / "a/gone.jpg")


def test_what_cannot_be_is_not_there(tmp_path):
    assert not walk.exists(tmp_path / ("x" * 300))
    assert not walk.exists(tmp_path / "a\0b")
    assert walk.files_in(tmp_path / ("x" * 300)) == []


def test_names_that_are_no_text_are_refused_in_a_sayable_form():
    walk.require_utf8(["a.jpg", "café.jpg"])
    with pytest.raises(DataError, match=r"not in UTF-8") as error:
        walk.require_utf8(["a.jpg", os.fsdecode(b"caf\xe9.jpg")])
    assert r"caf\udce9.jpg" in str(error.value)
    str(error.value).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_lines(tmp_path, encoding):
    (tmp_path / "a.txt").write_text(" é\n\n2 \n", encoding)
    assert walk.read_lines(tmp_path / "a.txt") == ["é", "2"]


def test_lines_in_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_text("é", "latin-1")
    with pytest.raises(DataError, match=r"a\.txt is not written in UTF-8"):
        walk.read_lines(tmp_path / "a.txt")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        walk.read_bytes(tmp_path)
