"""Formats that no reader reads, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from detpipe.data.formats.beginnings import first_tag, has, is_yolo_label, json_shape
from detpipe.data.formats.recognise import yolo_labels
from detpipe.data.formats.survey import Folder, Survey, spread


class Foreign(NamedTuple):
    """A format that was recognised, a file that shows it, and the way out."""

    name: str
    file: str
    advice: str


_EXPORT = "export COCO JSON, Pascal VOC or YOLO there"
_LABELME = "convert it to COCO: labelme's examples/instance_segmentation/labelme2coco.py"
_WRITE = "write it as a csv with the columns image, label, x1, y1, x2, y2 (reader: csv)"


def foreign(survey: Survey, *, labels: bool = True) -> list[Foreign]:
    """What lies there in formats that no reader reads, each once.

    Args:
        survey: the folders.
        labels: whether YOLO's label files count, because nothing there describes them.
    """
    found: dict[str, Foreign] = {}
    for folder in survey.folders.values():
        for one in _of_folder(survey, folder):
            found.setdefault(one.name, one)
    if labels and (place := yolo_labels(survey)):
        found.setdefault(_YOLO.name, _YOLO._replace(file=place))
    return list(found.values())


_YOLO = Foreign(
    "YOLO label files without data.yaml",
    "",
    "write a data.yaml in the data set's folder with the lines 'names: {0: <first class>, 1: …}' "
    "and 'train: <folder of the pictures>'",
)


def _of_folder(survey: Survey, folder: Folder) -> Iterator[Foreign]:
    tests: tuple[tuple[tuple[str, ...], Callable[[str], tuple[str, str] | None]], ...] = (
        ((".json", ".jsonl"), _json),
        ((".xml",), _xml),
        ((".txt",), _text),
    )
    for suffixes, test in tests:
        for name in spread(folder.files(*suffixes), at_most=5):
            path = folder.path(name)
            if kind := test(survey.head(path)):
                yield Foreign(kind[0], path, kind[1])
    for suffix, (kind_, advice) in _ENDINGS.items():
        if names := folder.files(suffix):
            yield Foreign(kind_, folder.path(names[0]), advice)
    parquet = folder.files(".parquet")
    if parquet and "images.parquet" not in parquet:
        advice = "name files and columns as detpipe does (docs/tables.md), or write a csv"
        yield Foreign("Parquet tables of another form", folder.path(parquet[0]), advice)


_ENDINGS: Mapping[str, tuple[str, str]] = {
    ".tfrecord": ("TFRecord", "export the set it was made from as COCO JSON, VOC or YOLO"),
    ".mat": ("MATLAB tables", _WRITE),
    ".arrow": ("Hugging Face's Arrow tables", "save the pictures, and " + _WRITE),
}

_JSON: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("COCO results (a list of detections without images)",
     "take the file of annotations that it belongs to; results are for the pipeline evaluate_files",
     ("[].image_id", "[].category_id")),
    ("LabelMe JSON", _LABELME, (".shapes", ".imagePath")),
    ("Label Studio's own JSON", "export as 'COCO' or 'YOLO' in Label Studio",
     ("[].data", "[].annotations")),
    ("Label Studio's own JSON", "export as 'COCO' or 'YOLO' in Label Studio",
     ("[].annotation_id", "[].annotator")),
    ("VIA (VGG Image Annotator) project", "export annotations as COCO in VIA",
     ("._via_settings",)),
    ("Supervisely", "export as COCO or Pascal VOC in Supervisely",
     (".objects[].classTitle",)),
    ("Supervisely", "export as COCO or Pascal VOC in Supervisely",
     (".classes[].title", ".tags")),
    ("BDD100K (Scalabel)", "convert it to COCO: python -m bdd100k.label.to_coco",
     ("[].name", "[].labels")),
    ("CreateML", _WRITE, ("[].annotations[].coordinates",)),
    ("Datumaro", "convert it: datum convert -f coco", (".items", ".categories")),
    ("Hugging Face image folder (metadata.jsonl)", _WRITE, (".file_name", ".objects")),
    ("Labelbox", "export as COCO in Labelbox, or " + _WRITE, (".data_row", ".projects")),
    ("GeoJSON", "turn the map's coordinates into pixels, and " + _WRITE, (".features[].geometry",)),
)  # fmt: skip
"""Name, way out, and keys that are all there."""


def _json(text: str) -> tuple[str, str] | None:
    shape = json_shape(text)
    for name, advice, keys in _JSON:
        if has(shape, *keys):
            return name, advice
    # VIA's annotations alone: file name and size → regions.
    if any(path.endswith((".regions", ".file_attributes")) for path in shape):
        return "VIA (VGG Image Annotator)", "export annotations as COCO in VIA"
    return None


def _xml(text: str) -> tuple[str, str] | None:
    tag = first_tag(text)
    if tag == "annotations" and re.search(r"<(image|track|meta)[\s>]", text):
        return "CVAT XML", "export 'COCO 1.0', 'PASCAL VOC 1.1' or 'Ultralytics YOLO' in CVAT"
    if tag == "annotation" and "<polygon" in text and "<bndbox" not in text:
        return "LabelMe XML", _LABELME
    if tag == "dataset" and "<box " in text:
        return "dlib (imglab) XML", _WRITE
    return None


_NUMBER = r"-?\d+(\.\d+)?(e[-+]?\d+)?"
_LINES: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    ("KITTI labels", _WRITE, re.compile(rf"[A-Za-z_]\w*( {_NUMBER}){{14,15}}\s*")),
    ("DOTA labels (rotated boxes)", "export YOLO (four points an object), or upright boxes as csv",
     re.compile(rf"({_NUMBER}\s+){{8}}[A-Za-z][\w-]*(\s+[012])?\s*")),
    ("VisDrone or MOT labels", _WRITE, re.compile(rf"{_NUMBER}(,{_NUMBER}){{7,9}},?\s*")),
)  # fmt: skip
_WIDER = re.compile(r"\S+\.jpg\s*\n\d+\s*\n(-?\d+ ){9}-?\d+", re.I)


def _text(text: str) -> tuple[str, str] | None:
    if is_yolo_label(text):
        return None
    if _WIDER.match(text):
        return "WIDER FACE", _WRITE
    lines = [line for line in text.split("\n")[:12] if line.strip()]
    lines = [line for line in lines if not line.startswith(("imagesource:", "gsd:"))]  # DOTA's
    for name, advice, pattern in _LINES:
        if lines and all(pattern.fullmatch(line) for line in lines[:5]):
            return name, advice
    return None
