"""What a YOLO data set says of itself: ``data.yaml``, Darknet's ``obj.data``, ``classes.txt``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IssueLog, clean_name, relative, sample
from detpipe.data.formats.walk import exists, read_bytes, read_lines, visible
from detpipe.data.remote import resolve

_SPLITS = ("train", "val", "valid", "validation", "test")
_YAMLS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_KEYS = frozenset(("names", "nc", "path", "kpt_shape", *_SPLITS))
Keypoints = tuple[int, int]
"""How many keypoints an object has, and 2 (x y) or 3 (x y visibility) numbers for each."""


@dataclass(frozen=True)
class Config:
    """The description of a data set, as written.

    Attributes:
        path: the file it was read from.
        names: number in the label files → class name, in order of the numbers.
        base: the folder that entries are relative to, as written; '' for that of ``path``.
        entries: (split, folders and list files of its images, as written).
        keypoints: of pose data sets.
    """

    path: Path
    names: Mapping[int, str]
    base: str
    entries: Sequence[tuple[str, Sequence[str]]]
    keypoints: Keypoints | None = None


def load(root: Path, data: str | None, log: IssueLog) -> Config:
    """Reads the file ``data``, or the one there is in ``root``.

    Raises:
        DataError: there is none, or several; it lacks what is needed or is not valid.
    """
    path = _find(root) if data is None else resolve(root, data)
    if path is None or not os.path.lexists(path):
        near = sorted(relative(p, root) for p in visible(root, "*.y*ml", "*/*.y*ml"))
        what = path or f"data.yaml, obj.data or classes.txt in {root}"
        raise DataError(
            f"there is no {what} (YAML files there: {', '.join(near) or 'none'}); name it with the "
            f"reader's option 'data'"
        )
    if path.suffix == ".data":
        return _darknet(path, log)
    if path.suffix == ".txt":
        images = "images" if (path.parent / "images").is_dir() else "."
        return Config(
            path, _numbered(list(enumerate(read_lines(path))), path), "", [("", [images])]
        )
    return _yaml(path, log)


def _find(root: Path) -> Path | None:
    for name in _YAMLS:
        if os.path.lexists(root / name):  # also a link to nothing, so that this is said
            return root / name
    yamls = [path for path in visible(root, "*.y*ml") if _looks_right(path)]
    found = yamls or visible(root, "*.data") or visible(root, "classes.txt")
    if len(found) > 1:
        raise DataError(
            f"{root} has several files that describe YOLO data: "
            f"{sample(path.name for path in found)}; name one with the reader's option 'data'"
        )
    return found[0] if found else None


def _looks_right(path: Path) -> bool:
    try:
        content = _parsed(path)
    except DataError:
        return False
    return "names" in content and any(content.get(split) for split in _SPLITS)


# --- data.yaml ---------------------------------------------------------------------------------


def _yaml(path: Path, log: IssueLog) -> Config:
    content = _parsed(path)
    entries = []
    for split in _SPLITS:
        value = content.get(split)
        if value:
            wanted = [value] if isinstance(value, str) else value
            if not (isinstance(wanted, list) and all(isinstance(v, str) for v in wanted)):
                raise DataError(f"{path}: '{split}' must be a path, or a list of paths")
            entries.append((split, wanted))
    if not entries:
        raise DataError(f"{path} names no images: it needs train:, val: or test:")
    base = content.get("path") or ""
    if not isinstance(base, str):
        raise DataError(f"{path}: 'path' must be one path")
    return Config(path, _names(content, path, log), base, entries, _keypoints(content, path))


def _parsed(path: Path) -> dict[str, Any]:
    """What the keys that count here hold, as text: a class may be called NO, null or 1.0.

    A mapping is a list of pairs, since a key may be there twice; what is null is left out.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(read_bytes(path).decode("utf-8-sig"))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise DataError(f"{path} must hold keys and values (names:, train:, val:)")
        loader.flatten_mapping(node)  # '<<': what other mappings hold
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid YAML in UTF-8: {error}") from error
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply") from error
    return {
        key.value: _plain(value, yaml)
        for key, value in node.value
        if str(key.value) in _KEYS and value.tag != "tag:yaml.org,2002:null"
    }


def _plain(node: Any, yaml: Any) -> Any:
    """Text, a list of texts, or the pairs of a mapping; None for what is nested further."""

    def text(node: Any) -> str | None:
        return node.value if isinstance(node, yaml.ScalarNode) else None

    if isinstance(node, yaml.SequenceNode):
        return [text(value) for value in node.value]
    if isinstance(node, yaml.MappingNode):
        return _Pairs((text(key), text(value)) for key, value in node.value)
    return text(node)


