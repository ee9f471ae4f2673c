"""Writer of one csv file with one box a row."""

from __future__ import annotations

from pathlib import Path

from detpipe.data.formats.base import Annotations
from detpipe.data.writers.base import (
    Pictures,
    new_folder,
    placed,
    require_printable,
    say_lost,
    writable,
)
from detpipe.data.writers.federated import losses as losses_of_lvis

_IMAGE = ["path", "width", "height", "split", "group"]
_BOX = ["class_name", "x1", "y1", "x2", "y2", "iscrowd", "difficult", "area", "extra"]


def write(found: Annotations, root: Path, folder: Path, *, pictures: Pictures = "copy") -> None:
    """Writes ``boxes.csv``, ``classes.txt`` and ``images``.

    Args:
        found: the tables.
        root: the folder that ``images.path`` is relative to.
        folder: where to write; empty, or not there yet.
        pictures: ``copy``, ``link``, or ``none``: then ``path`` leads from ``folder`` to them.

    ``boxes.csv`` has the columns path, width, height, split, group, class_name, x1, y1, x2, y2
    (pixels, x2/y2 exclusive), iscrowd, difficult (0 or 1), area, and ``extra`` where there is any.
    An image without objects has one row whose other columns are empty. ``classes.txt`` lists the
    classes in label order. Pictures keep their folders, but for those that all of them share.

    Raises:
        DataError: the folder is not empty or cannot be written; a class has control characters in
            its name.
    """
    import pyarrow as pa
    from pyarrow import csv

    with new_folder(folder, root) as new:
        images, boxes, classes, _ = writable(found, root)
        require_printable(classes, "csv")
        paths = placed(images, root=root, folder=folder, new=new, pictures=pictures)
        rows = images.assign(path=paths).merge(boxes, on="image_id", how="left")
        columns = [column for column in (*_IMAGE, *_BOX) if column in rows]
        for flag in ("iscrowd", "difficult"):
            rows[flag] = rows[flag].astype("float64").astype("Int64")
        csv.write_csv(pa.Table.from_pandas(rows[columns], preserve_index=False), new / "boxes.csv")
        text = "".join(f"{name}\n" for name in classes["class_name"])
        (new / "classes.txt").write_text(text, "utf-8")
    say_lost("csv", losses_of_lvis(images, classes))
