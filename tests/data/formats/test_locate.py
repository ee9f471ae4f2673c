from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IssueLog, relative
from detpipe.data.formats.locate import ImageFinder, locate_images


def _touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def _located(root, names, folders=("",), log=None):
    finder = ImageFinder([root / folder for folder in folders])
    return locate_images(
        names, finder, source="a.json", root=root, log=IssueLog() if log is None else log
    )


@pytest.mark.parametrize(
    ("written", "on_disk", "how"),
    [
        ("a%20b.jpg", "a%20b.jpg", "exact"),  # a name may look like a URL
        ("a%20b.jpg", "a b.jpg", "url"),
        ("A%20B.jpg", "a b.jpg", "url"),
        ("/data/local-files/?d=x/a%20b.jpg", "x/a b.jpg", "url"),
        ("/data/local-files/?d=x%5Ca.jpg&t=1", "a.jpg", "url"),
        ("https://host/x/a.jpg", "x/a.jpg", "moved"),
        ("https://host/x/a.jpg?token=q/z.jpg", "x/a.jpg", "url"),
        ("images/0a1b2c3d-a.jpg", "a.jpg", "url"),
        ("images\\0a1b2c3d-a%20b.jpg", "a b.jpg", "url"),
        ("0a1b2c3d-a.jpg", "0a1b2c3d-a.jpg", "exact"),
        ("0a1b2c3g-a.jpg", "a.jpg", "missing"),  # g is no hexadecimal digit
        ("x0a1b2c3d-a.jpg", "a.jpg", "missing"),
        ("sub\\a.jpg", "sub/a.jpg", "exact"),
        ("./sub//a.jpg", "sub/a.jpg", "exact"),
        ("../x/sub/a.jpg", "sub/a.jpg", "moved"),
        ("a.jpg", "a.jpg/b.txt", "missing"),  # a folder
        ("sub/", "sub/a.jpg", "missing"),
        ("..", "a.jpg", "missing"),
        ("a\0.jpg", "b.jpg", "missing"),
    ],
)
def test_a_name_is_read_in_many_ways(tmp_path, written, on_disk, how):
    _touch(tmp_path, on_disk, "other.jpg")
    match = ImageFinder([tmp_path / "nowhere", tmp_path]).find(written)
    assert match.how == how
    if how == "missing":
        assert match.path is None
    else:
        assert match.path.samefile(tmp_path / on_disk)


def test_a_backslash_may_be_part_of_a_name(tmp_path):
    _touch(tmp_path, "sub\\a.jpg", "sub/a.jpg")
    assert _located(tmp_path, ["sub\\a.jpg", "sub/a.jpg"]) == ["sub\\a.jpg", "sub/a.jpg"]
    (tmp_path / "sub\\a.jpg").unlink()
    assert _located(tmp_path, ["sub\\a.jpg", "sub/a.jpg"]) == ["sub/a.jpg", "sub/a.jpg"]


def test_names_in_two_slashes_that_mean_one_file(tmp_path):
    """Both are found, where neither is there as it is written."""
    _touch(tmp_path, "a.jpg")
    found = ImageFinder([tmp_path]).find_all(["x\\a.jpg", "x/a.jpg", "a.jpg"])
    assert [match.how for match in found.values()] == ["moved", "moved", "exact"]
    assert {match.path for match in found.values()} == {tmp_path / "a.jpg"}


def test_an_absolute_name_that_is_there(tmp_path):
    _touch(tmp_path, "elsewhere/a.jpg", "set/b.jpg")
    names = [str(tmp_path / "elsewhere/a.jpg"), "b.jpg", str(tmp_path / "set/b.jpg")]
    root = tmp_path / "set"
    assert _located(root, names) == ["../elsewhere/a.jpg", "b.jpg", "b.jpg"]


def test_folders_count_in_their_order(tmp_path):
    _touch(tmp_path, "one/a.jpg", "two/a.jpg", "two/b.jpg", "three/c.jpg", "three/b.jpg")
    names = ["a.jpg", "b.jpg", "c.jpg", "a.jpg"]
    expected = ["one/a.jpg", "two/b.jpg", "three/c.jpg", "one/a.jpg"]
    assert _located(tmp_path, names, ["one", "none", "two", "three"]) == expected
    assert _located(tmp_path, names[:1], ["two", "one"]) == ["two/a.jpg"]