class _Pairs(list[tuple[Any, Any]]):
    """A mapping as it is written."""


def _names(content: Mapping[str, Any], path: Path, log: IssueLog) -> dict[int, str]:
    names, count = content.get("names"), content.get("nc")
    if count is not None and not (str(count).isdecimal() and len(count) < 8):
        raise DataError(f"{path}: 'nc' must be the number of classes, not '{count}'")
    if names is None and count is None:
        raise DataError(f"{path} lacks 'names': a list, or a mapping of numbers to class names")
    if names is None:
        names = [str(number) for number in range(int(count or 0))]
        log.add("warning", "no_class_names", file=path.name, action="numbers serve as names")
    if not isinstance(names, list):
        raise DataError(f"{path}: 'names' must be a list or a mapping, not '{names}'")
    found = _numbered(names if isinstance(names, _Pairs) else list(enumerate(names)), path)
    if count is not None and int(count) != len(found):
        log.add(
            "warning", "class_count", file=path.name, value=f"nc: {count}, names: {len(found)}",
            action="names count",
        )  # fmt: skip
    return found


def _numbered(pairs: Sequence[tuple[Any, Any]], path: Path) -> dict[int, str]:
    """Number → name, in order of the numbers."""
    try:
        numbers = [int(number) for number, _ in pairs]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: 'names' must map whole numbers to class names") from error
    names = [name for _, name in pairs]
    odd = [str(n) for n, name in zip(numbers, names, strict=True) if not isinstance(name, str)]
    if odd:
        raise DataError(
            f"{path}: a class name must be one text; 'names' has a list or a mapping at "
            f"{sample(odd)}: write a line '<number>: <name>' for each"
        )
    twice = [str(number) for number, times in Counter(numbers).items() if times > 1]
    if twice:
        raise DataError(f"{path}: these class numbers are there twice: {sample(twice)}")
    found = dict(sorted(zip(numbers, names, strict=True)))
    nameless = [str(number) for number, name in found.items() if not clean_name(name)]
    if nameless:
        raise DataError(f"{path}: these class numbers have no name: {', '.join(nameless)}")
    double = sorted(name for name, times in Counter(found.values()).items() if times > 1)
    if double:
        raise DataError(f"{path}: class names must differ, these repeat: {', '.join(double)}")
    return found


def _keypoints(content: Mapping[str, Any], path: Path) -> Keypoints | None:
    shape = content.get("kpt_shape")
    if shape is None:
        return None
    whole = [int(v) if str(v).isdecimal() else 0 for v in shape] if isinstance(shape, list) else []
    if not (len(whole) == 2 and whole[1] in (2, 3) and whole[0] in range(1, 10_000)):
        raise DataError(
            f"{path}: 'kpt_shape' must be the number of keypoints and 2 or 3, the numbers for "
            f"each, such as (17, 3); it is {shape}"
        )
    return whole[0], whole[1]


# --- Darknet -----------------------------------------------------------------------------------


def _darknet(path: Path, log: IssueLog) -> Config:
    pairs = [line.split("=", 1) for line in read_lines(path) if "=" in line]
    content = {key.strip(): value.strip() for key, value in pairs}
    entries = [(split, [content[split]]) for split in _SPLITS if content.get(split)]
    if not entries:
        raise DataError(f"{path} names no images: it needs train = or valid =")
    if not content.get("names"):
        raise DataError(f"{path} lacks 'names = <file with one class a line>'")
    names, tried = place(content["names"], "", path.parent)
    if names is None or not names.is_file():
        raise DataError(
            f"{path}: 'names = {content['names']}' was not found; tried "
            f"{', '.join(map(str, tried))}"
        )
    known = _names({"names": read_lines(names), "nc": content.get("classes")}, path, log)
    return Config(path, known, "", entries)


# --- places ------------------------------------------------------------------------------------


def place(entry: str, base: str, folder: Path) -> tuple[Path | None, list[Path]]:
    """Where ``entry`` is, and every place tried, the one that is meant first."""
    candidates = [folder / base / entry, folder / entry]
    written = PureWindowsPath(entry)  # splits at both / and \
    parts = [part for part in written.parts if part not in ("..", ".", written.anchor)]
    candidates += [folder.joinpath(*parts[start:]) for start in range(len(parts))]
    # "train: train" may mean train/images; a plain folder of images comes first.
    candidates += [folder.joinpath(*parts, "images"), folder.joinpath("images", *parts)]
    tried = list(dict.fromkeys(candidates))
    own = folder.joinpath(*parts)
    if parts and written.parts[0] == ".." and exists(own):
        # Roboflow writes ../train/images for train/images beside the file; what the path leads to
        # may be another set's.
        return own, tried
    return next((place for place in tried if exists(place)), None), tried
