"""Parsing in pieces: the same tables whatever the pieces, and whatever the way."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES
from detpipe.data.formats import coco, coco_pieces
from detpipe.data.formats.coco_columns import box_columns
from detpipe.data.formats.coco_ids import texts
from detpipe.data.formats.coco_json import parse
from detpipe.data.formats.coco_pieces import pieces

from .conftest import rules

SMALL = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
NUMBERS = st.integers(-50, 50) | st.floats(-50, 50).map(lambda x: round(x, 3))
ANNOTATION = st.fixed_dictionaries(
    {
        "id": st.integers(0, 10**6),
        "image_id": st.integers(0, 7),
        "category_id": st.integers(0, 5),
        "bbox": st.lists(NUMBERS, min_size=4, max_size=4),
    },
    optional={
        "area": NUMBERS,
        "iscrowd": st.sampled_from([0, 1]),
        "segmentation": st.sampled_from(
            [[], [[1, 2, 3, 4, 5, 6]], {"counts": "}, {", "size": [1, 2]}, [{"a": 1}, {"b": 2}]]
        ),
        "attributes": st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2),
    },
)
ANNOTATIONS = st.lists(ANNOTATION, max_size=8, unique_by=lambda record: record["id"])
IMAGES = [{"id": number, "file_name": f"{number}.jpg"} for number in (5, 0, 3)]
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 0, "name": "dog"}, {"id": 4, "name": "é"}]


def _naive(annotations):
    """The ``boxes`` table of these records, one record at a time."""
    names = {category["id"]: category["name"] for category in CATEGORIES}
    rows = []
    for record in annotations:
        x, y, width, height = map(float, record["bbox"])
        number = record["category_id"]
        rows.append(
            {
                "image_id": str(record["image_id"]), "annotation_id": str(record["id"]),
                "class_name": names.get(number, f"unknown category {number}"),
                "x1": x, "y1": y, "x2": x + width, "y2": y + height,
                "area": float(record.get("area", width * height)),
                "iscrowd": bool(record.get("iscrowd", 0)), "difficult": False,
            }
        )  # fmt: skip
    return BOXES.make(rows)


def _as_text(record):
    """The same with numbers as text, flags as booleans, and nulls for what is missing."""
    texts = {key: str(record[key]) for key in ("id", "image_id", "category_id")}
    flag = record.get("iscrowd")
    return {
        "area": None, **record, **texts, "iscrowd": None if flag is None else bool(flag),
    }  # fmt: skip


def _same(found, expected):
    """Whether two files' boxes are the same, ids compared as text."""
    for name in ("keys", "image_keys", "category_keys"):
        assert texts(getattr(found, name)).tolist() == texts(getattr(expected, name)).tolist()
    for name in ("corners", "area", "iscrowd", "traced"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.ignored, found.without_shape) == (expected.ignored, expected.without_shape)
    assert [json.loads(text or "{}") for text in found.extra] == [
        json.loads(text or "{}") for text in expected.extra
    ]


@SMALL
@given(annotations=ANNOTATIONS, piece=st.sampled_from([1, 100, 1 << 18]))
def test_every_way_gives_the_same_tables(set_folder, annotations, piece):
    path = set_folder / "train.json"

    def write(records, *, start="", separators=(", ", ": ")):
        content = {"images": IMAGES, "annotations": records, "categories": CATEGORIES}
        path.write_text(start + json.dumps(content, separators=separators), "utf-8")
        return parse(path, extra=True).boxes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco_pieces, "_PIECE", piece)
        odd = [_as_text(record) for record in annotations]
        usual = write(annotations)
        _same(write(annotations, start="\ufeff"), usual)
        _same(write(annotations, separators=(" \n, ", ":")), usual)
        # The first records fit the usual form, the later ones do not.
        _same(write(annotations[:3] + odd[3:]), usual)
        _same(write(odd), usual)
        found = coco.read(set_folder, extra=True)
    expected = _naive(annotations)
    pd.testing.assert_frame_equal(found.boxes[expected.columns], expected)
    held = {"id", "image_id", "category_id", "bbox", "area", "iscrowd"}
    further = [{k: v for k, v in a.items() if k not in held} for a in annotations]
    if annotations:
        assert [json.loads(text or "{}") for text in found.boxes["extra"]] == further


def test_the_usual_way_as_whole_tables(set_folder):
    """As the naive reader's, of ids that are numbers on one side and text on the other."""
    annotations = [
        {"id": n, "image_id": n % 8, "category_id": n % 6, "bbox": [n, 1, 2.5, n]}
        for n in range(60)
    ]
    for images in (IMAGES, [{**image, "id": f"{image['id']}"} for image in IMAGES]):
        for records in (annotations, [_as_text(record) for record in annotations]):
            content = {"images": images, "annotations": records, "categories": CATEGORIES}
            (set_folder / "train.json").write_text(json.dumps(content))
            found = coco.read(set_folder)
            pd.testing.assert_frame_equal(found.boxes, _naive(annotations))
            assert found.images["image_id"].tolist() == ["5", "0", "3"]


