from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from detpipe.data.augment import HorizontalFlip
from detpipe.data.mix import Mosaic
from detpipe.data.transform import Until
from detpipe.pipelines.train import transforms
from detpipe.train.config import TrainConfig

FLIP = {"use": "detpipe.data.augment.HorizontalFlip"}


def config(**augment: object) -> TrainConfig:
    """100 steps of 2 × 4 images."""
    return TrainConfig.model_validate(
        {"duration": "100 steps", "batch_size": 4, "accumulate": 2, "augment": augment,
         "optimizer": {"use": "torch.optim.SGD"}}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("until", "position"),
    [
        (0.85, 85 * 8),
        (1, 100 * 8),
        (0.001, 8),  # at least one
        ("0 steps", 0),
        (0.333, 33 * 8),  # whole steps
        ("40 steps", 40 * 8),
        ("160 images", 160),
        ("0.5 epochs", 10 * 8),  # of 160 images, 20 steps
        ("1000 steps", 1000 * 8),
    ],
)
def test_until_becomes_an_image_of_the_run(until: object, position: int) -> None:
    (step,) = transforms(config(flip={**FLIP, "until": until}), images_per_epoch=160)
    assert isinstance(step, Until)
    assert isinstance(step.transform, HorizontalFlip)
    assert step.position == position


def test_transforms_keep_their_order_and_null_takes_one_out() -> None:
    settings = config(
        mosaic={"use": "detpipe.data.mix.Mosaic", "scale": [0.8, 1.2], "until": 0.5},
        none=None,
        flip=FLIP,
    )
    mosaic, flip = transforms(settings, images_per_epoch=160)
    assert isinstance(mosaic, Until)
    assert isinstance(mosaic.transform, Mosaic)
    assert isinstance(flip, HorizontalFlip)


def test_every_set_of_transforms_on_the_page_is_accepted(project_root: Path) -> None:
    page = (project_root / "docs/training.md").read_text()
    (section,) = re.findall(r"^## Augmentation\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    sets = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    sets = [one for one in sets if "train" not in one]
    assert len(sets) == 4
    for one in sets:
        assert len(transforms(config(**one), images_per_epoch=160)) == len(one)
