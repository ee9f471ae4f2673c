from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data import check_images
from detpipe.data.check import CheckError, check, inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats import coco, voc
from detpipe.data.formats.base import IssueLog

STRICT = CheckConfig(rules={"box_*": "error"}, workers=0)
MILD = CheckConfig(rules={"missing_image": "drop", "undecodable_image": "drop"}, workers=0)


def rules(issues: pd.DataFrame, severity: str | None = None) -> dict[str, int]:
    chosen = issues if severity is None else issues[issues["severity"] == severity]
    return chosen["rule"].value_counts().to_dict()


FINE = ("a", "cat", 4, 5, 24, 35), ("b", "dog", 0, 0, 64, 48)


def test_a_clean_set_passes_unchanged_with_the_files_sizes(tmp_path, data_set):
    found = data_set(*FINE)
    checked = check(found, tmp_path, STRICT)
    assert checked.boxes.equals(found.boxes)
    assert checked.classes.equals(found.classes)
    assert checked.images[["width", "height"]].to_numpy().tolist() == [[64, 48], [64, 48]]
    assert checked.issues.empty
    assert found.images["width"].tolist() == [0, 0]  # what was given is not touched


@pytest.mark.parametrize(
    ("box", "rule"),
    [
        ((10, 10, 10, 20), "box_without_area"),
        ((10, 10, 10, 10), "box_without_area"),
        ((20, 10, 10, 20), "box_inverted"),
        ((10, 20, 20, 10), "box_inverted"),
        ((float("nan"), 1, 2, 3), "box_not_a_number"),
        ((1, 1, float("inf"), 3), "box_not_a_number"),
        ((64, 10, 70, 20), "box_outside"),
        ((-9, 10, 0, 20), "box_outside"),
        ((10, 48, 20, 60), "box_outside"),
    ],
)
def test_a_bad_box_is_dropped_and_counted_or_an_error(tmp_path, data_set, box, rule):
    found = data_set(*FINE, ("a", "cat", *box))
    checked = check(found, tmp_path, MILD)
    assert checked.boxes["annotation_id"].tolist() == ["0", "1"]
    assert rules(checked.issues) == {rule: 1}
    (issue,) = checked.issues.to_dict("records")
    assert (issue["file"], issue["image_id"], issue["annotation_id"], issue["action"]) == (
        "a.png", "a", "2", "dropped",
    )  # fmt: skip
    with pytest.raises(
        CheckError, match=rf"{rule}: a\.png, annotation 2: cat \(.*rules\.{rule}: drop"
    ):
        check(found, tmp_path, STRICT)


@pytest.mark.parametrize(
    ("box", "clipped"),
    [
        ((-1, 5, 20, 20), [0, 5, 20, 20]),
        ((5, -3, 20, 20), [5, 0, 20, 20]),
        ((50, 40, 70, 50), [50, 40, 64, 48]),
        ((-5, -5, 100, 100), [0, 0, 64, 48]),
    ],
)
def test_a_box_partly_outside_is_clipped_and_counted_or_an_error(tmp_path, data_set, box, clipped):
    found = data_set(("a", "cat", *box), FINE[1])
    checked = check(found, tmp_path, MILD)
    row = checked.boxes.iloc[0]
    assert row[BOX_COLUMNS].tolist() == clipped
    assert row["area"] == pytest.approx((row["x2"] - row["x1"]) * (row["y2"] - row["y1"]))
    assert rules(checked.issues) == {"box_partly_outside": 1}
    with pytest.raises(CheckError, match=r"box_partly_outside: a\.png, annotation 0"):
        check(found, tmp_path, STRICT)


def test_rounding_is_put_right_without_a_word(tmp_path, data_set):
    checked = check(data_set(("a", "cat", -1e-6, 0, 64.000004, 48), FINE[1]), tmp_path, STRICT)
    assert checked.boxes[BOX_COLUMNS].iloc[0].tolist() == [0, 0, 64, 48]
    assert checked.issues.empty


def test_the_area_of_a_segment_is_clipped_by_its_share(tmp_path, data_set):
    found = data_set(("a", "cat", 44, 0, 84, 40), ("b", "dog", 0, 0, 10, 10))
    found.boxes["area"] = [400.0, 30.0]  # a quarter of the box; untouched below
    checked = check(found, tmp_path, MILD)
    assert checked.boxes["area"].tolist() == [pytest.approx(200), 30.0]


def test_all_errors_come_in_one_message_with_counts(tmp_path, data_set):
    bad = [("a", "cat", n, 5, n, 9) for n in range(30)]
    found = data_set(*FINE, *bad, ("b", "cow", 1, 2, 3, 4))
    with pytest.raises(CheckError) as error:
        check(found, tmp_path, STRICT)
    text = str(error.value)
    assert "31 error(s) (box_without_area 30, unknown_class 1)" in text
    assert text.count("\n- ") == 21  # 20 spelled out, and how many more
    assert "and 11 more" in text
    assert len(error.value.issues) == 31
    assert isinstance(error.value, DataError)


