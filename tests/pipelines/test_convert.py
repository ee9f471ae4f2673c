"""The node and the configuration of ``convert``."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from pydantic import ValidationError

from detpipe.core.errors import DataError
from detpipe.data.check import CheckError
from detpipe.data.config import ConvertConfig, DataConfig
from detpipe.pipelines import convert as pipeline
from tests.data.writers.sets import picture


def run(raw: Path, folder: Path, data: DataConfig, convert: ConvertConfig) -> None:
    with tempfile.TemporaryDirectory() as cache:
        pipeline.convert(raw, folder, Path(cache), data, convert)


def configs(reader, to, *, checked=True, **data):
    return (
        DataConfig.model_validate(
            {"reader": reader, "check": {"workers": 0}, **data}
        ),
        ConvertConfig.model_validate({"to": to, "checked": checked}),
    )  # fmt: skip


@pytest.fixture
def raw(tmp_path):
    """Two pictures; an object with a polygon, one half outside, one without area, no class dog."""
    root = tmp_path / "raw"
    records = [
        {"id": 1, "file_name": "a.jpg", "width": 40, "height": 30},
        {"id": 2, "file_name": "b.jpg", "width": 40, "height": 30},
    ]
    boxes = [[1, 2, 10, 12], [30, 20, 20, 5], [3, 3, 0, 4]]
    annotations = [
        {"id": n, "image_id": 1, "category_id": 1, "bbox": bbox, "area": 60, "iscrowd": 0,
         "segmentation": [[1, 2, 11, 2, 11, 14]]}
        for n, bbox in enumerate(boxes, 1)
    ]  # fmt: skip
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": records, "annotations": annotations, "categories": categories}
    for number, name in enumerate(("a.jpg", "b.jpg")):
        picture(root / "images/valid" / name, number, width=40, height=30)
    (root / "annotations").mkdir()
    (root / "annotations/instances_valid.json").write_text(json.dumps(content))
    return root


def annotations(folder, split="val"):
    content = json.loads((folder / f"annotations/instances_{split}.json").read_text())
    return [(a["id"], a["bbox"], a.get("segmentation")) for a in content["annotations"]]


def test_checked_boxes_are_written_under_the_splits_names_with_all_that_was_said(
    raw, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    run(raw, tmp_path / "out", *configs("coco", "coco"))
    polygon = [[1, 2, 11, 2, 11, 14]]
    assert annotations(tmp_path / "out") == [
        (1, [1, 2, 10, 12], polygon), (2, [30, 20, 10, 5], polygon),
    ]  # fmt: skip
    assert (tmp_path / "out/images/val/a.jpg").is_file()
    content = json.loads((tmp_path / "out/annotations/instances_val.json").read_text())
    assert [c["name"] for c in content["categories"]] == ["cat", "dog"]
    last = caplog.messages[-1]
    assert "2 image(s), 2 box(es), 2 class(es)" in last
    assert str(tmp_path / "out") in last
    assert "detpipe.data.writers.coco.write" in last


def test_without_the_check_everything_is_written_as_it_was_read(raw, tmp_path):
    (raw / "images/valid/b.jpg").write_bytes(b"no picture")
    with pytest.raises(CheckError, match=r"b\.jpg"):
        run(raw, tmp_path / "out", *configs("coco", "coco"))
    assert not (tmp_path / "out").exists()
    run(raw, tmp_path / "out", *configs("coco", "coco", checked=False))
    assert [box for _, box, _ in annotations(tmp_path / "out", "valid")] == [
        [1, 2, 10, 12], [30, 20, 20, 5], [3, 3, 0, 4],
    ]  # fmt: skip
    assert (tmp_path / "out/images/valid/b.jpg").read_bytes() == b"no picture"


def test_a_set_without_splits_stays_one_unless_it_is_to_be_divided(raw, tmp_path):
    file = raw / "annotations/instances_valid.json"
    file.rename(raw / "annotations/instances_1.json")
    reader = {"use": "coco", "images": "images/valid"}
    run(raw, tmp_path / "out", *configs(reader, "parquet"))
    assert set(pd.read_parquet(tmp_path / "out/images.parquet")["split"]) == {""}
    shares = {"by": "ratio", "train": 0.5, "val": 0.5, "test": 0}
    run(raw, tmp_path / "divided", *configs(reader, "parquet", split=shares))
    divided = pd.read_parquet(tmp_path / "divided/images.parquet")
    assert set(divided["split"]) == {"train", "val"}


def test_classes_are_chosen_as_the_data_section_says(raw, tmp_path):
    chosen = {"rename": {"cat": "tiger"}, "drop": ["dog"]}
    run(raw, tmp_path / "out", *configs("coco", "voc", classes=chosen))
    text = (tmp_path / "out/Annotations/a.xml").read_text()
    assert text.count("<name>tiger</name>") == 2


def test_an_existing_folder_is_refused_before_anything_is_read(raw, tmp_path):
    for file in (raw / "annotations").iterdir():
        file.write_text("no JSON")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    with pytest.raises(DataError, match="remove it, or choose another folder"):
        run(raw, tmp_path / "out", *configs("coco", "yolo"))


def test_a_mistyped_folder_does_not_become_the_sample_set(tmp_path):
    with pytest.raises(DataError, match="nowhere' is not there"):
        run(tmp_path / "nowhere", tmp_path / "out", *configs("sample", "yolo"))
    assert list(tmp_path.iterdir()) == []


def test_a_writer_has_a_short_name_options_and_may_be_anybodys():
    to = {"use": "yolo", "pictures": "link", "polygons": True}
    assert ConvertConfig.model_validate({"to": to}).to.use == "detpipe.data.writers.yolo.write"
    assert ConvertConfig.model_validate({"to": "csv"}).to.use == "detpipe.data.writers.csv.write"
    own = ConvertConfig.model_validate({"to": "shutil.copytree"})
    assert own.to.use == "shutil.copytree"


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("cocoo", "no writer 'cocoo': did you mean 'coco'"),
        ({"use": "coco", "polygons": True}, r"convert\.to.*has no option 'polygons'"),
        ({"use": "coco", "pictures": "move"}, "pictures: Input should be 'copy', 'link' or 'none'"),
        ({"use": "yolo", "pictures": "none"}, "Input should be 'copy' or 'link'"),
        (3, "Input should be a valid"),
    ],
)
def test_what_is_no_writer_is_said_before_anything_runs(to, message):
    with pytest.raises((ValidationError, ValueError), match=message):
        ConvertConfig.model_validate({"to": to})


def test_the_pipeline_runs_in_kedro(raw, tmp_path):
    from kedro.io import DataCatalog, MemoryDataset
    from kedro.runner import SequentialRunner

    data, convert = configs("coco", "csv")
    catalog = DataCatalog(
        {
            "raw": MemoryDataset(raw), "converted": MemoryDataset(tmp_path / "out"),
            "check_cache": MemoryDataset(tmp_path / "cache"),
            "params:data": MemoryDataset(data), "params:convert": MemoryDataset(convert),
        }
    )  # fmt: skip
    SequentialRunner().run(pipeline.create_pipeline(), catalog)
    assert (tmp_path / "out/boxes.csv").is_file()
