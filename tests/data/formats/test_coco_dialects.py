"""COCO files as each tool writes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import coco
from detpipe.data.rules import RULE_OF

from .conftest import rules


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def _box(number, image_id, category_id=1, **fields):
    return {"id": number, "image_id": image_id, "category_id": category_id, **fields}


def test_roboflow(tmp_path, picture):
    """A super-category of number 0, annotations from 0, names ``NAME_jpg.rf.HASH.jpg``, splits."""
    for split, name in (("train", "a_jpg.rf.0a1b.jpg"), ("valid", "b_jpg.rf.2c3d.jpg")):
        picture(f"{split}/{name}")
        _write(
            tmp_path / split / "_annotations.coco.json",
            {
                "info": {"year": "2024", "version": "1", "description": "Exported from roboflow"},
                "licenses": [{"id": 1, "url": "https://example.org", "name": "CC BY 4.0"}],
                "categories": [
                    {"id": 0, "name": "animals", "supercategory": "none"},
                    {"id": 1, "name": "cat", "supercategory": "animals"},
                ],
                "images": [
                    {"id": 0, "license": 1, "file_name": name, "height": 48, "width": 64,
                     "date_captured": "2024-01-01T00:00:00+00:00", "extra": {"name": "a.jpg"}}
                ],
                "annotations": [
                    _box(0, 0, bbox=[1, 2, 30, 40], area=1200, segmentation=[], iscrowd=0)
                ],
            },
        )  # fmt: skip
    found = coco.read(tmp_path, group="extra.name")
    assert found.images["path"].tolist() == ["train/a_jpg.rf.0a1b.jpg", "valid/b_jpg.rf.2c3d.jpg"]
    assert found.images["split"].tolist() == ["train", "valid"]
    assert found.images["group"].tolist() == ["a.jpg", "a.jpg"]
    assert found.classes["class_name"].tolist() == ["animals", "cat"]  # the check reports the first
    assert found.boxes["class_name"].tolist() == ["cat", "cat"]


def test_cvat(tmp_path, picture):
    """``instances_default.json``, a licence of number 0, attributes, a crowd of a mask as runs."""
    picture("images/default/b 1.png")
    mask = {"counts": [5, 3, 64 * 48 - 8], "size": [48, 64]}
    _write(
        tmp_path / "annotations/instances_default.json",
        {
            "licenses": [{"name": "", "id": 0, "url": ""}],
            "info": {"contributor": "", "date_created": "", "description": "", "year": ""},
            "categories": [{"id": 1, "name": "cat", "supercategory": ""}],
            "images": [
                {"id": 1, "width": 64, "height": 48, "file_name": "b 1.png", "license": 0,
                 "flickr_url": "", "coco_url": "", "date_captured": 0}
            ],
            "annotations": [
                _box(1, 1, segmentation=[[1.5, 2, 9, 2, 9, 8.25]], area=23.4, iscrowd=0,
                     bbox=[1.5, 2, 7.5, 6.25], attributes={"occluded": False, "rotation": 0.0}),
                _box(2, 1, segmentation=mask, area=3, bbox=[0, 5, 1, 3], iscrowd=1),
            ],
        },
    )  # fmt: skip
    found = coco.read(tmp_path, extra=True)
    assert found.images["path"].tolist() == ["images/default/b 1.png"]
    assert found.images["split"].tolist() == [""]
    assert found.boxes["area"].tolist() == [23.4, 3]
    assert found.boxes["iscrowd"].tolist() == [False, True]
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[1.5, 2, 9, 8.25], [0, 5, 1, 8]]
    assert [json.loads(text) for text in found.boxes["extra"]] == [
        {"segmentation": [[1.5, 2, 9, 2, 9, 8.25]],
         "attributes": {"occluded": False, "rotation": 0.0}},
        {"segmentation": mask},
    ]  # fmt: skip
    assert found.issues.empty


LABEL_STUDIO_NAMES = [
    ("images/0a1b2c3d-a%20b.jpg", "images/0a1b2c3d-a b.jpg", {"image_url": 1}),
    ("images\\0a1b2c3d-a.jpg", "images/0a1b2c3d-a.jpg", {}),
    ("images\\1/0a1b2c3d-a.jpg", "images/0a1b2c3d-a.jpg", {"image_path": 1}),
    ("../../label-studio/data/media/upload/1/0a1b2c3d-a.jpg", "images/0a1b2c3d-a.jpg",
     {"image_path": 1}),
    ("/data/local-files/?d=shots/day%201/a.jpg", "shots/day 1/a.jpg", {"image_url": 1}),
    ("/data/upload/1/0a1b2c3d-a.jpg", "a.jpg", {"image_url": 1}),
    ("https://host/media/a.jpg?X-Amz-Signature=0f&d=1", "images/a.jpg", {"image_url": 1}),
    ("s3://bucket/shots/a.jpg", "images/shots/a.jpg", {"image_path": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "on_disk", "said"), LABEL_STUDIO_NAMES)
def test_label_studio(tmp_path, picture, written, on_disk, said):
    """``result.json``: everything from 0, ``ignore``, sizes that may be null, names as above."""
    picture(on_disk)
    _write(
        tmp_path / "result.json",
        json.dumps(
            {
                "images": [{"width": None, "height": None, "id": 0, "file_name": written}],
                "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
                "annotations": [
                    _box(0, 0, 0, segmentation=[], bbox=[1.0, 2.0, 3.0000000000000004, 4.5],
                         ignore=0, iscrowd=0, area=13.500000000000002)
                ],
                "info": {"year": 2024, "version": "1.0", "contributor": "Label Studio"},
            },
            indent=2,
        ),
    )  # fmt: skip
    found = coco.read(tmp_path)
    assert found.images["path"].tolist() == [on_disk]
    assert found.boxes["class_name"].tolist() == ["cat"]
    assert found.boxes["x2"].tolist() == [1.0 + 3.0000000000000004]
    assert found.images[["width", "height"]].to_numpy().tolist() == [[0, 0]]
    assert rules(found) == said


def test_ignore_is_said(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    boxes = [_box(n, 1, bbox=[n, 1, 5, 5], ignore=n % 2) for n in range(5)]
    coco_file(annotations=boxes)
    found = coco.read(tmp_path, extra=True)
    assert found.boxes["extra"].tolist() == [f'{{"ignore":{n % 2}}}' for n in range(5)]
    (said,) = found.issues.to_dict("records")
    assert (said["rule"], said["value"]) == ("ignore_flag", "2 record(s)")
    coco_file(annotations=[{**boxes[0], "ignore": True}])
    assert coco.read(tmp_path).issues["value"].tolist() == ["1 record(s)"]


def test_lvis(tmp_path, picture):
    """No ``file_name``; lists of classes by image, of which some are in no category."""
    picture("train2017/000000391895.jpg")
    picture("val2017/000000391896.jpg")
    _write(
        tmp_path / "annotations/lvis_v1_train.json",
        {
            "images": [
                {"id": number, "height": 48, "width": 64, "license": 4,
                 "coco_url": f"http://images.cocodataset.org/{name}", "flickr_url": "http://x",
                 "date_captured": "2013-11-14", "neg_category_ids": [3, 1, 4],
                 "not_exhaustive_category_ids": []}
                for number, name in (
                    (391895, "train2017/000000391895.jpg"), (391896, "val2017/000000391896.jpg")
                )
            ],
            "categories": [
                {"id": 1, "name": "aerosol_can", "synset": "aerosol.n.02", "frequency": "c",
                 "synonyms": ["aerosol_can"], "def": "d", "image_count": 64, "instance_count": 109},
                {"id": 4, "name": "bait ", "frequency": "r"},
            ],
            "annotations": [
                _box(1, 391895, bbox=[1.5, 2, 3, 4], area=10.5, segmentation=[[1, 2, 3, 4, 5, 6]])
            ],
        },
    )  # fmt: skip
    found = coco.read(tmp_path)
    assert found.images["path"].tolist() == [
        "train2017/000000391895.jpg", "val2017/000000391896.jpg"
    ]  # fmt: skip
    assert found.images["split"].tolist() == ["train", "train"]
    assert found.images["negative"].tolist() == ['["aerosol_can","bait"]'] * 2
    assert found.images["not_exhaustive"].tolist() == ["[]"] * 2
    assert found.classes.to_dict("list") == {
        "class_name": ["aerosol_can", "bait"], "frequency": ["c", "r"]
    }  # fmt: skip
    said = found.issues.set_index("rule").loc["lvis_federated"]
    assert (said["severity"], said["value"]) == ("info", "2 image(s)")


def test_boxes_from_segmentations(tmp_path, picture, coco_file):
    """As pycocotools computes them, of outlines and of masks in all three forms."""
    mask_api = pytest.importorskip("pycocotools.mask")
    picture("images/a.jpg")
    rng = np.random.default_rng(0)
    shapes, truth = [], []
    for number in range(40):
        mask = np.zeros((48, 64), np.uint8, order="F")
        x, y = rng.integers(0, 60), rng.integers(0, 44)
        mask[y : y + rng.integers(1, 20), x : x + rng.integers(1, 20)] = rng.random() > 0.1
        if number % 5 == 0:  # a run that goes on in the next columns
            start = rng.integers(0, mask.size - 200)
            mask.ravel("K")[start : start + rng.integers(1, 200)] = 1
        mask &= (rng.random(mask.shape) < rng.choice([0.2, 1])).astype(np.uint8)
        packed = mask_api.encode(mask)
        truth.append(mask_api.toBbox(packed).tolist())
        if number % 2:
            shapes.append({"size": [48, 64], "counts": packed["counts"].decode()})
        else:
            edges = np.flatnonzero(np.diff(np.r_[0, mask.ravel("F")])).tolist()
            shapes.append({"size": [48, 64], "counts": np.diff([0, *edges, mask.size]).tolist()})
    runs = [100, 0, 500, 3, 2, 0, 48 * 64 - 605]  # some without a pixel
    shapes.append({"size": [48, 64], "counts": runs})
    truth.append(mask_api.toBbox(mask_api.frPyObjects(shapes[-1], 48, 64)).tolist())
    points = rng.uniform(0, 40, (2, 5, 2)).round(2)
    shapes.append(points.reshape(2, 10).tolist())
    shapes.append(points[0].ravel().tolist())  # not in a list of its own
    low, high = points.min(axis=(0, 1)), points.max(axis=(0, 1))
    truth += [[*low, *(high - low)], [*points[0].min(0), *np.ptp(points[0], axis=0)]]
    coco_file(annotations=[_box(n, 1, segmentation=shape) for n, shape in enumerate(shapes)])
    found = coco.read(tmp_path)
    empty = [number for number, box in enumerate(truth) if box[2] == 0]
    assert 0 < len(empty) < 20
    corners = found.boxes[BOX_COLUMNS].to_numpy()
    assert np.isnan(corners[empty]).all()  # the check reports them
    expected = np.delete(np.array(truth), empty, axis=0)
    expected[:, 2:] += expected[:, :2]
    np.testing.assert_allclose(np.delete(corners, empty, axis=0), expected, atol=1e-12)
    (said,) = found.issues.to_dict("records")
    assert said["rule"] == "box_from_segmentation"
    assert said["value"] == f"{len(truth) - len(empty)} of {len(truth)} record(s)"


@pytest.mark.parametrize(
    "segmentation",
    [None, [], {}, [[]], [["a", "b"]], [[1, 2, 3]], {"size": [48, 64]}, "abc", 7, [[None, 1]],
     {"size": [48, 64], "counts": [5, 3, -2, 4]}, {"size": [0, 0], "counts": [1, 2]},
     {"size": "ab", "counts": [1, 2]}, {"size": [48, 64], "counts": "é"}],
)  # fmt: skip
def test_a_segmentation_that_is_none_gives_no_box(tmp_path, picture, coco_file, segmentation):
    picture("images/a.jpg")
    coco_file(annotations=[_box(1, 1, segmentation=segmentation), _box(2, 1, bbox=[1, 2, 3, 4])])
    found = coco.read(tmp_path)
    assert found.boxes["x1"].isna().tolist() == [True, False]
    assert found.issues.empty


def test_a_box_counts_more_than_the_segmentation(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(1, 1, bbox=[1, 2, 3, 4], segmentation=[[9, 9, 20, 9, 20, 20]])])
    assert coco.read(tmp_path).boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 2, 4, 6]]
    shape = [[9, 9, 20, 9, 20, 20]]
    coco_file(
        annotations=[
            _box(1, 1, bbox=[1, 2, 3, 4], segmentation=shape),
            _box(2, 1, segmentation=shape),
        ]
    )
    found = coco.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 2, 4, 6], [9, 9, 20, 20]]
    assert found.issues["value"].tolist() == ["1 of 2 record(s)"]


OTHER_FILES = {
    "results": ([{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}],
                "list of detections"),
    "labelme": ({"version": "5.0", "flags": {}, "shapes": [], "imagePath": "a.jpg",
                 "imageData": None}, "LabelMe"),
    "captions": ({"images": [{"id": 1, "file_name": "a.jpg"}],
                  "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}]}, "captions"),
    "keypoints": ({"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [
                  {"id": 1, "image_id": 1, "category_id": 1, "keypoints": [1, 2, 2]}]},
                  "keypoints without boxes"),
    "panoptic": ({"images": [{"id": 1, "file_name": "a.jpg"}],
                  "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": []}]},
                 "panoptic"),
    "via": ({"_via_settings": {}, "_via_img_metadata": {}}, "VGG"),
    "via regions": ({"a.jpg123": {"filename": "a.jpg", "size": 123, "regions": []}}, "VGG"),
    "label studio": ([{"id": 1, "data": {"image": "a.jpg"}, "annotations": []}],
                     "export the project as COCO"),
    "create ml": ([{"image": "a.jpg", "annotations": []}], "Create ML"),
    "bdd": ([{"name": "a.jpg", "labels": []}], "BDD100K"),
    "geojson": ({"type": "FeatureCollection", "features": []}, "GeoJSON"),
    "numbers": ([1, 2], "a JSON list"),
    "text": ("abc", "a JSON value"),
    "settings": ({"name": "x", "files": 3}, "it has 'name', 'files'"),
    "nothing": ({}, "it has nothing"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_json_is_refused_by_what_it_looks_like(tmp_path, picture, kind):
    content, message = OTHER_FILES[kind]
    picture("images/a.jpg")
    path = _write(tmp_path / "train.json", json.dumps(content))
    with pytest.raises(DataError, match=message) as error:
        coco.read(tmp_path)
    assert str(path) in str(error.value)


def test_keypoints_with_boxes_are_boxes(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(1, 1, bbox=[1, 2, 3, 4], keypoints=[1, 2, 2], num_keypoints=1)])
    assert len(coco.read(tmp_path).boxes) == 1


def test_a_single_json_of_any_name_is_taken(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file("export-3.json")
    assert len(coco.read(tmp_path).boxes) == 1
    coco_file("export-4.json")
    with pytest.raises(DataError, match=r"export-3\.json, export-4\.json.*'annotations'"):
        coco.read(tmp_path)


def test_extra_is_what_the_source_says(shared_data):
    """Every further field of CVAT's file, and byte for byte: numbers keep their spelling."""
    folder = shared_data / "screws_coco_cvat"
    text = (folder / "annotations/instances_test.json").read_text()
    held = {"id", "image_id", "category_id", "bbox", "area", "iscrowd"}
    records = json.loads(text)["annotations"]
    expected = [{k: v for k, v in record.items() if k not in held} for record in records]
    assert all(set(fields) == {"segmentation", "attributes"} for fields in expected)
    found = coco.read(folder, extra=True)
    assert [json.loads(extra) for extra in found.boxes["extra"]] == expected
    for extra in found.boxes["extra"]:
        attributes = extra[extra.index('"attributes":') + len('"attributes":') : -1]
        assert attributes in text
    assert "extra" not in coco.read(folder).boxes


