"""Pictures that are in a data set more than once: listed twice, of equal content, or nearly equal.

Across splits a copy is a leak: results on what was trained on say little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pandas as pd

from detpipe.data.findings import Findings
from detpipe.data.formats.base import sample
from detpipe.data.hashes import NO_HASH, groups, near_pairs
from detpipe.data.header import shown

_TRAIN = ("train", "training", "trainval", "")
"""Also what is still to be divided, beside a split that stays."""
_LEAK = "kept; results on images that were trained on say little"
_DONE = {
    "same_picture": "kept",
    "near_duplicate": "kept",
    "near_duplicate_to_divide": "they may come to lie in different splits; frames of one video or "
    "scene stay together with data.split.group_pattern",
}
_WAY_OUT = "take all but one of them out"


def drop_copies(images: pd.DataFrame, files: pd.DataFrame, findings: Findings) -> pd.Series:
    """Says which pictures are there more than once; True for the rows of ``images`` that stay.

    Args:
        images: the ``images`` table.
        files: for each of its rows ``path``, ``split``, ``file_digest`` (of the content; empty: not
            known) and ``file_hash`` (perceptual).
        findings: where to say it, and what configuration wants done.
    """
    _say_listed_twice(images, findings)
    unique = files.drop_duplicates(["path", "split"]).sort_values("path", kind="stable")
    unique = unique[unique["file_digest"] != b""].assign(
        train=unique["split"].str.lower().isin(_TRAIN)
    )
    left = _drop_same(unique, findings)
    left = _drop_near(left, findings)
    gone = unique.index.difference(left.index)
    rows = pd.MultiIndex.from_frame(files[["path", "split"]])
    dropped = pd.MultiIndex.from_frame(files.loc[gone, ["path", "split"]])
    return pd.Series(~rows.isin(dropped), index=images.index)


def twins(files: pd.DataFrame) -> pd.Series:
    """For each row the first path of the files of equal content; '' for none.

    Not of those that only look the same: of a camera that stands still all do.

    Args:
        files: as for :func:`drop_copies`.
    """
    unique = files[files["file_digest"] != b""].drop_duplicates("path")
    repeated = unique[unique["file_digest"].duplicated(keep=False)]
    first = repeated.groupby("file_digest")["path"].transform("min")
    names = dict(zip(repeated["path"], first, strict=True))
    twin = [names.get(path, "") for path in files["path"]]
    return pd.Series(twin, index=files.index, dtype="str")


def _say_listed_twice(images: pd.DataFrame, findings: Findings) -> None:
    repeated = images[images["path"].duplicated(keep=False)]
    columns = (repeated[column].tolist() for column in ("path", "image_id", "split"))
    listed = defaultdict(list)
    for path, image_id, split in zip(*columns, strict=True):
        listed[path].append((image_id, split))
    for path, pairs in sorted(listed.items()):
        ids, splits = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
        several = len(splits) > 1
        findings.add_one(
            "image_in_two_splits" if several else "image_listed_twice",
            sample(splits if several else ids), file=shown(path), image_id=ids[0],
            way_out="list it once", done=_LEAK,
        )  # fmt: skip


def _drop_same(files: pd.DataFrame, findings: Findings) -> pd.DataFrame:
    """Without files of equal content, as configured."""
    copies = files[files["file_digest"].duplicated(keep=False)]
    by_content = copies.groupby("file_digest")
    several = (by_content["split"].transform("nunique") > 1) & (
        by_content["path"].transform("nunique") > 1
    )
    across = copies[several]
    _say_across(
        "same_picture_in_two_splits", (rows for _, rows in across.groupby("file_digest")), findings
    )
    if findings.config.setting("same_picture_in_two_splits")[0] == "drop":
        outside = ~across.groupby("file_digest")["train"].transform("all")
        files = files.drop(across.index[across["train"] & outside])
    key = ["file_digest", "split"]
    within = files[files.duplicated(key, keep=False)]
    _say("same_picture", (rows for _, rows in within.groupby(key)), findings)
    if findings.config.setting("same_picture")[0] == "drop":
        files = files.drop_duplicates(key)
    return files


def _drop_near(files: pd.DataFrame, findings: Findings) -> pd.DataFrame:
    """Without files that look nearly the same, as configured."""
    rules = ("near_duplicate_in_two_splits", "near_duplicate", "near_duplicate_to_divide")
    actions = [findings.config.setting(rule)[0] for rule in rules]
    across_action, within_action, _ = actions
    hashed = files[files["file_hash"] != NO_HASH]
    if hashed.empty or set(actions) == {"ignore"}:
        return files
    # A node is a hash in a split: what is near is decided by the hash alone.
    hashed = hashed.assign(node=hashed.groupby(["file_hash", "split"]).ngroup())
    nodes = hashed.groupby("node").agg(
        file_hash=("file_hash", "first"), split=("split", "first"), train=("train", "first"),
        contents=("file_digest", "nunique"), content=("file_digest", "first"),
        path=("path", "first"),
    )  # fmt: skip
    pairs = _node_pairs(nodes, findings.config.near_duplicates)
    ends = [nodes.loc[pairs[:, side]].reset_index(drop=True) for side in (0, 1)]
    crosses = (ends[0]["split"] != ends[1]["split"]).to_numpy()
    single = (ends[0]["contents"] == 1) & (ends[1]["contents"] == 1)
    same = (single & (ends[0]["content"] == ends[1]["content"])).to_numpy()
    across = pairs[crosses & ~same]
    _say_across(rules[0], _members(groups(across), hashed), findings)
    gone: set[int] = set()
    if across_action == "drop":
        train = nodes["train"].to_numpy()
        for side in (0, 1):
            gone.update(across[train[across[:, side]] & ~train[across[:, 1 - side]], side].tolist())
    within = [(a, b) for a, b in pairs[~crosses].tolist() if not gone & {a, b}]
    alone = [(n, n) for n in np.flatnonzero(nodes["contents"] > 1).tolist() if n not in gone]
    alike = list(_members(groups([*within, *alone]), hashed))
    _say(rules[1], alike, findings)
    if within_action == "ignore":
        _say(rules[2], (rows for rows in alike if not rows["split"].iloc[0]), findings)
    keep = ~hashed["node"].isin(gone)
    if within_action == "drop":
        keep &= _first_of_each(hashed, nodes, within)
    return files.drop(hashed.index[~keep])


def _node_pairs(nodes: pd.DataFrame, bits: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Pairs of nodes, smaller first, whose hashes are equal or near: ``[pairs, 2]``."""
    hashes, which = np.unique(nodes["file_hash"].to_numpy(np.int64), return_inverse=True)
    near = near_pairs(hashes, bits=bits)
    equal = np.repeat(np.arange(len(hashes))[:, None], 2, axis=1)
    pairs = pd.DataFrame(np.concatenate([near, equal]), columns=["one", "other"])
    of_hash = pd.DataFrame({"hash": which, "node": np.arange(len(nodes))})
    pairs = pairs.merge(of_hash, left_on="one", right_on="hash")
    pairs = pairs.merge(of_hash, left_on="other", right_on="hash", suffixes=("", "_other"))
    found = np.sort(pairs[["node", "node_other"]].to_numpy(np.int64), axis=1)
    return np.unique(found[found[:, 0] < found[:, 1]], axis=0)


