"""Writes the pages that come from the code: ``python docs/make_configuration.py``."""

from __future__ import annotations

import collections.abc
import enum
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from detpipe.core.config import Duration, Frozen, Spec, locate
from detpipe.data.config import READERS, WRITERS, ConvertConfig, DataConfig, StreamConfig
from detpipe.data.rules import RULES
from detpipe.evaluate.config import (
    CompareConfig,
    EvaluateConfig,
    FilesConfig,
    PredictConfig,
    ReportConfig,
    VerifyConfig,
)
from detpipe.hooks.record import Writer
from detpipe.models.config import ExportConfig
from detpipe.models.torchvision import FAMILIES
from detpipe.train.config import TrainConfig
from detpipe.train.contract import Hook
from detpipe.train.preview import PreviewConfig

FOLDER = Path(__file__).parent

SECTIONS: dict[str, type[Frozen]] = {
    "data": DataConfig,
    "stream": StreamConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "evaluate_files": FilesConfig,
    "report": ReportConfig,
    "compare": CompareConfig,
    "verify": VerifyConfig,
    "predict": PredictConfig,
    "convert": ConvertConfig,
    "export": ExportConfig,
    "preview": PreviewConfig,
}

INTRODUCTION = """# Configuration

Made from the code by `python docs/make_configuration.py`; a test keeps the two equal.

Every key lives in `conf/base/parameters_*.yml`; a recipe (`conf/<env>/parameters.yml`, chosen by
`--env <env>`) holds only what differs, and `--params train.batch_size=4,train.duration="12 epochs"`
comes last. Mistakes are reported before anything runs, all of one kind together, with the nearest
right name: first those of keys and values, then those of what `use` names. What depends on the data
set or the model (stages, patterns, images of a sampler) shows when these are there, before anything
in the folders is touched.

**Spec**: `{use: full.import.path, option: value}`. What detpipe has to name is in
[reference.md](reference.md); your own function has the same rank: put `my_package/mine.py` into
`src/`, or any folder on `PYTHONPATH`, and write `use: my_package.mine.build`. Options are checked
against the signature. An option set to `null` that the target does not have is dropped; that is how
a recipe takes back an option of the base configuration.

**Duration**: `500 steps`, `12 epochs` or `10000 images`; a number alone is an error. As a period,
0 means never.

A named group (`train.hooks`, `train.writers`, `train.augment`, `evaluate.metrics`) maps names of
your choice to specs; `null` takes one out.

`model` is a spec; what it takes is what its builder takes: see
[reference.md](reference.md#model-builders) and [models.md](models.md).
"""

REFERENCE = """# What `use` can name

Made from the code by `python docs/make_configuration.py`; a test keeps the two equal.

Each entry is the full import path for a spec, `{use: path, option: value}`; see
[configuration.md](configuration.md) for where specs stand. Your own functions and classes have the
same rank. Options without a default are required; what the program provides by itself (the data
set's folder, the number of classes, the checkpoint folder, …) is left out.
"""


RULES_PAGE = """# The rules of the check

Made from the code by `python docs/make_configuration.py`; a test keeps the two equal.

`kedro run --pipeline data` looks at every annotation and every picture; each row of
`data_issues.csv` names one of these rules. What is done about a finding is the rule's action:

| action | |
| --- | --- |
| `error` | the data set is refused, all errors together, before anything trains |
| `drop` | the record is left out |
| `clip`, `fix` | it is put right, in the tables: your files are never changed |
| `keep` | it stays as it is, and is reported |
| `ignore` | as `keep` or `fix`, without a word |

Configuration changes it, by the rule's name or a pattern:

    data:
      check:
        rules:
          missing_image: drop
          "near_*": keep
          size_mismatch: {action: fix, severity: info}

or `--params data.check.rules.missing_image=drop`. A pattern is of those rules that allow its
action; a name counts before patterns, and of these the last. `null` takes back what another file
set. An error that is made something else is a warning, unless `severity` (`warning` or `info`) is
given. Readers find what stands below under their names; where they give another severity than the
table says, theirs counts until configuration names the rule.
"""


class Kind(typing.NamedTuple):
    """One section of the reference.

    Attributes:
        title: its heading.
        text: where such a spec stands, and what one of your own looks like.
        names: import paths.
        provided: parameters that the program gives.
    """

    title: str
    text: str
    names: list[str]
    provided: set[str]


def main() -> None:
    """Writes the files."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name → the whole page."""
    return {
        "configuration.md": configuration(),
        "reference.md": reference(),
        "rules.md": rules(),
        "training.md": training(),
    }


# --- training.md -------------------------------------------------------------------------------


def training() -> str:
    """The page as it is, with its tables made anew."""
    text = (FOLDER / "training.md").read_text(encoding="utf-8")
    sections = {kind.title: kind for kind in kinds()}

    def table(block: re.Match[str]) -> str:
        names = sections[block["title"]].names
        rows = [
            f"| [`{path}`](reference.md#{_anchor(path)}) | {_first_sentence(locate(path))} |"
            for path in names
        ]
        return "\n".join([block["begin"], "| `use` | |", "| --- | --- |", *rows, block["end"]])

    pattern = r"(?P<begin><!-- table of (?P<title>.+?) -->)\n.*?(?P<end><!-- end of table -->)"
    return re.sub(pattern, table, text, flags=re.DOTALL)