def test_extra_keeps_every_spelling(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    path = coco_file(annotations=[])
    fields = r'"a":1.50,"b":"\u00e9 \/ \"q\"","c":{"d":[1e2,  null, true]},"é":-0.0'
    record = '{"image_id": 1, "bbox": [1, 2, 3, 4], %s, "category_id": 1}'
    both = f"{record % fields}, {record.replace('%s, ', '')}"
    path.write_text(path.read_text().replace('"annotations": []', f'"annotations": [{both}]'))
    found = coco.read(tmp_path, extra=True)
    assert found.boxes["extra"].tolist() == ["{" + fields + "}", ""]
    coco_file(annotations=None)
    assert "extra" not in coco.read(tmp_path, extra=True).boxes


def test_extra_where_the_file_holds_nan(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(1, 1, bbox=[1, 2, 3, 4], depth=float("nan"), name="x")])
    found = coco.read(tmp_path, extra=True)
    assert found.boxes["extra"].tolist() == ['{"depth":null,"name":"x"}']


@pytest.mark.parametrize(
    ("field", "groups"),
    [
        ("video_id", ["7", "x", ""]),
        ("where.site", ["north", "", ""]),
        ("where", ['{"nr":1,"site":"north"}', "", ""]),
    ],
)
def test_group_is_a_field_of_the_images(tmp_path, picture, coco_file, field, groups):
    for name in "abc":
        picture(f"images/{name}.jpg")
    coco_file(
        images=[
            {"id": 1, "file_name": "a.jpg", "video_id": 7, "where": {"site": "north", "nr": 1}},
            {"id": 2},  # left out: no file name
            {"id": 3, "file_name": "b.jpg", "video_id": "x", "where": None},
            {"id": 4, "file_name": "c.jpg"},
        ]
    )
    assert coco.read(tmp_path, group=field).images["group"].tolist() == groups
    assert "group" not in coco.read(tmp_path).images
    with pytest.raises(DataError, match=r"'video'.*'group'.*id, file_name, video_id, where"):
        coco.read(tmp_path, group="video")


