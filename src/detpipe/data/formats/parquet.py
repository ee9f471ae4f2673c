"""Reader of detpipe's own tables: ``images.parquet``, ``boxes.parquet``, ``classes.parquet``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError, TableError
from detpipe.core.tables import BOXES, CLASSES, IMAGES, Table
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    clean_name,
    existing_folder,
    make_tables,
    relative,
)
from detpipe.data.formats.federated import frequencies_in
from detpipe.data.remote import resolve


def read(root: Path, *, images: str = ".") -> Annotations:
    """Reads a data set that detpipe wrote, or anybody's tables of the same columns.

    Args:
        root: the folder of the three files.
        images: the folder that ``images.path`` in ``images.parquet`` is relative to, relative to
            ``root``, absolute, or a URL.

    Optional columns, such as ``boxes.extra`` and ``images.group``, are read where they are;
    columns that detpipe does not know are left out.

    Raises:
        DataError: a file is missing or is no Parquet, a column is missing or holds what it must
            not.
    """
    root = existing_folder(root)
    tables = [_table(root / f"{table.name}.parquet", table) for table in (IMAGES, BOXES, CLASSES)]
    pictures, boxes, classes = tables
    if images != ".":
        home = relative(resolve(root, images), root)
        pictures["path"] = f"{home}/" + pictures["path"]
    names = classes["class_name"].tolist()
    frequency = {clean_name(name): of for name, of in frequencies_in(classes)}
    return make_tables(pictures, boxes, names, IssueLog(), frequency=frequency)


def _table(path: Path, table: Table) -> pd.DataFrame:
    import pyarrow

    if not path.is_file():
        names = ", ".join(f"{t.name}.parquet" for t in (IMAGES, BOXES, CLASSES))
        raise DataError(f"there is no {path}; a data set in detpipe's own form is {names}")
    try:
        return table.make(pd.read_parquet(path))
    except (pyarrow.ArrowException, OSError) as error:  # OSError: damaged pages
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    except TableError as error:
        raise DataError(f"{path}: {error}") from error