def _first_of_each(
    hashed: pd.DataFrame, nodes: pd.DataFrame, pairs: Iterable[tuple[int, int]]
) -> pd.Series:
    """True for pictures that are near none which stays and comes before, by path."""
    near: dict[int, list[int]] = {}
    for one, other in pairs:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    out: set[int] = set()
    for node in nodes["path"].sort_values(kind="stable").index.tolist():
        if node not in out:
            out.update(near.get(node, ()))
    # Of one hash the first content stays; equal contents are another rule's.
    first = hashed["file_digest"] == hashed["node"].map(nodes["content"])
    return first & ~hashed["node"].isin(out)


def _members(components: Iterable[list[int]], hashed: pd.DataFrame) -> Iterable[pd.DataFrame]:
    by_node = hashed.groupby("node").indices
    for component in components:
        places = np.sort(np.concatenate([by_node[node] for node in component]))
        yield hashed.iloc[places]


def _say_across(rule: str, found: Iterable[pd.DataFrame], findings: Findings) -> None:
    """:func:`_say`; where some are to be dropped and none is of train, that nothing is."""
    if findings.config.setting(rule)[0] != "drop":
        _say(rule, found, findings)
        return
    every = list(found)
    with_train = [rows for rows in every if rows["train"].any() and not rows["train"].all()]
    _say(rule, with_train, findings)
    rest = [rows for rows in every if not any(rows is other for other in with_train)]
    _say(rule, rest, findings, dropped="kept: none of them is in train")


def _say(
    rule: str, found: Iterable[pd.DataFrame], findings: Findings, *, dropped: str = "dropped"
) -> None:
    """One finding for each group of files."""
    if findings.config.setting(rule)[0] == "ignore":
        return
    rows = []
    for files in found:
        paths = [shown(path) for path in files["path"]]
        counts = files["split"].value_counts(sort=False)
        splits = ", ".join(f"{split} {count}" for split, count in counts.items())
        value = f"{len(paths)} files" + (f" ({splits})" if len(counts) > 1 else "")
        rows.append({"file": paths[0], "value": f"{value}, also {sample(paths[1:])}"})
    table = pd.DataFrame(rows, columns=["file", "value"]).sort_values("file", kind="stable")
    findings.add(rule, table, way_out=_WAY_OUT, done=_DONE.get(rule, _LEAK), dropped=dropped)
