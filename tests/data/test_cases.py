"""What people's data did to other trainers, from their files through detpipe's parts to the result.

Cases that a single reader or the check decides have tests there; here are those that several parts
must agree about. Each data set is written as its author would have written it.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

from detpipe.core.config import Spec
from detpipe.core.errors import DataError
from detpipe.core.tables import DETECTIONS
from detpipe.core.types import Detections
from detpipe.data import sampler
from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats import coco, csv, voc, yolo
from detpipe.data.formats.base import Annotations
from detpipe.data.image import load_image
from detpipe.data.prepare import list_classes
from detpipe.data.signature import require_same, signature
from detpipe.data.store import Store, Texts
from detpipe.data.stream import EvalStream, TrainStream
from detpipe.evaluate import coco as scorer
from detpipe.evaluate.errors import kinds
from detpipe.evaluate.gallery import sheet, tiles
from detpipe.evaluate.per_image import per_image
from detpipe.evaluate.run import predict
from detpipe.evaluate.self_test import self_test
from detpipe.models import tiny
from detpipe.train.build import train_detector
from detpipe.train.config import TrainConfig

WIDTH, HEIGHT = 128, 96
CLASSES = ("cat", "dog", "cow")


def pictures(root: Path, names, *, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)


def coco_set(
    root: Path, *, images=4, boxes=3, category=lambda n: n + 1, annotation=lambda image, n: None
) -> Path:
    """Pictures and ``instances_train.json``; ``category`` numbers classes, ``annotation`` boxes."""
    names = [f"images/{n}.png" for n in range(images)]
    pictures(root, names)
    records = [
        {"id": 100 + n, "file_name": f"{n}.png", "width": WIDTH, "height": HEIGHT}
        for n in range(images)
    ]
    objects = [
        {"id": annotation(image, n), "image_id": 100 + image, "category_id": category(n % 3),
         "bbox": [5 + 20 * n, 4 + 3 * n + image, 24, 30], "area": 24 * 30, "iscrowd": 0}
        for image in range(images) for n in range(boxes)
    ]  # fmt: skip
    categories = [{"id": category(n), "name": name} for n, name in enumerate(CLASSES)]
    content = {"images": records, "annotations": objects, "categories": categories}
    file = root / "annotations/instances_train.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def checked(found: Annotations, root: Path, *, max_detections: int | None = None) -> Annotations:
    return inspect(found, root, CheckConfig(), max_detections=max_detections)


def said(found: Annotations, rule: str) -> list[str]:
    return found.issues.loc[found.issues["rule"] == rule, "value"].tolist()


def perfect(found: Annotations, *, max_detections: int = 100) -> float:
    table = self_test(found.images, found.boxes, found.classes, max_detections=max_detections)
    return float(table.loc[table["class_name"] == "", "AP"].iloc[0])


def referee(file: Path) -> float:
    """AP in percent of a file's truth as detections, by pycocotools."""
    pycocotools = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    truth = pycocotools.COCO(str(file))
    results = [
        {**{k: a[k] for k in ("image_id", "category_id", "bbox")}, "score": 1}
        for a in truth.dataset["annotations"]
    ]
    engine = COCOeval(truth, truth.loadRes(results), "bbox")
    for step in (engine.evaluate, engine.accumulate, engine.summarize):
        step()
    return float(100 * engine.stats[0])


# --- numbers of classes and annotations --------------------------------------------------------


