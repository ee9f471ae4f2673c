"""What is in a checkpoint: tensors and plain types.

``{format, config, classes, state, model, ema, published, optimizer, scaler, hooks, scalars, rng}``.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from detpipe.core.errors import CheckpointError, DamagedCheckpointError

FORMAT = 1
"""Of a checkpoint's content; another one is refused."""

_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device}
)
"""What is kept as it is; their subclasses are not, for they would be loaded by running code."""


def load_checkpoint(file: Path) -> dict[str, Any]:
    """The content of one checkpoint file, its tensors on the CPU; no code in it is run.

    Raises:
        DamagedCheckpointError: the file is damaged.
        CheckpointError: it is no checkpoint of this version of detpipe.
    """
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"'{file}' is no detpipe checkpoint: it holds more than tensors and plain types, and "
            f"loading it could run foreign code"
        ) from error
    except PermissionError as error:
        raise CheckpointError(f"checkpoint '{file}' must not be read ({error})") from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DamagedCheckpointError(f"checkpoint '{file}' is damaged ({error})") from error
    if not isinstance(content, dict) or "format" not in content or "state" not in content:
        raise CheckpointError(
            f"'{file}' is no detpipe checkpoint; weights of another program go into "
            f"model.weights instead"
        )
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"'{file}' has format {content['format']}, this version reads format {FORMAT}; use "
            f"the version that wrote it, or give its weights as model.weights"
        )
    return content


def published(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights to evaluate and hand on, see :func:`published_as`."""
    return dict(content[published_as(content)])


def published_as(content: Mapping[str, Any]) -> Literal["model", "ema"]:
    """Which weights those are: ``ema`` (the average) or ``model`` (as trained)."""
    if "published" in content:  # checkpoints of the first version always had the average
        return "ema" if content["published"] == "ema" else "model"
    return "ema" if content["ema"] else "model"


def to_cpu(tree: Any) -> Any:
    """A copy of nested dicts, lists, tuples and sets with every tensor copied into CPU memory.

    Tensors that share memory share it afterwards too, so an average that appears twice is one.
    NumPy's scalars become Python's.

    Raises:
        CheckpointError: there is something else in it, which :func:`load_checkpoint` would refuse.
    """
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copy(node: Any, where: tuple[Any, ...]) -> Any:
        if isinstance(node, Tensor):
            key = (node.device, node.data_ptr(), node.dtype, node.shape, node.stride())
            if key not in copies or not node.numel():
                copies[key] = node.detach().to("cpu", copy=True).as_subclass(Tensor)
            return copies[key]
        if isinstance(node, Mapping):
            return {copy(key, where): copy(value, (where, key)) for key, value in node.items()}
        if type(node) in (list, tuple, set):
            return type(node)([copy(value, (where, i)) for i, value in enumerate(node)])
        plain = node.item() if isinstance(node, np.generic) else node
        if type(plain) not in _PLAIN:
            raise _not_plain(node, where)
        return plain

    return copy(tree, ())


def _not_plain(node: object, where: tuple[Any, ...]) -> CheckpointError:
    keys: list[str] = []
    while where:
        where, key = where
        keys.insert(0, str(key))
    kind = f"{type(node).__module__}.{type(node).__qualname__}".removeprefix("builtins.")
    way_out = (
        "torch.from_numpy makes a tensor of it, and .numpy() of the loaded tensor an array"
        if isinstance(node, np.ndarray)
        else "give the numbers and names it is made of instead, and make it anew of them"
    )
    return CheckpointError(
        f"{'.'.join(keys) or 'the content'}: a {kind} cannot be kept in a checkpoint, which holds "
        f"only what can be loaded without running code: tensors, numbers, text, None, and dicts, "
        f"lists, tuples and sets of these; {way_out}"
    )
