"""The rules of the data check: what each one finds, how grave it is, what is done about it.

Configuration changes them by name or pattern: ``data.check.rules`` (imports nothing heavy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
Action = Literal["error", "drop", "clip", "fix", "keep", "ignore"]


class Rule(NamedTuple):
    """One kind of finding.

    Attributes:
        severity: of its rows in the ``issues`` table, unless the action is ``error``.
        action: what is done unless configuration says otherwise. ``error``: the data set is
            refused; ``drop``: the record is left out; ``clip``, ``fix``: put right in the tables,
            never in the user's files; ``keep``: it stays as it is, and is reported; ``ignore``: as
            ``keep`` or ``fix``, without a word.
        allowed: the actions that configuration may choose.
        about: what was found and what the action means, one sentence.
    """

    severity: Severity
    action: Action
    allowed: tuple[Action, ...]
    about: str


_REPORT: tuple[Action, ...] = ("keep", "ignore", "error")
_LEAVE_OUT: tuple[Action, ...] = ("drop", "error")
_EITHER: tuple[Action, ...] = ("keep", "drop", "ignore", "error")
_ALWAYS: tuple[Action, ...] = ("error",)
_SKIPPED: tuple[Action, ...] = ("error", "drop")
"""Of records that the reader leaves out anyhow."""

RULES: Mapping[str, Mapping[str, Rule]] = {
    "Pictures": {
        "no_images": Rule("error", "error", _ALWAYS,
            "there is not one image, or not one that can be used"),
        "missing_image": Rule("error", "error", _LEAVE_OUT,
            "the file is not there; `drop` leaves out the image and its boxes"),
        "undecodable_image": Rule("error", "error", _LEAVE_OUT,
            "empty, truncated, no picture, or too large to be one; `drop` as above"),
        "damaged_image": Rule("warning", "keep", _EITHER,
            "a JPEG whose data are corrupt in part: decoders go on, and fill in grey or noise"),
        "ambiguous_image": Rule("error", "error", _SKIPPED,
            "several files fit the name, or, without its leading folders, another listed image's: "
            "write the full name"),
        "unlisted_picture": Rule("info", "keep", _REPORT,
            "picture files beside the listed ones that no annotation names; they are not used"),
        "size_mismatch": Rule("warning", "fix", ("fix", "ignore", "error"),
            "the listed size is not the file's, which decides; look whether the boxes fit"),
        "size_swapped": Rule("warning", "fix", ("fix", "ignore", "error"),
            "listed width and height are exchanged; the file's size decides"),
        "size_before_exif": Rule("warning", "fix", ("fix", "ignore", "error"),
            "the listed size is that before the EXIF rotation; the picture is used upright"),
        "size_impossible": Rule("warning", "fix", ("fix", "ignore", "error"),
            "a listed width or height that no picture has (negative, 1e300); the file's size "
            "decides"),
        "more_than_8_bits": Rule("info", "fix", ("fix", "ignore", "error"),
            "each such picture is scaled to 8 bits by its own range"),
        "image_listed_twice": Rule("warning", "keep", _REPORT, "two records name one file"),
        "image_in_two_splits": Rule("warning", "keep", _REPORT,
            "two records in different splits name one file (a leak)"),
        "same_picture": Rule("info", "keep", _EITHER,
            "files of equal content; `drop` keeps the first"),
        "same_picture_in_two_splits": Rule("warning", "keep", _EITHER,
            "a leak: files of equal content in several splits; `drop` takes them out of train"),
        "near_duplicate": Rule("info", "ignore", _EITHER,
            "pictures of one split that look the same (perceptual hash); `drop` keeps the first"),
        "near_duplicate_in_two_splits": Rule("warning", "keep", _EITHER,
            "pictures that look the same in several splits; `drop` takes them out of train"),
        "near_duplicate_to_divide": Rule("info", "keep", _REPORT,
            "pictures that look the same in a set whose split is still to be drawn: frames of one "
            "video belong together (`data.split.group_pattern`)"),
        "images_without_boxes": Rule("info", "keep", _REPORT,
            "kept as images without objects"),
        "image_path": Rule("info", "keep", _REPORT,
            "found without the leading folders of the path"),
        "image_spelling": Rule("info", "keep", _REPORT,
            "found in spite of other case or Unicode form"),
        "image_ending": Rule("info", "keep", _REPORT, "found by the name without ending"),
        "image_url": Rule("info", "keep", _REPORT,
            "found by the path in a URL, with `%20` read as a blank, or without the eight digits "
            "that Label Studio puts before the name of an upload"),
    },
    "Boxes": {
        "boxes_are_shares": Rule("error", "error", _ALWAYS,
            "nearly all boxes lie within 0..1: multiply by the image's width and height"),
        "box_not_a_number": Rule("warning", "drop", _LEAVE_OUT, "a coordinate is no number"),
        "box_as_written": Rule("info", "keep", _REPORT,
            "how boxes that are no four numbers are written in the file"),
        "box_inverted": Rule("warning", "drop", ("drop", "fix", "error"),
            "x2 < x1 or y2 < y1; `fix` exchanges them"),
        "box_without_area": Rule("warning", "drop", _LEAVE_OUT,
            "no width or no height (at most 0.01 pixel)"),
        "area_not_positive": Rule("info", "fix", ("fix", "ignore", "error"),
            "the area listed with a box is 0, negative or no number; the box's own is used"),
        "box_outside": Rule("warning", "drop", _LEAVE_OUT, "wholly outside its image"),
        "box_of_unknown_image": Rule("warning", "drop", _LEAVE_OUT, "its image is not listed"),
        "box_outside_mismatched_image": Rule("error", "error", _SKIPPED,
            "outside an image whose listed size was wrong: it was made for another picture"),
        "box_partly_outside": Rule("warning", "clip", ("clip", "drop", "error"),
            "beyond the edge by more than 0.01 pixel; `clip` cuts it at the edge"),
        "tiny_box": Rule("info", "keep", _EITHER,
            "smaller than `data.check.tiny` pixels at the size at which the model sees it"),
        "many_boxes": Rule("warning", "keep", _REPORT,
            "an image has more objects than `evaluate.max_detections` allows to be found"),
        "duplicate_box": Rule("warning", "keep", _EITHER,
            "same image, class and corners: one object counted twice; `drop` keeps the first"),
        "duplicate_annotation_id": Rule("warning", "fix", ("fix", "ignore", "error"),
            "an id is used twice, or missing; all are numbered anew"),
    },
    "Classes and splits": {
        "no_class_name": Rule("error", "error", _LEAVE_OUT[::-1], "a box without a class"),
        "class_name_cleaned": Rule("info", "fix", ("fix", "ignore", "error"),
            "blanks around a name taken off, letters in Unicode form NFC: one class"),
        "similar_class_names": Rule("info", "keep", _REPORT,
            "names that differ in case, blanks or punctuation only; `data.classes.rename` makes "
            "them one"),
        "unreadable_text": Rule("warning", "keep", _REPORT,
            "a name holds replacement or control characters: read in the wrong encoding"),
        "class_renamed": Rule("info", "keep", _REPORT,
            "as `data.classes.rename` says; two that get the same name become one class"),
        "class_dropped": Rule("info", "keep", _REPORT,
            "boxes left out as `data.classes` says; their images stay, without these objects"),
        "class_not_in_set": Rule("warning", "keep", _REPORT,
            "a class of some of the joined data sets only: its objects in the pictures of the "
            "others may be unlabelled, and are then learned as background"),
        "unknown_class": Rule("error", "error", _LEAVE_OUT[::-1],
            "a class that is not in the data set's list of classes"),
        "class_without_boxes": Rule("info", "drop", ("drop", "keep", "error"),
            "left out of the model; `keep` makes it an output that nothing trains"),
        "class_not_in_split": Rule("warning", "keep", _REPORT,
            "a class has boxes in some splits only"),
        "split_without_boxes": Rule("warning", "keep", _REPORT,
            "no ground truth: its scores will be empty"),
    },
    "Format": {
        "format": Rule("info", "keep", _REPORT,
            "what `reader: auto` took the folder for, by which files, and what it left aside"),
        "set_ids": Rule("info", "keep", _REPORT,
            "joined data sets use the same ids: the set's name is put in front"),
    },
    "COCO": {
        "no_file_name": Rule("error", "error", _SKIPPED, "an image record without `file_name`"),
        "duplicate_image_id": Rule("error", "error", _SKIPPED,
            "one id, several files; of the same file it is listed once, with a warning"),
        "duplicate_category_id": Rule("error", "error", _ALWAYS, "one id, several names"),
        "duplicate_category_name": Rule("warning", "fix", ("fix", "ignore", "error"),
            "categories of one name become one class"),
        "no_categories": Rule("warning", "keep", _REPORT,
            "names are taken from the other files, or the number is the name"),
        "class_not_in_file": Rule("warning", "keep", _REPORT,
            "the class is in other files of the set only"),
        "no_annotations": Rule("warning", "keep", _REPORT,
            "`annotations` is missing: its images are taken as images without objects"),
        "image_ids": Rule("info", "keep", _REPORT,
            "the files use the same ids: the split is put in front"),
        "annotation_ids": Rule("info", "keep", _REPORT, "likewise, or numbered anew"),
        "id_spelling": Rule("info", "keep", _REPORT, "ids matched as numbers (`\"0001\"` = 1)"),
        "box_from_segmentation": Rule("info", "keep", _REPORT,
            "records without `bbox`: the box around their segmentation is used"),
        "ignore_flag": Rule("warning", "keep", _REPORT,
            "`ignore` is set: taken as ordinary objects, as pycocotools does"),
        "lvis_federated": Rule("info", "keep", _REPORT,
            "images list the classes that were looked for: kept, and "
            "`detpipe.evaluate.lvis.score` goes by it"),
    },
    "VOC": {
        "truncated_objects": Rule("info", "keep", _REPORT, "cut off by the edge of the image, or "
            "hidden in part; used like the others"),
        "rotated_boxes": Rule("info", "keep", _REPORT, "turned objects: an upright box is used"),
        "xml_other_ending": Rule("warning", "keep", _REPORT,
            "VOC annotations with an ending that is not `suffix`; they are not read"),
        "no_annotation_file": Rule("error", "error", _SKIPPED,
            "a list names an image without XML; `drop` leaves it out"),
        "not_in_a_list": Rule("info", "keep", _REPORT, "XML files in none of the lists"),
        "other_file_name": Rule("warning", "keep", _REPORT,
            "`<filename>` names another picture than the one named like the XML, which is used"),
    },
    "YOLO": {
        "malformed_line": Rule("error", "error", _SKIPPED, "a label line that cannot be read"),
        "labels_in_pixels": Rule("error", "error", _ALWAYS,
            "most coordinates are beyond 0..1: they must be shares of the image"),
        "share_beyond_0_1": Rule("warning", "keep", _REPORT,
            "treated as a box that lies outside its image"),
        "no_labels": Rule("error", "error", ("error", "keep", "ignore"),
            "not one image of a folder has a label file; a warning where other folders have"),
        "no_label_file": Rule("info", "keep", _REPORT, "taken as images without objects"),
        "label_without_image": Rule("warning", "keep", _REPORT,
            "label files for which there is no picture; they are not used"),
        "label_encoding": Rule("info", "keep", _REPORT, "label files in UTF-16"),
        "polygons": Rule("info", "keep", _REPORT, "their boxes are used"),
        "keypoints": Rule("info", "keep", _REPORT, "their boxes are used"),
        "path_assumed": Rule("info", "keep", _REPORT, "a folder of the YAML was found elsewhere"),
        "no_class_names": Rule("warning", "keep", _REPORT,
            "`names` is missing: numbers serve as names"),
        "class_count": Rule("warning", "keep", _REPORT, "`nc` and `names` differ: `names` counts"),
        "split_without_images": Rule("warning", "keep", _REPORT,
            "the YAML names a folder without images"),
    },
    "csv": {
        "columns": Rule("info", "keep", _REPORT, "how the columns were told"),
        "decimal_comma": Rule("error", "error", _ALWAYS, "write numbers with a decimal point"),
        "empty_image_row": Rule("info", "keep", _REPORT,
            "rows of zeros or blanks are images without objects"),
        "annotation_files": Rule("info", "keep", _REPORT, "which of several csv files were read"),
        "class_list": Rule("info", "keep", _REPORT, "classes are taken from a file beside the csv"),
        "image_in_two_groups": Rule("warning", "keep", _REPORT,
            "rows of one image name several groups: the first counts"),
        "score_column": Rule("warning", "keep", _REPORT,
            "the file may hold predictions; its boxes are taken as the truth"),
    },
    "Open Images": {
        "group_of": Rule("info", "keep", _REPORT, "`IsGroupOf` boxes are crowd regions"),
        "unnamed_label": Rule("warning", "keep", _REPORT,
            "a label that the file of class names lacks: it is the name"),
        "images_without_rows": Rule("info", "keep", _REPORT,
            "pictures without a row are images without objects"),
        "not_downloaded": Rule("info", "keep", _REPORT,
            "images without a picture, left out by the reader's option `partial`"),
        "other_annotations": Rule("info", "keep", _REPORT,
            "files of image labels, masks and relations, which are not read"),
    },
    "CrowdHuman": {
        "ignore_regions": Rule("info", "keep", _REPORT,
            "boxes to be ignored are crowd regions"),
        "object_without_box": Rule("warning", "keep", _REPORT,
            "an object without the box that is asked for is left out"),
    },
}  # fmt: skip
"""Group → rule → what it is. The check itself, or the reader of the group's name, finds it."""

RULE_OF: Mapping[str, Rule] = {
    name: rule for group in RULES.values() for name, rule in group.items()
}
"""Rule by name."""