def trained_weights(root: Path, folder: Path) -> dict[str, torch.Tensor]:
    """A small detector's weights after two steps on the COCO set in ``root``."""
    found = checked(coco.read(root), root)
    classes = list_classes(found.classes, found.boxes, CheckConfig())
    store = Store.from_tables(found.images, found.boxes, classes, root, split="train")
    stream = TrainStream(
        store, batch_size=2, sampler=sampler.shuffle(length=len(store), seed=0), resize=None
    )
    config = TrainConfig(
        duration="2 steps", batch_size=2, device="cpu",
        optimizer=Spec(use="torch.optim.SGD", lr=0.01),
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tiny.build(len(classes), width=16)
        names = classes["class_name"].tolist()
        train_detector(model, stream, config=config, folder=folder, classes=names)
    return model.state_dict()


def test_a_detector_learns_the_same_from_categories_numbered_from_0_1_or_with_gaps(tmp_path):
    weights = {}
    ways = {
        "from 0": lambda n: n, "from 1": lambda n: n + 1, "gaps": lambda n: (7, 90, 1000)[n],
        "other classes": lambda n: (3, 1, 2)[n],
    }  # fmt: skip
    for name, category in ways.items():
        coco_set(tmp_path / name, category=category)
        weights[name] = trained_weights(tmp_path / name, tmp_path / f"run {name}")
    for name in ("from 0", "gaps"):
        for key, value in weights["from 1"].items():
            assert torch.equal(value, weights[name][key]), (name, key)
    # The list's order is that of the numbers, and with another one other labels are learnt.
    assert any(
        not torch.equal(value, weights["other classes"][key])
        for key, value in weights["from 1"].items()
    )


@pytest.mark.parametrize(
    ("annotation", "theirs"),
    [
        (lambda image, n: 3 * image + n + 1, (99.99, 100)),
        (lambda image, n: 3 * image + n, (80, 99)),  # the first has the number 0
        (lambda image, n: n + 1, (0, 80)),  # they begin anew in each image
    ],
    ids=["unique from 1", "from 0", "anew in each image"],
)
def test_ids_of_annotations_cost_no_score(tmp_path, annotation, theirs, capsys):
    file = coco_set(tmp_path, annotation=annotation)
    assert perfect(checked(coco.read(tmp_path), tmp_path)) == pytest.approx(100, abs=1e-9)
    assert theirs[0] < referee(file) < theirs[1] + 1e-9  # what made people ask
    capsys.readouterr()


def test_a_stray_category_and_a_stray_image_are_named(tmp_path):
    file = coco_set(tmp_path)
    content = json.loads(file.read_text())
    content["annotations"][0]["category_id"] = 8
    content["annotations"][1]["image_id"] = 77
    file.write_text(json.dumps(content))
    issues = checked(coco.read(tmp_path), tmp_path).issues
    (category,) = issues[issues["rule"] == "unknown_class"].to_dict("records")
    assert category["severity"] == "error"
    assert "8" in category["value"]
    (image,) = issues[issues["rule"] == "box_of_unknown_image"].to_dict("records")
    assert image["image_id"] == "77"


# --- pictures on their side ---------------------------------------------------------------------

BOX = (16, 64, 64, 88)
"""x1, y1, x2, y2 of the red rectangle in the upright picture."""


def photo(orientation: int) -> Image.Image:
    """A picture as a camera stores it whose EXIF ``orientation`` has to be applied."""
    upright = Image.new("RGB", (WIDTH, HEIGHT), (20, 60, 220))
    ImageDraw.Draw(upright).rectangle((BOX[0], BOX[1], BOX[2] - 1, BOX[3] - 1), (230, 20, 30))
    ImageDraw.Draw(upright).rectangle((96, 0, 127, 23), (30, 220, 60))
    if orientation == 1:
        return upright
    # Of the eight, only quarter turns are not their own inverse.
    inverse = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[orientation]
    upright.getexif()[274] = inverse
    stored = ImageOps.exif_transpose(upright)
    stored.getexif()[274] = orientation
    return stored


def photos(root: Path, orientation: int, *, swapped: bool = False) -> Path:
    """One photograph with one box; ``swapped``: the JSON's size is that before the rotation."""
    (root / "images").mkdir(parents=True)
    stored = photo(orientation)
    stored.save(root / "images/a.jpg", quality=100, subsampling=0, exif=stored.getexif())
    width, height = stored.size if swapped else (WIDTH, HEIGHT)
    x1, y1, x2, y2 = BOX
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": width, "height": height}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        ],
        "categories": [{"id": 1, "name": "red"}],
    }  # fmt: skip
    (root / "_annotations.coco.json").write_text(json.dumps(content))
    return root


class RedFinder:
    """A perfect detector of red: the box around its pixels."""

    def detect(self, images):
        found = []
        for image in images:
            red = (image[0] > 150) & (image[2] < 100) & (image[1] < 100)  # of 0 to 255
            ys, xs = torch.where(red)
            box = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            found.append(
                Detections(
                    boxes=torch.tensor([box], dtype=torch.float32), scores=torch.ones(1),
                    labels=torch.ones(1, dtype=torch.int64),
                )
            )  # fmt: skip
        return found


