"""Csv files as tables of text, with errors that name file and line."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.data.formats.walk import why

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
        header: whether the first line names the columns; without, they are ``0``, ``1``, …. Blank
            lines before it, and Excel's ``sep=;``, do not count.
        only: the columns to read, those of them that are there; None for all.
        separator: between two values.
        encoding: how the file is written.

    Raises:
        DataError: it cannot be read, another encoding (those that would do are named), rows with
            too many or too few values or an open quotation mark (each line is named), an empty
            file.
    """
    from pyarrow import ArrowInvalid, string
    from pyarrow import csv as arrow

    records = ((n, row) for n, row in _records(path, encoding, separator) if not is_idle(row))
    before, first = next(records, (0, []))
    if not first:
        raise DataError(f"{path} cannot be read as csv: it is empty")
    names = _different(first) if header else [str(number) for number in range(len(first))]
    wanted = [name for name in names if only is None or name in only]
    malformed: list[object] = []

    def leave_out(row: object) -> str:
        malformed.append(row)
        return "skip"

    try:
        table = arrow.read_csv(
            path,
            arrow.ReadOptions(
                column_names=names, skip_rows=before + int(header), encoding=_arrow(encoding)
            ),
            arrow.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=leave_out
            ),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(names, string()),
                strings_can_be_null=False,
                include_columns=wanted,
            ),
        )
    except (UnicodeError, LookupError) as error:
        raise wrong_encoding(path, encoding, error) from error
    except ArrowInvalid as error:
        if "UTF8" in str(error):
            raise wrong_encoding(path, encoding, error) from error
        if "Could not skip" in str(error):  # a header without a line end, and nothing else
            return pd.DataFrame(columns=wanted, dtype="str")
        raise DataError(f"{path} cannot be read as csv: {error}") from error
    if malformed or _odd_quotes(path, records=table.num_rows + before + int(header)):
        _require_whole(path, encoding, separator)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _records(path: Path, encoding: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows, and how many lines stand before each."""
    before = 0
    try:
        with path.open(encoding=encoding, newline="") as file:
            rows = csv.reader(file, delimiter=separator, strict=True)
            for row in rows:
                yield before, row
                before = rows.line_num
    except (UnicodeError, LookupError) as error:
        raise wrong_encoding(path, encoding, error) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why(path, error)}") from error
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as csv: line {rows.line_num}: {error}") from error


def is_idle(row: Sequence[str]) -> bool:
    """Whether a first row is blank, or Excel's ``sep=;``."""
    return not any(map(str.strip, row)) or re.fullmatch("sep=.?", row[0], re.I) is not None


def _different(names: Sequence[str]) -> list[str]:
    """The names, the second of two equal ones as ``name.1``, or the next number that is free."""
    seen: Counter[str] = Counter()
    taken = set(names)
    result = []
    for name in names:
        new = name
        while seen[name] and new in taken:
            new, seen[name] = f"{name}.{seen[name]}", seen[name] + 1
        seen[name] += not seen[name]
        taken.add(new)
        result.append(new)
    return result


def _arrow(encoding: str) -> str:
    """As Arrow calls it: its own reading of UTF-8 is the fast one, and drops the mark in front."""
    name = codecs.lookup(encoding).name
    return "utf8" if name in ("utf-8", "utf-8-sig") else name


def _odd_quotes(path: Path, *, records: int) -> bool:
    """Whether quotation marks may not be as they must, which Arrow passes over.

    One may be open at the end; or hold line ends, which is seldom meant; or be escaped by a
    backslash.
    """
    quotes = lines = 0
    last = b""
    with path.open("rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            if b'\\"' in last + part:
                return True
            quotes, lines, last = quotes + part.count(b'"'), lines + part.count(b"\n"), part[-1:]
    return quotes % 2 == 1 or (quotes > 0 and lines > records)


def first_line(path: Path, encoding: str) -> str:
    """The file's first line without its end; blank ones and ``sep=;`` do not count.

    Raises:
        DataError: it cannot be read, or is not written in ``encoding``.
    """
    try:
        with path.open(encoding=encoding) as file:
            return next((text for line in file if not is_idle([text := line.rstrip("\n")])), "")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why(path, error)}") from error
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
            width = 0
            for row in rows:
                width = width or (0 if is_idle(row) else len(row))
                if row and width and len(row) != width:
                    text = separator.join(row)[:100]
                    wrong.append(f"line {rows.line_num}: {len(row)} values, not {width}: {text}")
        except csv.Error as error:
            wrong.append(
                f"up to line {rows.line_num}: a quotation mark is not closed, or one in a text is "
                f"not written twice ({error})"
            )
    if wrong:
        shown = wrong[:_SHOWN] + ([f"and {len(wrong) - _SHOWN} more"] if wrong[_SHOWN:] else [])
        title = f"{path} cannot be read as csv (a value with '{separator}' in it needs quotes):"
        raise DataError(one_message(title, shown))
