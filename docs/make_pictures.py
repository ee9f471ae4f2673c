"""Makes docs/images from projects that have been trained.

`python docs/make_pictures.py`: the DAG and the gallery of the sample set. With the name of a recipe
(`python docs/make_pictures.py bccd`): three looks at its report.html and comparison.html.

Needs Chromium and its driver (Debian: ``apt-get install chromium chromium-driver``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
PORT = 4877
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1100,1000", "--force-device-scale-factor=1.5",
)  # fmt: skip


def main() -> None:
    """The DAG as kedro-viz draws it, and the gallery of the sample set."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", PORT))  # kedro-viz would take another port and say nothing
    IMAGES.mkdir(exist_ok=True)
    gallery = ROOT / "data/08_reporting/sample/gallery"
    shutil.copy(gallery / "test_random.jpg", IMAGES / "gallery.jpg")
    server = subprocess.Popen(
        [sys.executable, "-m", "kedro", "viz", "run", "--no-browser", "--port", str(PORT)],
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        _wait(f"http://127.0.0.1:{PORT}/api/main")
        _shoot(f"http://127.0.0.1:{PORT}", IMAGES / "pipeline.png")
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # its web server is a process of its own
        server.wait(timeout=30)


def _wait(address: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(address, timeout=5)
        except OSError:
            time.sleep(1)
        else:
            return
    raise TimeoutError(address)


@contextlib.contextmanager
def _browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for option in OPTIONS:
        options.add_argument(option)
    options.binary_location = shutil.which("chromium") or "chromium"
    service = webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


def _shoot(address: str, file: Path) -> None:
    with _browser() as browser:
        browser.get(address)
        time.sleep(5)
        state = json.loads(browser.execute_script("return localStorage.KedroViz"))
        # A visitor's own settings: light, no tour, no side bar, the graph alone.
        state |= {"theme": "light", "showFeatureHints": False}
        state["visible"] |= {"sidebar": False, "miniMap": False}
        browser.execute_script("localStorage.KedroViz = arguments[0]", json.dumps(state))
        browser.refresh()
        time.sleep(8)
        browser.execute_script(
            "document.querySelectorAll('[class*=update-reminder]').forEach(e => e.remove())"
        )
        browser.save_screenshot(str(file))


def reports(recipe: str) -> None:
    """The head of the report, its errors, and the comparison of two runs."""
    folder = ROOT / "data/08_reporting" / recipe
    with _browser() as browser:
        for page, heading, name in (
            ("report", "", "report_numbers"),
            ("report", "Errors", "report_errors"),
            ("comparison", "", "comparison"),
        ):
            browser.get((folder / f"{page}.html").as_uri())
            browser.execute_script(
                "const found = [...document.querySelectorAll('h2, h3')]"
                ".find(e => arguments[0] && e.textContent.startsWith(arguments[0]));"
                "if (found) found.scrollIntoView()",
                heading,
            )
            browser.save_screenshot(str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    reports(sys.argv[1]) if sys.argv[1:] else main()
