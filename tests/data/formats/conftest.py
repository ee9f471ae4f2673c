"""Small data sets on disk for the readers' tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture(tmp_path):
    """Writes a picture below tmp_path and gives its path."""

    def write(name: str, *, width: int = 64, height: int = 48, **options) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(path, **options)
        return path

    return write


@pytest.fixture
def coco_file(tmp_path):
    """Writes a COCO file below tmp_path; parts given as None are left out."""

    def write(name: str = "annotations/instances_train.json", **parts) -> Path:
        content = {
            "images": [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}],
            "annotations": [
                {"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 5, 20, 30], "area": 600,
                 "iscrowd": 0}
            ],
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
            **parts,
        }  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
        return path

    return write


@pytest.fixture
def voc_file(tmp_path):
    """Writes one VOC annotation; ``objects`` are the insides of <object>."""

    def write(stem: str, *objects: str, filename: str | None = None, folder="Annotations") -> Path:
        path = tmp_path / folder / f"{stem}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        inside = "".join(f"<object>{o}</object>" for o in objects)
        named = f"<filename>{stem + '.jpg' if filename is None else filename}</filename>"
        path.write_text(
            f"<annotation>{named}<path>C:\\Users\\me\\{stem}.jpg</path><size><width>64</width>"
            f"<height>48</height><depth>3</depth></size>{inside}</annotation>",
            "utf-8",
        )
        return path

    return write


def rules(found) -> dict[str, int]:
    """rule → number of rows in the issues of what a reader gave."""
    return found.issues["rule"].value_counts().to_dict()
