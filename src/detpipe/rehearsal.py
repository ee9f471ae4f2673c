"""Kedro hooks of ``train.dry_run`` and ``train.overfit``: runs of which nothing is kept.

The nodes are the real ones. They get few images, changed settings, and a catalog whose outputs
live in memory; no run is tracked.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from kedro.io import MemoryDataset

from detpipe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

    from detpipe.train.config import TrainConfig
    from detpipe.train.rehearse import Rehearsal

logger = logging.getLogger(__name__)

TRAIN = "training.train"
"""The node whose presence makes a pipeline a training."""


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Kedro warns of each data set that is replaced, which here is the intention."""
    log = logging.getLogger("kedro.io.data_catalog")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class Rehearse:
    """Makes a rehearsal of a training run when its settings ask for one."""

    def __init__(self) -> None:
        self._asked: TrainConfig | None = None
        self._rehearsal: Rehearsal | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._shown: dict[str, Any] = {}

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Turns the catalog's outputs into memory and gives checkpoints a folder that goes away.

        Raises:
            ConfigError: a rehearsal is asked for of something else than a training.
        """
        self._end()
        train = catalog.load("params:train") if "params:train" in catalog else {}
        asked = train if isinstance(train, Mapping) else train.model_dump()
        if not (asked.get("dry_run") or asked.get("overfit")):
            return
        if TRAIN not in {node.name for node in pipeline.nodes}:
            raise ConfigError(
                "train.dry_run and train.overfit rehearse a training, but this pipeline does not "
                "train: everything it makes would be kept. Take them out, or run the pipeline train"
            )
        from detpipe.datasets import FolderDataset

        self._asked = train
        self._folder = tempfile.TemporaryDirectory(prefix="detpipe-", ignore_cleanup_errors=True)
        replaced = {name: MemoryDataset(copy_mode="assign") for name in pipeline.all_outputs()}
        replaced["checkpoints"] = FolderDataset(path=self._folder.name, missing="create")
        with _quietly():
            for name, dataset in replaced.items():
                catalog[name] = dataset
        logger.info("%s: nothing of this run is kept, and it is not tracked", self._kind)

    @hook_impl
    def before_node_run(self, node: Node, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """The node's inputs of a rehearsal."""
        if self._asked is None:
            return None
        changed: dict[str, Any] = {}
        if "params:data" in inputs and node.short_name == "check":
            check = inputs["params:data"].check
            if not check.decoding_decides:  # it takes long
                check = check.model_copy(update={"decode": False})
            changed["params:data"] = inputs["params:data"].model_copy(update={"check": check})
        if "params:verify" in inputs:
            nothing = {"expected": [], "write": False}
            changed["params:verify"] = inputs["params:verify"].model_copy(update=nothing)
        if "expected_results" in inputs and self._folder is not None:
            changed["expected_results"] = Path(self._folder.name) / "expected_results"  # no file
        if node.name == TRAIN:
            self._plan(inputs)
        if self._rehearsal is not None:
            if "params:train" in inputs:
                changed["params:train"] = self._rehearsal.config
            which = "train" if node.name == TRAIN else "others"
            for name in {"images", "boxes", "store"} & inputs.keys():
                changed[name] = self._shown[f"{which} {name}"]
        return changed

    @hook_impl
    def after_node_run(self, node: Node, outputs: dict[str, Any]) -> None:
        """Whether the batches were learnt.

        Raises:
            TrainingError: they were not.
        """
        if self._asked is None or not self._asked.overfit or node.name != TRAIN:
            return
        from detpipe.train.rehearse import require_learned

        history = outputs["history"].dropna(subset=["train/loss"])
        passed = require_learned(
            history["train/loss"].tolist(),
            batches=self._asked.overfit,
            steps=int(history["step"].max()),
        )
        logger.info("%s", passed)

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Says that it went well."""
        if self._asked is not None:
            logger.info("%s: all nodes ran; nothing was kept", self._kind)
        self._end()

    @hook_impl
    def on_pipeline_error(self) -> None:
        """Clears up."""
        self._end()

    @property
    def _kind(self) -> str:
        return "dry run" if self._asked and self._asked.dry_run else "overfit"

    def _plan(self, inputs: dict[str, Any]) -> None:
        """Settings and images of the rehearsal, when the data set is known."""
        from detpipe.data.store import Store
        from detpipe.train.rehearse import dry_run, overfit

        assert self._asked is not None  # noqa: S101 - the caller looked
        images, boxes = inputs["images"], inputs["boxes"]
        training = images[images["split"] == "train"]
        if self._asked.dry_run:
            self._rehearsal = dry_run(self._asked)
            per_set = 2 * inputs["params:evaluate"].batch_size
            others = images[images["split"] != "train"].groupby("split").head(per_set)
            import pandas as pd

            # All training images: samplers may ask for any of them, and two steps read few.
            shown = pd.concat([training, others])
            self._shown = {f"{w} images": shown for w in ("train", "others")}
        else:
            self._rehearsal = overfit(self._asked, images_per_epoch=len(training))
            objects = boxes.loc[~boxes["iscrowd"], "image_id"]
            with_boxes = training[training["image_id"].isin(objects)]
            shown = with_boxes.head(self._rehearsal.images)
            if len(shown) < self._rehearsal.images:
                raise DataError(
                    f"train.overfit is {self._asked.overfit} batches of {self._asked.batch_size}, "
                    f"but only {len(shown)} training images have boxes; make either smaller"
                )
            # What was learnt by heart is what the other nodes evaluate on and draw.
            self._shown = {"train images": shown, "others images": shown.assign(split="test")}
        left = boxes[boxes["image_id"].isin(shown["image_id"])]
        for which in ("train", "others"):
            images = self._shown[f"{which} images"]
            packed = Store.from_tables(images, left, inputs["classes"], Path())
            self._shown |= {f"{which} boxes": left, f"{which} store": packed}

    def _end(self) -> None:
        self._asked = self._rehearsal = None
        self._shown = {}
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
