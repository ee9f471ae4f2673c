from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.formats.base import Annotations, IssueLog


@pytest.fixture
def data_set(tmp_path):
    """A set of 64×48 pictures; ``boxes`` are (image, class, x1, y1, x2, y2)."""

    def make(
        *boxes: tuple, pictures=("a", "b"), classes=("cat", "dog"), sizes=None, splits=None
    ) -> Annotations:
        for name in pictures:
            if not (tmp_path / f"{name}.png").exists():
                seed = int.from_bytes(name.encode())
                pixels = np.random.default_rng(seed).integers(0, 255, (48, 64, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        width, height = sizes or (0, 0)
        images = [
            {"image_id": name, "path": f"{name}.png", "width": width, "height": height,
             "split": (splits or {}).get(name, "")}
            for name in pictures
        ]  # fmt: skip
        rows = [
            {"image_id": i, "annotation_id": str(n), "class_name": c, "x1": x1, "y1": y1, "x2": x2,
             "y2": y2, "area": (x2 - x1) * (y2 - y1), "iscrowd": False, "difficult": False}
            for n, (i, c, x1, y1, x2, y2) in enumerate(boxes)
        ]  # fmt: skip
        return Annotations(
            IMAGES.make(images) if images else IMAGES.empty(),
            BOXES.make(rows) if rows else BOXES.empty(),
            CLASSES.make([{"class_name": name} for name in classes]),
            IssueLog().table(),
        )

    return make
