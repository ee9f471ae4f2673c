"""``verify``: did the run reach what was expected of it?"""

from __future__ import annotations

from pathlib import Path

from kedro.pipeline import Node, Pipeline

from detpipe.evaluate.config import VerifyConfig
from detpipe.pipelines import DataFrame

REPORTS = ("overview", "per_class", "per_image", "report_page")
"""What is written before a miss ends the command."""


def verify(scores: DataFrame, verify: VerifyConfig, expected_results: Path) -> DataFrame:
    """One row an expectation, with what came out instead.

    Expectations are those of the parameters and those that an earlier run wrote. A run that writes
    them anew is held to the parameters' alone, and writes only if it meets these.
    """
    from detpipe.evaluate.expected import read_expected, write_expected
    from detpipe.evaluate.verify import verify as compare

    written = [] if verify.write else read_expected(expected_results)
    verdict = compare(scores, verify, written=written, baseline_scores=_scores_of_run)
    if verify.write:
        write_expected(
            expected_results, scores, verdict, tolerance=verify.tolerance, metrics=verify.metrics
        )
    return verdict


def _scores_of_run(text: str) -> DataFrame:
    from detpipe.tracking.runs import find_run, scores_of

    return scores_of(find_run(text))


def require(verdict: DataFrame, *reports: object) -> None:
    """Ends the command with exit code 1 on a miss.

    ``reports`` are not read: as inputs they see to it that everything is written first.
    """
    from detpipe.evaluate.verify import require as raise_on_miss

    raise_on_miss(verdict)


def create_judge_pipeline() -> Pipeline:
    """scores → verdict; a miss is a row of it and ends nothing."""
    node = Node(verify, ["scores", "params:verify", "expected_results"], "verdict", name="verify")
    return _pipeline(node, "verification")


def create_pipeline() -> Pipeline:
    """scores → verdict; raises on a miss, after the reports are written."""
    node = Node(require, ["verdict", *REPORTS], None, name="require")
    return create_judge_pipeline() + _pipeline(node, "gate")  # the reports lie between the two


def _pipeline(node: Node, namespace: str) -> Pipeline:
    return Pipeline(
        [node], namespace=namespace, prefix_datasets_with_namespace=False, tags="verify"
    )