def test_images_may_be_anywhere(tmp_path, picture, coco_file):
    picture("elsewhere/a.jpg")
    coco_file("set/annotations/train.json")
    root, absolute = tmp_path / "set", tmp_path / "elsewhere"
    for given in (str(absolute), "../elsewhere", absolute.as_uri()):
        found = coco.read(root, images=given)
        assert found.images["path"].tolist() == ["../elsewhere/a.jpg"]
        assert (root / found.images["path"][0]).is_file()
    with pytest.raises(DataError, match=r"no such folder.*nowhere.*'images'"):
        coco.read(root, images="nowhere")


def test_listed_sizes_are_given_as_they_are(tmp_path, picture, coco_file):
    """Swapped ones too (the check compares them with the files), fractions cut."""
    picture("images/a.jpg", width=64, height=48)
    for size, given in (((48, 64), [48, 64]), ((64.0, 48.9), [64, 48]), ((None, None), [0, 0])):
        coco_file(images=[{"id": 1, "file_name": "a.jpg", "width": size[0], "height": size[1]}])
        found = coco.read(tmp_path)
        assert found.images[["width", "height"]].to_numpy().tolist() == [given]


def test_ids_with_gaps_and_a_stray_one(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    picture("images/b.jpg")
    coco_file(
        images=[{"id": 10**15, "file_name": "a.jpg"}, {"id": 3, "file_name": "b.jpg"}],
        categories=[{"id": 90, "name": "cat"}, {"id": 7, "name": "dog"}],
        annotations=[
            _box(5, 3, 90, bbox=[1, 1, 2, 2]),
            _box(900, 10**15, 7, bbox=[1, 1, 2, 2]),
            _box(901, 4, 8, bbox=[1, 1, 2, 2]),
        ],
    )
    found = coco.read(tmp_path)
    assert found.boxes["image_id"].tolist() == ["3", str(10**15), "4"]
    assert found.boxes["class_name"].tolist() == ["cat", "dog", "unknown category 8"]
    assert found.classes["class_name"].tolist() == ["dog", "cat"]
    assert not set(found.boxes["image_id"]) <= set(found.images["image_id"])  # the check names it


def test_every_rule_is_in_the_list(tmp_path, picture, coco_file):
    picture("images/x.jpg")
    coco_file(
        images=[{"id": 1, "file_name": "q/x.jpg", "neg_category_ids": []}],
        annotations=[_box(1, "01", segmentation=[[1, 1, 5, 5]], ignore=1)],
    )
    found = coco.read(tmp_path)
    said = {"lvis_federated", "box_from_segmentation", "ignore_flag", "id_spelling", "image_path"}
    assert set(rules(found)) == said
    for row in found.issues.itertuples():
        assert RULE_OF[row.rule].severity == row.severity


def test_ids_that_are_numbers_in_one_file_and_text_in_the_other(tmp_path, picture, coco_file):
    """1 and "1" are one id, so the files use the same."""
    for split, number in (("train", 1), ("val", "1")):
        picture(f"images/{split}/{split}.jpg")
        coco_file(
            f"annotations/instances_{split}.json",
            images=[{"id": number, "file_name": f"{split}.jpg"}],
            annotations=[_box(number, number, bbox=[1, 2, 3, 4])],
        )
    found = coco.read(tmp_path)
    assert found.images["image_id"].tolist() == ["train-1", "val-1"]
    assert found.boxes["image_id"].tolist() == ["train-1", "val-1"]
    assert found.boxes["annotation_id"].tolist() == ["train-1", "val-1"]


def test_images_without_ids_are_called_by_their_names(tmp_path, picture, coco_file):
    for name in "ab":
        picture(f"images/{name}.jpg")
    coco_file(
        images=[{"file_name": "a.jpg"}, {"file_name": "b.jpg"}],
        annotations=[_box(1, "b.jpg", bbox=[1, 2, 3, 4])],
    )
    found = coco.read(tmp_path)
    assert found.images["image_id"].tolist() == ["a.jpg", "b.jpg"]
    assert found.boxes["image_id"].tolist() == ["b.jpg"]


def test_boxes_where_no_image_is_listed(tmp_path, coco_file):
    coco_file(images=[])
    found = coco.read(tmp_path)
    assert found.images.empty
    assert found.boxes["image_id"].tolist() == ["1"]  # the check names it


def test_result_json_is_taken_beside_others(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file("result.json")
    _write(tmp_path / "notes.json", {"info": {}})
    assert len(coco.read(tmp_path).boxes) == 1
