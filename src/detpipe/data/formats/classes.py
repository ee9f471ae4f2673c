"""Classes renamed, kept and dropped, whatever reader they come from."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping

import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.data.config import ClassesConfig
from detpipe.data.formats.base import Annotations, IssueLog, class_table, clean_name, sample
from detpipe.data.formats.federated import frequencies_in, frequency_of, with_new_names


def choose_classes(
    found: Annotations, config: ClassesConfig, *, where: str = "data.classes"
) -> Annotations:
    """The data set with its classes renamed, then those kept, or not dropped, in their order.

    Boxes of other classes are left out; their images stay. A name that only boxes have (of an
    unknown class number) can be renamed or dropped, too; ``keep`` leaves such boxes for the check.

    Args:
        found: what a reader gave; it is not changed.
        config: what to do.
        where: the configuration's place, for messages.

    Raises:
        DataError: a name that the data set does not have, or no class is left.
    """
    if not (config.rename or config.keep or config.drop):
        return found
    log = IssueLog()
    rename = {clean_name(old): clean_name(new) for old, new in config.rename.items()}
    listed = found.classes["class_name"].tolist()
    written = list(dict.fromkeys([*listed, *found.boxes["class_name"].unique()]))
    mistakes = _unknown(rename, written, f"{where}.rename")
    names = list(dict.fromkeys(rename.get(name, name) for name in written))
    classes = list(dict.fromkeys(rename.get(n, n) for n in written if n in listed or n in rename))
    keep, drop = ([clean_name(n) for n in chosen] for chosen in (config.keep, config.drop))
    for chosen, key in ((keep, "keep"), (drop, "drop")):
        mistakes += _unknown(chosen, names, f"{where}.{key}", rename=rename)
    if mistakes:
        raise DataError(
            one_message("classes are named that the data set does not have:", mistakes)
            + f"\nIt has {', '.join(map(repr, names))}"
        )
    gone = set(drop) or (set(classes) - set(keep) if keep else set())
    left = [name for name in classes if name not in gone]
    if not left:
        raise DataError(f"{where}: no class is left of {', '.join(map(repr, classes))}")
    new = {name: rename.get(name, name) for name in written}
    images = with_new_names(found.images, found.boxes, new, set(left))
    boxes = _renamed(found.boxes, rename, log, where)
    boxes = _without(boxes, gone, classes, log, where)
    frequency = _frequency(found.classes, new)
    issues = pd.concat([found.issues, log.table()], ignore_index=True)
    return Annotations(images, boxes, class_table(left, frequency), issues)


def _frequency(classes: pd.DataFrame, new: Mapping[str, str]) -> dict[str, str]:
    """New name → frequency: of classes that become one only ``f``, which no other can make less."""
    parts = Counter(new[name] for name in classes["class_name"])
    pairs = ((new[name], of) for name, of in frequencies_in(classes))
    return frequency_of((name, of) for name, of in pairs if parts[name] == 1 or of == "f")


def _unknown(
    chosen: Iterable[str], names: list[str], where: str, *, rename: Mapping[str, str] | None = None
) -> list[str]:
    """A line for each name that is not there."""
    mistakes = []
    for name in chosen:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, 1)
        same = [other for other in names if other.casefold() == name.casefold()]
        hint = f": did you mean {(same or near)[0]!r}?" if same or near else ""
        if rename and name in rename:
            hint = f": it has been renamed to {rename[name]!r}"
        mistakes.append(f"{where}: {name!r}{hint}")
    return mistakes


def _renamed(
    boxes: pd.DataFrame, rename: Mapping[str, str], log: IssueLog, where: str
) -> pd.DataFrame:
    if not rename:
        return boxes
    counts = boxes["class_name"].value_counts()
    log.add(
        "info", "class_renamed", action=f"{where}.rename",
        value=sample(f"{o} -> {n} ({counts.get(o, 0)} boxes)" for o, n in rename.items()),
    )  # fmt: skip
    new = {name: rename.get(name, name) for name in counts.index}
    return boxes.assign(class_name=boxes["class_name"].map(new).astype("str"))


def _without(
    boxes: pd.DataFrame, gone: set[str], classes: list[str], log: IssueLog, where: str
) -> pd.DataFrame:
    if not gone:
        return boxes
    out = boxes["class_name"].isin(gone)
    kept = boxes[~out].reset_index(drop=True)
    counts = boxes["class_name"][out].value_counts()
    emptied = set(boxes["image_id"][out]) - set(kept["image_id"])
    order = dict.fromkeys([*classes, *gone])  # names of boxes only come last
    log.add(
        "info", "class_dropped",
        value=f"{len(gone)} class(es), {int(out.sum())} box(es): "
        + sample((f"{n} ({counts.get(n, 0)})" for n in order if n in gone), at_most=10),
        action=f"left out as {where} says; {len(emptied)} image(s) have no other object and stay "
        f"as images without objects",
    )  # fmt: skip
    return kept
