"""What the check finds, as configuration wants it said and dealt with."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from detpipe.core.tables import ISSUES
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats.base import IssueLog
from detpipe.data.rules import RULE_OF, Action

_DONE: dict[Action, str] = {
    "drop": "dropped", "clip": "clipped", "fix": "put right", "keep": "kept"
}  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """An :class:`IssueLog` whose severities and actions are those of the configuration."""

    config: CheckConfig
    log: IssueLog = field(default_factory=IssueLog)

    def add(
        self,
        rule: str,
        rows: pd.DataFrame,
        *,
        way_out: str,
        done: str = "",
        dropped: str = "dropped",
    ) -> Action:
        """Adds findings of one rule and says what to do about them.

        Args:
            rule: its name.
            rows: one row a finding, as :meth:`IssueLog.add_rows` takes them.
            way_out: what the user can do, where it is an error.
            done: what is done where it is kept or put right; ``kept``, ``put right`` without it.
            dropped: what is done where it is dropped.
        """
        action, severity = self.config.setting(rule)
        if action != "ignore":
            text = _said(rule, action, way_out=way_out, done=done, dropped=dropped)
            self.log.add_rows(severity, rule, rows, action=text)
        return action

    def add_one(
        self, rule: str, value: str, *, way_out: str, done: str = "", **where: str
    ) -> Action:
        """:meth:`add` of one finding; ``where`` holds ``file`` and ids."""
        action, severity = self.config.setting(rule)
        if action != "ignore":
            text = _said(rule, action, way_out=way_out, done=done)
            self.log.add(severity, rule, value=value, action=text, **where)
        return action


def _said(rule: str, action: Action, *, way_out: str, done: str, dropped: str = "dropped") -> str:
    """What a finding says of what is done about it, or can be."""
    if action == "error":
        return way_out + _other_setting(rule)
    return dropped if action == "drop" else done or _DONE.get(action, "")


def as_configured(issues: pd.DataFrame, config: CheckConfig) -> pd.DataFrame:
    """A reader's findings with the severities that configuration wants.

    Where it says nothing of a rule, the reader's word counts.
    """
    issues = issues.copy()
    for rule in issues["rule"].unique():
        chosen = config.chosen(str(rule))
        rows = issues["rule"] == rule
        errors = issues["severity"] == "error"
        if chosen is None:
            if rule in RULE_OF:
                issues.loc[rows & errors, "action"] += _other_setting(str(rule))
            continue
        if chosen.action == "ignore":
            issues = issues[~rows]
        elif chosen.action == "error":
            raised = rows & ~errors
            issues.loc[raised, "action"] += f"; data.check.rules.{rule} makes it an error"
            issues.loc[rows, "severity"] = "error"
        else:
            issues.loc[rows & errors, "action"] = _DONE[chosen.action]
            issues.loc[rows & errors, "severity"] = "warning"
            if chosen.severity:
                issues.loc[rows, "severity"] = chosen.severity
    return ISSUES.make(issues)


def _other_setting(rule: str) -> str:
    """How configuration makes it no error, if it can."""
    other = next((action for action in RULE_OF[rule].allowed if action != "error"), None)
    return f", or set data.check.rules.{rule}: {other}" if other else ""
