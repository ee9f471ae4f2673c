from __future__ import annotations

import json
import os

import pandas as pd
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


def test_lists_of_another_machine_are_resolved(tmp_path, yolo_set, picture):
    """CVAT, autosplit and people write lists with paths that exist nowhere else."""
    picture("train/images/b.jpg")
    picture("train/images/c.jpg")
    (tmp_path / "autosplit_train.txt").write_text(
        "/home/me/cats/train/images/a.jpg\nC:\\cats\\train\\images\\b.jpg\n"
    )
    (tmp_path / "autosplit_val.txt").write_text("./train/images/c.jpg")
    yolo_set("0 0.5 0.5 0.5 0.5", train="autosplit_train.txt", val=["autosplit_val.txt"])
    found = yolo.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        ["train/images/a.jpg", "train"], ["train/images/b.jpg", "train"],
        ["train/images/c.jpg", "val"],
    ]  # fmt: skip
    assert rules(found) == {"image_path": 1, "no_label_file": 1}
    (tmp_path / "autosplit_train.txt").write_text("/home/me/x.jpg\n")
    with pytest.raises(DataError, match=r"none of the 1 image\(s\) that autosplit_train\.txt"):
        yolo.read(tmp_path)


def test_a_listed_image_that_is_missing_is_left_to_the_check(tmp_path, yolo_set):
    (tmp_path / "list.txt").write_text("./train/images/a.jpg\n./train/images/z.jpg\n")
    yolo_set("0 0.5 0.5 0.5 0.5", train="list.txt")
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg", "train/images/z.jpg"]
    assert found.images["width"].tolist() == [64, 0]


def test_darknet(tmp_path, picture):
    """CVAT's "YOLO 1.1": obj.data, obj.names, train.txt, labels beside the images."""
    picture("obj_train_data/a.jpg")
    (tmp_path / "obj_train_data/a.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    (tmp_path / "train.txt").write_text("data/obj_train_data/a.jpg\n")
    (tmp_path / "obj.names").write_text("cat\ndog\n")
    text = "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n"
    (tmp_path / "obj.data").write_text(text)
    found = yolo.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        ["obj_train_data/a.jpg", "train"]
    ]
    assert found.boxes["class_name"].tolist() == ["dog"]
    assert found.classes["class_name"].tolist() == ["cat", "dog"]
    (tmp_path / "obj.names").unlink()
    with pytest.raises(DataError, match=r"'names = data/obj\.names' was not found"):
        yolo.read(tmp_path)
    (tmp_path / "obj.data").write_text("names = obj.names\n")
    with pytest.raises(DataError, match="train = or valid ="):
        yolo.read(tmp_path)


