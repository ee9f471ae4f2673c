from __future__ import annotations

import pandas as pd

from detpipe.core.tables import CLASSES
from detpipe.data.check_config import CheckConfig
from detpipe.data.prepare import list_classes

KEEP = CheckConfig(rules={"class_without_boxes": "keep"})


def make_boxes(*names: str) -> pd.DataFrame:
    return pd.DataFrame({"class_name": names}, dtype=str)


def test_empty_classes_are_dropped_or_kept_and_the_order_stays(caplog):
    classes = CLASSES.make([{"class_name": name} for name in ("pieces", "z", "a", "[/b]", "m")])
    boxes = make_boxes("m", "z", "a")
    got = list_classes(classes, boxes, CheckConfig())
    assert got["class_name"].tolist() == ["z", "a", "m"]
    assert "left out of the model: pieces" in caplog.text
    assert "[/" not in caplog.text
    caplog.clear()
    got = list_classes(classes, boxes, KEEP)
    assert got["class_name"].tolist() == ["pieces", "z", "a", "[/b]", "m"]
    assert "kept as outputs of the model: pieces" in caplog.text
    assert list_classes(classes, make_boxes(), CheckConfig()).empty
    assert "no class with a box: there is nothing to train on" in caplog.text
