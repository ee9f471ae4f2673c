"""From which score a detection counts, as the last evaluation found it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isnan
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError

logger = logging.getLogger(__name__)

_AGAIN = (
    "run 'kedro run --pipeline evaluate' (with the same --env and --params) first, or set "
    "predict.score_threshold to a number"
)


def read_thresholds(path: Path, class_names: Sequence[str], *, weights: str) -> dict[str, float]:
    """The score of each class at which its F1 was best, on ``val``; without one, on ``test``.

    Args:
        path: ``thresholds.csv`` of the report.
        class_names: the classes that are wanted.
        weights: digest of the weights that will be used.

    Returns:
        Class name → score. A class without an own threshold (no object of it was found) has that
        of all classes together.

    Raises:
        DataError: the file is not there, is of other weights, or has no threshold.
    """
    if not path.is_file():
        raise DataError(f"predict.score_threshold is best_f1, but there is no '{path}': {_AGAIN}")
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values={"score_threshold": [""]},
                            dtype={"class_name": str, "weights": str})  # fmt: skip
        table["score_threshold"] = table["score_threshold"].astype("float64")
        given = table["score_threshold"].dropna()
    except (ValueError, KeyError, pd.errors.ParserError) as error:
        raise DataError(f"'{path}' cannot be read: {error}; {_AGAIN}") from error
    if not given.between(0, 1).all():
        raise DataError(
            f"'{path}': {given[~given.between(0, 1)].iloc[0]:g} is no score from 0 to 1; {_AGAIN}"
        )
    if set(table["weights"]) - {weights}:
        raise DataError(f"'{path}' was made with other weights: {_AGAIN}")
    for dataset in ("val", "test"):
        own = table[table["dataset"] == dataset].set_index("class_name")["score_threshold"]
        if pd.notna(own.get("")):
            break
    else:
        raise DataError(f"'{path}' has no threshold for val or test, where nothing was found")
    if dataset == "test":
        logger.warning(
            "the thresholds of best F1 are those of test, since val has none: scores on test "
            "with them would be optimistic"
        )
    found = {name: float(own.get(name, float("nan"))) for name in class_names}
    return {name: float(own[""]) if isnan(value) else value for name, value in found.items()}