def test_strays_are_named(tmp_path, data_set):
    found = data_set(*FINE, ("z", "cat", 1, 2, 3, 4))
    checked = check(found, tmp_path, MILD)
    assert checked.boxes["image_id"].tolist() == ["a", "b"]
    assert rules(checked.issues) == {"box_of_unknown_image": 1}
    with pytest.raises(CheckError, match=r"image z, annotation 2: cat \(1, 2, 3, 4\)"):
        check(found, tmp_path, STRICT)
    with pytest.raises(CheckError, match=r"unknown_class: a\.png, annotation 2: cow"):
        check(data_set(*FINE, ("a", "cow", 1, 2, 3, 4)), tmp_path, MILD)
    with pytest.raises(CheckError, match="no_class_name"):
        check(data_set(*FINE, ("a", "", 1, 2, 3, 4)), tmp_path, MILD)


def test_repeated_boxes_and_ids(tmp_path, data_set):
    found = data_set(*FINE, FINE[0], ("a", "dog", *FINE[0][2:]))
    found.boxes["annotation_id"] = ["5", "5", "6", "7"]
    checked = check(found, tmp_path, STRICT)
    assert rules(checked.issues) == {"duplicate_annotation_id": 1, "duplicate_box": 1}
    assert checked.boxes["annotation_id"].is_unique
    assert len(checked.boxes) == 4


# --- images ------------------------------------------------------------------------------------


def test_a_truncated_file_is_found_by_decoding(tmp_path, data_set):
    """It opens, its header is whole, and PIL's verify() has nothing against it."""
    found = data_set(*FINE)
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "whole.jpg", quality=95)
    data = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "whole.jpg").unlink()
    (tmp_path / "a.jpg").write_bytes(data[: len(data) * 2 // 3])
    found.images["path"] = ["a.jpg", "b.png"]
    with Image.open(tmp_path / "a.jpg") as picture:
        picture.verify()
    with pytest.raises(CheckError, match=r"undecodable_image: a\.jpg"):
        check(found, tmp_path, STRICT)
    checked = check(found, tmp_path, MILD)
    assert checked.images["image_id"].tolist() == checked.boxes["image_id"].tolist() == ["b"]
    assert rules(checked.issues, "warning") == {"undecodable_image": 1}
    unseen = check(found, tmp_path, CheckConfig(decode=False))
    assert len(unseen.images) == 2


@pytest.mark.parametrize("content", [None, b"", b"no picture at all"])
def test_missing_and_foreign_files(tmp_path, data_set, content):
    found = data_set(*FINE)
    (tmp_path / "a.png").unlink()
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    rule = "missing_image" if content is None else "undecodable_image"
    with pytest.raises(CheckError, match=rf"{rule}: a\.png"):
        check(found, tmp_path, STRICT)
    checked = check(found, tmp_path, MILD)
    assert checked.images["image_id"].tolist() == checked.boxes["image_id"].tolist() == ["b"]
    assert rules(checked.issues, "warning") == {rule: 1}


def test_not_one_image_can_be_used(tmp_path, data_set):
    found = data_set(*FINE)
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    with pytest.raises(CheckError, match="not one image of the data set can be used"):
        check(found, tmp_path, MILD)


@pytest.mark.parametrize(
    ("listed", "rule"), [((48, 64), "size_swapped"), ((640, 480), "size_mismatch")]
)
def test_the_files_size_decides(tmp_path, data_set, listed, rule):
    checked = check(data_set(*FINE, sizes=listed), tmp_path, STRICT)
    assert checked.images[["width", "height"]].to_numpy().tolist() == [[64, 48], [64, 48]]
    assert rules(checked.issues) == {rule: 2}
    assert checked.issues["value"].iloc[0] == f"listed {listed[0]}x{listed[1]}, file 64x48"


def test_boxes_outside_an_image_of_another_size_are_errors(tmp_path, data_set):
    """Whatever the setting: the annotations were made for another picture."""
    boxes = (*FINE, ("a", "cat", 300, 300, 400, 400))
    assert len(check(data_set(*boxes), tmp_path, MILD).boxes) == 2
    with pytest.raises(CheckError, match=r"box_outside_mismatched_image: a\.png, annotation 2"):
        check(data_set(*boxes, sizes=(640, 480)), tmp_path, MILD)


def test_a_size_before_exif_rotation_is_said_apart(tmp_path, data_set):
    found = data_set(*FINE)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48), "red").save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "a.png").unlink()
    found.images["path"] = ["a.jpg", "b.png"]
    found.images[["width", "height"]] = [[64, 48], [64, 48]]
    found.boxes.loc[0, BOX_COLUMNS] = [1.0, 2.0, 20.0, 30.0]
    checked = check(found, tmp_path, STRICT)
    assert checked.images[["width", "height"]].to_numpy().tolist() == [[48, 64], [64, 48]]
    assert rules(checked.issues) == {"size_before_exif": 1}
    found.images[["width", "height"]] = [[48, 64], [64, 48]]  # the upright size: nothing to say
    assert check(found, tmp_path, STRICT).issues.empty


