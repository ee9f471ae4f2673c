from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from detpipe.core.errors import DetpipeError
from detpipe.data import spread as module
from detpipe.data.spread import Died, spread


def work(item: str, *, folder: str = "") -> str:
    """What the processes do; each item says how it goes."""
    if item.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if item.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if item.startswith("once"):  # dies the first time only
        mark = Path(folder) / item
        if not mark.exists():
            mark.touch()
            os._exit(3)
    if item.startswith("slow"):
        (Path(folder) / f"{os.getpid()}").touch()
        time.sleep(60)
    return item.upper()


def refuses(connection: object, function: object) -> None:
    """In place of a process's main function."""
    sys.exit(7)


def check(folder: Path, guilty: dict[int, str], *, count: int, processes: int) -> None:
    items = [guilty.get(n, f"fine {n}") for n in range(count)]
    results = dict(spread(functools.partial(work, folder=str(folder)), items, processes=processes))
    assert sorted(results) == list(range(count))
    died = {items[at]: how.how for at, how in results.items() if isinstance(how, Died)}
    assert set(died) == {item for item in guilty.values() if not item.startswith("once")}
    assert "memory" in died["kill me"]
    assert "Segmentation fault" in died.get("crash me", "Segmentation fault")
    fine = {at: found for at, found in results.items() if not isinstance(found, Died)}
    assert fine == {at: item.upper() for at, item in enumerate(items) if item not in died}
    assert not multiprocessing.active_children()


def test_an_item_that_kills_its_process_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    check(tmp_path, {1: "kill me"}, count=4, processes=1)


@pytest.mark.slow
def test_an_item_that_kills_once_is_done(tmp_path: Path) -> None:
    guilty = {0: "crash me", 20: "kill me", 33: "once me", 34: "once more"}
    check(tmp_path, guilty, count=60, processes=2)


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_without_leaving_a_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import functools\n"
        "from tests.data.test_spread import spread, work\n"
        "if __name__ == '__main__':\n"
        f"    work = functools.partial(work, folder={str(tmp_path / 'marks')!r})\n"
        "    list(spread(work, ['slow'] * 40, processes=2))\n"
    )
    (tmp_path / "marks").mkdir()
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(marks := list((tmp_path / "marks").iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)  # each item would take a minute
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1  # the processes do not print theirs
    for mark in marks:
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.name), 0)


def test_closing_early_kills_the_processes_at_once(tmp_path: Path) -> None:
    items = ["fine", *(f"slow {n}" for n in range(40))]
    function = functools.partial(work, folder=str(tmp_path))
    with closing(spread(function, items, processes=1)) as results:
        assert next(results) == (0, "FINE")
        (child,) = multiprocessing.active_children()
        assert child.is_alive()
    assert not multiprocessing.active_children()
    assert child.exitcode == -signal.SIGKILL


def test_processes_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_serve", refuses)
    with pytest.raises(DetpipeError, match=r"cannot be started.*exit code 7.*workers: 0"):
        list(spread(work, ["a"], processes=1))


def test_no_items_start_nothing() -> None:
    assert list(spread(work, [], processes=4)) == []
