"""``kedro run`` with exit codes and messages for people; everything else is Kedro's own."""

from __future__ import annotations

import logging
import re
from typing import Any

import click
from kedro.config import MissingConfigException
from kedro.framework.cli.project import run as kedro_run
from kedro.io import DatasetError
from kedro.validation.exceptions import DataValidationError, ParameterValidationError

from detpipe.core.errors import DetpipeError

logger = logging.getLogger(__name__)

_EXPLAINED = (
    DetpipeError,
    DatasetError,
    DataValidationError,
    ParameterValidationError,
    MissingConfigException,
)
"""Errors whose message says what is wrong and what to do."""


class Run(click.Command):
    """Kedro's run command with detpipe's endings.

    It ends with 130 after Ctrl-C, and without a traceback where the message says all there is to
    know: a traceback is for bugs.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it.

        Raises:
            SystemExit: 130 after Ctrl-C.
            ClickException: an error that detpipe or the catalog explains; exit code 1.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            logger.warning("interrupted")
            raise SystemExit(130) from None
        except _EXPLAINED as error:
            logger.debug("traceback", exc_info=error)
            raise click.ClickException(_without_chaff(str(error))) from error
        except ValueError as error:
            if not str(error).startswith("Failed to find the pipeline named"):
                raise
            raise click.ClickException(str(error)) from error


def _without_chaff(message: str) -> str:
    """Without what pydantic adds for programmers."""
    message = re.sub(r" \[type=\w+, input_value=.*?, input_type=\w+\]", "", message)
    message = re.sub(r"\n\s*For further information visit \S+", "", message)
    return re.sub(r"Failed to instantiate \w+ for parameter '\S+': ", "", message)


run = Run(
    name="run", callback=kedro_run.callback, params=kedro_run.params, help=kedro_run.help,
    short_help=kedro_run.short_help,
)  # fmt: skip
cli = click.Group(name="detpipe", commands={"run": run})
