"""YOLO data sets as written, looked at with yaml and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from detpipe.core.errors import ConfigError
from detpipe.data.formats.base import Annotations
from detpipe.data.writers import yolo
from tests.data.writers.sets import on_disk, read, write


def box(image=0, corners=(1.0, 2.0, 7.0, 6.0), **more):
    values = dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True))
    flags = {"area": 24.0, "iscrowd": False, "difficult": False, "extra": ""}
    return {"image": image, "class_name": "cat", **values, **flags, **more}


def written(tmp_path, boxes, *, splits=("train",), sizes=(), names=("cat", "dog"), **options):
    paths = [f"{n}.jpg" for n in range(len(splits))]
    sizes = sizes or [(20, 8)] * len(paths)
    made = (paths, sizes, list(splits), [""] * len(paths), boxes, list(names))
    root = tmp_path / "source"
    found = on_disk(made, root)
    yolo.write(found, root, tmp_path / "out", **options)
    return found, tmp_path / "out"


def lines(out, name="train/labels/0.txt"):
    return [[float(word) for word in line.split()] for line in (out / name).read_text().split("\n")]


def test_shares_are_those_worked_out_by_hand(tmp_path):
    _, out = written(tmp_path, [box(class_name="dog"), box()])
    assert (out / "train/labels/0.txt").read_text() == "1 0.2 0.5 0.3 0.5\n0 0.2 0.5 0.3 0.5\n"


def test_the_yaml_names_classes_and_folders(tmp_path):
    names = ("NO", "1.0", "a: b", "é", "# x")
    splits = ("train", "val", "test")
    _, out = written(tmp_path, [box(class_name="é")], splits=splits, names=names)
    content = yaml.safe_load((out / "data.yaml").read_text("utf-8"))
    assert content == {
        "train": "train/images", "val": "valid/images", "test": "test/images", "nc": 5,
        "names": dict(enumerate(names)),
    }  # fmt: skip
    for number, split in enumerate(("train", "valid", "test")):
        assert [p.name for p in (out / split / "images").iterdir()] == [f"{number}.jpg"]
        text = (out / split / f"labels/{number}.txt").read_text()
        assert text.startswith("3 ") if split == "train" else text == ""


def test_large_pictures_keep_a_ten_thousandth_of_a_pixel(tmp_path):
    rng = np.random.default_rng(0)
    corners = np.sort(rng.uniform(0, 30_000, (50, 2, 2)), axis=1).reshape(50, 4)
    boxes = [box(corners=tuple(c)) for c in corners.tolist()]
    found, _ = written(tmp_path, [])
    found = on_disk((["0.jpg"], [(9, 9)], ["train"], [""], boxes, ["cat"]), tmp_path / "source")
    images = found.images.assign(width=30_000, height=30_000)
    yolo.write(found._replace(images=images), tmp_path / "source", tmp_path / "large")
    read_back = np.array([line[1:] for line in lines(tmp_path / "large")[:-1]]) * 30_000
    again = np.concatenate(
        [read_back[:, :2] - read_back[:, 2:] / 2, read_back[:, :2] + read_back[:, 2:] / 2], axis=1
    )
    assert np.abs(again - corners).max() < 1e-4


def test_what_yolo_cannot_hold_is_counted(tmp_path, caplog):
    boxes = [box(iscrowd=True, difficult=True), box(difficult=True), box(area=3.0), box(1)]
    _, out = written(tmp_path, boxes, splits=("train", "rest"))
    assert len(lines(out)) - 1 == 2
    for lost in (
        "1 crowd region(s), left out", "1 difficult object(s)", "1 area(s) other than",
        "1 image(s) of a split other than",
    ):  # fmt: skip
        assert lost in caplog.text, lost


@pytest.mark.parametrize(
    ("splits", "keys"),
    [
        (("", ""), {"train": "train/images"}),
        (("", "train"), {"rest": "rest/images", "train": "train/images"}),
        (("val", "valid"), {"val": "valid/images", "valid": "valid_2/images"}),
    ],
)
def test_sets_without_the_usual_splits(splits, keys, tmp_path):
    _, out = written(tmp_path, [box(0), box(1)], splits=splits)
    content = yaml.safe_load((out / "data.yaml").read_text())
    assert {k: v for k, v in content.items() if k not in ("nc", "names")} == keys
    pictures = sorted(p.name for p in out.rglob("*.jpg"))
    assert pictures == ["0.jpg", "1.jpg"]


def test_polygons_are_outlines_and_what_is_none_is_its_box(tmp_path, caplog):
    extras = [
        '{"segmentation":[[2,1,10,4,5,8]]}',
        '{"segmentation":[[2,1,10,4,5,8],[1,1,2,2,3,3]]}',
        '{"segmentation":{"counts":[1,2],"size":[8,20]}}',
        '{"segmentation":[[-4,1,10,4,5,9]]}',
        "",
    ]
    _, out = written(tmp_path, [box(extra=extra) for extra in extras], polygons=True)
    corners = [0, 0.05, 0.25, 0.35, 0.25, 0.35, 0.75, 0.05, 0.75]
    assert lines(out)[:-1] == [
        [0, 0.1, 0.125, 0.5, 0.5, 0.25, 1],
        corners, corners,
        [0, 0, 0.125, 0.5, 0.5, 0.25, 1],  # cut at the edges of the picture
        corners,
    ]  # fmt: skip
    assert "3 object(s) that are not one polygon" in caplog.text


def test_polygons_are_read_back(shared_data, tmp_path):
    root = shared_data / "screws_coco_cvat"
    found = read("coco", root)
    kept = found.images["path"].map(lambda path: (root / path).is_file())
    found = found._replace(images=found.images[kept])
    write("yolo", found, root, tmp_path / "out", pictures="link", polygons=True)
    back = read("yolo", tmp_path / "out")
    for mine, theirs in zip(*(points(t) for t in (found, back)), strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-4)


def points(found: Annotations) -> list[np.ndarray]:
    """The outline of each object, by the size of its picture and its first coordinate."""
    import json

    table = found.boxes.merge(found.images, on="image_id").sort_values(["width", "x1"])
    outlines = [json.loads(text)["segmentation"] for text in table["extra"]]
    assert len(outlines) == 4
    return [np.ravel(outline) for outline in outlines]


def test_boxes_of_pictures_of_unknown_size_are_counted(tmp_path, caplog):
    found, _ = written(tmp_path, [box()])
    (tmp_path / "source/0.jpg").write_bytes(b"")
    images = found.images.assign(width=0, height=0)
    yolo.write(found._replace(images=images), tmp_path / "source", tmp_path / "second")
    assert (tmp_path / "second/train/labels/0.txt").read_text() == ""
    assert "1 box(es) of images of unknown size" in caplog.text


def test_pictures_cannot_stay_where_they_are(tmp_path):
    found, _ = written(tmp_path, [])
    with pytest.raises(ConfigError, match="pictures: Input should be 'copy' or 'link'"):
        write("yolo", found, tmp_path / "source", tmp_path / "second", pictures="none")