@pytest.mark.parametrize("images", ["images", "."])
def test_a_list_of_classes_will_do(tmp_path, picture, images):
    """Label Studio's export, and LabelImg's folder."""
    picture(f"{images}/a.jpg")
    labels = tmp_path / images.replace("images", "labels")
    labels.mkdir(exist_ok=True)
    (labels / "a.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = yolo.read(tmp_path)
    assert found.images["split"].tolist() == [""]
    assert found.boxes["class_name"].tolist() == ["dog"]
    assert found.issues.empty


def test_the_yaml_may_have_another_name(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5")
    text = (tmp_path / "data.yaml").read_text()
    (tmp_path / "data.yaml").rename(tmp_path / "cats.yaml")
    (tmp_path / "hyp.yaml").write_text("lr0: 0.01\ntrain: true\n")
    assert len(yolo.read(tmp_path).boxes) == 1
    (tmp_path / "dogs.yaml").write_text(text)
    with pytest.raises(DataError, match=r"several files .*cats\.yaml, dogs\.yaml"):
        yolo.read(tmp_path)
    assert len(yolo.read(tmp_path, data="dogs.yaml").boxes) == 1


def test_corners_of_a_rotated_box_are_a_polygon(tmp_path, yolo_set):
    """Ultralytics' OBB labels: class and four points."""
    yolo_set("1 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5")
    found = yolo.read(tmp_path, extra=True)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[16, 12, 48, 36]]
    assert json.loads(found.boxes["extra"][0]) == {
        "segmentation": [[32.0, 12.0, 48.0, 24.0, 32.0, 36.0, 16.0, 24.0]]
    }
    assert "extra" not in yolo.read(tmp_path).boxes


@pytest.mark.parametrize("shape", [[2, 3], [3, 2]])
def test_keypoints_are_no_polygon(tmp_path, yolo_set, shape):
    points = {3: "0.25 0.5 2 0 0 0", 2: "0.25 0.5 0.75 0.75 0 0"}[shape[1]]
    yolo_set(f"0 0.5 0.5 0.25 0.5 {points}\n1 0.5 0.5 0.5 0.5", kpt_shape=shape)
    found = yolo.read(tmp_path, extra=True)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[24, 12, 40, 36], [16, 12, 48, 36]]
    keypoints = {
        3: [16, 24, 2, 0, 0, 0],
        2: [16, 24, 2, 48, 36, 2, 0, 0, 0],
    }[shape[1]]
    extra = found.boxes["extra"].tolist()
    assert json.loads(extra[0]) == {"keypoints": keypoints, "num_keypoints": 4 - shape[1]}
    assert extra[1] == ""
    assert rules(found) == {"keypoints": 1}


