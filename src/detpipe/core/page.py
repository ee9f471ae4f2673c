"""One HTML file that people open: tables that sort, pictures in it, nothing loaded from elsewhere.

All that comes from a user (names of classes, paths, messages) goes through :func:`text`; what the
functions here return is HTML and is not escaped again.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

MISSING = "–"
"""What stands in a table where there is no number."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b6470; --line: #dde1e6;
  --back: #fff; --band: #f4f6f8; --link: #0b5cad; --bad: #b00020; --good: #12703a;
  --doubt: #8a5a00 }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #a3acb8;
  --line: #3a414b; --back: #16191d; --band: #20252b; --link: #7db8f5; --bad: #ff8a8a;
  --good: #6fd39a; --doubt: #f0c36a } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px;
  padding: 0 1rem; color: var(--ink); background: var(--back) }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere }
h2 { margin-top: 2.2rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line) }
p { max-width: 75ch; overflow-wrap: anywhere } a { color: var(--link) }
.wide { overflow: auto; max-height: 75vh; margin: .8rem 0 }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums }
td, th { text-align: left; vertical-align: top; padding: .25rem .55rem;
  border-bottom: 1px solid var(--line) }
thead th { position: sticky; top: 0; background: var(--band); vertical-align: bottom }
td { overflow-wrap: anywhere; min-width: 3ch } .number { text-align: right; white-space: nowrap }
th button { all: unset; cursor: pointer } th button:focus-visible { outline: 2px solid var(--link) }
th button::after { content: "\\2195"; opacity: .35; padding-left: .15em; font-weight: 400 }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1 }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1 }
.grid { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)) }
.facts { display: flex; flex-wrap: wrap; gap: .8rem 2.4rem; margin: .8rem 0 }
.facts div { display: flex; flex-direction: column } .facts strong { font-size: 1.7rem;
  line-height: 1.2; font-weight: 650 }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem }
figure { margin: .4rem 0 }
figcaption { font-size: 13px; color: var(--soft); overflow-wrap: anywhere }
img { max-width: 100%; height: auto }
.error, .bad { color: var(--bad); font-weight: 600 } .good { color: var(--good); font-weight: 600 }
.warning { color: var(--doubt) } .soft { color: var(--soft) }
@media print { body { margin: 0; max-width: none; font-size: 11px }
  nav { display: none } .wide { overflow: visible; max-height: none }
  thead { display: table-header-group }
  thead th { position: static } th button::after { content: none }
  figure, tr { break-inside: avoid } h2, h3 { break-after: avoid } }
"""

# A missing number stays below in both directions; a click on the header that sorts turns it round.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable"))
  table.tHead.addEventListener("click", event => {
    const head = event.target.closest("th");
    if (!head) return;
    const way = head.ariaSort === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
    head.ariaSort = way;
    const number = head.classList.contains("number"), sign = way === "ascending" ? 1 : -1;
    const value = row => {
      const cell = row.cells[head.cellIndex];
      return number ? parseFloat(cell.dataset.value) : cell.textContent;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].map(row => [value(row), row]).sort(([a], [b]) => number
      ? isNaN(a) - isNaN(b) || sign * (a > b) - sign * (a < b)
      : sign * a.localeCompare(b, undefined, {numeric: true})).map(([, row]) => row));
  });
"""
# Belt and braces for "no request to anywhere": the browser refuses it as well.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html(title: str, parts: Sequence[str]) -> str:
    """A whole page: style and script inside, readable on a dark or light screen and on paper.

    Args:
        title: plain text; the page's name and its heading.
        parts: HTML, one after the other: of :func:`section`, :func:`table`, :func:`picture`.
    """
    name = text(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{name}</h1>\n{''.join(parts)}\n<script>{_SCRIPT}</script></body></html>\n"
    )


