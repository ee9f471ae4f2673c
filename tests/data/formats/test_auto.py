from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.config import DataConfig
from detpipe.data.formats import auto, coco, survey, voc, yolo

from .conftest import rules


def same(left, right):
    """Both readers gave the same images, boxes and classes."""
    for table in ("images", "boxes", "classes"):
        pd.testing.assert_frame_equal(getattr(left, table), getattr(right, table))


def said(found) -> pd.Series:
    """The row that says what the folder was taken for."""
    rows = found.issues[found.issues["rule"] == "format"]
    assert len(rows) == 1
    return rows.iloc[0]


def lines(message: str) -> list[tuple[DataConfig, str | None]]:
    """(configuration, folder) of every line that the message offers."""
    pattern = r"data\.reader: (\{.*?\})(?: with --params raw=(\S+?))?(?:; or --params \S+)?$"
    offered = re.findall(pattern, message, re.M)
    return [(DataConfig(reader=yaml.safe_load(text)), raw or None) for text, raw in offered]


def ask(root: Path) -> list[tuple[DataConfig, str | None]]:
    """The ways that the error lists."""
    with pytest.raises(DataError) as caught:
        auto.read(root)
    return lines(str(caught.value))


# --- real sets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "direct", "others"),
    [
        ("bccd_voc", voc.read, "left aside: a box a row in test.csv"),
        ("chess_coco_roboflow", coco.read, None),
        ("cones_yolo", yolo.read, None),
        ("screws_coco_cvat", coco.read, None),
    ],
)
def test_real_sets_that_are_clear(shared_data, name, direct, others):
    found = auto.read(shared_data / name)
    expected = direct(shared_data / name)
    same(found, expected)
    row = said(found)
    assert row["severity"] == "info"
    assert row["value"].startswith(direct.__module__.rpartition(".")[2] + ":")
    # All else the reader says is there, with the same files.
    rest = found.issues[found.issues["rule"] != "format"].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, expected.issues)
    assert row["action"].endswith(others or "}")
    [(config, raw)] = lines(row["action"].split(";")[0])
    again = config.reader.build(Path(raw) if raw else shared_data / name)
    pd.testing.assert_frame_equal(again.boxes, expected.boxes)


def test_cards_are_csv_and_voc_box_for_box_so_it_asks(shared_data):
    ways = ask(shared_data / "cards_csv")
    assert [config.reader.use.split(".")[-2] for config, _ in ways] == ["voc", "csv"]
    with pytest.raises(DataError) as caught:
        auto.read(shared_data / "cards_csv")
    line = re.findall(r"or --params (\S+)$", str(caught.value), re.M)[1]
    assert line == (
        f"raw={shared_data}/cards_csv/images,data.reader.use=csv,"
        "data.reader.annotations.test=test_labels.csv,"
        "data.reader.annotations.train=train_labels.csv"
    )
    first, second = (config.reader.build(Path(raw)) for config, raw in ways)
    assert first.images["split"].value_counts().to_dict() == {"test": 67, "train": 50}
    key = ["class_name", *BOX_COLUMNS]
    one, other = (t.boxes[key].sort_values(key, ignore_index=True) for t in (first, second))
    pd.testing.assert_frame_equal(one, other)


def test_trees_have_csv_in_several_dialects_and_xml_so_it_asks(shared_data):
    root = shared_data / "trees_csv"
    ways = ask(root)
    boxes = {path.name for path in root.rglob("*.csv") if "xmin" in path.read_text().split("\n")[0]}
    named = {Path(config.reader.options["annotations"]).name for config, _ in ways}
    assert named == boxes | {"data"}
    for config, raw in ways:
        blank = config.reader.options["annotations"] == "tests/blank_annotations.csv"
        more = {"images": "data"} if blank else {}
        reader = DataConfig(reader={**config.reader.model_dump(), **more}).reader
        assert len(reader.build(Path(raw) if raw else root).images) > 0
    with pytest.raises(DataError, match=r"477\.csv \(with scores: predictions\?\)"):
        auto.read(root)