def test_lines_that_do_not_fit_kpt_shape(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.25 0.5 0.1 0.1 2", kpt_shape=[2, 3])
    (issue,) = yolo.read(tmp_path).issues.to_dict("records")
    assert (
        issue["rule"] == "malformed_line" and "3 numbers for each of 2 keypoints" in issue["action"]
    )
    yolo_set("", kpt_shape=17)
    with pytest.raises(DataError, match="'kpt_shape' must be"):
        yolo.read(tmp_path)


def test_predictions_are_named_as_such(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5 0.93\n")
    (issue,) = yolo.read(tmp_path).issues.to_dict("records")
    assert issue["severity"] == "error" and issue["file"] == "train/labels/a.txt:1"
    assert "predictions" in issue["action"]


def test_label_files_without_picture_are_named(tmp_path, yolo_set, picture):
    yolo_set("0 0.5 0.5 0.5 0.5", train="list.txt")
    picture("train/images/unlisted.jpg")
    (tmp_path / "list.txt").write_text("train/images/a.jpg\n")
    labels = {
        "gone.txt": "0 0.5 0.5 0.5 0.5", "empty.txt": "", "unlisted.txt": "0 0.5 0.5 0.5 0.5",
        "classes.txt": "cat\ndog", "README.txt": "made in one two three four five",
        "autosplit_train.txt": "./images/a.jpg", "a.cache": "0 1 1 1 1",
    }  # fmt: skip
    for name, text in labels.items():
        (tmp_path / "train/labels" / name).write_text(text)
    (tmp_path / "train/images/requirements.txt").write_text("")
    found = yolo.read(tmp_path)
    issue = found.issues.set_index("rule").loc["label_without_image"]
    assert issue["file"] == "train/labels"
    assert issue["value"] == "2 label file(s): empty.txt, gone.txt"


def test_encodings_of_label_files(tmp_path, yolo_set, picture):
    yolo_set("")
    picture("train/images/b.jpg")
    line = "1 0.5 0.5 0.5 0.5\r\n"
    (tmp_path / "train/labels/a.txt").write_bytes(line.encode("utf-16"))  # PowerShell's >
    (tmp_path / "train/labels/b.txt").write_bytes(b"\xff\x80\x81")
    found = yolo.read(tmp_path)
    assert found.boxes["class_name"].tolist() == ["dog"]
    assert rules(found) == {"label_encoding": 1, "malformed_line": 1}
    (issue,) = found.issues[found.issues["severity"] == "error"].to_dict("records")
    assert issue["file"] == "train/labels/b.txt"
    (tmp_path / "train/labels/b.txt").write_bytes(b"\xef\xbb\xbf" + line.encode())
    assert len(yolo.read(tmp_path).boxes) == 2


def test_double_lines_are_left_to_the_check(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5 0.5\n")
    found = yolo.read(tmp_path)
    assert len(found.boxes) == 2 and found.boxes["annotation_id"].is_unique


def test_a_mistake_costs_its_own_line_only(tmp_path, yolo_set):
    """Lines are read all at once; one that is no number must not take the others with it."""
    lines = [f"{n % 2} 0.5 0.5 0.{n} 0.5" for n in range(1, 10)]
    yolo_set("\n".join([*lines, "0 0.5 0.5 0.5 x", "nan 0.5 0.5 0.5 0.5", "1e300 0 0 0 0"]))
    found = yolo.read(tmp_path)
    widths = (found.boxes["x2"] - found.boxes["x1"]).tolist()
    assert widths == pytest.approx([64 * n / 10 for n in range(1, 10)])
    assert found.boxes["class_name"].tolist() == [
        "cat" if n % 2 == 0 else "dog" for n in range(1, 10)
    ]
    assert rules(found) == {"malformed_line": 3}


def test_cones_have_no_newline_at_their_end(shared_data):
    """The README's oddity: joined, their lines would merge."""
    files = sorted((shared_data / "cones_yolo").glob("*/labels/*.txt"))
    texts = [path.read_text() for path in files]
    assert any(text and not text.endswith("\n") for text in texts)
    found = yolo.read(shared_data / "cones_yolo")
    assert len(found.boxes) == sum(len(text.split("\n")) for text in texts if text)
    assert found.images["image_id"].str.contains("_jpg.rf.", regex=False).all()
    assert set(found.images["width"]) == set(found.images["height"]) == {640}
    counts = found.issues["rule"].value_counts().to_dict()
    assert set(counts) <= {"path_assumed", "no_label_file", "share_beyond_0_1", "polygons"}


def test_files_are_read_in_portions(tmp_path, yolo_set, picture, monkeypatch):
    yolo_set("0 0.5 0.5 0.5 0.5")
    for name in ("b", "c"):
        picture(f"train/images/{name}.jpg")
        (tmp_path / f"train/labels/{name}.txt").write_text("1 0.5 0.5 0.25 0.25 \n\n0 0 0 0 0\n")
    whole = yolo.read(tmp_path)
    monkeypatch.setattr("detpipe.data.formats.yolo_labels._FILES_AT_ONCE", 2)
    pd.testing.assert_frame_equal(yolo.read(tmp_path).boxes, whole.boxes)
    assert whole.boxes["annotation_id"].tolist() == ["a-1", "b-1", "b-3", "c-1", "c-3"]


def test_class_numbers_that_are_none_cost_their_own_line_only(tmp_path, yolo_set):
    yolo_set("0.5 0.1 0.1 0.1 0.1\n1 0.5 0.5 0.5 0.5\nnan 0.1 0.1 0.1 0.1\n0 0.5 0.5 0.25 0.25")
    found = yolo.read(tmp_path)
    assert found.boxes["class_name"].tolist() == ["dog", "cat"]
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[16, 12, 48, 36], [24, 18, 40, 30]]
    assert found.issues["file"].tolist() == [f"train/labels/a.txt:{n}" for n in (1, 3)]


# --- files that are not as they should be -------------------------------------------------------


def test_a_link_to_nothing_is_a_missing_image(tmp_path, yolo_set):
    """As git-annex and DVC leave them where the pictures were not fetched."""
    yolo_set("0 0.5 0.5 0.5 0.5")
    (tmp_path / "train/images/b.jpg").symlink_to(tmp_path / "not/fetched.jpg")
    (tmp_path / "train/labels/b.txt").write_text("1 0.5 0.5 0.5 0.5")
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg", "train/images/b.jpg"]
    assert found.boxes["image_id"].tolist() == ["a", "b"]


def test_linked_folders_are_read(tmp_path, yolo_set, tmp_path_factory):
    yolo_set("0 0.5 0.5 0.5 0.5")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for kind, name, text in (("images", "b.jpg", None), ("labels", "b.txt", "1 .5 .5 .5 .5")):
        (elsewhere / kind).mkdir()
        if text is None:
            Image.new("RGB", (64, 48)).save(elsewhere / kind / name)
        else:
            (elsewhere / kind / name).write_text(text)
        (tmp_path / "train" / kind / "x").symlink_to(elsewhere / kind)
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg", "train/images/x/b.jpg"]
    assert found.boxes["class_name"].tolist() == ["cat", "dog"]


def test_hidden_copies_are_no_pictures_and_no_labels(tmp_path, yolo_set, picture):
    yolo_set("0 0.5 0.5 0.5 0.5")
    picture("train/images/.ipynb_checkpoints/a-checkpoint.jpg")
    picture("train/images/__MACOSX/a.jpg")
    (tmp_path / "train/images/._a.jpg").write_bytes(b"\0\5\26\7")
    (tmp_path / "train/labels/._a.txt").write_text("0 0.5 0.5 0.5 0.5")
    (tmp_path / "._data.yaml").write_bytes(b"\0\5\26\7")
    found = yolo.read(tmp_path)
    assert found.images["path"].tolist() == ["train/images/a.jpg"]
    assert found.issues.empty


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[{name: cat}, dog]", "must be one text.* at 0:"),
        ("[[cat], [dog]]", "must be one text.* at 0, 1:"),
        ("{0: [cat, kitten], 1: dog}", "must be one text.* at 0:"),
        ("{0: cat, 0: dog}", "there twice: 0"),
        ("{0: cat, 00: dog}", "there twice: 0"),
        ("{cat: 0}", "must map whole numbers"),
    ],
)
def test_names_are_texts_and_numbers_differ(tmp_path, yolo_set, names, message):
    yolo_set("")
    (tmp_path / "data.yaml").write_text(f"train: train/images\nnames: {names}\n")
    with pytest.raises(DataError, match=rf"data\.yaml: .*{message}"):
        yolo.read(tmp_path)