def _anchor(path: str) -> str:
    """GitHub's name for the heading `` `path` ``."""
    return path.replace(".", "").lower()


def _first_sentence(target: Any) -> str:
    return re.split(r"(?<=\.)\s", _summary(target))[0]


# --- configuration.md --------------------------------------------------------------------------


def configuration() -> str:
    """Every key of the configuration."""
    parts = [INTRODUCTION]
    for name, model in SECTIONS.items():
        sentence = _inline((model.__doc__ or "").splitlines()[0])
        parts.append(f"## {name}\n\n{sentence}\n\n" + "\n".join(_rows(name, model)) + "\n")
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
    own = (
        f"| `{path}` | {_type(field.annotation)} | {_default(field)} "
        f"| {_inline(field.description or '')} |"
    )
    if inner is None:
        return [own]
    if typing.get_origin(field.annotation) is list:
        path += "[]"
    if typing.get_origin(field.annotation) is dict:
        path += ".<name>"
    fields = {n: f for n, f in inner.model_fields.items() if n not in Spec.model_fields}
    return [own, *(r for n, f in fields.items() for r in _row(path, n, f))]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds, if it is one that has rows of its own."""
    if isinstance(annotation, type):
        plain = annotation in (Spec, Duration) or not issubclass(annotation, BaseModel)
        return None if plain else annotation
    found = (_model_in(part) for part in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) and not isinstance(value, (Spec, Duration)):
        return "see below"
    if isinstance(value, dict):
        return "; ".join(f"`{k}: {v.use}`" for k, v in value.items()) or "none"
    return "none" if value == [] else f"`{_plain(value)}`"


# --- rules.md ----------------------------------------------------------------------------------


def rules() -> str:
    """Every rule of the check and of the readers."""
    parts = [RULES_PAGE]
    for title, group in RULES.items():
        rows = [
            f"| `{name}` | {rule.severity} | `{rule.action}` | "
            f"{', '.join(f'`{other}`' for other in rule.allowed if other != rule.action)} | "
            f"{_inline(rule.about)} |"
            for name, rule in group.items()
        ]
        head = [
            "| rule | severity | action | or | what is found |",
            "| --- | --- | --- | --- | --- |",
        ]
        parts.append("\n".join([f"## {title}\n", *head, *rows]) + "\n")
    return "\n".join(parts)


# --- reference.md ------------------------------------------------------------------------------


def reference() -> str:
    """Everything of detpipe's that a spec can name."""
    parts = [REFERENCE]
    for kind in kinds():
        parts.append(f"## {kind.title}\n\n{kind.text}\n")
        for path in kind.names:
            target = locate(path)
            parts.append(f"### `{path}`\n\n{_summary(target)}\n")
            if rows := _options(target, kind.provided):
                head = ["| option | type | default | |", "| --- | --- | --- | --- |"]
                parts.append("\n".join([*head, *rows]) + "\n")
            if path == "detpipe.models.torchvision.build":
                parts.append(_families())
    return "\n".join(parts)


def kinds() -> list[Kind]:
    """The sections; what is in a module is looked up, so that nothing new is forgotten."""
    hooks = [
        path
        for name in (
            "update",
            "freeze",
            "norm",
            "measure",
            "profile",
            "decide",
            "record",
            "save",
        )
        for path in _public(f"detpipe.hooks.{name}", lambda x: _is_a(x, Hook))
        if path != "detpipe.hooks.record.Record"  # made of train.writers and train.log_every
    ]
    return [
        Kind(
            "Readers", "`data.reader`: the short name (`coco`) or the whole. Your own: "
            "[data.md](data.md#your-own-format).",
            list(READERS.values()),
            {"root"},
        ),
        Kind(
            "Data set writers", "`convert.to`; see "
            "[data.md](data.md#the-same-set-in-another-format).",
            list(WRITERS.values()),
            {"found", "root", "folder"},
        ),
        Kind(
            "Model builders", "`model`. Your own: [models.md](models.md).",
            ["detpipe.models.tiny.build", "detpipe.models.torchvision.build"],
            {"num_classes", "load_weights"},
        ),
        Kind(
            "Augmentations",
            "`train.augment.<name>`, applied in their order to training images; also any class of "
            "`torchvision.transforms.v2`. Your own: "
            "[training.md](training.md#augmentation).",
            [
                *_public("detpipe.data.augment", _is_transform),
                *_public("detpipe.data.mix", _is_transform),
            ],
            set(),
        ),
        Kind(
            "Samplers", "`train.sampler`: the order of training images. Your own: "
            "[training.md](training.md#samplers).",
            _public("detpipe.data.sampler", inspect.isfunction),
            {"length", "seed", "store", "batch_size"},
        ),
        Kind(
            "Schedules", "`train.schedule`; see [training.md](training.md#schedules).",
            _public("detpipe.train.schedule", lambda x: "progress" in _parameters(x)),
            {"progress", "to_progress"},
        ),
        Kind(
            "Hooks", "`train.hooks.<name>`. Your own: [training.md](training.md#your-own-hook).",
            hooks, {"folder", "evaluate", "publish", "stream", "model", "started"},
        ),
        Kind(
            "Writers", "`train.writers.<name>`; see [training.md](training.md#writers).",
            [
                *_public("detpipe.hooks.writers", lambda x: _is_a(x, Writer)),
                "detpipe.tracking.writer.MlflowWriter",
            ],
            {"folder", "total_steps"},
        ),
        Kind(
            "Metrics",
            "`evaluate.metrics.<name>`. Your own: a function that takes some of the tables "
            "`images`, `boxes`, `detections`, `classes`, and `dataset` and `max_detections`, by "
            "name, and returns rows of the scores table ([tables.md](tables.md)).",
            [
                f"detpipe.evaluate.{module}.score"
                for module in ("coco", "voc", "lvis", "curves", "errors", "calibration", "slices")
            ],
            {"images", "boxes", "detections", "classes", "dataset", "max_detections"},
        ),
    ]  # fmt: skip


