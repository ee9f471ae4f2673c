"""The console of the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def log_console() -> Console | None:
    """The console that log lines go to, so that lines and a bar do not tear each other.

    None where the log is not rich's.
    """
    from rich.logging import RichHandler

    for handler in logging.getLogger().handlers:
        if isinstance(handler, RichHandler):
            return handler.console
    return None