def test_evaluators_truth_has_two_coco_files_and_results(shared_data):
    root = shared_data / "eval_truth_coco100"
    ways = ask(root)
    assert [config.reader.options["annotations"] for config, _ in ways] == [
        "instances_val2014_100.json", "gt_dataset.json",
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"COCO results .* in dt_dataset\.json"):
        auto.read(root)


# --- formats -----------------------------------------------------------------------------------


@pytest.fixture
def csv_file(tmp_path):
    def write(name: str, *rows: str, header="filename,xmin,ymin,xmax,ymax,label") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *rows]) + "\n")

    return write


@pytest.fixture
def text(tmp_path):
    def write(name: str, content: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    return write


def taken(root: Path) -> tuple[str, dict[str, object], list[str]]:
    """(reader, its options, paths of the images) of a folder that is clear."""
    found = auto.read(root)
    [(config, _)] = lines(said(found)["action"].split("; left aside")[0])
    for path in found.images["path"]:
        assert (root / path).is_file(), path
    return config.reader.use.split(".")[-2], config.reader.options, sorted(found.images["path"])


def test_coco_of_several_splits_beside_captions(tmp_path, picture, coco_file, text):
    for split in ("train", "val"):
        coco_file(f"annotations/instances_{split}2017.json")
        captions = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"caption": "a"}]}
        text(f"annotations/captions_{split}2017.json", captions)
        picture(f"{split}2017/a.jpg")
    text("annotations/image_info_test2017.json", {"images": [], "categories": []})
    assert taken(tmp_path) == (
        "coco",
        {"annotations": {"train": "annotations/instances_train2017.json",
                         "val": "annotations/instances_val2017.json"}},
        ["train2017/a.jpg", "val2017/a.jpg"],
    )  # fmt: skip
    same(auto.read(tmp_path), coco.read(tmp_path))


def test_two_years_of_coco_keep_their_names_apart(tmp_path, picture, coco_file):
    for year in ("2014", "2017"):
        coco_file(f"annotations/instances_train{year}.json")
        picture(f"train{year}/a.jpg")
    found = auto.read(tmp_path)
    assert dict(zip(found.images["split"], found.images["path"], strict=True)) == {
        "train2014": "train2014/a.jpg", "train2017": "train2017/a.jpg",
    }  # fmt: skip


def test_coco_whose_annotations_fill_more_than_its_beginning(tmp_path, picture, coco_file):
    picture("a.jpg")
    segment = {"segmentation": [[0.5] * 40_000], "image_id": 1, "category_id": 1, "id": 1,
               "bbox": [1, 2, 3, 4]}  # fmt: skip
    path = coco_file("x.json", annotations=[segment])
    content = json.loads(path.read_text())
    assert len(json.dumps(segment)) > survey.HEAD
    for keys in (("annotations", "images", "categories"), ("images", "annotations", "categories")):
        path.write_text(json.dumps({key: content[key] for key in keys}))
        assert taken(tmp_path) == ("coco", {"annotations": "x.json"}, ["a.jpg"])


def test_coco_deeper_down_is_found_and_its_paths_are_the_roots(tmp_path, picture, coco_file):
    coco_file("unzipped/my-test-set/annotations/instances_val.json")
    picture("unzipped/my-test-set/images/val/a.jpg")
    coco_file("unzipped/my-test-set/annotations/instances_train.json", annotations=None)
    picture("unzipped/my-test-set/images/train/a.jpg")
    found = auto.read(tmp_path)
    base = "unzipped/my-test-set"
    assert set(found.images["path"]) == {
        f"{base}/images/{split}/a.jpg" for split in ("train", "val")
    }
    without = found.issues[found.issues["rule"] == "no_annotations"]
    assert without["file"].tolist() == [f"{base}/annotations/instances_train.json"]
    assert f"raw={tmp_path}/unzipped/my-test-set" in said(found)["action"]


def test_two_data_sets_side_by_side(tmp_path, picture, coco_file, voc_file):
    coco_file("one/train.json")
    picture("one/a.jpg")
    voc_file("a", folder="two/Annotations")
    picture("two/JPEGImages/a.jpg")
    ways = ask(tmp_path)
    assert [raw for _, raw in ways] == [f"{tmp_path}/one", f"{tmp_path}/two"]
    with pytest.raises(DataError, match="reader join"):
        auto.read(tmp_path)


