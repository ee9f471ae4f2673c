"""Csv files as tables of text, with errors that name file and line."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError, one_message

_SHOWN = 20
_ENCODINGS = ("cp1252", "cp1250", "cp1251", "gb18030", "shift_jis", "euc_kr")
"""Proposed, where they fit, for files that are not UTF-8."""


def read_table(
    path: Path,
    *,
    header: bool = True,
    only: Collection[str] | None = None,
    separator: str = ",",
    encoding: str = "utf-8-sig",
) -> pd.DataFrame:
    """The file's rows, every value as text.

    Args:
        path: the file.
        header: whether the first line names the columns; without, they are ``0``, ``1``, …
        only: the columns to read, those of them that are there; None for all.
        separator: between two values.
        encoding: how the file is written.

    Raises:
        DataError: another encoding (those that would do are named), rows with too many or too few
            values or an open quotation mark (each line is named), an empty file.
    """
    from pyarrow import ArrowInvalid, string
    from pyarrow import csv as arrow

    first = next(_records(path, encoding, separator), [])
    if not first:
        raise DataError(f"{path} cannot be read as csv: it is empty")
    names = _different(first) if header else [str(number) for number in range(len(first))]
    malformed: list[object] = []

    def leave_out(row: object) -> str:
        malformed.append(row)
        return "skip"

    try:
        table = arrow.read_csv(
            path,
            arrow.ReadOptions(column_names=names, skip_rows=int(header), encoding=_arrow(encoding)),
            arrow.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=leave_out
            ),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(names, string()),
                strings_can_be_null=False,
                include_columns=[name for name in names if only is None or name in only],
            ),
        )
    except (UnicodeError, LookupError) as error:
        raise wrong_encoding(path, encoding, error) from error
    except ArrowInvalid as error:
        if "UTF8" in str(error):
            raise wrong_encoding(path, encoding, error) from error
        raise DataError(f"{path} cannot be read as csv: {error}") from error
    if malformed or _odd_quotes(path):
        _require_whole(path, encoding, separator)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _records(path: Path, encoding: str, separator: str) -> Iterator[list[str]]:
    try:
        with path.open(encoding=encoding, newline="") as file:
            yield from csv.reader(file, delimiter=separator, strict=True)
    except (UnicodeError, LookupError) as error:
        raise wrong_encoding(path, encoding, error) from error


def _different(names: Sequence[str]) -> list[str]:
    """The names, the second of two equal ones as ``name.1``."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        result.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return result


def _arrow(encoding: str) -> str:
    """As Arrow calls it: its own reading of UTF-8 is the fast one, and drops the mark in front."""
    name = codecs.lookup(encoding).name
    return "utf8" if name in ("utf-8", "utf-8-sig") else name


def _odd_quotes(path: Path) -> bool:
    """Whether a quotation mark may be open at the end."""
    with path.open("rb") as file:
        return sum(part.count(b'"') for part in iter(lambda: file.read(1 << 20), b"")) % 2 == 1


def first_line(path: Path, encoding: str) -> str:
    """The file's first line without its end.

    Raises:
        DataError: it is not written in ``encoding``.
    """
    try:
        with path.open(encoding=encoding) as file:
            return file.readline().rstrip("\n")
    except (UnicodeError, LookupError) as error:
        raise wrong_encoding(path, encoding, error) from error


def wrong_encoding(path: Path, encoding: str, error: Exception) -> DataError:
    """The error that says in which encodings the file could be written, and how it reads then."""
    data = path.read_bytes()
    there = [f"'{name}' ({line!r})" for name, line in _readings(data)]
    if there:
        help_ = f"it can be read as {' or '.join(there)}: choose the one that reads right with"
    else:
        help_ = "name its encoding with"
    return DataError(
        f"{path} is not written in '{encoding}' ({error}); {help_} the reader's option 'encoding'"
    )


def _readings(data: bytes) -> Iterator[tuple[str, str]]:
    """Encodings that fit, each with the first line that is not plain ASCII."""
    wide = _wide_encoding(data)
    for name in (wide,) if wide else _ENCODINGS:
        try:
            text = data.decode(name)
        except UnicodeError:
            continue
        lines = text.splitlines()
        yield name, next((line for line in lines if not line.isascii()), lines[0] if lines else "")


def _wide_encoding(data: bytes) -> str:
    """``utf-16`` and its kin by their byte order mark or their zeros, or ''."""
    if data[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "utf-32"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    even, odd = data[0:200:2], data[1:200:2]
    if odd.count(0) > len(odd) / 2:
        return "utf-16-le"
    return "utf-16-be" if even.count(0) > len(even) / 2 else ""


def _require_whole(path: Path, encoding: str, separator: str) -> None:
    """Refuses a file with rows of too many or too few values; each line is named."""
    wrong: list[str] = []
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(file, delimiter=separator, strict=True)
        try:
            width = len(next(rows))
            for row in rows:
                if row and len(row) != width:
                    text = separator.join(row)[:100]
                    wrong.append(f"line {rows.line_num}: {len(row)} values, not {width}: {text}")
        except csv.Error as error:
            wrong.append(f"up to line {rows.line_num}: a quotation mark is not closed ({error})")
    if wrong:
        shown = wrong[:_SHOWN] + ([f"and {len(wrong) - _SHOWN} more"] if wrong[_SHOWN:] else [])
        title = f"{path} cannot be read as csv (a value with '{separator}' in it needs quotes):"
        raise DataError(one_message(title, shown))
