from __future__ import annotations

import pytest
import yaml
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import yolo

from .conftest import rules


@pytest.fixture
def yolo_set(tmp_path, picture):
    """One image of 64×48 with the given label lines (None: no file) under data.yaml's keys."""

    def write(lines: str | None = "", **keys) -> None:
        picture("train/images/a.jpg")
        if lines is not None:
            (tmp_path / "train/labels").mkdir(exist_ok=True)
            (tmp_path / "train/labels/a.txt").write_text(lines)
        content = {"train": "train/images", "names": ["cat", "dog"], **keys}
        (tmp_path / "data.yaml").write_text(
            yaml.safe_dump({k: v for k, v in content.items() if v is not None})
        )

    return write


def test_cones_as_their_readme_says(shared_data):
    root = shared_data / "cones_yolo"
    found = yolo.read(root)
    assert found.images["split"].value_counts().to_dict() == {"train": 182, "val": 101, "test": 48}
    assert found.boxes["class_name"].value_counts().to_dict() == {"cone": 466, "cube": 277}
    assert found.classes["class_name"].tolist() == ["cone", "cube"]
    said = found.issues[found.issues["rule"] == "path_assumed"]
    assert said["value"].tolist() == [
        "train: ../train/images", "val: ../valid/images", "test: ../test/images",
    ]  # fmt: skip
    assert said["action"].tolist() == [
        "read from train/images", "read from valid/images", "read from test/images",
    ]  # fmt: skip
    # Back to shares, every line of every label file is there again.
    sizes = dict(zip(found.images["image_id"], found.images["width"], strict=True))
    boxes = found.boxes.set_index("annotation_id")
    lines = 0
    for path in root.glob("*/labels/*.txt"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            row = boxes.loc[f"{path.stem}-{number}"]
            width = sizes[path.stem]
            shares = (row["x1"] + row["x2"]) / 2 / width, (row["x2"] - row["x1"]) / width
            written = line.split()
            assert shares == pytest.approx([float(written[1]), float(written[3])], abs=1e-12)
            lines += 1
    assert lines == len(boxes)


def test_shares_become_pixels_of_the_upright_image(tmp_path, yolo_set):
    yolo_set("1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.5 0.5")  # no newline at the end
    found = yolo.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[24, 12, 40, 36], [0, 0, 32, 24]]
    assert found.boxes["class_name"].tolist() == ["dog", "cat"]
    assert found.boxes["area"].tolist() == [16 * 24, 32 * 24]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "train/images/a.jpg", exif=exif)
    turned = yolo.read(tmp_path)
    assert turned.images[["width", "height"]].to_numpy().tolist() == [[48, 64]]
    assert turned.boxes[BOX_COLUMNS].iloc[0].tolist() == [18, 16, 30, 48]


@pytest.mark.parametrize("lines", [None, "", "\n\n"])
def test_no_labels_mean_no_objects(tmp_path, yolo_set, lines):
    yolo_set(lines)
    found = yolo.read(tmp_path)
    assert len(found.images) == 1
    assert found.boxes.empty
    assert rules(found) == ({"no_label_file": 1, "no_labels": 1} if lines is None else {})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat", "dog"], ["cat", "dog"]),
        ({0: "cat", 1: "dog"}, ["cat", "dog"]),
        ({"1": "dog", "0": "cat"}, ["cat", "dog"]),
        ({0: "cat", 5: "dog"}, ["cat", "dog"]),
        ([1, 2], ["1", "2"]),
    ],
)
def test_names_as_list_or_mapping(tmp_path, yolo_set, names, expected):
    number = 5 if isinstance(names, dict) and 5 in names else 1
    yolo_set(f"{number} 0.5 0.5 0.5 0.5", names=names)
    found = yolo.read(tmp_path)
    assert found.classes["class_name"].tolist() == expected
    assert found.boxes["class_name"].tolist() == [expected[1]]


def test_polygons_become_their_boxes(tmp_path, yolo_set):
    yolo_set("0 0.25 0.25 0.75 0.5 0.5 0.75\n0 0.5 0.5 0.5 0.5")
    found = yolo.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == [16, 12, 48, 36]
    assert rules(found) == {"polygons": 1}