def test_voc_years_below_vocdevkit(tmp_path, picture, voc_file):
    for year in ("VOC2007", "VOC2012"):
        voc_file("a", folder=f"VOCdevkit/{year}/Annotations")
        picture(f"VOCdevkit/{year}/JPEGImages/a.jpg")
    assert [raw for _, raw in ask(tmp_path)] == [
        f"{tmp_path}/VOCdevkit/VOC2007", f"{tmp_path}/VOCdevkit/VOC2012",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "pictures", "options"),
    [
        ("VOC2007/Annotations", "VOC2007/JPEGImages", {}),
        (".", ".", {"annotations": "."}),
        ("xml", "images", {"annotations": "xml"}),
        ("train", "train", {}),
    ],
)
def test_voc_wherever_its_files_lie(tmp_path, picture, voc_file, folder, pictures, options):
    voc_file("a", folder=folder)
    path = picture(f"{pictures}/a.jpg")
    assert taken(tmp_path) == ("voc", options, [path.relative_to(tmp_path).as_posix()])


def test_a_csv_beside_voc_is_left_aside_only_if_its_lists_are_complete(
    tmp_path, picture, voc_file, csv_file, text
):
    for stem in ("a", "b"):
        voc_file(stem, folder="Annotations")
        picture(f"JPEGImages/{stem}.jpg")
    csv_file("labels.csv", "a.jpg,1,2,3,4,cat")
    text("ImageSets/Main/train.txt", "a\n")
    assert len(ask(tmp_path)) == 2
    text("ImageSets/Main/val.txt", "b\n")
    assert taken(tmp_path)[0] == "voc"
    text("data.yaml", "names: [cat]\ntrain: JPEGImages\n")
    assert len(ask(tmp_path)) == 3


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ({"data.yaml": "names: [a, b]\ntrain: images\n", "other.yaml": "names: [c]\nval: images"},
         {}),
        ({"coco8.yaml": "path: ../coco8\ntrain: images\nnames:\n  0: a\n  1: b\n"},
         {"data": "coco8.yaml"}),
        ({"obj.data": "classes = 2\ntrain = train.txt\nnames = obj.names\n",
          "train.txt": "images/a.jpg\n", "obj.names": "a\nb\n"}, {"data": "obj.data"}),
        ({"classes.txt": "a\nb\n"}, {"data": "classes.txt"}),
    ],
)  # fmt: skip
def test_yolo(tmp_path, picture, text, files, options):
    picture("images/a.jpg")
    text("labels/a.txt", "1 0.5 0.5 0.25 0.5")
    for name, content in files.items():
        text(name, content)
    assert taken(tmp_path) == ("yolo", options, ["images/a.jpg"])
    assert auto.read(tmp_path).boxes["class_name"].tolist() == ["b"]


def test_yolo_labels_without_names_say_what_to_write(tmp_path, picture, text):
    picture("images/a.jpg")
    text("labels/a.txt", "1 0.5 0.5 0.25 0.5\n")
    with pytest.raises(DataError, match=r"YOLO label files without data\.yaml \(labels\): write a"):
        auto.read(tmp_path)


@pytest.mark.parametrize(
    ("files", "options", "splits"),
    [
        (["labels.csv"], {"annotations": "labels.csv"}, {""}),
        (["train.csv", "val.csv"], {"annotations": {"train": "train.csv", "val": "val.csv"}},
         {"train", "val"}),
        (["val/boxes.csv"], {"annotations": {"val": "val/boxes.csv"}}, {"val"}),
    ],
)  # fmt: skip
def test_csv(tmp_path, picture, csv_file, files, options, splits):
    for name in files:
        picture(f"{Path(name).parent}/a.jpg")
        csv_file(name, "a.jpg,1,2,3,4,cat")
    csv_file("classes.csv", "cat,0", header="name,number")
    reader, found_options, _ = taken(tmp_path)
    assert (reader, found_options) == ("csv", options)
    assert set(auto.read(tmp_path).images["split"]) == splits


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_csv_in_other_encodings_is_recognised(tmp_path, picture, encoding):
    picture("a.jpg")
    (tmp_path / "x.csv").write_text("filename;xmin;ymin;xmax;ymax;label\na.jpg;1;2;3;4;c", encoding)
    if encoding == "utf-16":
        with pytest.raises(DataError, match="encoding"):  # the reader's own words
            auto.read(tmp_path)
    else:
        assert taken(tmp_path)[0] == "csv"


