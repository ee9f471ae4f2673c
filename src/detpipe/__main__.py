"""``python -m detpipe`` and the ``detpipe`` command: Kedro's ``run`` for an installed package."""

from __future__ import annotations

import sys
from pathlib import Path


def main(*args: str, **kwargs: object) -> object:
    """Runs the project as ``kedro run`` would; arguments are those of ``kedro run``."""
    from kedro.framework.cli.utils import find_run_command
    from kedro.framework.project import configure_project

    configure_project(Path(__file__).parent.name)
    # Without the interactive prompt's hook an error in an installed package ends with code 1.
    kwargs["standalone_mode"] = not hasattr(sys, "ps1")
    return find_run_command(Path(__file__).parent.name)(*args, **kwargs)


if __name__ == "__main__":
    main()
