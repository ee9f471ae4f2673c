"""Faults of detectron2's and cvpods' evaluation that must not come back."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from detpipe.core.types import Detections
from detpipe.data import sample
from detpipe.data.config import StreamConfig
from detpipe.data.store import Store
from detpipe.evaluate.config import EvaluateConfig
from detpipe.pipeline_registry import register_pipelines
from detpipe.pipelines.evaluate import DATASETS, detect, join, score


class FindsOne(nn.Module):
    """The same box in every picture; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1)
        self.pictures = 0

    def detect(self, images: list[torch.Tensor]) -> list[Detections]:
        self.pictures += len(images)
        box = torch.tensor([[10.0, 10.0, 60.0, 60.0]])
        return [Detections(box, torch.tensor([0.9]), torch.tensor([1])) for _ in images]


@pytest.mark.parametrize("name", ["train", "evaluate", "__default__"])
def test_each_set_is_detected_and_scored_by_one_node(name: str) -> None:
    """Their fault: after_train and the test after it both evaluated every set."""
    names = [node.name.split(".")[-2:] for node in register_pipelines()[name].nodes]
    for dataset in DATASETS:
        assert names.count([dataset, "detect"]) == names.count([dataset, "score"]) == 1


def test_on_files_runs_no_model() -> None:
    """Their fault: TEST.ON_FILES ran the model all the same."""
    pipeline = register_pipelines()["evaluate_files"]
    reads = {data for node in pipeline.nodes for data in node.inputs}
    assert "detections_file" in reads
    assert not reads & {"weights", "trained_model", "model", "params:model", "checkpoints"}
    assert not any(node.name.split(".")[-1] == "detect" for node in pipeline.nodes)


def test_each_of_several_test_sets_is_scored_with_its_own_pictures(tmp_path: Path) -> None:
    """Their fault: every set was scored with the joined loader of all."""
    found = sample.read(tmp_path / "sample", images=20, size=96)
    store = Store.from_tables(found.images, found.boxes, found.classes, Path())
    model, scores = FindsOne(), {}
    for dataset in DATASETS:
        own = found.images[found.images["split"] == dataset]
        before = model.pictures
        detections, timing = detect(
            dataset, model, store, tmp_path / "sample", StreamConfig(), EvaluateConfig()
        )
        assert model.pictures - before == len(own) > 0
        assert sorted(detections["image_id"]) == sorted(own["image_id"])
        assert set(timing["images"]) == {len(own)}
        scores[dataset] = score(
            dataset, found.images, found.boxes, detections, found.classes, EvaluateConfig()
        )
        alone = score(
            dataset, own, found.boxes[found.boxes["image_id"].isin(own["image_id"])],
            detections, found.classes, EvaluateConfig(),
        )  # fmt: skip
        pd.testing.assert_frame_equal(scores[dataset], alone)
    empty = [table.iloc[:0] for table in scores.values()]
    joined, *_ = join({}, *scores.values(), *empty, *empty)
    assert list(joined["dataset"].unique()) == list(DATASETS)
    values = [list(table["value"].dropna()) for table in scores.values()]
    assert values[0] != values[1], "or this test could not tell them apart"