def pixels(image: object) -> np.ndarray:
    """[H, W, 3] as signed numbers."""
    values = np.asarray(image).astype(int)
    return np.moveaxis(values, 0, -1) if values.shape[0] == 3 else values


def sheet_of(found: Annotations, root: Path) -> np.ndarray:
    tables = (found.images, found.boxes, DETECTIONS.empty(), found.classes)
    settings = {"iou": 0.5, "score_threshold": 0.5, "max_detections": 100}
    ranking = per_image(*tables, dataset="test", **settings)
    pictures = tiles(*tables[:2], kinds(*tables, **settings), ranking, root, read=load_image)
    return pixels(sheet(pictures["random"]))


def predicted(folder: Path) -> tuple[pd.DataFrame, Image.Image]:
    """What the nodes of ``predict`` find in a folder's picture, and the picture without boxes."""
    from detpipe.data.config import StreamConfig
    from detpipe.evaluate.config import EvaluateConfig, PredictConfig
    from detpipe.pipelines import predict as nodes

    images = nodes.list_pictures(folder, PredictConfig())
    classes = pd.DataFrame({"class_name": ["red"]}, dtype="str")
    evaluate = EvaluateConfig.model_validate({"device": "cpu", "metrics": {}})
    table, _ = nodes.predict(
        RedFinder(), images, classes, {"red": 0.5}, folder, StreamConfig(), evaluate
    )
    (drawn,) = nodes.draw(images, table.iloc[:0], folder).values()
    return table, drawn()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_everybody_sees_a_turned_photograph_upright(tmp_path, orientation):
    root = photos(tmp_path / "turned", orientation)
    found = checked(coco.read(root), root)
    assert found.issues.empty
    store = Store.from_tables(*found[:3], root)
    order = sampler.sequential(length=1)
    trained = next(TrainStream(store, batch_size=1, sampler=order).batches(0))
    (evaluated,) = EvalStream(store, batch_size=1)
    for batch in (trained, evaluated):
        np.testing.assert_array_equal(batch.targets[0].boxes.numpy(), [BOX])
    table, drawn = predicted(root / "images")
    upright = pixels(photo(1))
    seen = {"train": trained.images[0], "evaluate": evaluated.images[0], "predict": drawn}
    for name, image in seen.items():
        assert pixels(image).shape == upright.shape, name
        assert np.abs(pixels(image) - upright).max() < 20, name  # of 255: it is a JPEG
    reference = photos(tmp_path / "upright", 1)
    sheets = [sheet_of(found, folder) for folder in (root, reference)]
    assert sheets[0].shape == sheets[1].shape
    assert np.abs(sheets[0] - sheets[1]).max() < 20

    detections = predict(
        RedFinder(), EvalStream(store, batch_size=1), class_names=["red"], device="cpu"
    ).detections
    scores = scorer.score(*found[:2], detections, found.classes, dataset="train")
    assert scores.loc[scores["metric"] == "AP", "value"].tolist() == pytest.approx([100, 100])
    np.testing.assert_allclose(table[["x1", "y1", "x2", "y2"]], [BOX], atol=1)


@pytest.mark.parametrize("orientation", [6, 8])
def test_a_size_before_the_rotation_is_said(tmp_path, orientation):
    root = photos(tmp_path, orientation, swapped=True)
    found = checked(coco.read(root), root)
    assert found.issues["rule"].tolist() == ["size_before_exif"]
    assert found.images[["width", "height"]].to_numpy().tolist() == [[WIDTH, HEIGHT]]
    assert perfect(found) == pytest.approx(100)


# --- no truth, much truth -----------------------------------------------------------------------


def test_a_set_without_truth_has_no_numbers_rather_than_minus_1_or_0(tmp_path):
    coco_set(tmp_path, boxes=0)
    found = checked(coco.read(tmp_path), tmp_path)
    assert said(found, "split_without_boxes") == ["train"]
    assert len(found.images) == 4
    guess = DETECTIONS.make(
        [{"image_id": "100", "class_name": "cat", "x1": 1, "y1": 1, "x2": 9, "y2": 9, "score": 1}]
    )
    for detections in (DETECTIONS.empty(), guess):
        scores = scorer.score(*found[:2], detections, found.classes, dataset="val")
        assert len(scores)
        assert scores["value"].isna().all()


