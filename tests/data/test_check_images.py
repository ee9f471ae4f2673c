from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe.core.tables import IMAGES, ISSUES
from detpipe.data import check_images as module
from detpipe.data import look as look_module
from detpipe.data import progress
from detpipe.data.check_config import CheckConfig
from detpipe.data.check_images import check_images
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog
from detpipe.data.image import load_image

Pictures = dict[str, np.ndarray | bytes]
Run = Callable[..., tuple[pd.DataFrame, set[str], pd.DataFrame]]


def picture(seed: int, *, height: int = 48, width: int = 64) -> np.ndarray:
    """As much detail as a photograph has, none of it like another's."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    resized = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def write(path: Path, content: np.ndarray | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        options = {"quality": 92} if path.suffix.lower() in (".jpg", ".jpeg") else {}
        Image.fromarray(content).save(path, **options)


def listed(*paths: str, sizes: tuple[int, int] = (0, 0), splits: tuple[str, ...] = ()) -> object:
    splits = splits or ("",) * len(paths)
    return IMAGES.make(
        [
            {"image_id": f"{n}", "path": path, "width": sizes[0], "height": sizes[1],
             "split": split}
            for n, (path, split) in enumerate(zip(paths, splits, strict=True))
        ]
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def check(
        images: pd.DataFrame, *, cache: Path | None = None, **config: object
    ) -> tuple[pd.DataFrame, set[str], pd.DataFrame]:
        log = IssueLog()
        settings = CheckConfig.model_validate({"workers": 0, **config})
        found, mismatched = check_images(images, tmp_path, settings, log, cache=cache)
        return found, mismatched, ISSUES.make(log.table())

    return check


def rules(issues: pd.DataFrame) -> dict[str, int]:
    return issues["rule"].value_counts().to_dict()


# --- can it be used ------------------------------------------------------------------------------


def half(content: np.ndarray, path: Path) -> bytes:
    write(path, content)
    return path.read_bytes()[: path.stat().st_size // 2]


def write_damaged(path: Path) -> None:
    """A JPEG with an end mark in the middle of its data."""
    write(path, picture(0, height=200, width=300))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3] = b"\xff\xd9\xff"
    path.write_bytes(bytes(data))


def test_what_cannot_be_used_is_named_and_left_out_or_refused(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "good.jpg", picture(0))
    write(tmp_path / "empty.jpg", b"")
    write(tmp_path / "page.jpg", b"<html>404</html>")
    for ending in ("jpg", "png"):
        path = tmp_path / f"half.{ending}"
        path.write_bytes(half(picture(1, height=300, width=400), path))
    (tmp_path / "folder.jpg").mkdir()
    names = ("good.jpg", "empty.jpg", "page.jpg", "half.jpg", "half.png", "folder.jpg", "gone.jpg")
    strict, _, issues = run(listed(*names))
    assert strict["path"].tolist() == ["good.jpg"]
    assert set(issues["severity"]) == {"error"}
    said = dict(zip(issues["file"], issues["value"], strict=True))
    for name, reason in {
        "empty.jpg": "0 bytes", "page.jpg": "no picture", "half.jpg": "truncated",
        "half.png": "truncated",
    }.items():  # fmt: skip
        assert reason in said[name]
    undecodable = issues[issues["rule"] == "undecodable_image"]
    assert sorted(undecodable["file"]) == sorted(names[1:5])
    assert issues["file"][issues["rule"] == "missing_image"].tolist() == ["folder.jpg", "gone.jpg"]
    assert undecodable["action"].str.contains("data.check.rules.undecodable_image: drop").all()

    mild, _, issues = run(listed(*names), rules={"*_image": "drop"})
    assert mild["path"].tolist() == ["good.jpg"]
    assert set(issues["severity"]) == {"warning"}
    assert rules(issues) == {"undecodable_image": 4, "missing_image": 2}


def test_without_decoding_headers_are_read_only(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "half.jpg"
    path.write_bytes(half(picture(1, height=300, width=400), path))
    write(tmp_path / "same.jpg", path.read_bytes())
    images, _, issues = run(listed("half.jpg", "same.jpg"), decode=False)
    assert images[["width", "height"]].to_numpy().tolist() == [[400, 300]] * 2
    assert issues.empty


def test_a_bomb_is_not_decoded(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    write(tmp_path / "bomb.png", picture(0))
    data = bytearray((tmp_path / "bomb.png").read_bytes())
    data[16:24] = (30_000).to_bytes(4, "big") + (20_000).to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(bytes(data))
    write(tmp_path / "good.jpg", picture(0))
    decoded = []
    real = look_module.load_grey
    monkeypatch.setattr(
        look_module, "load_grey", lambda file, **kw: decoded.append(file.name) or real(file, **kw)
    )
    images, _, issues = run(listed("bomb.png", "good.jpg"))
    assert images["path"].tolist() == ["good.jpg"]
    assert decoded == ["good.jpg"]
    (issue,) = issues.to_dict("records")
    assert issue["rule"] == "undecodable_image"
    for part in ("30000x20000", "600000000 pixels", "data.check.max_pixels"):
        assert part in issue["value"]
    images, _, issues = run(listed("bomb.png", "good.jpg"), decode=False, max_pixels=600_000_000)
    assert images[["width", "height"]].to_numpy().tolist() == [[30_000, 20_000], [64, 48]]
    assert issues.empty
    assert not recwarn


def test_a_damaged_jpeg_is_said_and_kept_or_dropped(tmp_path: Path, run: Run) -> None:
    write_damaged(tmp_path / "a.jpg")
    load_image(tmp_path / "a.jpg")  # Pillow takes it
    images, _, issues = run(listed("a.jpg"))
    assert len(images) == 1
    assert issues[["severity", "rule"]].to_numpy().tolist() == [["warning", "damaged_image"]]
    assert "orrupt" in issues["value"][0]
    images, _, issues = run(listed("a.jpg"), rules={"damaged_image": "drop"})
    assert images.empty


def test_deep_pictures_are_counted(tmp_path: Path, run: Run) -> None:
    for name in ("a", "b"):
        Image.fromarray(picture(len(name))[..., 0].astype(np.uint16) * 7).save(
            tmp_path / f"{name}.png"
        )
    write(tmp_path / "c.png", picture(3))
    _, _, issues = run(listed("a.png", "b.png", "c.png"), rules={"same_*": "ignore"})
    assert issues[["severity", "rule", "file", "value"]].to_numpy().tolist() == [
        ["info", "more_than_8_bits", "a.png", "2 image(s)"]
    ]


@pytest.mark.parametrize(
    ("orientation", "size", "rule"),
    [
        (1, (64, 48), ""),
        (1, (0, 48), ""),
        (1, (48, 64), "size_swapped"),
        (1, (65, 48), "size_mismatch"),
        (1, (0, 49), "size_mismatch"),
        (6, (48, 64), ""),
        (6, (64, 48), "size_before_exif"),
        (6, (64, 49), "size_mismatch"),
    ],
)
def test_the_files_size_decides_and_what_was_wrong_is_said(
    tmp_path: Path, run: Run, orientation: int, size: tuple[int, int], rule: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(picture(0)).save(tmp_path / "a.jpg", exif=exif)
    images, mismatched, issues = run(listed("a.jpg", sizes=size))
    assert images[["width", "height"]].to_numpy().tolist() == [
        [48, 64] if orientation == 6 else [64, 48]
    ]
    assert rules(issues) == ({rule: 1} if rule else {})
    assert mismatched == ({"0"} if rule else set())
    _, mismatched, issues = run(listed("a.jpg", sizes=size), rules={"size_*": "ignore"})
    assert issues.empty
    assert mismatched == ({"0"} if rule else set())


# --- names ---------------------------------------------------------------------------------------


def test_pictures_that_no_record_names_are_counted_by_folder(tmp_path: Path, run: Run) -> None:
    for n, name in enumerate(
        ("a/1.jpg", "a/2.JPG", "a/2.jpg", "a/é – 猫.png", "b/1.jpg", "c/9.jpg")
    ):
        write(tmp_path / name, picture(n))
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    (tmp_path / "a" / "folder.jpg").mkdir()
    _, _, issues = run(listed("a/1.jpg", "b/1.jpg", "b/../a/2.jpg"))
    (issue,) = issues.to_dict("records")
    assert (issue["rule"], issue["severity"], issue["file"]) == ("unlisted_picture", "info", "a")
    assert issue["value"] == "2: 2.JPG, é – 猫.png"
    _, _, issues = run(listed("a/1.jpg"), rules={"unlisted_picture": "ignore"})
    assert issues.empty


def test_names_beyond_ascii_are_read_and_said(tmp_path: Path, run: Run) -> None:
    names = ("é – 猫 1.JPG", "é – 猫 1.jpg", "naïve.png")
    for n, name in enumerate(names):
        write(tmp_path / name, picture(n))
    write(tmp_path / "ü.png", b"")
    images, _, issues = run(listed(*names, "ü.png"))
    assert images["path"].tolist() == list(names)
    assert issues["file"].tolist() == ["ü.png"]


def test_a_name_that_is_not_utf_8_is_no_crash(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.png", picture(0))
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    _, _, issues = run(listed("a.png"))
    assert issues["rule"].tolist() == ["unlisted_picture"]
    assert "caf" in issues["value"][0]
    issues["value"][0].encode("utf-8")


# --- copies --------------------------------------------------------------------------------------


def test_a_file_listed_twice_is_said(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.png", picture(0))
    write(tmp_path / "b.png", picture(1))
    images, _, issues = run(listed("a.png", "a.png", "b.png", "b.png",
                                   splits=("train", "train", "train", "val")))  # fmt: skip
    assert len(images) == 4
    assert issues[["rule", "file"]].to_numpy().tolist() == [
        ["image_listed_twice", "a.png"], ["image_in_two_splits", "b.png"],
    ]  # fmt: skip


@pytest.fixture
def copies(tmp_path: Path) -> pd.DataFrame:
    """0, 1: one picture in train and val, twice in train; 2: twice in val; 3: once."""
    for name, seed in {"t1": 0, "t0": 0, "v0": 0, "v2": 2, "v1": 2, "t3": 3}.items():
        write(tmp_path / f"{name}.png", picture(seed))
    names = ("t1.png", "t0.png", "v0.png", "v2.png", "v1.png", "t3.png")
    return listed(*names, splits=("train", "train", "val", "val", "val", "train"))


def test_files_of_equal_content_are_one_finding_a_group(copies: pd.DataFrame, run: Run) -> None:
    images, _, issues = run(copies)
    assert len(images) == 6
    found = issues[["severity", "rule", "file", "value"]].to_numpy().tolist()
    assert found == [
        ["warning", "same_picture_in_two_splits", "t0.png",
         "3 files (train 2, val 1), also t1.png, v0.png"],
        ["info", "same_picture", "t0.png", "2 files, also t1.png"],
        ["info", "same_picture", "v1.png", "2 files, also v2.png"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("same_picture", ["t0.png", "v0.png", "v1.png", "t3.png"]),
        ("same_picture_in_two_splits", ["v0.png", "v2.png", "v1.png", "t3.png"]),
        ("same_*", ["v0.png", "v1.png", "t3.png"]),
    ],
)
def test_copies_can_be_dropped(copies: pd.DataFrame, run: Run, rule: str, left: list[str]) -> None:
    images, _, _ = run(copies, rules={rule: "drop"})
    assert images["path"].tolist() == left


def test_copies_that_are_all_for_training_are_not_all_dropped(tmp_path: Path, run: Run) -> None:
    for name in ("a.png", "b.png"):
        write(tmp_path / name, picture(0))
    write(tmp_path / "c.jpg", picture(0))
    images = listed("a.png", "b.png", "c.jpg", splits=("train", "trainval", "training"))
    left, _, issues = run(images, rules={"*_in_two_splits": "drop"})
    assert len(left) == 3
    assert rules(issues) == {"same_picture_in_two_splits": 1, "near_duplicate_in_two_splits": 1}


def test_copies_can_be_an_error(copies: pd.DataFrame, run: Run) -> None:
    _, _, issues = run(copies, rules={"same_picture_in_two_splits": "error"})
    errors = issues[issues["severity"] == "error"]
    assert errors["file"].tolist() == ["t0.png"]


@pytest.fixture
def lookalikes(tmp_path: Path) -> pd.DataFrame:
    """Pictures as PNG, as JPEG, and brighter; t0 and v0, t1 and t2 and t3, v4 and e4 are near."""
    first, second, third = (picture(n).astype(int) for n in range(3))
    for name, pixels in {
        "t0.png": first, "v0.jpg": first, "t1.png": second, "t2.jpg": second,
        "t3.png": second * 0.8 + 20, "v4.png": third, "e4.jpg": third, "t5.png": picture(9),
    }.items():  # fmt: skip
        write(tmp_path / name, pixels.clip(0, 255).astype(np.uint8))
    names = ("t3.png", "t0.png", "v0.jpg", "t1.png", "t2.jpg", "v4.png", "e4.jpg", "t5.png")
    splits = tuple({"t": "train", "v": "valid", "e": "test"}[name[0]] for name in names)
    return listed(*names, splits=splits)


def test_lookalikes_are_one_finding_a_group(lookalikes: pd.DataFrame, run: Run) -> None:
    images, _, issues = run(lookalikes)
    assert len(images) == 8
    assert rules(issues) == {"near_duplicate_in_two_splits": 2}
    _, _, issues = run(lookalikes, rules={"near_duplicate": "keep"})
    found = issues[["rule", "file", "value"]].to_numpy().tolist()
    across = "near_duplicate_in_two_splits"
    assert found == [
        [across, "e4.jpg", "2 files (test 1, valid 1), also v4.png"],
        [across, "t0.png", "2 files (train 1, valid 1), also v0.jpg"],
        ["near_duplicate", "t1.png", "3 files, also t2.jpg, t3.png"],
    ]
    _, _, issues = run(lookalikes, rules={"near_*": "ignore"})
    assert issues.empty


def test_lookalikes_of_a_set_still_to_be_divided_are_said_and_copies_get_a_twin(
    lookalikes: pd.DataFrame, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "z.png").write_bytes((tmp_path / "t5.png").read_bytes())
    more = pd.concat([lookalikes, listed("z.png")]).assign(split="")
    more["image_id"] = more["path"]
    images, _, issues = run(more.reset_index(drop=True))
    assert rules(issues) == {"near_duplicate_to_divide": 3, "same_picture": 1}
    twins = images.set_index("path")["twin"]
    assert twins[twins != ""].to_dict() == {"t5.png": "t5.png", "z.png": "t5.png"}
    decided, _, _ = run(lookalikes)
    assert "twin" not in decided


def test_lookalikes_can_be_dropped(lookalikes: pd.DataFrame, run: Run) -> None:
    images, _, _ = run(lookalikes, rules={"near_duplicate_in_two_splits": "drop"})
    assert set(lookalikes["path"]) - set(images["path"]) == {"t0.png"}
    images, _, _ = run(lookalikes, rules={"near_duplicate": "drop"})
    assert set(lookalikes["path"]) - set(images["path"]) == {"t2.jpg", "t3.png"}


def test_equal_files_are_no_lookalikes_and_flat_ones_neither(tmp_path: Path, run: Run) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.png", picture(0))
    for value in (0, 120, 255):
        write(tmp_path / f"{value}.jpg", np.full((48, 64, 3), value, np.uint8))
    images = listed("a.png", "b.png", "0.jpg", "120.jpg", "255.jpg",
                    splits=("train", "val", "train", "val", "test"))  # fmt: skip
    _, _, issues = run(images, rules={"near_duplicate": "keep"})
    assert rules(issues) == {"same_picture_in_two_splits": 1}


def test_a_chain_of_lookalikes_is_not_dropped_whole(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a-b and b-c are near, a-c are not: dropping b is enough."""
    hashes = {"a.png": 0b111 << 40, "b.png": 0b111111 << 40, "c.png": 0b111111111 << 40}
    for n, name in enumerate(hashes):
        write(tmp_path / name, picture(n))
    order = iter(hashes.values())
    monkeypatch.setattr(look_module, "perceptual_hash", lambda grey: next(order))
    images, _, issues = run(listed(*hashes), rules={"near_duplicate": "drop"})
    assert images["path"].tolist() == ["a.png", "c.png"]
    assert issues["value"].tolist() == ["3 files, also b.png, c.png"]


