"""Writes docs/configuration.md from the code: ``python docs/make_configuration.py``."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from detpipe.core.config import Duration, Frozen, Spec
from detpipe.data.config import DataConfig, StreamConfig
from detpipe.evaluate.config import EvaluateConfig, FilesConfig, PredictConfig, VerifyConfig
from detpipe.models.config import ExportConfig
from detpipe.train.config import TrainConfig

FILE = Path(__file__).with_name("configuration.md")

SECTIONS: dict[str, type[Frozen]] = {
    "data": DataConfig,
    "stream": StreamConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "evaluate_files": FilesConfig,
    "verify": VerifyConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
}

INTRODUCTION = """# Configuration

Made from the code by `python docs/make_configuration.py`; a test keeps the two equal.

Every key lives in `conf/base/parameters_*.yml`; a recipe (`conf/<env>/parameters.yml`, chosen by
`--env <env>`) holds only what differs, and `--params train.batch_size=4,train.duration="12 epochs"`
comes last. All mistakes are reported together before anything runs, with the nearest right name.

**Spec**: `{use: full.import.path, option: value}`. Your own function has the same rank as
detpipe's: put `my_package/mine.py` where Python finds it and write `use: my_package.mine.build`.
Options are checked against the signature. An option set to `null` that the target does not have is
dropped; that is how a recipe takes back an option of the base configuration.

**Duration**: `500 steps`, `12 epochs` or `10000 images`; a number alone is an error. As a period,
0 means never.

A named group (`train.hooks`, `train.writers`, `train.augment`, `evaluate.metrics`) maps names of
your choice to specs; `null` takes one out.

`model` is a spec; what it takes is what its builder takes (`detpipe.models.tiny.build`,
`detpipe.models.torchvision.build`, or yours: `build(num_classes, *, ...)`).
"""


def main() -> None:
    """Writes the file."""
    FILE.write_text(text())


def text() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, model in SECTIONS.items():
        parts.append(f"## {name}\n\n{_sentence(model)}\n\n" + "\n".join(_rows(name, model)) + "\n")
    return "\n".join(parts)


def _rows(prefix: str, model: type[BaseModel]) -> list[str]:
    return [
        "| key | type | default | |",
        "| --- | --- | --- | --- |",
        *(row for name, field in model.model_fields.items() for row in _row(prefix, name, field)),
    ]


def _row(prefix: str, name: str, field: FieldInfo) -> list[str]:
    path = f"{prefix}.{name}"
    inner = _model_in(field.annotation)
    own = f"| `{path}` | {_type(field.annotation)} | {_default(field)} | {_inline(field)} |"
    if inner is None:
        return [own]
    if typing.get_origin(field.annotation) is list:
        path += "[]"
    return [own, *(r for n, f in inner.model_fields.items() for r in _row(path, n, f))]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds, if it is one that has rows of its own."""
    for part in (annotation, *typing.get_args(annotation)):
        if (
            isinstance(part, type)
            and issubclass(part, BaseModel)
            and not issubclass(part, (Spec, Duration))
        ):
            return part
    return None


def _type(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        return f"name → {_type(arguments[1])}"
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if arguments:
        return " \\| ".join(_type(part) for part in arguments)
    if annotation is type(None):
        return "null"
    return {"Spec": "spec", "Duration": "duration"}.get(
        getattr(annotation, "__name__", str(annotation)), annotation.__name__
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Spec):
        return f"`{value.use}`"
    if isinstance(value, Duration):
        return f"`{value}`"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, dict):
        return "; ".join(f"`{k}: {v.use}`" for k, v in value.items()) or "none"
    return f"`{'null' if value is None else value}`" if value != [] else "none"


def _inline(field: FieldInfo) -> str:
    return " ".join((field.description or "").replace("``", "`").split()).replace("|", "\\|")


def _sentence(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").splitlines()[0].replace("``", "`")


if __name__ == "__main__":
    main()
