"""``verify``: did the run reach what was expected of it?"""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from detpipe.evaluate.config import VerifyConfig
from detpipe.pipelines import DataFrame


def verify(scores: DataFrame, verify: VerifyConfig) -> DataFrame:
    """One row an expectation, with what came out instead."""
    from detpipe.evaluate.verify import verify as compare

    return compare(scores, verify)


def require(verdict: DataFrame, *reports: DataFrame) -> None:
    """Ends the command with exit code 1 on a miss.

    ``reports`` are not read: as inputs they see to it that everything is written first.
    """
    from detpipe.evaluate.verify import require as raise_on_miss

    raise_on_miss(verdict)


def create_pipeline() -> Pipeline:
    """scores → verdict; raises after the reports are written."""
    return Pipeline(
        [
            Node(verify, ["scores", "params:verify"], "verdict", name="verify"),
            Node(
                require, ["verdict", "overview", "per_class", "image_ranking"], None,
                name="require",
            ),
        ],
        namespace="verification",
        prefix_datasets_with_namespace=False,
        tags="verify",
    )  # fmt: skip
