"""Compares scores with what was expected of the run."""

from __future__ import annotations

import logging
import math

import pandas as pd

from detpipe.core.errors import VerificationError, one_message
from detpipe.core.tables import VERDICT
from detpipe.evaluate.common import did_you_mean, listed, records
from detpipe.evaluate.config import Expectation, VerifyConfig

logger = logging.getLogger(__name__)

_SLACK = 1e-9
"""Lets 38.7 pass 38.5 ± 0.2, which binary fractions alone would not."""
_KEYS = ("dataset", "task", "metric", "class_name")


def verify(scores: pd.DataFrame, config: VerifyConfig) -> pd.DataFrame:
    """Holds every expectation against the scores table.

    A data set, task, metric or class that the scores do not have is a row that is not ok, whose
    reason says what is missing and what there is; so is an expected or an actual NaN.

    Returns:
        A verdict table, one row an expectation in their order; empty without any.
    """
    if not config.expected:
        logger.info("verify.expected is empty: nothing is verified")
        return VERDICT.empty()
    rows = []
    for expectation in config.expected:
        actual, reason = _judge(scores, expectation)
        rows.append(
            {
                **{key: getattr(expectation, key) for key in _KEYS},
                "expected": expectation.value,
                "tolerance": expectation.tolerance,
                "actual": actual,
                "ok": not reason,
                "reason": reason,
            }
        )
    verdict = VERDICT.make(rows)
    logger.info("%d of %d expectations are met", verdict["ok"].sum(), len(verdict))
    return verdict


def require(verdict: pd.DataFrame) -> None:
    """Passes if every row of the verdict is ok; the caller has written the verdict by now.

    Raises:
        VerificationError: a row is not ok; the message has a line for each.
    """
    missed = verdict[~verdict["ok"]]
    if missed.empty:
        return
    lines = [
        f"{row.dataset} {row.task} {row.metric}"
        + (f" of {row.class_name}" if row.class_name else "")
        + f": expected {row.expected:g} ± {row.tolerance:g}, got {row.actual:.4f}: {row.reason}"
        for row in records(missed)
    ]
    title = f"{len(missed)} of {len(verdict)} expected results (verify.expected) are not met:"
    raise VerificationError(one_message(title, lines))


def _judge(scores: pd.DataFrame, expectation: Expectation) -> tuple[float, str]:
    """The actual value (NaN if there is none), and why it is not ok (empty if it is)."""
    rows = scores
    for key in _KEYS:
        wanted, there = getattr(expectation, key), rows[key].unique().tolist()
        if wanted not in there:
            return math.nan, _missing(key, wanted, there)
        rows = rows[rows[key] == wanted]
    actual = float(rows["value"].iloc[0])
    if not math.isfinite(expectation.value) or not math.isfinite(expectation.tolerance):
        return actual, (
            f"the expectation {expectation.value} ± {expectation.tolerance} is not a number that "
            "a result could meet or miss: write finite numbers"
        )
    if math.isnan(actual):
        return actual, "the result is NaN: there was no ground truth to measure it on"
    difference = actual - expectation.value
    if abs(difference) > expectation.tolerance + _SLACK:
        side = "above" if difference > 0 else "below"
        return actual, (
            f"{abs(difference):.4g} {side} the expected value, tolerance {expectation.tolerance:g}"
        )
    return actual, ""


def _missing(key: str, wanted: str, there: list[str]) -> str:
    kind = {"dataset": "data set", "class_name": "class"}.get(key, key)
    named = [value for value in there if value]
    what = f"no {kind} '{wanted}'" if wanted else f"no value for all {kind}es together"
    return (
        f"the scores have {what}{did_you_mean(wanted, named)} "
        f"({'there is ' + listed(named) if named else 'there is none'})"
    )
