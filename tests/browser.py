"""Chromium without a window, for tests of pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1100,900",
)  # fmt: skip


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser (a selenium driver); the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    for option in _OPTIONS:
        options.add_argument(option)
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def opened(browser: Any, text: str, folder: Path) -> Any:
    """The browser with a page open from a file; nothing went wrong in it and nothing sticks out."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    browser.get(file.as_uri())
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not severe
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) == 0
    broken = "return [...document.images].filter(i => !(i.complete && i.naturalWidth)).length"
    assert browser.execute_script(broken) == 0
    return browser


def column(browser: Any, place: int, table: str = "table") -> list[str]:
    """The texts of a column of the first such table, from the top."""
    script = (
        "return [...document.querySelector(arguments[0]).tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].textContent)"
    )
    return list(browser.execute_script(script, table, place))