def test_links_count_as_what_they_point_to(tmp_path):
    _touch(tmp_path, "real/a.jpg")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/b.jpg").symlink_to(tmp_path / "real/a.jpg")
    (tmp_path / "set/c.jpg").symlink_to(tmp_path / "gone.jpg")
    finder = ImageFinder([tmp_path / "set"])
    assert [finder.find(name).how for name in ("b.jpg", "c.jpg")] == ["exact", "missing"]


def test_a_missing_file_is_expected_where_most_are(tmp_path):
    _touch(tmp_path, "one/a.jpg", "two/b.jpg", "two/c.jpg")
    found = _located(tmp_path, ["a.jpg", "x/lost.jpg", "b.jpg", "c.jpg"], ["one", "two"])
    assert found == ["one/a.jpg", "two/lost.jpg", "two/b.jpg", "two/c.jpg"]


def test_a_missing_file_is_not_taken_for_another_that_is_there(tmp_path):
    (tmp_path / "x/b").mkdir(parents=True)
    (tmp_path / "x/b/b.jpg").touch()
    finder, log = ImageFinder([tmp_path / "x"]), IssueLog()
    found = locate_images(["a/b/b.jpg", "b.jpg"], finder, source="", root=tmp_path, log=log)
    assert found == ["x/b/b.jpg", "x/b.jpg"]
    assert "ambiguous_image" not in {*log.table()["rule"]}


def test_what_was_assumed_is_said_once_a_kind(tmp_path):
    _touch(tmp_path, "a.jpg", "b.JPG", "c.png", "d e.jpg", "f.png", "f.tif", "g.jpg", "h.jpg")
    log = IssueLog()
    names = ["a.jpg", "x/g.jpg", "x/h.jpg", "b.jpg", "c.jpg", "d%20e.jpg", "f.jpg"]
    found = _located(tmp_path, names, log=log)
    assert found == ["a.jpg", "g.jpg", "h.jpg", "b.JPG", "c.png", "d e.jpg", None]
    said = {row["rule"]: row["value"] for row in log.rows}
    assert len(said) == len(log.rows)
    assert said == {
        "ambiguous_image": "'f.jpg': f.png, f.tif",
        "image_path": "2 image(s), first 'x/g.jpg' -> g.jpg",
        "image_spelling": "1 image(s), first 'b.jpg' -> b.JPG",
        "image_ending": "1 image(s), first 'c.jpg' -> c.png",
        "image_url": "1 image(s), first 'd%20e.jpg' -> d e.jpg",
    }


def test_nothing_found_lists_the_folders(tmp_path):
    _touch(tmp_path, "one/a.jpg")
    with pytest.raises(DataError, match=r"(?s)none of the 1.*'b\.jpg'.*/one\n.*two \(no such fol"):
        _located(tmp_path, ["b.jpg"], ["one", "two"])
    assert _located(tmp_path, [], ["one"]) == []


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whole_folders_at_a_time_equals_one_file_at_a_time(tmp_path_factory, data):
    """As pathlib finds them: each name in each folder, then without its leading folders."""
    root = tmp_path_factory.mktemp("set")
    folders = [root / name for name in data.draw(st.permutations(["x", "y", "x/a"]))]
    for place in data.draw(st.lists(st.tuples(st.sampled_from("xy"), NAMES), max_size=6)):
        path = root.joinpath(*place).with_suffix(".jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    names = [f"{name}.jpg" for name in data.draw(st.lists(NAMES, min_size=1, max_size=5))]

    def slow(name: str) -> Path | None:
        parts = Path(name).parts
        tries = [folder.joinpath(*parts[n:]) for n in range(len(parts)) for folder in folders]
        return next((path for path in tries if path.is_file()), None)

    expected = [slow(name) for name in names]
    finder = ImageFinder(folders)
    assert [finder.find(name).path for name in names] == expected
    if any(expected):
        found = locate_images(names, ImageFinder(folders), source="", root=root, log=IssueLog())
        given = dict(zip(names, expected, strict=True))
        claims = Counter(given.values())
        for name, path in zip(names, found, strict=True):
            right = given[name]
            written = {folder / name for folder in folders}
            shared = claims[right] > 1 and right not in written  # it cannot be both pictures
            assert right is None or path == (None if shared else relative(right, root))
