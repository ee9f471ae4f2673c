"""VOC files as written, looked at with ElementTree and torchvision."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from detpipe.core.errors import DataError
from detpipe.data.writers import voc
from tests.data.writers.sets import on_disk, read


def box(image=0, **more):
    corners = {"x1": 1.0, "y1": 2.5, "x2": 6.0, "y2": 0.1 + 0.2 + 4, "area": 8.0}
    flags = {"iscrowd": False, "difficult": False, "extra": ""}
    return {"image": image, "class_name": "cat", **corners, **flags, **more}


def written(tmp_path, boxes, *, paths=("a.jpg",), splits=("train",), names=("cat",)):
    made = (list(paths), [(9, 8)] * len(paths), list(splits), [""] * len(paths), boxes, names)
    root = tmp_path / "source"
    voc.write(on_disk(made, root), root, tmp_path / "out")
    return tmp_path / "out"


def test_one_file_has_the_elements_that_voc_asks_for(tmp_path):
    out = written(tmp_path, [box(difficult=True), box(class_name="a < b & c")], names=("cat",))
    tree = ElementTree.parse(out / "Annotations/a.xml").getroot()
    assert tree.findtext("filename") == "a.jpg"
    assert [tree.findtext(f"size/{k}") for k in ("width", "height")] == ["9", "8"]
    first, second = tree.iterfind("object")
    assert [first.findtext(k) for k in ("name", "difficult")] == ["cat", "1"]
    texts = [first.findtext(f"bndbox/{k}") for k in ("xmin", "ymin", "xmax", "ymax")]
    assert texts == ["1", "2.5", "6", repr(0.1 + 0.2 + 4)]  # whole numbers whole, others exact
    assert [second.findtext(k) for k in ("name", "difficult")] == ["a < b & c", "0"]


@pytest.mark.slow
def test_torchvision_reads_it(tmp_path):
    from torchvision.datasets import VOCDetection

    out = written(tmp_path, [box(1)], paths=("x/é 1.jpg", "b.png"), splits=("train", "train"))
    place = tmp_path / "VOCdevkit/VOC2012"
    place.parent.mkdir()
    out.rename(place)
    for file in (place / "JPEGImages").iterdir():
        if file.suffix != ".jpg":  # all that torchvision knows
            file.rename(file.with_suffix(".jpg"))
    content = VOCDetection(tmp_path, year="2012", image_set="train")
    assert [picture.size for picture, _ in content] == [(9, 8), (9, 8)]
    names = [target["annotation"]["filename"] for _, target in content]
    assert names == ["é 1.jpg", "b.png"]
    things = [len(target["annotation"].get("object", [])) for _, target in content]
    assert things == [0, 1]


def test_files_of_one_name_get_names_of_their_own_and_lists_name_them(tmp_path):
    paths = ["a/x.jpg", "b/x.jpg", "b/x.png", "y.jpg", "z.jpg"]
    splits = ["train", "val", "train", "extra/1", ""]
    out = written(tmp_path, [box(1)], paths=paths, splits=splits)
    stems = {p.stem for p in (out / "Annotations").iterdir()}
    assert stems == {p.stem for p in (out / "JPEGImages").iterdir()}
    assert stems == {"a_x", "b_x", "b_x_2", "y", "z"}
    lists = {p.name: p.read_text().splitlines() for p in (out / "ImageSets/Main").iterdir()}
    assert lists == {"train.txt": ["a_x", "b_x_2"], "val.txt": ["b_x"], "extra_1.txt": ["y"]}
    tree = ElementTree.parse(out / "Annotations/b_x.xml").getroot()
    assert len(tree.findall("object")) == 1
    assert tree.findtext("filename") == "b_x.jpg"


def test_what_voc_cannot_hold_is_counted(tmp_path, caplog):
    boxes = [
        box(iscrowd=True),
        box(
            extra='{"segmentation":[[1,2,3,4,5,6]],"attributes":{"occluded":false},"a b":1,'
            '"tag":["one"],"none":null}'
        ),
    ]
    out = written(
        tmp_path, boxes, paths=("a.jpg", "b.jpg"), splits=("train", ""), names=("dog", "cat")
    )
    for lost in (
        "1 crowd region(s), written as difficult", "2 area(s) other than", "3 value(s) of",
        "1 image(s) of no split", "1 class(es) without objects", "2 class(es) whose order",
    ):  # fmt: skip
        assert lost in caplog.text, lost
    assert "group" not in caplog.text
    tree = ElementTree.parse(out / "Annotations/a.xml").getroot()
    assert [thing.findtext("difficult") for thing in tree.iterfind("object")] == ["1", "0"]
    assert tree.findtext("object/attributes/occluded") == "0"


def test_nothing_is_said_where_nothing_is_lost(tmp_path, caplog):
    thing = box(area=5.0 * (0.1 + 0.2 + 4 - 2.5))
    written(tmp_path, [thing])
    assert caplog.text == ""


def test_nested_values_of_voc_come_back_as_they_were(tmp_path):
    extra = (
        '{"pose":"Left","truncated":"1","part":[{"name":"head","bndbox":{"xmin":"1"}},'
        '{"name":"foot"}],"polygon":{"x1":"1","y1":"2"},"tag":["a","<b>"]}'
    )
    out = written(tmp_path, [box(extra=extra)])
    assert read("voc", out).boxes["extra"].tolist() == [extra]


def test_class_names_with_line_breaks_are_refused_and_named(tmp_path):
    with pytest.raises(DataError, match=r"VOC cannot hold class names.*\n- 'a\\nb'"):
        written(tmp_path, [], names=("cat", "a\nb"))


def test_control_characters_in_file_names_are_replaced(tmp_path):
    out = written(tmp_path, [], paths=("a\nb.jpg", "c\x01.jpg"), splits=("train", "train"))
    assert {p.name for p in (out / "JPEGImages").iterdir()} == {"a_b.jpg", "c_.jpg"}
    assert (out / "ImageSets/Main/train.txt").read_text() == "a_b\nc_\n"
