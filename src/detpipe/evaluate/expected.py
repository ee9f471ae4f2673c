"""The file of expected results: what one run reached, and later ones must."""

from __future__ import annotations

import datetime
import fnmatch
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import ValidationError

from detpipe.core.errors import ConfigError, one_message
from detpipe.evaluate.common import listed, records
from detpipe.evaluate.config import Expectation

logger = logging.getLogger(__name__)

_FINE = 0.005
"""Below it a tolerance is finer than two decimals: then values are not rounded."""


def read_expected(file: Path) -> list[Expectation]:
    """The expectations in a file as :func:`write_expected` makes it; none if there is no file.

    A person may edit it: every form of :class:`Expectation` is understood.

    Raises:
        ConfigError: it cannot be read; the message has the line of each mistake.
    """
    import yaml

    try:
        root = yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader)
        if root is not None and not isinstance(root, yaml.SequenceNode):
            raise ValueError("it must be a list of expectations")
        items = [] if root is None else root.value
        found = [(i.start_mark.line + 1, yaml.SafeLoader("").construct_document(i)) for i in items]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or error
        raise ConfigError(f"the expected results '{file}'{line} cannot be read: {what}") from error
    expected, mistakes = [], []
    for line_number, item in found:
        try:
            expected.append(Expectation.model_validate(item))
        except ValidationError as error:
            for e in error.errors():
                where = "".join(f"{key}: " for key in e["loc"])
                what = e["msg"].removeprefix("Value error, ")
                mistakes.append(f"line {line_number}: {where}{what}")
    if mistakes:
        raise ConfigError(one_message(f"the expected results '{file}' are not right:", mistakes))
    return expected


def is_named(metric: str, names: Sequence[str]) -> bool:
    """Whether one of ``names`` is the metric, or a pattern (``AP*``) that it fits."""
    return any(name == metric or fnmatch.fnmatchcase(metric, name) for name in names)


def write_expected(
    file: Path,
    scores: pd.DataFrame,
    verdict: pd.DataFrame,
    *,
    tolerance: float,
    metrics: Sequence[str] = ("AP", "AP50"),
) -> None:
    """Writes scores for all classes together as what later runs must reach.

    What was in the file is replaced; it is written whole or not at all. Scores that are not finite
    are left out. Nothing is written if a row of ``verdict`` is not ok or no score is left.

    Args:
        file: the file; its folder is made.
        scores: the scores table.
        verdict: how the run did against what was expected of it by other means.
        tolerance: of each written value.
        metrics: which ones, by name or pattern. One that names nothing is for
            :func:`detpipe.evaluate.verify.verify` to tell, in the verdict.
    """
    import yaml

    named = scores["metric"].map(lambda metric: is_named(metric, metrics)).astype(bool)
    rows = scores[named & (scores["class_name"] == "") & np.isfinite(scores["value"])]
    if rows.empty or not verdict["ok"].all():
        why = f"no score of {listed([*metrics])} is a number"
        if scores.empty:
            why = "there are no scores"
        if not verdict["ok"].all():
            why = "the run misses what is expected of it"
        logger.warning("verify.write: '%s' is not written: %s", file, why)
        return
    items = [
        {
            "dataset": row.dataset,
            "task": row.task,
            "metric": row.metric,
            "value": round(row.value, 2) if tolerance >= _FINE else row.value,
            "tolerance": tolerance,
        }
        for row in records(rows)
    ]
    text = yaml.safe_dump(  # a line each
        items, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=None
    )
    today = datetime.date.today().isoformat()
    replaced = " in place of what was there" if file.exists() else ""
    _write(
        file,
        f"# Written on {today} by a run with verify.write=true: what it reached, later runs must\n"
        f"# reach too.\n{text}",
    )
    logger.info(
        "verify.write: %d results, each ± %g, are written to '%s'%s; later runs must reach them",
        len(items), tolerance, file, replaced,
    )  # fmt: skip


def _write(file: Path, text: str) -> None:
    """The file whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
