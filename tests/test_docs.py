"""What the pages show is run as it stands there."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch
import yaml

from detpipe.core.config import Duration, Spec
from detpipe.core.types import Batch, Detector, Target
from detpipe.data import augment
from detpipe.models.config import ModelSpec
from detpipe.train.build import train_detector
from detpipe.train.config import TrainConfig


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def my_package(tmp_path, project_root, monkeypatch):
    """Every Python block of the pages, at the place that its first line names."""
    for page in ("data.md", "models.md", "training.md"):
        for code in blocks(project_root / "docs" / page, "python"):
            path = tmp_path / code.splitlines()[0].removeprefix("# src/")
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path / "my_package"
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.fixture
def settings(project_root):
    """The pages' YAML blocks that name my_package, as one configuration."""
    found = {}
    for page in ("models.md", "training.md"):
        for text in blocks(project_root / "docs" / page, "yaml"):
            for section, content in yaml.safe_load(text).items():
                found.setdefault(section, {}).update(content)
    return found


def one_object(seed):
    """A picture of noise with a bright square, 96 × 64 pixels."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 60, (3, 64, 96), generator=generator, dtype=torch.uint8)
    x, y = torch.randint(2, 40, (2,), generator=generator).tolist()
    label = 1 + seed % 2
    image[label, y : y + 20, x : x + 20] = 255
    target = Target(
        image_id=str(seed), boxes=torch.tensor([[x, y, x + 20, y + 20]], dtype=torch.float32),
        labels=torch.tensor([label]), area=torch.tensor([400.0]), iscrowd=torch.tensor([False]),
        difficult=torch.tensor([False]), original_size=(64, 96),
    )  # fmt: skip
    return image, target


class Squares:
    images_per_epoch = 8

    def batches(self, start):
        while True:
            yield batch_of(start % 8, (start + 1) % 8)
            start += 2


def batch_of(*seeds):
    images, targets = zip(*map(one_object, seeds), strict=True)
    return Batch(images, targets, tuple(f"{seed}.png" for seed in seeds))


def test_the_own_model_is_a_detector(my_package, settings):
    spec = ModelSpec(**settings["model"])
    assert spec.use == "my_package.grid.build"
    model = spec.build(num_classes=2)
    assert isinstance(model, Detector)
    losses = model(batch_of(0, 1))
    sum(losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.inference_mode():
        found = model.detect([*batch_of(0).images, torch.zeros(3, 33, 50, dtype=torch.uint8)])
    assert len(found) == 2
    for detections, (height, width) in zip(found, [(64, 96), (33, 50)], strict=True):
        assert len(detections) > 0
        assert detections.boxes.shape == (len(detections), 4)
        assert detections.boxes.min() >= 0
        assert (detections.boxes[:, 2:] <= torch.tensor([width, height])).all()
        assert set(detections.labels.tolist()) <= {1, 2}
        assert (detections.scores.diff() <= 0).all()


def test_the_own_model_survives_an_image_without_objects(my_package, settings):
    image, target = one_object(0)
    nothing = Target(
        image_id="0", boxes=torch.empty(0, 4), labels=torch.empty(0, dtype=torch.int64),
        area=torch.empty(0), iscrowd=torch.empty(0, dtype=torch.bool),
        difficult=torch.empty(0, dtype=torch.bool), original_size=target.original_size,
    )  # fmt: skip
    losses = ModelSpec(**settings["model"]).build(num_classes=2)(Batch((image,), (nothing,)))
    assert all(loss.isfinite() for loss in losses.values())
    assert losses["loss_box"] == 0


def test_the_own_model_learns_and_the_own_hook_is_written(my_package, settings, tmp_path):
    config = TrainConfig(
        duration="60 steps", batch_size=2, device="cpu", log_every="1 steps",
        optimizer=Spec(use="torch.optim.Adam", lr=0.003), hooks=settings["train"]["hooks"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = ModelSpec(**settings["model"]).build(num_classes=2)
    result = train_detector(
        model, Squares(), config=config, folder=tmp_path / "run", classes=["green", "blue"]
    )
    norms = result.history.set_index("step")["train/weight_norm"].dropna()
    assert norms.index.tolist() == list(range(2, 61, 2))
    model.load_state_dict(result.weights)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert norms.loc[60] == pytest.approx(weights.norm().item(), rel=1e-5)
    losses = result.history["train/loss"]
    assert losses[-8:].mean() < losses[:8].mean() / 2


def test_every_augmentation_of_the_page_is_accepted_and_works(my_package, settings):
    specs = settings["train"]["augment"]
    config = TrainConfig(
        duration="1 steps", optimizer=Spec(use="torch.optim.SGD"), augment=specs,
        hooks={"mine": settings["train"]["hooks"]["norm"]},
    )  # fmt: skip
    image, target = one_object(0)
    for name, spec in config.augment.items():
        got, changed = augment.build(spec)(image, target)
        assert got.dtype == torch.uint8, name
        assert len(changed.boxes) == len(changed.labels), name
    torch.manual_seed(0)
    dark, _ = augment.build(config.augment["darken"])(image, target)
    torch.manual_seed(0)
    factor = 1 - 0.6 * torch.rand(()).item()
    assert torch.equal(dark, (image * factor).to(torch.uint8))
    assert factor < 1


def test_the_page_lists_every_built_in_augmentation(project_root):
    page = (project_root / "docs/training.md").read_text()
    listed = set(re.findall(r"detpipe\.data\.augment\.(\w+)", page))
    reference = (project_root / "docs/reference.md").read_text()
    assert listed == set(re.findall(r"^### `detpipe\.data\.augment\.(\w+)`", reference, re.M))


def test_a_period_of_the_own_hook_is_a_duration(my_package, settings):
    hook = Spec(**settings["train"]["hooks"]["norm"]).build()
    assert hook.every == Duration(steps=2)


def test_the_page_names_every_detector_of_torchvision(project_root):
    from detpipe.models.torchvision import FAMILIES

    page = (project_root / "docs/models.md").read_text()
    section = page.split("## torchvision's detectors")[1].split("Options:")[0]
    assert set(re.findall(r"`(\w+)`", section)) == set(FAMILIES)


def test_the_own_reader_reads_and_names_a_line_it_cannot(my_package, tmp_path):
    from detpipe.data.config import DataConfig

    (tmp_path / "boxes.txt").write_text("a.jpg\tcat\t1\t2\t30\t40\nb.jpg\tdog\t1\n")
    reader = DataConfig.model_validate({"reader": "my_package.tabs.read"}).reader
    found = reader.build(tmp_path)
    assert found.boxes[["class_name", "x1", "y2", "area"]].to_numpy().tolist() == [
        ["cat", 1, 40, 29 * 38]
    ]
    assert found.images["path"].tolist() == ["a.jpg"]
    assert found.issues[["rule", "file"]].to_numpy().tolist() == [["malformed_line", "boxes.txt:2"]]


def test_the_rules_that_the_pages_set_exist_and_may_be_set_so(project_root):
    """YAML of indented blocks, and ``data.check.rules.…`` wherever it stands."""
    from detpipe.data.check_config import CheckConfig

    found = 0
    for page in ("data.md", "rules.md"):
        text = (project_root / "docs" / page).read_text("utf-8")
        for name, action in re.findall(r"data\.check\.rules\.(\w+)=(\w+)", text):
            CheckConfig(rules={name: action})
            found += 1
        for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M):
            content = yaml.safe_load(block) if block.lstrip().startswith("data:") else {}
            if rules := content.get("data", {}).get("check", {}).get("rules"):
                CheckConfig(rules=rules)
                found += 1
    assert found >= 3


def test_the_page_has_every_column_name_the_csv_reader_knows(project_root):
    from detpipe.data.formats.csv_columns import GUESSES, OPTIONAL

    page = (project_root / "docs/data.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`(?: \(optional\))? \| (`.*`) \|$", page, re.M))
    for ours, names in {**GUESSES, **OPTIONAL}.items():
        assert tuple(re.findall(r"`(\w+)`", rows[ours])) == names


@pytest.mark.parametrize("page", ["data.md", "models.md", "training.md"])
def test_indented_yaml_of_a_page_is_valid(project_root, page):
    from detpipe.data.config import ConvertConfig, DataConfig

    text = (project_root / "docs" / page).read_text()
    found = 0
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M):
        for part in re.split(r"\n\n", block):
            if re.match(r"\s*(?:#.*\n\s*)?(data|model|train|convert):", part):
                content = yaml.safe_load(part)
                found += 1
                if "model" in content and content["model"]["use"].startswith("detpipe"):
                    ModelSpec(**content["model"])
                if "data" in content:
                    DataConfig.model_validate({"reader": "coco", **content["data"]})
                if "convert" in content:
                    ConvertConfig.model_validate(content["convert"])
    assert found or page == "training.md"
