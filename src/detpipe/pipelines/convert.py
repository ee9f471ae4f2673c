"""``convert``: the same data set in another format."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import ConvertConfig, DataConfig
from detpipe.pipelines import existing
from detpipe.pipelines.data import SAMPLE

if TYPE_CHECKING:
    from detpipe.data.formats.base import Annotations

logger = logging.getLogger(__name__)


def convert(
    raw: Path, converted: Path, cache: Path, data: DataConfig, convert: ConvertConfig
) -> None:
    """Reads the folder anew, with all that its files say, and writes it as ``convert.to``.

    The tables of a training are neither used nor changed.
    """
    from detpipe.data.formats.classes import choose_classes
    from detpipe.data.writers.base import require_free

    require_free(converted, raw)
    # Another reader says itself what it misses; the sample set's would make one.
    found = data.reader.build(existing(raw) if data.reader.use == SAMPLE else raw, extra=True)
    found = choose_classes(found, data.classes)
    if convert.checked:
        found = _checked(found, raw, cache, data)
    convert.to.build(found, raw, converted)
    # Square brackets would be taken for markup by rich's log handler.
    folder = str(converted).replace("[", "(").replace("]", ")")
    logger.info(
        "converted: '%s' was written by %s: %d image(s), %d box(es), %d class(es)",
        folder, convert.to.use, len(found.images), len(found.boxes), len(found.classes),
    )  # fmt: skip


def _checked(found: Annotations, raw: Path, cache: Path, data: DataConfig) -> Annotations:
    """Without what is wrong, and with the splits asked for."""
    from detpipe.data.check import check
    from detpipe.data.split import split, undecided

    found = found._replace(images=undecided(found.images, data.split))
    found = check(found, raw, data.check, cache=cache)
    if data.split.by in ("own", "auto") and not found.images["split"].any():
        return found
    return found._replace(images=split(found.images, found.boxes, data.split))


def create_pipeline() -> Pipeline:
    """raw → a folder in another format; one that holds something is refused."""
    return Pipeline(
        [
            Node(
                convert, ["raw", "converted", "check_cache", "params:data", "params:convert"], None,
                name="convert",
            ),
        ],
        tags="convert",
    )  # fmt: skip