def test_wrong_lines_are_named_with_file_and_line(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5\n0 0.5 0.5\n0 a b c d\n0.5 0.5 0.5 0.1 0.1\n7 0.5 0.5 0.2 0.2")
    found = yolo.read(tmp_path)
    errors = found.issues[found.issues["severity"] == "error"]
    assert errors["file"].tolist() == [f"train/labels/a.txt:{n}" for n in (2, 3, 4)]
    assert found.boxes["class_name"].tolist() == ["cat", "unknown class number 7"]


def test_values_beyond_0_1_are_reported(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5\n0 0.95 0.5 0.2 0.5\n0 -0.1 0.5 0.1 0.1\n0 0.5 0.5 1 1.0000001")
    found = yolo.read(tmp_path)
    assert rules(found) == {"share_beyond_0_1": 2}
    assert found.issues["file"].tolist() == [f"train/labels/a.txt:{n}" for n in (2, 3)]
    assert len(found.boxes) == 4  # the check clips or drops them


def test_pixels_instead_of_shares_are_an_error(tmp_path, yolo_set):
    yolo_set("0 32 24 10 10\n1 20 20 4 4")
    found = yolo.read(tmp_path)
    assert "labels_in_pixels" in found.issues[found.issues["severity"] == "error"]["rule"].tolist()


@pytest.mark.parametrize(
    ("entry", "base", "assumed"),
    [
        ("train/images", None, False),
        ("images", "train", False),
        ("./train/images", ".", False),
        ("../train/images", None, True),
        ("/home/me/set/train/images", None, True),
        ("train/images", "/content/datasets/cats", True),
        ("train", None, False),
        (["train/images"], None, False),
        ("list.txt", None, False),
    ],
)
def test_places_of_the_images(tmp_path, yolo_set, entry, base, assumed):
    (tmp_path / "list.txt").write_text("./train/images/a.jpg\n")
    yolo_set("0 0.5 0.5 0.5 0.5", train=entry, path=base)
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg"]
    assert len(found.boxes) == 1
    assert ("path_assumed" in rules(found)) == assumed


def test_one_image_in_two_splits_keeps_both_rows(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5", val="train/images")
    found = yolo.read(tmp_path)
    assert found.images["split"].tolist() == ["train", "val"]
    assert found.images["image_id"].is_unique
    assert found.boxes["image_id"].tolist() == found.images["image_id"].tolist()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"names": None}, "lacks 'names'"),
        ({"names": {"a": "cat"}}, "whole numbers"),
        ({"names": ["cat", "cat"]}, "these repeat: cat"),
        ({"train": "elsewhere"}, "'train: elsewhere' was not found; tried"),
        ({"train": None}, "names no images"),
    ],
)
def test_a_wrong_yaml_says_what_is_wrong(tmp_path, yolo_set, keys, message):
    yolo_set("", **keys)
    with pytest.raises(DataError, match=message):
        yolo.read(tmp_path)


def test_a_missing_yaml_names_those_there_are(tmp_path, yolo_set):
    yolo_set("")
    with pytest.raises(DataError, match=r"YAML files there: data\.yaml"):
        yolo.read(tmp_path, data="cats.yaml")
    yolo_set("", names=None, nc=2)
    assert yolo.read(tmp_path).classes["class_name"].tolist() == ["0", "1"]
    yolo_set("", nc=3)
    assert rules(yolo.read(tmp_path)) == {"class_count": 1}


def test_missing_labels_folder_says_where_labels_were_looked_for(tmp_path, yolo_set, picture):
    yolo_set(None)
    nothing = yolo.read(tmp_path).issues.set_index("rule").loc["no_labels"]
    assert nothing["severity"] == "error" and nothing["file"] == "train/images"
    assert "train/labels/a.txt, train/images/a.txt" in nothing["value"]
    yolo_set("0 0.5 0.5 0.2 0.2", val="valid/images")
    picture("valid/images/b.jpg")
    part = yolo.read(tmp_path).issues.set_index("rule").loc["no_labels"]
    assert part["severity"] == "warning" and "valid/labels/b.txt" in part["value"]


@pytest.mark.parametrize("names", ["{0: NO, 1: null}", "[NO, null]", "[NO, ~]", "[1.0, 0x10]"])
def test_names_are_text_whatever_yaml_takes_them_for(tmp_path, yolo_set, names):
    yolo_set("1 0.5 0.5 0.2 0.2", names=None)
    text = f"train: train/images\nval: null\ntest:\nnc: 2\nnames: {names}\n"
    (tmp_path / "data.yaml").write_text(text)
    found = yolo.read(tmp_path)
    words = [word.split()[-1] for word in names.strip("{}[]").split(",")]
    assert found.classes["class_name"].tolist() == words
    assert found.boxes["class_name"].tolist() == words[1:]


@pytest.mark.parametrize(
    ("names", "says"), [("cat", "must be a list or a mapping"), ("[cat, ' ']", "no name: 1")]
)
def test_names_that_are_none(tmp_path, yolo_set, names, says):
    yolo_set("", names=None)
    (tmp_path / "data.yaml").write_text(f"train: train/images\nnames: {names}\n")
    with pytest.raises(DataError, match=says):
        yolo.read(tmp_path)


@pytest.mark.parametrize("written", [r"C:\me\set\train\images", r"train\images"])
def test_folders_written_on_windows_are_found(tmp_path, yolo_set, written):
    yolo_set("0 0.5 0.5 0.2 0.2", train=written)
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg"]
    assert rules(found) == {"path_assumed": 1}