def test_csv_files_alike_are_not_guessed(tmp_path, picture, csv_file):
    picture("a.jpg")
    csv_file("one.csv", "a.jpg,1,2,3,4,cat")
    csv_file("two.csv", "a.jpg,1,2,3,4,cat")
    ways = ask(tmp_path)
    assert [c.reader.options for c, _ in ways] == [
        {"annotations": n} for n in ("one.csv", "two.csv")
    ]


def test_openimages_is_no_plain_csv(tmp_path, picture, csv_file):
    picture("train/0a.jpg")
    csv_file("train-annotations-bbox.csv", "0a,x,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0",
             header="ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,"
             "IsTruncated,IsGroupOf,IsDepiction,IsInside")  # fmt: skip
    csv_file("class-descriptions-boxable.csv", header="/m/01,Cat")
    assert taken(tmp_path) == ("openimages", {}, ["train/0a.jpg"])


def test_crowdhuman(tmp_path, picture, text):
    picture("Images/1,a.jpg")
    text("annotation_train.odgt",
         {"ID": "1,a", "gtboxes": [{"tag": "person", "fbox": [1, 2, 3, 4], "vbox": [1, 2, 3, 4],
                                    "hbox": [1, 2, 3, 4]}]})  # fmt: skip
    assert taken(tmp_path) == ("crowdhuman", {}, ["Images/1,a.jpg"])


