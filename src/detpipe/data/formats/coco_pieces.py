"""A long JSON list piece by piece.

The records of a piece stay in the processor's cache, and are gone before the next one: that is
twice as fast as the whole list at once, and memory holds the file's bytes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_PIECE = 1 << 18
"""Bytes of a piece: its records take about 1 MB. Four times as many take twice the time."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
"""Between two records; it may stand inside of one too, which parsing finds out."""


def pieces(
    listed: memoryview, *kinds: type[msgspec.Struct], name: str, strict: bool
) -> Iterator[tuple[bytes, list[Any]]]:
    """A JSON list of records in pieces: each a JSON list, as bytes and parsed.

    Records are of the first kind until one does not fit, then of the next. Where a piece was cut
    inside of a record, it is no valid JSON: it is cut later then.
    """
    decoders = [
        msgspec.json.Decoder(list[kind], strict=strict)  # type: ignore[valid-type]
        for kind in kinds
    ]
    start, end, count, size = 1, len(listed) - 1, 0, _PIECE
    while start < end:
        cut = _BETWEEN.search(listed, start + size, end)
        piece = b"".join((b"[", listed[start : cut.start() + 1 if cut else end], b"]"))
        try:
            records = decoders[0].decode(piece)
        except msgspec.ValidationError as error:
            if len(decoders) == 1:
                raise _placed(error, name, count) from error
            del decoders[0]
            continue
        except msgspec.DecodeError:
            if cut is None:
                raise
            size *= 2
            continue
        if records:
            yield piece, records
        count += len(records)
        start, size = cut.end() if cut else end, _PIECE


def _placed(error: msgspec.ValidationError, name: str, before: int) -> msgspec.ValidationError:
    """The error with a record's place in the file instead of in its piece."""
    text = re.sub(r"\$\[(\d+)\]", lambda m: f"$.{name}[{before + int(m[1])}]", str(error))
    return msgspec.ValidationError(text)
