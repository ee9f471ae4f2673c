from __future__ import annotations

import pandas as pd
import pytest

from detpipe.data.check import CheckError, check, inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.findings import Findings, as_configured
from detpipe.data.formats.base import IssueLog

FINE = ("a", "cat", 4, 5, 24, 35), ("b", "dog", 0, 0, 64, 48)


def of_a_reader(*findings) -> pd.DataFrame:
    log = IssueLog()
    for severity, rule in findings:
        log.add(severity, rule, file="x.txt", action="as the reader says")
    return log.table()


def seen(issues: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(issues[["severity", "rule", "action"]].itertuples(index=False, name=None))


READ = [
    ("error", "no_labels"), ("warning", "no_labels"), ("info", "no_label_file"),
    ("error", "own_rule"), ("info", "columns"),
]  # fmt: skip


def test_a_readers_word_counts_where_configuration_says_nothing():
    """Even where it is graver or milder than the rule; and of rules that only it knows."""
    issues = of_a_reader(*READ)
    unmoved = issues.drop(columns="action")
    for config in (CheckConfig(), CheckConfig(rules={"box_*": "error", "near_*": "ignore"})):
        assert as_configured(issues, config).drop(columns="action").equals(unmoved)
    actions = as_configured(issues, CheckConfig()).set_index("rule")["action"]
    assert actions["no_labels"].iloc[0].endswith(", or set data.check.rules.no_labels: keep")
    assert actions["own_rule"] == actions["columns"] == "as the reader says"


@pytest.mark.parametrize(
    ("setting", "first_three"),
    [
        ({"no_labels": "keep"},
         [("warning", "kept"), ("warning", "as the reader says"), ("info", "as the reader says")]),
        ({"no_labels": {"action": "keep", "severity": "info"}},
         [("info", "kept"), ("info", "as the reader says"), ("info", "as the reader says")]),
        ({"no_label*": "ignore"}, []),
        ({"no_labels": "error"},
         [("error", "as the reader says"),
          ("error", "as the reader says; data.check.rules.no_labels makes it an error"),
          ("info", "as the reader says")]),
    ],
)  # fmt: skip
def test_configuration_changes_a_readers_findings(setting, first_three):
    issues = of_a_reader(*READ)
    before = issues.copy()
    got = seen(as_configured(issues, CheckConfig(rules=setting)))
    rules = ["no_labels", "no_labels", "no_label_file"]
    assert got == [
        *((severity, rules[n], action) for n, (severity, action) in enumerate(first_three)),
        ("error", "own_rule", "as the reader says"), ("info", "columns", "as the reader says"),
    ]  # fmt: skip
    assert issues.equals(before)


def test_a_readers_error_can_be_let_go_and_an_assumption_refused(tmp_path, data_set):
    found = data_set(*FINE)._replace(issues=of_a_reader(("error", "malformed_line")))
    with pytest.raises(CheckError, match=r"malformed_line: x\.txt"):
        check(found, tmp_path, CheckConfig())
    mild = check(found, tmp_path, CheckConfig(rules={"malformed_line": "drop"}))
    assert seen(mild.issues) == [("warning", "malformed_line", "dropped")]
    assumed = data_set(*FINE)._replace(issues=of_a_reader(("info", "image_spelling")))
    assert check(assumed, tmp_path, CheckConfig()).issues["severity"].tolist() == ["info"]
    with pytest.raises(CheckError, match=r"rules\.image_spelling makes it an error"):
        check(assumed, tmp_path, CheckConfig(rules={"image_*": "error"}))


def test_an_error_says_how_to_have_it_otherwise_if_one_can():
    findings = Findings(CheckConfig())
    findings.add_one("unknown_class", "cow", way_out="name it")
    findings.add_one("no_images", "", way_out="look at its path")
    assert [row[2] for row in seen(findings.log.table())] == [
        "name it, or set data.check.rules.unknown_class: drop", "look at its path",
    ]  # fmt: skip


@pytest.mark.parametrize("rules", [{"boxes_are_shares": "error"}, {"*": "error"}])
def test_everything_an_error_refuses_at_the_first_word(tmp_path, data_set, rules):
    """A set without fault passes even so."""
    config = CheckConfig(rules=rules)
    check(data_set(*FINE), tmp_path, config)
    spoiled = data_set(*FINE, classes=("cat", "dog", "cow"))
    issues = inspect(spoiled, tmp_path, config).issues
    assert issues["severity"].tolist() == ["error" if "*" in rules else "info"]