def _public(module_name: str, wanted: Callable[[Any], bool]) -> list[str]:
    """Import paths of what a module itself defines, in its order."""
    module = importlib.import_module(module_name)
    return [
        f"{module_name}.{name}"
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and getattr(thing, "__module__", "") == module_name
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and wanted(thing)
    ]


def _is_a(thing: Any, base: type) -> bool:
    return inspect.isclass(thing) and issubclass(thing, base)


def _is_transform(thing: Any) -> bool:
    """A class whose objects take (image, target), or a function that does.

    What wraps a transform that is already there cannot be named in YAML.
    """
    call = thing.__call__ if inspect.isclass(thing) else thing
    wraps = inspect.isclass(thing) and "transform" in _parameters(thing)
    return [n for n in _parameters(call) if n != "self"][:2] == ["image", "target"] and not wraps


def _parameters(target: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(target, eval_str=True).parameters)


def _options(target: Any, provided: set[str]) -> list[str]:
    meanings = _arguments(inspect.getdoc(target) or "")
    rows = []
    for name, parameter in _parameters(target).items():
        if name in provided:
            continue
        shown, default = f"`{name}`", "required"
        if parameter.kind is parameter.VAR_KEYWORD:
            shown, default = "others", ""
        elif parameter.default is not parameter.empty:
            default = f"`{_plain(parameter.default)}`"
        rows.append(
            f"| {shown} | {_type(parameter.annotation)} | {default} "
            f"| {_inline(meanings.get(name, ''))} |"
        )
    return rows


def _summary(target: Any) -> str:
    return _inline((inspect.getdoc(target) or "").split("\n\n")[0])


def _arguments(doc: str) -> dict[str, str]:
    """Name → text of a docstring's ``Args`` section."""
    found: dict[str, str] = {}
    _, _, section = doc.partition("Args:\n")
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if start := re.match(r" {4}(\w+): (.*)", line):
            name = start[1]
            found[name] = start[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found


def _families() -> str:
    rows = [
        "| `name` | further options of | backbone (`weights_backbone`) |",
        "| --- | --- | --- |",
    ]
    rows += [f"| `{n}` | `{f.parts.__name__}` | `{f.backbone}` |" for n, f in FAMILIES.items()]
    return "\n".join(rows) + "\n"


# --- words -------------------------------------------------------------------------------------


def _type(annotation: Any) -> str:  # noqa: PLR0911 - one return a kind
    """An annotation in the words of YAML."""
    arguments = [a for a in typing.get_args(annotation) if a is not Ellipsis]
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        if any(_is_enum(part) for part in arguments):
            arguments.remove(str)  # the names of its members
        shown = dict.fromkeys(_type(part) for part in arguments if not _is_callable(part))
        return " \\| ".join(shown)
    if origin in (dict, collections.abc.Mapping):
        return f"name → {_type(arguments[1])}"
    if origin in (list, collections.abc.Sequence) or (origin is tuple and len(arguments) == 1):
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(_type(part) for part in arguments)}]"
    if annotation in (None, type(None)):
        return "null"
    if _is_enum(annotation):
        return " \\| ".join(f"`{member.name}`" for member in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        words = {Spec: "spec", Duration: "duration"}
        return next((w for kind, w in words.items() if issubclass(annotation, kind)), "section")
    return {"str": "text", "Any": "any"}.get(annotation.__name__, annotation.__name__)


def _is_enum(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, enum.Enum)


def _is_callable(annotation: Any) -> bool:
    """A function cannot be written in YAML; its import path, a text, can."""
    return typing.get_origin(annotation) is collections.abc.Callable


def _plain(value: Any) -> str:
    """A value as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Spec):
        return value.use
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value) if value != "" else "''"


def _inline(text: str) -> str:
    """A docstring's text in one line of Markdown: roles and double backticks become backticks."""
    text = re.sub(r":\w+:`~(?:\w+\.)*(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
