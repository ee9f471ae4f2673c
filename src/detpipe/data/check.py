"""The check between a reader and everything else: what is wrong is found before training starts.

Findings become rows of the ``issues`` table. What has one right answer is put right (and said),
what :class:`CheckConfig` decides is done its way, and all errors are raised together. The user's
files are never changed.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.check_boxes import check_boxes
from detpipe.data.check_config import CheckConfig
from detpipe.data.check_images import check_images
from detpipe.data.check_sets import check_names, check_sets
from detpipe.data.config import Resize
from detpipe.data.findings import Findings, as_configured
from detpipe.data.formats.base import Annotations

logger = logging.getLogger(__name__)

_SHOWN = 20
"""Errors spelled out in the message, and rules in the table of the log; the file has all."""
_WIDTH = 110
"""Letters of a finding in the table of the log."""
_GRAVITY = ("error", "warning", "info")


class CheckError(DataError):
    """The data set cannot be used as it is.

    Attributes:
        issues: the whole ``issues`` table, warnings too.
    """

    def __init__(self, message: str, issues: pd.DataFrame) -> None:
        super().__init__(message)
        self.issues = issues


def check(
    found: Annotations, root: Path, config: CheckConfig, *, cache: Path | None = None
) -> Annotations:
    """:func:`inspect`, then :func:`require_valid`.

    Raises:
        CheckError: something is an error.
    """
    checked = inspect(found, root, config, cache=cache)
    require_valid(checked.issues, root)
    return checked


def require_valid(issues: pd.DataFrame, root: Path) -> None:
    """Refuses a data set in which something is an error.

    Raises:
        CheckError: the message spells out the first 20 and counts the rest; ``issues`` has all.
    """
    errors = issues[issues["severity"] == "error"]
    if len(errors):
        raise CheckError(_message(errors, Path(root)), issues)


def inspect(
    found: Annotations,
    root: Path,
    config: CheckConfig,
    *,
    cache: Path | None = None,
    resize: Resize | None = None,
    max_detections: int | None = None,
) -> Annotations:
    """Looks at every annotation and every image, and puts right what can be.

    Args:
        found: what a reader gave.
        root: the folder that ``images.path`` is relative to.
        config: what to do about findings.
        cache: where to keep what was found out about files, for the next time.
        resize: how images get the size at which the model sees them.
        max_detections: how many objects of an image can be found at all; None does not ask.

    Returns:
        The tables with true image sizes (the files', EXIF applied), boxes inside their images and
        with area, ids of annotations that name one box each, and every finding, the reader's too.
    """
    findings = Findings(config)
    images, classes = IMAGES.make(found.images), CLASSES.make(found.classes)
    boxes = BOXES.make(found.boxes)
    check_names(images, classes, findings)
    if images.empty:
        findings.add_one("no_images", "", way_out="the data set holds no image: look at its path")
    else:
        images, boxes = _check_content(
            images, boxes, classes, findings,
            root=Path(root), cache=cache, resize=resize, max_detections=max_detections,
        )  # fmt: skip
    issues = pd.concat(
        [as_configured(found.issues, config), findings.log.table()], ignore_index=True
    )
    _report(issues, before=found, images=len(images), boxes=len(boxes))
    return Annotations(images, boxes, classes, issues)


def _check_content(
    listed: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    findings: Findings,
    *,
    root: Path,
    cache: Path | None,
    resize: Resize | None,
    max_detections: int | None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The images and the boxes that can be used."""
    images, mismatched = check_images(listed, root, findings.config, findings.log, cache=cache)
    images = images.reset_index(drop=True)
    if images.empty:
        way_out = "not one image of the data set can be used"
        findings.add_one("no_images", "", way_out=way_out)
        return images, boxes.iloc[:0]
    usable = check_boxes(
        listed, images, boxes, classes, findings, mismatched=mismatched, resize=resize
    )
    check_sets(images, usable, classes, findings, max_detections=max_detections)
    return images, usable.table


# --- words -------------------------------------------------------------------------------------


def _report(issues: pd.DataFrame, *, before: Annotations, images: int, boxes: int) -> None:
    """One block of the log: what is left, and a line a rule with its count and first finding."""
    lines = [
        f"data check: {images} of {len(before.images)} images and {boxes} of "
        f"{len(before.boxes)} boxes can be used"
    ]
    groups = issues.groupby(["severity", "rule"], sort=False)
    table = sorted(
        (
            (_GRAVITY.index(str(severity)), str(rule), len(rows), _spelled(rows.iloc[0]))
            for (severity, rule), rows in groups
        ),
        key=lambda row: row[0],
    )
    for gravity, rule, count, found in table[:_SHOWN]:
        first = " ".join(found.split())  # names may hold line ends
        text = first if len(first) <= _WIDTH else f"{first[: _WIDTH - 1]}…"
        lines.append(f"{_GRAVITY[gravity]:7}  {count:>7}  {rule}: {text}")
    if len(table) > _SHOWN:
        more = sum(row[2] for row in table[_SHOWN:])
        lines.append(f"and {more} more of {len(table) - _SHOWN} other rules")
    level = logging.INFO if issues["severity"].eq("info").all() else logging.WARNING
    # Square brackets would be taken for markup by rich's log handler.
    block = "\n    ".join(lines).replace("[", "(").replace("]", ")")
    logger.log(level, "%s", block)


def _spelled(row: pd.Series) -> str:
    where = row["file"] or (f"image {row['image_id']}" if row["image_id"] else "")
    where += f", annotation {row['annotation_id']}" if row["annotation_id"] else ""
    found = ": ".join(part for part in (where, row["value"]) if part)
    return f"{found} ({row['action']})" if row["action"] else found


def _message(errors: pd.DataFrame, root: Path) -> str:
    lines = [f"{row['rule']}: {_spelled(row)}" for _, row in errors.head(_SHOWN).iterrows()]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    counts = ", ".join(f"{rule} {count}" for rule, count in errors["rule"].value_counts().items())
    return one_message(
        f"the data set in {root} cannot be used as it is, {len(errors)} error(s) ({counts}):", lines
    )