def frames_of(shared_data: Path, folder: str) -> tuple[Path, pd.DataFrame]:
    root = shared_data / folder
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    names = [path.relative_to(root).as_posix() for path in paths]
    splits = tuple(name.split("/")[0] for name in names)
    return root, listed(*names, splits=splits)


def test_frames_of_one_clip_are_found_across_splits(shared_data: Path) -> None:
    root, images = frames_of(shared_data, "cones_yolo")
    log = IssueLog()
    rule = "near_duplicate_in_two_splits"
    config = CheckConfig.model_validate({"rules": {rule: "drop"}, "workers": 0})
    left, _ = check_images(images, root, config, log)
    issues = log.table()
    assert set(issues["rule"]) == {rule}
    assert len(issues) >= 8
    for value, file in zip(issues["value"], issues["file"], strict=True):
        clip = Path(file).name.split("_Pro_mp4")[0]
        assert value.count(clip) == value.count("_Pro_mp4")  # never of two clips
    gone = images[~images["image_id"].isin(left["image_id"])]
    assert set(gone["split"]) == {"train"}


def test_pictures_of_one_kind_are_not_taken_for_copies(shared_data: Path) -> None:
    root, images = frames_of(shared_data, "bccd_voc")
    log = IssueLog()
    config = CheckConfig.model_validate({"rules": {"near_duplicate": "keep"}, "workers": 0})
    check_images(images, root, config, log)
    assert log.table()["file"].tolist() == ["BCCD/JPEGImages/BloodImage_00037.jpg"]  # 38: it moved