def test_aliases_do_not_multiply(tmp_path, yolo_set):
    yolo_set("")
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
    text = f"a0: &a0 [cat]\n{levels}\ntrain: train/images\nnames: [*a8]\n"
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(DataError, match="must be one text"):
        yolo.read(tmp_path)


@pytest.mark.parametrize(
    "line", ["exported: 2024-02-30", "v: 2023-13-01", "v: 0b_", "<<: {nc: 2}", "nc: 02"]
)
def test_keys_of_others_do_not_count(tmp_path, yolo_set, line):
    yolo_set("0 0.5 0.5 0.5 0.5")
    with (tmp_path / "data.yaml").open("a") as file:
        file.write(f"{line}\n")
    assert yolo.read(tmp_path).issues.empty


def test_a_merge_key_gives_names(tmp_path, yolo_set):
    yolo_set("1 0.5 0.5 0.5 0.5")
    text = "base: &b {names: [cat, NO]}\n<<: *b\ntrain: train/images\n"
    (tmp_path / "data.yaml").write_text(text)
    assert yolo.read(tmp_path).boxes["class_name"].tolist() == ["NO"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nc: '²'", "'nc' must be the number of classes"),
        (f"nc: {'9' * 5000}", "'nc' must be the number of classes"),
        ("x: " + "[" * 2000, "nested too deeply"),
        (f"val: {'x' * 300}", "'val: x+' was not found"),
        (f"path: {'x' * 300}\nval: y", "'val: y' was not found"),
        ("val: {a: b}", "'val' must be a path"),
        ("val: [[a]]", "'val' must be a path"),
        ("path: [a]", "'path' must be one path"),
        ("kpt_shape: [x, 3]", "'kpt_shape' must be"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, yolo_set, text, message):
    yolo_set("")
    with (tmp_path / "data.yaml").open("a") as file:
        file.write(f"{text}\n")
    with pytest.raises(DataError, match=message):
        yolo.read(tmp_path)


def test_the_yaml_that_is_a_link_to_nothing(tmp_path):
    (tmp_path / "data.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"data\.yaml cannot be read: it is a link to"):
        yolo.read(tmp_path)


def test_another_sets_pictures_are_not_taken(tmp_path, picture):
    """Roboflow's ../train/images, with a set of that place in the folder above."""
    for place in ("set", "."):
        picture(f"{place}/train/images/{'own' if place == 'set' else 'other'}.jpg")
    (tmp_path / "set/data.yaml").write_text("train: ../train/images\nnames: [cat]\n")
    found = yolo.read(tmp_path / "set")
    assert found.images["path"].tolist() == ["train/images/own.jpg"]
    assert rules(found)["path_assumed"] == 1


@pytest.mark.parametrize(
    ("image", "label"),
    [("a.jpg", "a.TXT"), ("caf\u00e9.jpg", "cafe\u0301.txt"), ("cafe\u0301.jpg", "caf\u00e9.txt")],
)
def test_labels_of_other_spelling(tmp_path, picture, image, label):
    picture(f"images/{image}")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / label).write_text("0 0.5 0.5 0.5 0.5")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat]\n")
    found = yolo.read(tmp_path)
    assert len(found.boxes) == 1
    assert found.issues.empty


