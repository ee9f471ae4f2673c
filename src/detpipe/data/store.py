"""The training set in memory: a few flat arrays, never a list of records.

Worker processes share the arrays' pages after a fork, and because nothing in them is reference
counted the pages stay shared: memory does not grow with workers, epochs or annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS
from detpipe.core.types import Target


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts as one run of UTF-8 bytes.

    Attributes:
        data: ``uint8``, all texts one after the other.
        ends: ``int64 [N + 1]``; text i lies in ``data[ends[i]:ends[i + 1]]``.
    """

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Packs ``texts``; names that are not UTF-8 on disk survive (surrogate escapes)."""
        parts = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> str:
        part = self.data[self.ends[index] : self.ends[index + 1]]
        return part.tobytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Store:
    """The images of one split and their boxes.

    Image i of N has the boxes ``offsets[i]:offsets[i + 1]`` of M. Boxes and area are in pixels of
    the upright image on disk, x2/y2 exclusive.

    Attributes:
        root: folder the paths are relative to.
        class_names: label ``c`` is ``class_names[c - 1]``.
        paths: N texts.
        image_ids: N texts.
        sizes: ``int32 [N, 2]`` (height, width) of the upright image; 0 where the table has none.
        offsets: ``int64 [N + 1]``.
        boxes: ``float32 [M, 4]``.
        labels: ``int32 [M]``, 1..C.
        area: ``float32 [M]``.
        iscrowd: ``bool [M]``.
        difficult: ``bool [M]``.
    """

    root: Path
    class_names: tuple[str, ...]
    paths: Texts
    image_ids: Texts
    sizes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    area: npt.NDArray[np.float32]
    iscrowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]

    def digest(self) -> str:
        """Sixteen hex digits that change with any image, box or class."""
        content = hashlib.sha256("\n".join(self.class_names).encode())
        arrays = (
            self.paths.data, self.image_ids.data, self.sizes, self.offsets, self.boxes,
            self.labels, self.area, self.iscrowd, self.difficult,
        )  # fmt: skip
        for array in arrays:
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()[:16]

    @classmethod
    def from_tables(
        cls,
        images: pd.DataFrame,
        boxes: pd.DataFrame,
        classes: pd.DataFrame,
        root: Path,
        *,
        split: str | None = None,
    ) -> Self:
        """Packs the tables ``images``, ``boxes`` and ``classes`` (see ``core/tables.py``).

        Args:
            images: one row an image; their order is kept.
            boxes: one row an object; the order within an image is kept. Boxes of other
                images are left out.
            classes: the classes in the order of the labels.
            root: folder the paths are relative to.
            split: only images of this split; None takes all.

        Raises:
            DataError: boxes of a class that ``classes`` lacks.
        """
        if split is not None:
            images = images[images["split"] == split]
        row_of = pd.Series(np.arange(len(images)), index=pd.Index(images["image_id"], dtype=object))
        found = boxes["image_id"].astype(object).map(row_of)
        boxes, rows = boxes[found.notna()], found[found.notna()].to_numpy(np.int64)
        order = np.argsort(rows, kind="stable")
        boxes = boxes.iloc[order]
        _refuse_strangers(boxes, classes)
        offsets = np.zeros(len(images) + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=len(images)), out=offsets[1:])
        names = tuple(str(name) for name in classes["class_name"])
        label_of = {name: label for label, name in enumerate(names, start=1)}
        return cls(
            root=Path(root),
            class_names=names,
            paths=Texts.of(images["path"].tolist()),
            image_ids=Texts.of(images["image_id"].tolist()),
            sizes=np.ascontiguousarray(images[["height", "width"]].to_numpy(np.int32)),
            offsets=offsets,
            boxes=np.ascontiguousarray(boxes[BOX_COLUMNS].to_numpy(np.float32)),
            labels=np.array([label_of[name] for name in boxes["class_name"]], np.int32),
            area=boxes["area"].to_numpy(np.float32, copy=True),
            iscrowd=boxes["iscrowd"].to_numpy(np.bool_, copy=True),
            difficult=boxes["difficult"].to_numpy(np.bool_, copy=True),
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        arrays = (self.sizes, self.offsets, self.boxes, self.labels, self.area, self.iscrowd,
                  self.difficult, self.paths.data, self.paths.ends, self.image_ids.data,
                  self.image_ids.ends)  # fmt: skip
        return sum(array.nbytes for array in arrays)

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.root / self.paths[index]

    def target(self, index: int) -> Target:
        """What is in image ``index``, in pixels of the upright image; tensors are copies."""
        part = slice(self.offsets[index], self.offsets[index + 1])
        height, width = self.sizes[index].tolist()
        return Target(
            image_id=self.image_ids[index],
            boxes=torch.from_numpy(self.boxes[part].copy()),
            labels=torch.from_numpy(self.labels[part].astype(np.int64)),
            area=torch.from_numpy(self.area[part].copy()),
            iscrowd=torch.from_numpy(self.iscrowd[part].copy()),
            difficult=torch.from_numpy(self.difficult[part].copy()),
            original_size=(height, width),
        )


def _refuse_strangers(boxes: pd.DataFrame, classes: pd.DataFrame) -> None:
    known = classes["class_name"].tolist()
    counts = boxes.loc[~boxes["class_name"].isin(known), "class_name"].value_counts()
    if len(counts):
        raise DataError(
            one_message(
                f"boxes of classes that are not among the known ones ({', '.join(known)}); correct "
                f"the annotations, or run the data pipeline again:",
                [f"'{name}': {count} box(es)" for name, count in counts.items()],
            )
        )
