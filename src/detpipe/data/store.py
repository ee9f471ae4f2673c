"""The images and boxes that training reads: a few flat arrays, never a list of records.

They are one file that processes map, so its pages are there once whatever the number of workers
and ranks, and opening it takes no time. Nothing in the arrays is reference counted, so those made
in memory stay shared after a fork too: memory does not grow with workers, epochs or annotations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS, positions
from detpipe.data import column_file
from detpipe.data.texts import Places, Texts, from_zero, small

if TYPE_CHECKING:
    from detpipe.core.types import Target

_FIRST_SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Store:
    """Images, ordered by split, and their boxes.

    Image i of N has the boxes ``offsets[i]:offsets[i + 1]`` of M. Boxes and area are in pixels of
    the upright image on disk, x2/y2 exclusive.

    One that was opened is pickled as the name of its file, so a process that is given it maps the
    same pages; one made in memory is pickled with its arrays.

    Attributes:
        root: folder the paths are relative to.
        class_names: label ``c`` is ``class_names[c - 1]``.
        paths: N texts.
        image_ids: N texts.
        sizes: ``int32 [N, 2]`` (height, width) of the upright image; 0 where the table has none.
        offsets: ``int [N + 1]``.
        boxes: ``float32 [M, 4]``.
        labels: the smallest unsigned integers that hold them ``[M]``, 1..C.
        area: ``float32 [M]``.
        iscrowd: ``bool [M]``.
        difficult: ``bool [M]``.
        splits: (name, start, stop) of each split's images, in order.
    """

    root: Path
    class_names: tuple[str, ...]
    paths: Texts
    image_ids: Texts
    sizes: npt.NDArray[np.int32]
    offsets: Places
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.integer[Any]]
    area: npt.NDArray[np.float32]
    iscrowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    splits: tuple[tuple[str, int, int], ...] = ()
    _file: tuple[Path, str | None, str] | None = field(default=None, init=False, repr=False)
    """File, split and key of one that was opened. ``replace`` drops it: the arrays may differ."""

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
            images: one row an image. They are ordered by split (train, val, test, then others by
                name); their order within a split is kept.
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
        images, splits = _by_split(images)
        return cls(
            root=Path(root),
            class_names=tuple(str(name) for name in classes["class_name"]),
            paths=Texts.of(images["path"]),
            image_ids=Texts.of(images["image_id"]),
            sizes=np.ascontiguousarray(images[["height", "width"]].to_numpy(np.int32)),
            splits=splits,
            **_by_image(boxes, images, classes),
        )

    @classmethod
    def open(
        cls, path: Path, root: Path, *, split: str | None = None, verify: bool = False
    ) -> Self:
        """Maps a file of :meth:`save`; its pages are read when they are first touched.

        Args:
            path: the file.
            root: folder the paths are relative to.
            split: only images of this split; None takes all.
            verify: whether to read it all and compare it with its digest.

        Raises:
            DataError: the file is missing, none of ours, cut short, of another version, or damaged.
        """
        path = path.absolute()
        about, columns, key = column_file.read(path)
        parts: dict[str, Any] = dict(columns)
        for name in ("paths", "image_ids"):
            parts[name] = Texts(parts.pop(f"{name}.data"), parts.pop(f"{name}.ends"))
        store = cls(
            root=Path(root),
            class_names=tuple(about["class_names"]),
            splits=tuple((name, start, stop) for name, start, stop in about["splits"]),
            **parts,
        )
        if verify and store.digest() != about["digest"]:
            raise DataError(
                f"{path} is damaged: its content is not what was written; run 'kedro run "
                f"--pipeline data' again"
            )
        store = store._opened(path, None, key)
        return store if split is None else store.split(split)

    def save(self, path: Path) -> None:
        """Writes all but ``root`` to one file (:mod:`detpipe.data.column_file`), or nothing."""
        about = {
            "class_names": self.class_names,
            "splits": self.splits,
            "digest": self.digest(),
        }
        column_file.write(path, self._columns(), about)

    def split(self, name: str) -> Self:
        """The images of one split, none if there is no such split; boxes and texts are not copied.

        Nor is anything else of the file's first split, which is the training set's.
        """
        bounds = {split: (start, stop) for split, start, stop in self.splits}
        start, stop = bounds.get(name, (0, 0))
        part = slice(self.offsets[start], self.offsets[stop])
        boxes = {
            column: getattr(self, column)[part]
            for column in ("boxes", "labels", "area", "iscrowd", "difficult")
        }
        found = replace(
            self,
            paths=self.paths.part(start, stop),
            image_ids=self.image_ids.part(start, stop),
            sizes=self.sizes[start:stop],
            offsets=from_zero(self.offsets[start : stop + 1]),
            splits=((name, 0, stop - start),) if name in bounds else (),
            **boxes,
        )
        if self._file is None or name not in bounds:
            return found
        return found._opened(self._file[0], name, self._file[2])

    def at(self, root: Path) -> Self:
        """The same with its pictures below another folder."""
        moved = replace(self, root=Path(root))
        return moved if self._file is None else moved._opened(*self._file)

    def _opened(self, path: Path, split: str | None, key: str) -> Self:
        object.__setattr__(self, "_file", (path, split, key))
        return self

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        if self._file is None:
            return object.__reduce_ex__(self, protocol)
        return _opened_again, (*self._file, self.root)

    def digest(self) -> str:
        """Sixteen hex digits that change with any image, box or class."""
        content = hashlib.sha256("\n".join(self.class_names).encode("utf-8", "surrogateescape"))
        arrays = (
            self.paths.data, self.image_ids.data, self.sizes, self.offsets.astype(np.int64),
            self.boxes, self.labels.astype(np.int32), self.area, self.iscrowd, self.difficult,
        )  # fmt: skip
        for array in arrays:
            content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return content.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.image_ids)

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "paths.data": self.paths.data, "paths.ends": self.paths.ends,
            "image_ids.data": self.image_ids.data, "image_ids.ends": self.image_ids.ends,
            "sizes": self.sizes, "offsets": self.offsets, "boxes": self.boxes,
            "labels": self.labels, "area": self.area, "iscrowd": self.iscrowd,
            "difficult": self.difficult,
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self._columns().values())

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.root / self.paths[index]

    def target(self, index: int) -> Target:
        """What is in image ``index``, in pixels of the upright image; tensors are copies."""
        import torch  # here: the data pipeline packs a store without it

        from detpipe.core.types import Target

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


def _opened_again(path: Path, split: str | None, key: str, root: Path) -> Store:
    store = Store.open(path, root, split=split)
    if store._file != (path, split, key):
        raise DataError(
            f"'{path}' has changed since this run opened it; start the run again, and leave the "
            f"data pipeline alone while it runs"
        )
    return store


def _by_split(images: pd.DataFrame) -> tuple[pd.DataFrame, tuple[tuple[str, int, int], ...]]:
    """The images ordered by split, and where each split lies."""
    found = set(images["split"].unique())
    names = [name for name in _FIRST_SPLITS if name in found] + sorted(found - {*_FIRST_SPLITS})
    rank = positions(images["split"], pd.Series(names, dtype=object))
    stops = np.cumsum(np.bincount(rank, minlength=len(names))).tolist()
    if (np.diff(rank) < 0).any():
        images = images.iloc[np.argsort(rank, kind="stable")]
    return images, tuple(zip(names, [0, *stops[:-1]], stops, strict=False))


def _by_image(
    boxes: pd.DataFrame, images: pd.DataFrame, classes: pd.DataFrame
) -> dict[str, npt.NDArray[Any]]:
    """The store's columns of the boxes, ordered by image."""
    rows = positions(boxes["image_id"], images["image_id"])
    # Those of other images have -1 and come first.
    order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
    offsets = np.zeros(len(images) + 1, np.int64)
    np.cumsum(np.bincount(rows[order], minlength=len(images)), out=offsets[1:])
    labels = positions(boxes["class_name"], classes["class_name"])[order] + 1
    if not labels.all():
        _refuse_strangers(boxes["class_name"].iloc[order[labels == 0]], classes)
    corners = np.empty((len(order), 4), np.float32)
    for place, name in enumerate(BOX_COLUMNS):
        corners[:, place] = boxes[name].to_numpy()[order]
    return {
        "offsets": small(offsets),
        "boxes": corners,
        "labels": labels.astype(np.min_scalar_type(len(classes))),
        "area": boxes["area"].to_numpy(np.float32)[order],
        "iscrowd": boxes["iscrowd"].to_numpy(np.bool_)[order],
        "difficult": boxes["difficult"].to_numpy(np.bool_)[order],
    }


def _refuse_strangers(names: pd.Series, classes: pd.DataFrame) -> None:
    raise DataError(
        one_message(
            f"boxes of classes that are not among the known ones "
            f"({', '.join(classes['class_name'])}); correct the annotations, or run the data "
            f"pipeline again:",
            [f"'{name}': {count} box(es)" for name, count in names.value_counts().items()],
        )
    )