def test_16_bits_are_said(tmp_path, data_set):
    found = data_set(*FINE)
    Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64)).save(tmp_path / "a.png")
    assert rules(check(found, tmp_path, STRICT).issues) == {"more_than_8_bits": 1}


def test_the_same_picture_in_two_splits(tmp_path, data_set):
    boxes = *FINE, ("a", "dog", 1, 2, 30, 40), ("b", "cat", 1, 2, 30, 40)
    found = data_set(*boxes, splits={"a": "train", "b": "test"})
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    checked = check(found, tmp_path, STRICT)
    assert rules(checked.issues, "warning") == {"same_picture_in_two_splits": 1}
    found.images["path"] = ["a.png", "a.png"]
    (tmp_path / "b.png").unlink()
    checked = check(found, tmp_path, STRICT)
    assert rules(checked.issues, "warning") == {"image_in_two_splits": 1}
    assert checked.issues["value"].iloc[0] == "train, test"
    found.images["split"] = "train"
    assert rules(check(found, tmp_path, STRICT).issues, "warning") == {"image_listed_twice": 1}


def test_images_without_objects_stay_and_are_counted(tmp_path, data_set):
    found = data_set(
        FINE[0], pictures=("a", "b", "c"), splits={"a": "train", "b": "train", "c": "val"}
    )
    checked = check(found, tmp_path, STRICT)
    assert len(checked.images) == 3
    issues = checked.issues.set_index("rule")
    assert issues.loc["images_without_boxes", "value"] == "1 of 2 in train"
    assert issues.loc["split_without_boxes", "value"] == "val"
    assert issues.loc["class_without_boxes", "value"] == "dog"


def test_no_images_at_all(tmp_path, data_set):
    with pytest.raises(CheckError, match="holds no image"):
        check(data_set(pictures=()), tmp_path, MILD)


# --- with the readers --------------------------------------------------------------------------


def test_a_readers_errors_are_raised_with_the_checks(tmp_path, data_set):
    log = IssueLog()
    log.add("error", "ambiguous_image", file="x.xml", action="rename one")
    found = data_set(*FINE, ("a", "cow", 1, 2, 3, 4))._replace(issues=log.table())
    with pytest.raises(CheckError, match=r"(?s)2 error\(s\).*x\.xml.*unknown_class"):
        check(found, tmp_path, MILD)


def test_bccd_has_two_boxes_without_area(shared_data):
    root = shared_data / "bccd_voc"
    checked = check(voc.read(root), root, CheckConfig(decode=False))
    assert len(checked.boxes) == 4886
    flat = checked.issues[checked.issues["severity"] == "warning"]
    assert rules(flat) == {"box_without_area": 2}
    assert set(flat["image_id"]) == {"BloodImage_00338", "BloodImage_00343"}
    assert flat["value"].iloc[0] == "RBC (504, 337, 504, 337)"


def test_screws_stand_upright_and_one_is_missing(shared_data):
    root = shared_data / "screws_coco_cvat"
    found = coco.read(root)
    with pytest.raises(CheckError, match=r"1 error\(s\) \(missing_image 1\).*\n- .*screw_045\.jpg"):
        check(found, root, CheckConfig(decode=False))
    checked = check(found, root, CheckConfig(decode=False, rules={"missing_image": "drop"}))
    assert set(checked.images["width"]) == {3024}
    assert len(checked.boxes) == 4
    assert rules(checked.issues) == {"missing_image": 1}
    # The same file, its sizes written as the camera stored the pictures.
    turned = found._replace(images=found.images.assign(width=4032, height=3024))
    said = check(turned, root, CheckConfig(decode=False, rules={"missing_image": "drop"})).issues
    assert rules(said) == {"missing_image": 1, "size_before_exif": 3, "size_swapped": 1}


def test_chess_names_its_empty_classes(shared_data):
    root = shared_data / "chess_coco_roboflow"
    checked = check(coco.read(root), root, CheckConfig(decode=False))
    empty = checked.issues[checked.issues["rule"] == "class_without_boxes"]
    assert empty["value"].tolist() == ["pieces", "bishop"]
    assert len(checked.boxes) == 376


