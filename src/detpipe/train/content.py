"""What is in a checkpoint: tensors and plain types.

``{format, config, classes, state, model, ema, published, optimizer, scaler, hooks, scalars, rng}``.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from detpipe.core.errors import CheckpointError, DamagedCheckpointError

FORMAT = 1
"""Of a checkpoint's content; another one is refused."""


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
    """A copy of nested dicts, lists and tuples with every tensor copied into CPU memory.

    Tensors that share memory share it afterwards too, so an average that appears twice is one.
    """
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copy(node: Any) -> Any:
        if isinstance(node, Tensor):
            key = (node.device, node.data_ptr(), node.dtype, node.shape, node.stride())
            if key not in copies or not node.numel():
                copies[key] = node.detach().to("cpu", copy=True)
            return copies[key]
        if isinstance(node, Mapping):
            return {key: copy(value) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return type(node)([copy(value) for value in node])
        return node

    return copy(tree)