def test_names_that_differ_in_case_are_two_names(tmp_path, picture):
    picture("images/a.jpg")
    picture("images/A.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("0 0.5 0.5 0.5 0.5")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat]\n")
    assert yolo.read(tmp_path).boxes["image_id"].tolist() == ["a"]


def test_a_stray_label_with_a_large_ending_is_named(tmp_path, yolo_set):
    yolo_set("0 0.5 0.5 0.5 0.5")
    (tmp_path / "train/labels/z.TXT").write_text("0 0.5 0.5 0.5 0.5")
    (issue,) = yolo.read(tmp_path).issues.to_dict("records")
    assert (issue["rule"], "z.TXT" in issue["value"]) == ("label_without_image", True)


def test_a_polygon_with_a_point_that_is_no_number_has_no_box(tmp_path, yolo_set):
    yolo_set("0 0.1 0.1 nan 0.5 0.5 0.1 0.5 0.5\n0 0.1 0.1 0.5 nan 0.5 0.1")
    boxes = yolo.read(tmp_path).boxes
    assert boxes[["x1", "y1"]].isna().to_numpy().tolist() == [[True, False], [False, True]]


def test_a_label_file_that_cannot_be_read_is_an_error(tmp_path, yolo_set):
    yolo_set(None)
    (tmp_path / "train/labels").mkdir()
    (tmp_path / "train/labels/a.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "train/labels/b.txt").mkdir()
    (issue,) = yolo.read(tmp_path).issues.to_dict("records")
    assert (issue["severity"], issue["rule"]) == ("error", "malformed_line")
    assert (issue["file"], "is a link to" in issue["value"]) == ("train/labels/a.txt", True)


def test_a_file_name_that_is_not_utf8(tmp_path, yolo_set):
    yolo_set("")
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / "train/images/a.jpg").rename(tmp_path / "train/images" / name)
    with pytest.raises(DataError, match=r"not in UTF-8.*\n- train/images/caf\\udce9\.jpg"):
        yolo.read(tmp_path)


def test_lists_have_no_option_for_images(tmp_path, yolo_set, picture):
    yolo_set("", train="list.txt")
    (tmp_path / "list.txt").write_text("x.jpg\n")
    with pytest.raises(DataError, match=r"Correct the paths in list\.txt") as error:
        yolo.read(tmp_path)
    assert "'images'" not in str(error.value)
    yolo_set("", train="train/images/a.jpg")
    with pytest.raises(DataError, match=r"names the picture train/images/a\.jpg"):
        yolo.read(tmp_path)