def test_own_tables(tmp_path, picture, coco_file):
    picture("in/a.jpg")
    coco_file("in/train.json")
    found = coco.read(tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("images", "boxes", "classes"):
        table = getattr(found, name)
        if name == "images":
            table = table.assign(path="in/" + table["path"])
        table.to_parquet(out / f"{name}.parquet")
    (tmp_path / "in/train.json").unlink()
    (tmp_path / "in").rename(out / "in")
    assert taken(tmp_path) == ("parquet", {}, ["out/in/a.jpg"])


def test_pictures_alone(tmp_path, picture):
    picture("b/a.jpg")
    picture("c.png")
    (tmp_path / "README.txt").write_text("Pictures of mine.\n")
    assert taken(tmp_path) == ("folder", {}, ["b/a.jpg", "c.png"])
    assert "2 picture(s) without annotations" in said(auto.read(tmp_path))["value"]


# --- what it does not read ---------------------------------------------------------------------

_VIA = {"a.jpg123": {"filename": "a.jpg", "size": 123, "regions": [], "file_attributes": {}}}
_WIDER = "0--Parade/a.jpg\n1\n449 330 122 149 0 0 0 0 0 0 \n"


@pytest.mark.parametrize(
    ("name", "content", "format_", "advice"),
    [
        ("a.json", {"version": "5", "shapes": [], "imagePath": "a.jpg"}, "LabelMe JSON", "COCO"),
        ("a.json", [{"id": 1, "annotations": [{"result": []}], "data": {"image": "a.jpg"}}],
         "Label Studio", "COCO"),
        ("a.json", [{"image": "a.jpg", "label": [], "annotator": 1, "annotation_id": 2}],
         "Label Studio", "YOLO"),
        ("a.json", [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 1}],
         "COCO results", "file of annotations"),
        ("via.json", {"_via_settings": {}, "_via_img_metadata": _VIA}, "VIA", "COCO"),
        ("via.json", _VIA, "VIA", "COCO"),
        ("ann/a.jpg.json", {"size": {}, "objects": [{"classTitle": "cat"}]}, "Supervisely", "VOC"),
        ("meta.json", {"classes": [{"title": "cat"}], "tags": []}, "Supervisely", "VOC"),
        ("a.json", [{"name": "a.jpg", "labels": [{"box2d": {}}]}], "BDD100K", "COCO"),
        ("a.json", [{"image": "a.jpg", "annotations": [{"label": "x", "coordinates": {}}]}],
         "CreateML", "csv"),
        ("a.json", {"info": {}, "categories": {"label": {}}, "items": []}, "Datumaro", "coco"),
        ("metadata.jsonl", {"file_name": "a.jpg", "objects": {"bbox": []}}, "Hugging Face", "csv"),
        ("annotations.xml", "<?xml version='1.0'?>\n<annotations><image id='0'/></annotations>",
         "CVAT XML", "COCO 1.0"),
        ("a.xml", "<annotation><object><polygon/></object></annotation>", "LabelMe XML", "COCO"),
        ("a.txt", "Car 0.00 0 -1.58 587.0 173.3 614.1 200.1 1.65 1.67 3.64 -0.65 1.71 46.7 -1.59",
         "KITTI", "csv"),
        ("a.txt", "imagesource:GoogleEarth\ngsd:0.1\n27 24 28 23 28.5 24 28 25 plane 0\n",
         "DOTA", "YOLO"),
        ("wider_face_train_bbx_gt.txt", _WIDER, "WIDER FACE", "csv"),
        ("a.txt", "684,8,273,116,0,0,0,0\n406,119,265,70,0,0,0,0\n", "VisDrone", "csv"),
        ("x.tfrecord-00000-of-00002", "?", "TFRecord", "COCO"),
    ],
)  # fmt: skip
def test_other_formats_are_named_with_a_way_out(
    tmp_path, picture, text, name, content, format_, advice
):
    picture("a.jpg")
    text(name, content)
    with pytest.raises(DataError) as caught:
        auto.read(tmp_path)
    [line] = [line for line in str(caught.value).splitlines() if line.startswith("- ")]
    assert line.startswith(f"- {format_}")
    assert f"({name})" in line
    assert advice in line.split(f"({name}): ")[1]
    [(config, _)] = lines(str(caught.value))
    assert config.reader.use == "detpipe.data.formats.folder.read"


def test_other_formats_are_left_aside_beside_one_that_is_read(tmp_path, picture, coco_file, text):
    picture("a.jpg")
    coco_file("train.json")
    text("a.json", {"version": "5", "shapes": [], "imagePath": "a.jpg"})
    assert said(auto.read(tmp_path))["action"].endswith("left aside: LabelMe JSON (a.json)")


def test_files_that_may_be_annotations_are_not_passed_over(tmp_path, picture, text, csv_file):
    picture("a.jpg")
    csv_file("boxes.csv", header="image,bbox")
    text("a.json", {"what": "ever"})
    with pytest.raises(DataError) as caught:
        auto.read(tmp_path)
    assert "boxes.csv: a csv with the columns image, bbox; say which" in str(caught.value)
    assert "- a.json" in str(caught.value)


@pytest.mark.parametrize("name", ["coco.zip", "coco.tar.gz", "part/coco.TAR"])
def test_an_archive_is_to_be_unpacked(tmp_path, text, name):
    text(name, "?")
    with pytest.raises(DataError, match=rf"packed files \({name}\): unpack"):
        auto.read(tmp_path)