class KnowsAll:
    """Gives the truth of each image as detections of falling scores."""

    def __init__(self, store: Store) -> None:
        self.targets = [store.target(n) for n in range(len(store))]

    def detect(self, images):
        return [
            Detections(
                boxes=t.boxes.float(), labels=t.labels, scores=torch.linspace(1, 0.5, len(t.boxes))
            )
            for t in self.targets[: len(images)]
        ]


def test_more_than_100_objects_are_a_setting_from_the_model_to_the_scorer(tmp_path, caplog):
    pictures(tmp_path, ["images/a.png"])
    corners = [(8 * (n % 15), 9 * (n // 15)) for n in range(150)]
    rows = [f"a.png,{x},{y},{x + 7},{y + 8},cat" for x, y in corners]
    (tmp_path / "train.csv").write_text("\n".join(["path,x1,y1,x2,y2,class", *rows]))
    read = csv.read(tmp_path)
    found = checked(read, tmp_path, max_detections=100)
    assert said(found, "many_boxes") == ["150 objects"]
    store = Store.from_tables(*found[:3], tmp_path)
    for limit in (100, 150):
        detections = predict(
            KnowsAll(store), EvalStream(store, batch_size=1), class_names=["cat"], device="cpu",
            max_detections=limit,
        ).detections  # fmt: skip
        assert len(detections) == limit
        scores = scorer.score(
            *found[:2], detections, found.classes, dataset="train", max_detections=limit
        )
        (ap,) = scores.loc[(scores["metric"] == "AP") & (scores["class_name"] == ""), "value"]
        assert ap == pytest.approx(100 if limit == 150 else perfect(found, max_detections=100))
        assert (ap < 67) == (limit == 100)
        model = tiny.build(1, width=16, max_detections=limit)
        assert model.inner.roi_heads.detections_per_img == limit
    assert not said(checked(read, tmp_path, max_detections=150), "many_boxes")
    assert "50 cannot be found" in caplog.text


# --- names --------------------------------------------------------------------------------------

NAMES = ("a,b", 'say "x"', "a/b", "a-b", "a_b", "(a)", "[a]", "a&b", "a b", "é – 猫")
FILES = ("é – 猫.png", "IMG 1.png", "a,b.png", "R&D (1).png", "[x].png", "100 %.png")


def as_coco(root: Path, rows) -> Annotations:
    images = [{"id": n, "file_name": name} for n, name in enumerate(FILES)]
    categories = [{"id": n, "name": name} for n, name in enumerate(NAMES)]
    annotations = [
        {"id": n, "image_id": FILES.index(file), "category_id": NAMES.index(name),
         "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for n, (file, name, x1, y1, x2, y2) in enumerate(rows)
    ]  # fmt: skip
    content = {"images": images, "categories": categories, "annotations": annotations}
    (root / "_annotations.coco.json").write_text(json.dumps(content))
    return coco.read(root)


def as_csv(root: Path, rows) -> Annotations:
    table = pd.DataFrame(rows, columns=["path", "class", "x1", "y1", "x2", "y2"])
    table.to_csv(root / "boxes.csv", index=False)
    return csv.read(root)


def as_voc(root: Path, rows) -> Annotations:
    from xml.etree import ElementTree as Xml

    for file in FILES:
        tree = Xml.Element("annotation")
        Xml.SubElement(tree, "filename").text = file
        for name, *corners in [row[1:] for row in rows if row[0] == file]:
            thing = Xml.SubElement(tree, "object")
            Xml.SubElement(thing, "name").text = name
            box = Xml.SubElement(thing, "bndbox")
            for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
                Xml.SubElement(box, key).text = str(value)
        Xml.ElementTree(tree).write(root / f"{file[:-4]}.xml", encoding="utf-8")
    return voc.read(root, annotations=".", images=".")


def as_yolo(root: Path, rows) -> Annotations:
    for file in FILES:
        lines = [
            f"{NAMES.index(name)} {(x1 + x2) / 2 / WIDTH} {(y1 + y2) / 2 / HEIGHT} "
            f"{(x2 - x1) / WIDTH} {(y2 - y1) / HEIGHT}"
            for path, name, x1, y1, x2, y2 in rows if path == file
        ]  # fmt: skip
        (root / f"{file[:-4]}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(json.dumps({"train": ".", "names": NAMES}))
    return yolo.read(root)


@pytest.mark.parametrize("write_and_read", [as_coco, as_csv, as_voc, as_yolo])
def test_names_of_classes_and_files_survive_every_reader_and_csv(tmp_path, write_and_read):
    """Comma, quote, slash, dash, bracket, ampersand, blanks, other scripts."""
    pictures(tmp_path, FILES)
    rows = [
        (file, name, 3 * n, 2 * n, 3 * n + 40, 2 * n + 30)
        for file in FILES for n, name in enumerate(NAMES)
    ]  # fmt: skip
    found = checked(write_and_read(tmp_path, rows), tmp_path)
    assert not found.issues["severity"].eq("error").any()
    paths = found.images.set_index("image_id")["path"]
    got = sorted(zip(found.boxes["image_id"].map(paths), found.boxes["class_name"], strict=True))
    assert got == sorted((file, name) for file, name, *_ in rows)
    found.boxes.to_csv(tmp_path / "out.csv", index=False)
    back = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert back["class_name"].tolist() == found.boxes["class_name"].tolist()
    assert set(found.classes["class_name"]) == set(NAMES)
    assert perfect(found) == pytest.approx(100)


# --- labels that change -------------------------------------------------------------------------


def test_labels_edited_later_are_read_anew_whatever_their_time_and_size(tmp_path):
    root = tmp_path / "set"
    pictures(root, ["train/images/a.png"])
    label = root / "train/labels/a.txt"
    label.parent.mkdir()
    (root / "data.yaml").write_text("train: train/images\nnames: [cat, dog]")
    tables = []
    for number, line in enumerate(("0 0.5 0.5 0.2 0.2", "1 0.5 0.5 0.4 0.2")):
        before = signature(root) if number else None
        label.write_text(line)
        os.utime(label, (1_000_000_000, 1_000_000_000))
        found = inspect(yolo.read(root), root, CheckConfig(), cache=tmp_path / "cache")
        tables.append(found.boxes[["class_name", "x1", "x2"]].to_numpy().tolist())
    middle = WIDTH / 2
    np.testing.assert_allclose(
        [row[0][1:] for row in tables],
        [[middle - WIDTH * w / 2, middle + WIDTH * w / 2] for w in (0.2, 0.4)], rtol=1e-6,
    )  # fmt: skip
    assert [row[0][0] for row in tables] == ["cat", "dog"]
    with pytest.raises(DataError, match="files have changed since"):
        require_same(root, before)


# --- many annotations, many workers -------------------------------------------------------------


def proportional_set(pid: int) -> int:
    """Memory of a process in bytes, shared pages counted by their share."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_does_not_grow_by_worker(tmp_path):
    """An epoch of 8,000 images and 800,000 annotations read by 8 processes."""
    images, each, workers = 8_000, 100, 8
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    rng = np.random.default_rng(0)
    boxes = np.tile(np.float32([1, 1, 9, 9]), (images * each, 1))
    store = Store(
        root=tmp_path, class_names=("a",), paths=Texts.of(["a.png"] * images),
        image_ids=Texts.of([str(n) for n in range(images)]),
        sizes=np.full((images, 2), 16, np.int32),
        offsets=np.arange(0, images * each + 1, each).astype(np.int64), boxes=boxes,
        labels=np.ones(len(boxes), np.int32), area=rng.random(len(boxes), np.float32),
        iscrowd=np.zeros(len(boxes), np.bool_), difficult=np.zeros(len(boxes), np.bool_),
    )  # fmt: skip
    store.save(tmp_path / "store.bin")
    store = Store.open(tmp_path / "store.bin", tmp_path)
    order = sampler.shuffle(length=images, seed=0)
    stream = TrainStream(store, batch_size=16, sampler=order, workers=workers).batches(0)
    total = 0
    for batch in islice(stream, 50):  # allocators warm up
        total += sum(len(target.boxes) for target in batch.targets)
    pids = [child.pid for child in multiprocessing.active_children()]
    assert len(pids) == workers
    gc.collect()
    before = [proportional_set(pid) for pid in pids]
    for batch in islice(stream, images // 16 - 50):
        total += sum(len(target.boxes) for target in batch.targets)
    grown = sum(proportional_set(pid) for pid in pids) - sum(before)
    stream.close()
    assert total == images * each
    # Pages of the file are there once for all; a copy for each worker would be eight of them.
    assert grown < 2 * store.nbytes, f"{grown} more, a store of {store.nbytes}, {before}"