def section(title: str, parts: Sequence[str]) -> str:
    """A heading (plain text) and HTML below it; the heading's words, joined by -, are its id."""
    return (
        f'<section id="{text(anchor(title))}"><h2>{text(title)}</h2>\n{"".join(parts)}</section>\n'
    )


def anchor(title: str) -> str:
    """What a link to a :func:`section` has after its ``#``."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def paragraph(words: str, kind: str = "") -> str:
    """Plain text as a paragraph; ``kind``: "", good, bad, warning or soft."""
    return f'<p class="{kind}">{text(words)}</p>\n' if kind else f"<p>{text(words)}</p>\n"


def facts(numbers: Sequence[tuple[str, str, str]]) -> str:
    """The few numbers that matter, large: (what, number, note), plain text."""
    cells = "".join(
        f'<div><span class="soft">{text(what)}</span><strong>{text(number)}</strong>'
        f'<span class="soft">{text(note)}</span></div>'
        for what, number, note in numbers
    )
    return f'<div class="facts">{cells}</div>\n'


def contents(titles: Sequence[str]) -> str:
    """Links to the :func:`section` of each title."""
    links = "".join(f'<a href="#{text(anchor(title))}">{text(title)}</a>' for title in titles)
    return f"<nav>{links}</nav>\n"


def grid(figures: Sequence[str]) -> str:
    """Pictures beside each other, as many as the window has room for."""
    return f'<div class="grid">{"".join(figures)}</div>\n' if figures else ""


def table(frame: pd.DataFrame, *, decimals: int = 2, sortable: bool = True) -> str:
    """A frame without its index; numbers to the right, no number as –.

    Args:
        frame: numbers, text, bools (as yes and no); columns of any name.
        decimals: of the columns that are not whole numbers; sorting uses every digit.
        sortable: a click on a header, or Enter on it, sorts by that column: numbers by their
            size with the missing ones last, else as text.
    """
    columns = [(str(name), frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    numeric = [_is_number(values) for _, values in columns]
    heads, cells = [], []
    for (name, values), number in zip(columns, numeric, strict=True):
        kind = ' class="number"' if number else ""
        if sortable:
            heads.append(
                f'<th scope="col"{kind} aria-sort="none"><button type="button">{text(name)}'
                "</button></th>"
            )
        else:
            heads.append(f'<th scope="col"{kind}>{text(name)}</th>')
        cells.append([_cell(value, number, decimals) for value in values.tolist()])
    rows = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="wide"><table{kind}><thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _is_number(values: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _cell(value: Any, number: bool, decimals: int) -> str:
    missing = bool(pd.isna(value)) if pd.api.types.is_scalar(value) else False
    if number:
        if missing:
            return f'<td class="number" data-value="">{MISSING}</td>'
        shown = str(value) if isinstance(value, int) else f"{value:z.{decimals}f}"
        return f'<td class="number" data-value="{value!r}">{shown}</td>'
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"<td>{MISSING if missing else text(value)}</td>"


def picture(picture: Image | Figure, caption: str, kind: Literal["jpeg", "png"] = "jpeg") -> str:
    """A picture in the page itself, as large as it is; ``caption`` is plain text.

    Photographs are small as JPEG; drawings with lines and text are small and sharp as PNG.
    """
    from PIL.Image import Image as Pillow

    buffer = io.BytesIO()
    if isinstance(picture, Pillow):
        if kind == "jpeg" and picture.mode not in ("RGB", "L"):
            picture = picture.convert("RGB")
        picture.save(buffer, format=kind, quality=85)  # PNG has no quality, and ignores it
    else:
        picture.savefig(buffer, format=kind, dpi=100)
    source = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    words = text(caption)
    return f'<figure><img src="{source}" alt="{words}"><figcaption>{words}</figcaption></figure>\n'


def text(value: object) -> str:
    """A value as HTML text or attribute, whatever is in it; what no file can hold becomes ?."""
    return escape(str(value).encode("utf-8", "replace").decode())