@pytest.fixture
def set_folder(tmp_path):
    """A folder with the pictures of ``IMAGES``."""
    for image in IMAGES:
        (tmp_path / image["file_name"]).touch()
    return tmp_path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just("}, {") |
    st.just('}\\"],[{'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                max_size=3),
    max_leaves=8,
)  # fmt: skip


class _Any(msgspec.Struct):
    value: msgspec.Raw


@SMALL
@given(
    values=st.lists(JSON, max_size=9), piece=st.integers(1, 60), spaces=st.sampled_from(["", "\n "])
)
def test_pieces_are_the_list_however_it_is_cut(values, piece, spaces):
    records = [{"value": value} for value in values]
    text = json.dumps(records, separators=(f"{spaces},{spaces}", f":{spaces}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco_pieces, "_PIECE", piece)
        found = list(pieces(memoryview(text.encode()), _Any, name="x", strict=True))
    assert [json.loads(bytes(r.value)) for _, part in found for r in part] == values
    assert [record for part, _ in found for record in json.loads(part)] == records


def test_a_long_list_is_cut(tmp_path):
    records = [{"value": number} for number in range(100_000)]
    parts = list(pieces(memoryview(json.dumps(records).encode()), _Any, name="x", strict=True))
    assert len(parts) > 4
    assert max(len(piece) for piece, _ in parts) < 1.01 * (1 << 18)


def test_a_wrong_record_is_named_by_its_place_in_the_file(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    right = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco_pieces, "_PIECE", 1)
        coco_file(annotations=[right, right, {**right, "bbox": {"x": 1}}])
        with pytest.raises(DataError, match=r"annotations\[2\]\.bbox") as error:
            coco.read(tmp_path)
    assert "instances_train.json" in str(error.value)


@pytest.mark.parametrize(("part", "value"), [("annotations", {}), ("images", "a"), ("images", 3)])
def test_what_must_be_a_list(tmp_path, picture, coco_file, part, value):
    picture("images/a.jpg")
    coco_file(**{part: value})
    with pytest.raises(DataError, match=rf"Expected `array`.*\$\.{part}"):
        coco.read(tmp_path)


@pytest.mark.parametrize("records", ["", " \n", "{}"])
def test_lists_without_or_with_empty_records(records):
    found = box_columns(memoryview(f"[{records}]".encode()), extra=True, strict=True)
    assert found.corners.shape == (4, records.count("{"))
    assert len(found.keys) == len(found.extra) == records.count("{")
    assert found.without_shape == bool(records.strip())


def test_ids_beyond_64_bits(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    big = 2**80 + 1
    coco_file(
        images=[{"id": big, "file_name": "a.jpg"}],
        annotations=[{"id": -big, "image_id": big, "category_id": 1, "bbox": [1, 2, 3, 4]}],
    )
    (row,) = coco.read(tmp_path).boxes.itertuples()
    assert (row.image_id, row.annotation_id) == (str(big), str(-big))


def test_an_empty_file_is_no_json(tmp_path):
    (tmp_path / "train.json").touch()
    with pytest.raises(DataError, match=r"train\.json is not valid JSON"):
        coco.read(tmp_path)


def test_the_file_may_go_when_it_is_read(tmp_path, picture, coco_file):
    """Nothing of the tables hangs on the mapped file."""
    picture("images/a.jpg")
    path = coco_file(annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4],
                                   "segmentation": [[1, 2, 3]]}])  # fmt: skip
    found = coco.read(tmp_path, extra=True)
    path.write_bytes(b"")
    assert found.boxes["extra"].tolist() == ['{"segmentation":[[1, 2, 3]]}']
    assert found.boxes["x2"].tolist() == [4]


@pytest.mark.parametrize("area", [0, -3, 2.5])
def test_a_listed_area_stays(tmp_path, picture, coco_file, area):
    """Wrong ones too: the check reports them. A missing one is the box's."""
    picture("images/a.jpg")
    record = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}
    coco_file(annotations=[{"id": 1, **record, "area": area}, {"id": 2, **record}])
    found = coco.read(tmp_path)
    assert found.boxes["area"].tolist() == [area, 12]
    assert rules(found) == {}


def test_garbage_collection_is_on_afterwards(tmp_path, picture, coco_file):
    import gc

    picture("images/a.jpg")
    coco_file(annotations="x")
    assert gc.isenabled()
    with pytest.raises(DataError):
        coco.read(tmp_path)
    assert gc.isenabled()
    coco_file()
    gc.disable()
    try:
        coco.read(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_tables_of_the_right_kinds(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file()
    found = coco.read(tmp_path, extra=True)
    assert found.boxes.dtypes.astype(str).to_dict() == {
        **dict.fromkeys(("image_id", "annotation_id", "class_name", "extra"), "str"),
        **dict.fromkeys(("x1", "y1", "x2", "y2", "area"), "float64"),
        "iscrowd": "bool", "difficult": "bool",
    }  # fmt: skip
    assert isinstance(found.boxes.index, pd.RangeIndex)
    found.boxes.loc[0, "x1"] = 9.0  # tables are the caller's own
    assert found.boxes["x1"].tolist() == [9.0]
    assert np.isfinite(found.boxes["x2"]).all()