# --- what is kept for the next time --------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are decoded."""
    names: list[str] = []
    real = look_module.load_grey
    monkeypatch.setattr(
        look_module, "load_grey", lambda file, **kw: names.append(file.name) or real(file, **kw)
    )
    return names


@pytest.fixture
def mixed(tmp_path: Path) -> pd.DataFrame:
    """Turned, deep, damaged, alike, equal, broken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(0)).save(tmp_path / "turned.jpg", exif=exif)
    Image.fromarray(picture(1)[..., 0].astype(np.uint16) * 7).save(tmp_path / "deep.png")
    write_damaged(tmp_path / "damaged.jpg")
    for name in ("like.png", "like.jpg"):
        write(tmp_path / name, picture(3))
    write(tmp_path / "equal.png", (tmp_path / "like.png").read_bytes())
    write(tmp_path / "broken.jpg", b"")
    names = ("turned.jpg", "deep.png", "damaged.jpg", "like.png", "like.jpg", "equal.png",
             "broken.jpg")  # fmt: skip
    return listed(*names, sizes=(64, 48), splits=("train", "val", "val", "val", "train", "val", ""))


def test_a_second_check_decodes_nothing_and_finds_the_same(
    tmp_path: Path, mixed: pd.DataFrame, run: Run, decoded: list[str]
) -> None:
    cache = tmp_path / "cache" / "deeper"
    first = run(mixed, cache=cache)
    assert len(decoded) == 6
    assert {"more_than_8_bits", "damaged_image", "size_before_exif", "same_picture",
            "near_duplicate_in_two_splits"} <= set(first[2]["rule"])  # fmt: skip
    decoded.clear()
    second = run(mixed, cache=cache)
    assert decoded == []
    pd.testing.assert_frame_equal(first[0], second[0])
    pd.testing.assert_frame_equal(first[2], second[2])
    assert first[1] == second[1]
    (tmp_path / "like.png").rename(tmp_path / "other.png")
    run(mixed.replace("like.png", "other.png"), cache=cache)
    assert decoded == []


def test_changed_content_is_decoded_again_whatever_the_time(
    tmp_path: Path, run: Run, decoded: list[str]
) -> None:
    path = tmp_path / "a.bmp"
    write(path, picture(0))
    times = path.stat()
    run(listed("a.bmp"), cache=tmp_path / "cache")
    size = path.stat().st_size
    write(path, picture(1, height=64, width=48))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == size
    images, _, _ = run(listed("a.bmp"), cache=tmp_path / "cache")
    assert decoded == ["a.bmp", "a.bmp"]
    assert images[["width", "height"]].to_numpy().tolist() == [[48, 64]]


def test_a_lower_limit_holds_for_what_is_known(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.png", picture(0))
    assert run(listed("a.png"), cache=tmp_path / "cache")[2].empty
    _, _, issues = run(listed("a.png"), cache=tmp_path / "cache", max_pixels=64 * 48 - 1)
    assert rules(issues) == {"undecodable_image": 1}
    assert run(listed("a.png"), cache=tmp_path / "cache", max_pixels=64 * 48)[2].empty


@pytest.mark.parametrize("how", ["no database", "cut short", "a page lost", "another version"])
def test_a_damaged_cache_is_begun_anew(
    tmp_path: Path, run: Run, decoded: list[str], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache, names = tmp_path / "cache", [f"{n}.png" for n in range(120)]
    for name in names:
        write(tmp_path / name, picture(int(name[:-4]), height=8, width=9))
    first = run(listed(*names), cache=cache)
    (file,) = cache.iterdir()
    if how == "no database":
        file.write_bytes(b"rubbish" * 999)
    elif how == "cut short":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif how == "a page lost":
        with file.open("r+b") as opened:
            opened.seek(-4096, os.SEEK_END)
            opened.write(bytes(4096))
    else:
        with sqlite3.connect(file) as base:
            base.execute("PRAGMA user_version = 99")
    decoded.clear()
    second = run(listed(*names), cache=cache)
    assert len(decoded) == len(names)
    pd.testing.assert_frame_equal(first[0], second[0])
    assert ("damaged" in caplog.text) == (how != "another version")
    decoded.clear()
    run(listed(*names), cache=cache)
    assert decoded == []


def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.png", picture(0))
    (tmp_path / "cache").write_text("a file, not a folder")
    images, _, _ = run(listed("a.png"), cache=tmp_path / "cache")
    assert len(images) == 1
    assert "nothing is kept" in caplog.text


def test_a_check_that_is_broken_off_keeps_what_it_found(
    tmp_path: Path, run: Run, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        write(tmp_path / f"{n}.png", picture(n))
    real = look_module.perceptual_hash

    def interrupted(grey: np.ndarray) -> int:
        if len(decoded) == 3:
            raise KeyboardInterrupt
        return real(grey)

    monkeypatch.setattr(look_module, "perceptual_hash", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(listed("0.png", "1.png", "2.png"), cache=tmp_path / "cache")
    monkeypatch.setattr(look_module, "perceptual_hash", real)
    decoded.clear()
    run(listed("0.png", "1.png", "2.png"), cache=tmp_path / "cache")
    assert decoded == ["2.png"]


# --- processes and progress ----------------------------------------------------------------------


def test_processes_find_the_same(tmp_path: Path, mixed: pd.DataFrame, run: Run) -> None:
    alone = run(mixed)
    for cache in (tmp_path / "cache", tmp_path / "cache"):
        several = run(mixed, workers=1, cache=cache)
        pd.testing.assert_frame_equal(alone[0], several[0])
        pd.testing.assert_frame_equal(alone[2], several[2])


def test_a_picture_that_ends_its_process_is_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.png", picture(0))
    monkeypatch.setattr(
        module,
        "spread",
        lambda work, files, processes: (d for d in [(0, module.Died("signal 11"))]),
    )
    images, _, issues = run(listed("a.png"), workers=3)
    assert images.empty
    assert issues[["rule", "file"]].to_numpy().tolist() == [["undecodable_image", "a.png"]]
    assert "signal 11" in issues["value"][0]


def test_processes_are_started_on_their_own_accord_where_it_pays(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.png", picture(0))
    started: list[int] = []

    def spread(work: Callable[[str], object], files: list[str], *, processes: int) -> object:
        started.append(processes)
        yield from enumerate(map(work, files))

    monkeypatch.setattr(module, "spread", spread)
    run(listed("a.png"), workers="auto")
    assert started == []
    monkeypatch.setattr(module, "_PROCESSES_FROM_BYTES", 1)
    run(listed("a.png"), workers="auto", decode=False)
    assert started == []
    run(listed("a.png"), workers="auto")
    run(listed("a.png"), workers=7)
    assert started == [module._cores(), 7]


def test_a_log_line_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress, "perf_counter", lambda: float(next(clock)))
    with caplog.at_level(logging.INFO, logger=progress.__name__):
        assert list(progress.follow(iter("abcdefgh"), total=8, what="looking")) == list("abcdefgh")
    assert caplog.messages == [
        "looking: 3 of 8, about 50 s left", "looking: 6 of 8, about 20 s left",
    ]  # fmt: skip


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress.follow(iter("abc"), total=3, what="looking")) == ["a", "b", "c"]
    shown = capsys.readouterr().out
    assert "looking" in shown
    assert "0/3" in shown