def test_an_empty_folder_a_strange_one_and_none(tmp_path, text):
    with pytest.raises(DataError, match="it is empty"):
        auto.read(tmp_path)
    text("notes.doc", "?")
    with pytest.raises(DataError, match=r"no annotations \(notes\.doc\)"):
        auto.read(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        auto.read(tmp_path / "nowhere")


def test_the_readers_own_errors_come_through(tmp_path, coco_file):
    coco_file("train.json")
    with pytest.raises(DataError, match="none of the 1 image") as caught:
        auto.read(tmp_path)
    [(config, _)] = [
        (DataConfig(reader=yaml.safe_load(t)), None)
        for t in re.findall(r"set data\.reader: (\{.*\})\)", str(caught.value))
    ]
    assert config.reader.options == {"annotations": "train.json"}


def test_it_is_logged_without_square_brackets(tmp_path, picture, coco_file, caplog):
    root = tmp_path / "set [1]"
    picture("set [1]/a.jpg")
    coco_file("set [1]/train.json")
    with caplog.at_level(logging.INFO, "detpipe"):
        auto.read(root)
    [record] = [r for r in caplog.records if r.name == auto.__name__]
    assert "taken for coco: COCO JSON in train.json" in record.getMessage()
    assert not set("[]") & set(record.getMessage())


# --- the survey --------------------------------------------------------------------------------


def test_hidden_files_and_those_of_macos_do_not_count(tmp_path, picture, coco_file, text):
    picture("a.jpg")
    coco_file("train.json")
    for name in ("__MACOSX/train.json", ".ipynb_checkpoints/train.json", "._train.json"):
        coco_file(name)
    assert taken(tmp_path)[0] == "coco"


def test_a_link_to_a_folder_above_is_not_followed_and_others_are(tmp_path, picture, coco_file):
    picture("elsewhere/a.jpg")
    coco_file("set/train.json")
    (tmp_path / "set/images").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/again").symlink_to(tmp_path / "set")
    assert taken(tmp_path / "set") == ("coco", {"annotations": "train.json"}, ["images/a.jpg"])


def test_of_many_files_few_are_opened(tmp_path, text, monkeypatch):
    most = 60
    monkeypatch.setattr(survey, "MOST_BYTES", most * survey._OPENING)
    for number in range(3 * most):
        text(f"{number % 20}/{number}.json", {"shapes": [], "imagePath": "a.jpg"})
    opened = []
    whole = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a: opened.append(self) or whole(self, *a))
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    with pytest.raises(DataError, match="LabelMe"):
        auto.read(tmp_path)
    assert len(opened) == len(set(opened)) == most
    assert len(listed) == 21


def test_too_many_files_to_list(tmp_path, text, monkeypatch):
    monkeypatch.setattr(survey, "MOST_FILES", 3)
    for number in range(3):
        text(f"{number}.jpg", "")
    survey.Survey(tmp_path)
    text("3.jpg", "")
    with pytest.raises(DataError, match="more than 3 files"):
        survey.Survey(tmp_path)


def test_the_order_of_the_file_system_does_not_matter(tmp_path, picture, csv_file, monkeypatch):
    for name in ("one", "two", "three"):
        picture(f"{name}/a.jpg")
        csv_file(f"{name}.csv", f"{name}/a.jpg,1,2,3,4,cat")
    first = [config.reader.options for config, _ in ask(tmp_path)]
    scandir = os.scandir

    class Backwards:
        def __init__(self, path):
            self.entries = list(scandir(path))[::-1]

        def __enter__(self):
            return self.entries

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", Backwards)
    assert [config.reader.options for config, _ in ask(tmp_path)] == first


@pytest.mark.parametrize(
    ("folder", "split"),
    [("train", True), ("train2017", True), ("Valid", True), ("val_images", True),
     ("images-test", True), ("my-test-set", False), ("latest", False), ("data", False)],
)  # fmt: skip
def test_which_folders_are_one_splits(folder, split):
    assert survey.is_split(folder) is split


def test_rules_are_known(tmp_path, picture):
    from detpipe.data.rules import RULE_OF

    picture("a.jpg")
    assert set(rules(auto.read(tmp_path))) == {"format"} <= set(RULE_OF)


@pytest.mark.parametrize(
    ("annotations", "images"),
    [("annotations/{}", "images/{}"), ("{}/annotations", "{}/images")],
)
def test_voc_in_folders_of_splits(tmp_path, picture, voc_file, annotations, images):
    for split, name in (("train", "a"), ("val", "b")):
        picture(f"{images.format(split)}/{name}.jpg")
        voc_file(name, folder=annotations.format(split))
    found = auto.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        [f"{images.format('train')}/a.jpg", "train"], [f"{images.format('val')}/b.jpg", "val"]
    ]  # fmt: skip
