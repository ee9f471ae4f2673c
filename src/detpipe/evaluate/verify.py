"""Compares scores with what was expected of the run."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from detpipe.core.errors import VerificationError, one_message
from detpipe.core.tables import SCORES, VERDICT
from detpipe.evaluate.common import did_you_mean, listed, records
from detpipe.evaluate.config import Expectation, VerifyConfig
from detpipe.evaluate.expected import is_named

logger = logging.getLogger(__name__)

FEW = 10
"""Of more expectations than these, only the misses are shown at once."""
_SLACK = 1e-9
"""Lets 38.7 pass 38.5 ± 0.2, which binary fractions alone would not."""
_KEYS = ("dataset", "task", "metric", "class_name")

BaselineScores = Callable[[str], pd.DataFrame]
"""The scores table of the run that a text names."""
_Ask = Callable[[str], pd.DataFrame | str]
"""The same, or why there is none."""


def verify(
    scores: pd.DataFrame,
    config: VerifyConfig,
    *,
    written: Sequence[Expectation] = (),
    baseline_scores: BaselineScores | None = None,
) -> pd.DataFrame:
    """Holds every expectation against the scores table.

    A data set, task, metric or class that the scores do not have is a row that is not ok, whose
    reason says what is missing and what there is. So is an expected or an actual NaN, and a
    baseline that cannot be found, has no such number, or whose tracker does not answer; and with
    ``verify.write`` an entry of ``verify.metrics`` that names no metric of the scores.

    Args:
        scores: the scores table.
        config: its ``expected`` are the first rows.
        written: expectations that an earlier run wrote; those that are in ``expected`` too, by
            data set, task, metric and class, are left out.
        baseline_scores: finds the scores of a baseline; called once for each, if there are any.

    Returns:
        A verdict table, one row an expectation in their order; empty without any.
    """
    expected = [*config.expected, *_not_among(config.expected, written)]
    unknown = _unknown_metrics(scores, config.metrics) if config.write else []
    if not (expected or unknown):
        logger.info("no results are expected (verify.expected): nothing is verified")
        return VERDICT.empty()
    ask = functools.cache(functools.partial(_ask, baseline_scores))
    judged = [_judge(scores, expectation, ask) for expectation in expected]
    verdict = VERDICT.make([*judged, *unknown])
    shown = table(verdict)
    logger.info(
        "%d of %d expectations are met%s",
        verdict["ok"].sum(), len(verdict), f":\n{shown}" if shown else "",
    )  # fmt: skip
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
        " ".join(filter(None, (row.dataset, row.task, row.metric)))
        + (f" of {row.class_name}" if row.class_name else "")
        + (f": expected {_wanted(row)}, got " if _is_known(row) else ": got ")
        + f"{_result(row.actual, 4)}: {row.reason}"
        for row in records(missed)
    ]
    title = f"{len(missed)} of {len(verdict)} expected results are not met:"
    raise VerificationError(_plain(one_message(title, lines)))


def table(verdict: pd.DataFrame) -> str:
    """The verdict as aligned text for the log, misses first; of many rows only these.

    Columns that are empty throughout are left out; nothing if there is no row to show.
    """
    shown = verdict.sort_values("ok", kind="stable")
    if len(shown) > FEW:
        shown = shown[~shown["ok"]]
    if shown.empty:
        return ""
    head = ("", "data set", "task", "metric", "class", "expected", "actual", "reason")
    lines = [
        ("ok" if row.ok else "MISSED", row.dataset, row.task, row.metric, row.class_name,
         _wanted(row), _result(row.actual, 2), row.reason)
        for row in records(shown)
    ]  # fmt: skip
    columns = [column for column in zip(head, *lines, strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return _plain("\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True)))


def _unknown_metrics(scores: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """A missed row for each name or pattern that names no metric over all classes."""
    there = scores.loc[scores["class_name"] == "", "metric"].unique().tolist()
    return [
        {
            "dataset": "", "task": "verify.metrics", "metric": name, "class_name": "",
            "baseline": "", "expected": math.nan, "tolerance": math.nan, "min": math.nan,
            "max": math.nan, "actual": math.nan, "ok": False,
            "reason": f"nothing is written: {_missing('the scores have', 'metric', name, there)}",
        }
        for name in names
        if there and not any(is_named(metric, [name]) for metric in there)
    ]  # fmt: skip


def _not_among(
    expected: Sequence[Expectation], written: Sequence[Expectation]
) -> list[Expectation]:
    """Those ``written`` that are of other numbers than the ``expected``; says so of the rest."""
    own = {_name(expectation) for expectation in expected}
    both = [_name(expectation) for expectation in written if _name(expectation) in own]
    if both:
        logger.info(
            "verify.expected counts, not the written expectation, for %s",
            _plain(", ".join(" ".join(filter(None, name)) for name in both)),
        )
    return [expectation for expectation in written if _name(expectation) not in own]


def _name(expectation: Expectation) -> tuple[str, ...]:
    return tuple(getattr(expectation, key) for key in _KEYS)


def _ask(baseline_scores: BaselineScores | None, run: str) -> pd.DataFrame | str:
    """The scores of a baseline, or why there are none."""
    if baseline_scores is None:
        return f"the baseline '{run}' cannot be looked up: there is no tracker"
    try:
        return SCORES.make(baseline_scores(run))
    except Exception as error:  # noqa: BLE001 - a tracker that is down raises anything
        what = " ".join(str(error).split()) or type(error).__name__
        return f"the baseline '{run}' cannot be used: {what}"


def _judge(scores: pd.DataFrame, wanted: Expectation, ask: _Ask) -> dict[str, Any]:
    """The row of one expectation."""
    actual, reason = _find(scores, wanted, "the scores have")
    reasons = [reason]
    if not reason and not math.isfinite(actual):
        reasons = [f"the result is {_number(actual)}: there was nothing to measure it on"]
    expected = math.nan if wanted.value is None else wanted.value
    if wanted.baseline is not None:
        expected, reason = _baseline(wanted, ask)
        reasons.append(reason)
    given = [n for n in (wanted.value, wanted.tolerance, wanted.min, wanted.max) if n is not None]
    if not np.isfinite(given).all():
        reasons.append(
            f"the expectation holds {' and '.join(_number(n) for n in given)}, which no result "
            "could meet or miss: write finite numbers"
        )
    low, high = _bounds(wanted, expected)
    if not any(reasons):
        reasons = [_miss(actual, low, high, wanted, expected)]
    return {
        **{key: getattr(wanted, key) for key in _KEYS},
        "baseline": wanted.baseline or "",
        "expected": expected,
        "tolerance": math.nan if wanted.tolerance is None else wanted.tolerance,
        "min": low,
        "max": high,
        "actual": actual,
        "ok": not any(reasons),
        "reason": "; ".join(filter(None, reasons)),
    }


def _baseline(wanted: Expectation, ask: _Ask) -> tuple[float, str]:
    """The baseline's result (NaN if there is none), and why it cannot be used (empty if it can)."""
    name = wanted.baseline or ""
    found = ask(name)
    if isinstance(found, str):
        return math.nan, found
    value, reason = _find(found, wanted, f"the baseline '{name}' has")
    if not reason and not math.isfinite(value):
        reason = f"the result of the baseline '{name}' is {_number(value)}"
    return value, reason


