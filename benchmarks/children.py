"""Parts of a benchmark in processes of their own, whose memory and time are theirs alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def in_child(script: str, what: str, scale: float, folder: Path) -> dict[str, Any]:
    """What ``script --child what scale folder`` prints as JSON; the benchmark ends if it fails."""
    done = subprocess.run(
        [sys.executable, script, "--child", what, str(scale), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{what} ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