def test_the_log_has_one_block_with_a_line_a_rule(tmp_path, data_set, caplog):
    bad = [("a", "cat", n, 5, n, 9) for n in range(9)]
    found = data_set(*FINE, *bad, ("z", "cat", 1, 2, 3, 4), classes=("cat", "dog", "[/x\n]"))
    with caplog.at_level(logging.INFO, logger="detpipe.data"):
        check(found, tmp_path, MILD)
    (record,) = caplog.records
    head, *lines = record.getMessage().splitlines()
    assert head == "data check: 2 of 2 images and 2 of 12 boxes can be used"
    assert [line.split()[:3] for line in lines] == [
        ["warning", "1", "unreadable_text:"],
        ["warning", "1", "box_of_unknown_image:"],
        ["warning", "9", "box_without_area:"],
        ["info", "1", "class_without_boxes:"],
    ]
    assert any("a.png, annotation 2: cat (0, 5, 0, 9) (dropped)" in line for line in lines)
    assert record.levelname == "WARNING"
    assert "[" not in record.getMessage()  # rich takes it for markup


def test_the_block_is_short_whatever_is_found_and_errors_come_first(tmp_path, data_set, caplog):
    log = IssueLog()
    for number in range(40):
        log.add("info", f"own_rule_{number}", value="x" * 1000)
    log.add("error", "decimal_comma")
    found = data_set(*FINE)._replace(issues=log.table())
    with caplog.at_level(logging.INFO, logger="detpipe.data"):
        inspect(found, tmp_path, MILD)
    lines = caplog.records[0].getMessage().splitlines()
    assert len(lines) <= 25
    assert lines[1].split() == ["error", "1", "decimal_comma:"]
    assert lines[-1].strip() == "and 21 more of 21 other rules"
    assert max(map(len, lines)) < 160


def test_a_set_with_nothing_to_say_is_no_warning(tmp_path, data_set, caplog):
    with caplog.at_level(logging.INFO, logger="detpipe.data"):
        inspect(data_set(*FINE, classes=("cat", "dog", "cow")), tmp_path, MILD)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_the_users_files_stay_as_they_are(tmp_path, data_set):
    found = data_set(*FINE, ("a", "cat", -5, 0, 10, 10))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    check(found, tmp_path, MILD)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_processes_find_the_same(tmp_path, data_set, monkeypatch):
    names = [f"p{n}" for n in range(40)]
    found = data_set(*(("p1", "cat", 1, 2, 3, 4), ("p2", "dog", 1, 2, 3, 4)), pictures=names)
    (tmp_path / "p7.png").write_bytes((tmp_path / "p7.png").read_bytes()[:2000])
    alone = check(found, tmp_path, MILD)
    monkeypatch.setattr(check_images, "_PROCESSES_FROM_BYTES", 0)
    together = check(found, tmp_path, MILD.model_copy(update={"workers": 2}))
    for ours, theirs in zip(alone, together, strict=True):
        pd.testing.assert_frame_equal(ours, theirs)
    assert rules(alone.issues, "warning") == {"undecodable_image": 1}


SHARES = tuple(("ab"[n % 2], "cat", 0.1, 0.2 + n / 100, 0.6, 0.9) for n in range(30))


def test_shares_taken_for_pixels_are_refused(data_set, tmp_path):
    for boxes in (SHARES, SHARES[:3], (*SHARES, FINE[0]), (*SHARES, ("a", "cat", 0, 0, 0, 0))):
        with pytest.raises(CheckError, match=r"lie within 0\.\.1.*multiply x and width") as caught:
            check(data_set(*boxes), tmp_path, MILD)
        assert rules(caught.value.issues, "error") == {"boxes_are_shares": 1}
    one_based = [(i, c, x1 - 1, y1 - 1, x2, y2) for i, c, x1, y1, x2, y2 in SHARES]
    with pytest.raises(CheckError, match="boxes_are_shares"):
        check(data_set(*one_based), tmp_path, MILD)


def test_few_small_boxes_are_no_shares(data_set, tmp_path):
    for boxes in (SHARES[:2], (*SHARES, *FINE), [("a", "cat", 0, 0, 2, 1)] * 5):
        checked = check(data_set(*boxes), tmp_path, MILD)
        assert "boxes_are_shares" not in rules(checked.issues)


@pytest.mark.parametrize("sizes", [(0, 48), (64, 0)])
def test_a_side_that_is_not_listed_is_no_mismatch(data_set, tmp_path, sizes):
    beyond = ("a", "cat", 70, 5, 80, 20)
    checked = check(data_set(*FINE, beyond, sizes=sizes), tmp_path, MILD)
    assert rules(checked.issues) == {"box_outside": 1}
    assert checked.images[["width", "height"]].to_numpy().tolist() == [[64, 48], [64, 48]]
    wrong = check(data_set(*FINE, sizes=(0, 40)), tmp_path, MILD)
    assert rules(wrong.issues) == {"size_mismatch": 2}