def _bounds(wanted: Expectation, expected: float) -> tuple[float, float]:
    """The least and the most that pass; NaN where there is no bound or it is not known."""
    if wanted.tolerance is not None:
        low, high = expected - wanted.tolerance, expected + wanted.tolerance
    else:
        start = 0.0 if wanted.baseline is None else expected
        low, high = (math.nan if b is None else start + b for b in (wanted.min, wanted.max))
    return round(low, 9), round(high, 9)


def _miss(actual: float, low: float, high: float, wanted: Expectation, expected: float) -> str:
    """Why ``actual`` does not pass; empty if it does."""
    # A comparison with NaN, no bound, is false.
    if not (actual < low - _SLACK or actual > high + _SLACK):
        return ""
    above = actual > high
    side, bound, limit = ("above", high, "most") if above else ("below", low, "least")
    if wanted.tolerance is not None:
        whose = "the expected value" if wanted.baseline is None else f"the baseline's {expected:g}"
        distance = abs(actual - expected)
        return f"{distance:.4g} {side} {whose}, tolerance {wanted.tolerance:g}"
    base = "" if wanted.baseline is None else f" (baseline {expected:g} {bound - expected:+g})"
    return f"{abs(actual - bound):.4g} {side} the {limit} that passes, {bound:g}{base}"


def _find(scores: pd.DataFrame, wanted: Expectation, who_has: str) -> tuple[float, str]:
    """The number (NaN if there is none), and why there is none (empty if there is one)."""
    rows = scores
    for key in _KEYS:
        name, there = getattr(wanted, key), rows[key].unique().tolist()
        if name not in there:
            return math.nan, _missing(who_has, key, name, there)
        rows = rows[rows[key] == name]
    return float(rows["value"].iloc[0]), ""


def _missing(who_has: str, key: str, name: str, there: list[str]) -> str:
    kind = {"dataset": "data set", "class_name": "class"}.get(key, key)
    named = [value for value in there if value]
    whole = key == "class_name" and not name
    what = "no value for all classes together" if whole else f"no {kind} '{name}'"
    return (
        f"{who_has} {what}{did_you_mean(name, named)} "
        f"({'there is ' + listed(named) if named else 'there is none'})"
    )


def _is_known(row: Any) -> bool:
    """Whether there is a number to hold the result against."""
    return not all(map(math.isnan, (row.tolerance, row.min, row.max))) and not (
        row.baseline and math.isnan(row.expected)
    )


def _wanted(row: Any) -> str:
    """What a row of the verdict expects; "no result" where its baseline has none."""
    if not _is_known(row):
        text = "no result" if row.baseline else ""
    elif not math.isnan(row.tolerance):
        text = f"{_number(row.expected)} ± {row.tolerance:g}"
    elif math.isnan(row.max):
        text = f"at least {row.min:g}"
    elif math.isnan(row.min):
        text = f"at most {row.max:g}"
    else:
        text = f"{row.min:g} to {row.max:g}"
    return f"{text} (baseline {row.baseline})" if row.baseline else text


def _result(value: float, decimals: int) -> str:
    return "no result" if math.isnan(value) else f"{value:.{decimals}f}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:g}"


def _plain(text: str) -> str:
    """Without what a coloured log takes for a command."""
    return text.replace("[", "(").replace("]", ")")
