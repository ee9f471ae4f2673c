"""Writer of detpipe's own tables."""

from __future__ import annotations

from pathlib import Path

from detpipe.data.formats.base import Annotations
from detpipe.data.writers.base import Pictures, new_folder, placed, writable


def write(found: Annotations, root: Path, folder: Path, *, pictures: Pictures = "copy") -> None:
    """Writes ``images.parquet``, ``boxes.parquet``, ``classes.parquet`` and ``images``.

    Args:
        found: the tables.
        root: the folder that ``images.path`` is relative to.
        folder: where to write; empty, or not there yet.
        pictures: ``copy``, ``link``, or ``none``: then ``path`` leads from ``folder`` to them.

    Everything is kept, ids and all; only the pictures' paths are new. They keep their folders, but
    for those that all of them share.

    Raises:
        DataError: the folder is not empty or cannot be written.
    """
    with new_folder(folder, root) as new:
        images, boxes, classes, _ = writable(found, root)
        paths = placed(images, root=root, folder=folder, new=new, pictures=pictures)
        images = images.assign(path=paths)
        for name, table in {"images": images, "boxes": boxes, "classes": classes}.items():
            table.to_parquet(new / f"{name}.parquet", index=False)
