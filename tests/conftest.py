"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("DETPIPE_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data sets at {folder} (set DETPIPE_SHARED)")
    return folder
