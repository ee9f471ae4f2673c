"""Every rule: that it is found, and that each action it allows does what it says."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.check import CheckError, inspect, require_valid
from detpipe.data.check_config import CheckConfig
from detpipe.data.findings import as_configured
from detpipe.data.formats.base import Annotations, IssueLog
from detpipe.data.prepare import list_classes
from detpipe.data.rules import RULE_OF, RULES

FINE = ("a", "cat", 4, 5, 24, 35), ("b", "dog", 0, 0, 64, 48)
BOTH = *FINE, ("a", "dog", 8, 8, 30, 30), ("b", "cat", 9, 8, 30, 30)
SPLITS = {"a": "train", "b": "val"}
NAN = math.nan


@dataclass(frozen=True)
class Case:
    """How to make a data set that a rule finds fault with, and what becomes of it.

    Attributes:
        make: called with the fixture ``data_set`` and its folder.
        images: ids of images that ``drop`` leaves out.
        boxes: ids of boxes that ``drop`` leaves out.
        moved: action → what becomes of box "2".
        options: of the check.
    """

    make: Callable[[Callable[..., Annotations], Path], Annotations]
    images: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    moved: dict[str, list[float]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def third(*box: Any, **more: Any) -> Case:
    """One box too many."""
    return Case(lambda data_set, _: data_set(*FINE, box), boxes=("2",), **more)


def of_files(change: Callable[[Path], object], *boxes: Any, **more: Any) -> Case:
    """A file that is not as it should be; its images may be of two splits."""

    def make(data_set: Callable[..., Annotations], folder: Path) -> Annotations:
        found = data_set(*(boxes or FINE), splits=splits)
        change(folder)
        return found

    splits = more.pop("splits", None)
    return Case(make, **more)


def of_size(width: int, height: int, *, orientation: int = 1) -> Case:
    def make(data_set: Callable[..., Annotations], folder: Path) -> Annotations:
        exif = Image.Exif()
        exif[0x0112] = orientation
        found = data_set(*FINE)
        noise((folder / "a.png"), exif=exif)
        found.images[["width", "height"]] = [[width, height], [0, 0]]
        found.boxes.loc[0, BOX_COLUMNS] = [1.0, 2.0, 20.0, 30.0]
        return found

    return Case(make)


def noise(path: Path, **options: Any) -> None:
    pixels = np.random.default_rng(5).integers(0, 255, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(path, **options)


def edited(**columns: Any) -> Case:
    """Columns of ``images`` or ``boxes``, such as ``boxes_area``, set to other values."""

    def make(data_set: Callable[..., Annotations], folder: Path) -> Annotations:
        found = data_set(*BOTH, splits=SPLITS)
        for name, values in columns.items():
            table, _, column = name.partition("_")
            getattr(found, table)[column] = values
        return found

    return Case(make)


def of_names(*names: str) -> Case:
    return Case(lambda data_set, _: data_set(*FINE, classes=("cat", "dog", *names)))


def smooth(folder: Path) -> None:
    """The second picture is the first one, a little brighter."""
    coarse = np.random.default_rng(2).integers(20, 230, (6, 8, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC))
    Image.fromarray(pixels).save(folder / "a.png")
    Image.fromarray(np.clip(pixels, 0, 250) + np.uint8(3)).save(folder / "b.png")


def damaged(folder: Path) -> None:
    """An end mark in the middle of a JPEG's data."""
    noise(folder / "a.png", format="JPEG", quality=92)
    data = bytearray((folder / "a.png").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3] = b"\xff\xd9\xff"
    (folder / "a.png").write_bytes(bytes(data))


def alike(folder: Path) -> None:
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())


def deep(folder: Path) -> None:
    grey = np.random.default_rng(1).integers(0, 60_000, (48, 64)).astype(np.uint16)
    Image.fromarray(grey).save(folder / "a.png")


def shares(data_set: Callable[..., Annotations], folder: Path) -> Annotations:
    return data_set(*(("ab"[n % 2], "cat", 0.1, 0.2, 0.6 + n / 100, 0.9) for n in range(9)))


CASES = {
    "no_images": Case(lambda data_set, _: data_set(pictures=())),
    "missing_image": of_files(lambda folder: (folder / "a.png").unlink(), images=("a",)),
    "undecodable_image": of_files(lambda f: (f / "a.png").write_bytes(b"\x89PNG"), images=("a",)),
    "damaged_image": of_files(damaged, images=("a",)),
    "unlisted_picture": of_files(lambda folder: noise(folder / "c.png")),
    "size_mismatch": of_size(640, 480),
    "size_swapped": of_size(48, 64),
    "size_before_exif": of_size(64, 48, orientation=6),
    "more_than_8_bits": of_files(deep),
    "image_listed_twice": edited(images_path="a.png", images_split="train"),
    "image_in_two_splits": edited(images_path="a.png"),
    "same_picture": of_files(alike, images=("b",)),
    "same_picture_in_two_splits": of_files(alike, *BOTH, splits=SPLITS, images=("a",)),
    "near_duplicate": of_files(smooth, images=("b",)),
    "near_duplicate_to_divide": of_files(smooth),
    "near_duplicate_in_two_splits": of_files(smooth, *BOTH, splits=SPLITS, images=("a",)),
    "images_without_boxes": Case(lambda data_set, _: data_set(FINE[0])),
    "boxes_are_shares": Case(shares),
    "box_not_a_number": third("a", "cat", NAN, 1, 2, 3),
    "box_inverted": third("a", "cat", 20, 10, 9, 31, moved={"fix": [9, 10, 20, 31]}),
    "box_without_area": third("a", "cat", 10, 10, 10, 20),
    "area_not_positive": edited(boxes_area=[0.0, 1.0, 1.0, 1.0]),
    "box_outside": third("a", "cat", 70, 10, 90, 20),
    "box_of_unknown_image": third("z", "cat", 1, 2, 3, 4),
    "box_outside_mismatched_image": Case(
        lambda data_set, _: data_set(*FINE, ("a", "cat", 300, 300, 400, 400), sizes=(640, 480)),
        boxes=("2",),
    ),
    "box_partly_outside": third("a", "cat", -5, 40, 9, 99, moved={"clip": [0, 40, 9, 48]}),
    "tiny_box": third("a", "cat", 5, 5, 8, 30),
    "many_boxes": Case(lambda data_set, _: data_set(*BOTH), options={"max_detections": 1}),
    "duplicate_box": third(*FINE[0]),
    "duplicate_annotation_id": edited(boxes_annotation_id=["0", "1", "1", "2"]),
    "no_class_name": third("a", "", 1, 2, 30, 40),
    "unknown_class": third("a", "cow", 1, 2, 30, 40),
    "similar_class_names": of_names("Dog"),
    "unreadable_text": of_names("cafÃ©"),
    "class_without_boxes": of_names("cow"),
    "class_not_in_split": Case(lambda data_set, _: data_set(*FINE, splits=SPLITS)),
    "split_without_boxes": Case(lambda data_set, _: data_set(FINE[0], splits=SPLITS)),
}  # fmt: skip
"""Of the rules that the check looks for itself."""

CHECKS = ("check.py", "check_boxes.py", "check_images.py", "check_sets.py", "copies.py")


def with_actions(rules):
    return [(rule, action) for rule in rules for action in RULE_OF[rule].allowed]


def usual_severity(rule: str, action: str) -> str:
    own = RULE_OF[rule].severity
    if action == "error":
        return "error"
    return "warning" if own == "error" else own


@pytest.mark.parametrize(("rule", "action"), with_actions(CASES))
def test_a_rule_of_the_check_is_found_and_its_actions_do_what_they_say(
    tmp_path, data_set, rule, action
):
    case = CASES[rule]
    found = case.make(data_set, tmp_path)
    config = CheckConfig(rules={rule: action}, workers=0)
    checked = inspect(found, tmp_path, config, **case.options)
    severities = checked.issues["severity"][checked.issues["rule"] == rule]
    if action == "ignore":
        assert severities.empty
    else:
        assert set(severities) == {usual_severity(rule, action)}
    if action == "error":
        with pytest.raises(CheckError, match=rf"\n- {rule}: "):
            require_valid(checked.issues, tmp_path)
        return
    require_valid(checked.issues, tmp_path)
    gone = case.images if action == "drop" else ()
    images = [image for image in found.images["image_id"] if image not in gone]
    assert checked.images["image_id"].tolist() == images
    boxes = found.boxes.copy()
    if action == "drop":
        boxes = boxes[~boxes["annotation_id"].isin(case.boxes) & boxes["image_id"].isin(images)]
    if rule == "duplicate_annotation_id":
        boxes["annotation_id"] = ["1", "2", "3", "4"]
    if action in case.moved:
        boxes.loc[boxes["annotation_id"] == "2", BOX_COLUMNS] = case.moved[action]
    columns = ["image_id", "annotation_id", "class_name", *BOX_COLUMNS]
    assert checked.boxes[columns].to_numpy().tolist() == boxes[columns].to_numpy().tolist()
    assert (checked.boxes["area"] > 0).all()
    assert set(zip(checked.images["width"], checked.images["height"], strict=True)) <= {
        (64, 48), (48, 64) if rule == "size_before_exif" else (64, 48)
    }  # fmt: skip
    if rule == "class_without_boxes":
        left = list_classes(checked.classes, checked.boxes, config)["class_name"].tolist()
        assert left == ["cat", "dog"] if action == "drop" else ["cat", "dog", "cow"]


@pytest.mark.parametrize("rule", [rule for rule in CASES if len(RULE_OF[rule].allowed) > 1])
def test_a_rule_of_the_check_takes_another_severity(tmp_path, data_set, rule):
    case, own = CASES[rule], RULE_OF[rule]
    action = next(action for action in own.allowed if action not in ("error", "ignore"))
    severity = "warning" if usual_severity(rule, action) == "info" else "info"
    config = CheckConfig(rules={rule: {"action": action, "severity": severity}}, workers=0)
    issues = inspect(case.make(data_set, tmp_path), tmp_path, config, **case.options).issues
    assert set(issues["severity"][issues["rule"] == rule]) == {severity}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_of_the_check_is_found_by_default(tmp_path, data_set, rule):
    case, own = CASES[rule], RULE_OF[rule]
    issues = inspect(case.make(data_set, tmp_path), tmp_path, CheckConfig(workers=0),
                     **case.options).issues  # fmt: skip
    expected = set() if own.action == "ignore" else {own.severity}
    assert set(issues["severity"][issues["rule"] == rule]) == expected


@pytest.mark.parametrize(("rule", "action"), with_actions(set(RULE_OF) - set(CASES)))
def test_a_rule_of_a_reader_follows_configuration(rule, action):
    log = IssueLog()
    log.add(RULE_OF[rule].severity, rule, file="x", action="of the reader")
    issues = as_configured(log.table(), CheckConfig(rules={rule: action}))
    assert issues["rule"].tolist() == ([] if action == "ignore" else [rule])
    assert set(issues["severity"]) <= {usual_severity(rule, action)}


# --- the table ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules(project_root) -> dict[str, list[ast.AST]]:
    """Module → the nodes of its code."""
    folder = project_root / "src/detpipe/data"
    return {
        path.relative_to(folder).as_posix(): list(ast.walk(ast.parse(path.read_text("utf-8"))))
        for path in folder.rglob("*.py") if path.name != "rules.py"
    }  # fmt: skip


def texts(nodes) -> set[str]:
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def named_as_rules(nodes) -> set[str]:
    """What code passes where a rule is asked for."""
    places = {"add_rows": 1, "judge": 0, "add_one": 0, "setting": 0, "add": 0}
    names = set()
    for node in nodes:
        attribute = getattr(getattr(node, "func", None), "attr", "")
        if isinstance(node, ast.Call) and attribute in places and node.args:
            second = attribute == "add" and severity_first(node.args[0])
            at = 1 if second else places[attribute]
            rule = node.args[at] if len(node.args) > at else node.args[0]
            if attribute != "add" or len(node.args) == 2:  # a set's add has one argument
                parts = [rule.body, rule.orelse] if isinstance(rule, ast.IfExp) else [rule]
                names |= texts(parts)
    return names


def severity_first(node: ast.expr) -> bool:
    words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
    return bool(words & {"error", "warning", "info"})


def test_no_code_names_a_rule_that_is_not_in_the_table(modules):
    named = set().union(*(named_as_rules(nodes) for nodes in modules.values()))
    assert len(named) > 50
    assert named <= set(RULE_OF)


def test_every_rule_is_in_the_code_and_has_a_case_if_the_check_finds_it(modules):
    said = {name: texts(nodes) & set(RULE_OF) for name, nodes in modules.items()}
    assert set().union(*said.values()) == set(RULE_OF)
    assert set().union(*(said[name] for name in CHECKS)) == set(CASES)


def test_what_moves_a_box_is_tried():
    moving = {"clip", "fix"}
    boxes = {rule for rule in RULES["Boxes"] if moving & set(RULE_OF[rule].allowed)}
    beside = {"area_not_positive", "duplicate_annotation_id"}  # they move none
    assert boxes - beside == {rule for rule, case in CASES.items() if case.moved}
    for rule in boxes - beside:
        assert set(CASES[rule].moved) == moving & set(RULE_OF[rule].allowed)


def test_the_table_is_sound():
    assert len(RULE_OF) == sum(len(group) for group in RULES.values())  # no name twice
    for name, rule in RULE_OF.items():
        assert rule.action in rule.allowed, name
        assert "error" in rule.allowed, name
        assert len(set(rule.allowed)) == len(rule.allowed), name
        assert (rule.severity == "error") == (rule.action == "error"), name
        assert rule.about, name
        assert "." not in rule.about[-1], name


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": {"box_otside": "drop"}},
         "no rule of the check is called 'box_otside': did you mean 'box_outside'"),
        ({"rules": {"zebra": "drop"}}, "no rule of the check is called 'zebra': docs/rules.md"),
        ({"rules": {"bax_*": "drop"}}, "no rule of the check is called 'bax_*'"),
        ({"rules": {"box_outside": "clip"}}, "'box_outside' cannot be set to clip, only to drop, "),
        ({"rules": {"no_images": "ignore"}}, "'no_images' cannot be set to ignore, only to error"),
        ({"rules": {"missing_*": "ignore"}}, "'missing_*' cannot be set to ignore, only to "),
        ({"rules": {"box_outside": "remove"}}, "Input should be 'error', 'drop', 'clip', 'fix'"),
        ({"rules": {"tiny_box": {"action": "error", "severity": "info"}}},
         "severity has no meaning where the action is error"),
        ({"rules": {"tiny_box": {"action": "ignore", "severity": "info"}}},
         "severity has no meaning where the action is ignore"),
        ({"workers": -1}, "workers must be auto or 0 and more, got -1"),
        ({"bad_box": "drop"}, "'bad_box' is now said by rule: rules: {box_outside: drop"),
        ({"outside": "clip", "empty_classes": "keep"}, "'empty_classes' is now said by rule"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_and_the_right_one_said(settings, message):
    with pytest.raises(ValidationError) as error:
        CheckConfig(**settings)
    assert message in str(error.value)


def test_all_wrong_rules_come_together():
    with pytest.raises(ValidationError, match=r"'zebra'.*'no_images' cannot"):
        CheckConfig(rules={"zebra": "drop", "no_images": "drop"})


def test_a_name_counts_before_patterns_and_of_these_the_last_that_may():
    config = CheckConfig(
        rules={"box_outside": "error", "box_*": "drop", "box_part*": "clip", "*_box": "ignore"}
    )
    settings = {rule: config.setting(rule)[0] for rule in RULE_OF}
    assert settings["box_outside"] == "error"
    assert settings["box_inverted"] == "drop"
    assert settings["box_partly_outside"] == "clip"
    assert settings["tiny_box"] == settings["duplicate_box"] == "ignore"
    changed = {rule for rule in RULE_OF if config.chosen(rule)}
    assert all(settings[rule] == RULE_OF[rule].action for rule in RULE_OF if rule not in changed)
    everything = CheckConfig(rules={"*": "ignore"})
    for rule, own in RULE_OF.items():
        allowed = "ignore" in own.allowed
        assert (everything.setting(rule)[0] == "ignore") == (allowed or own.action == "ignore")


def test_null_takes_a_setting_back():
    config = CheckConfig(rules={"box_outside": None, "tiny_box": "error"})
    assert config == CheckConfig(rules={"tiny_box": {"action": "error"}})
    assert config.setting("box_outside") == ("drop", "warning")


@pytest.mark.parametrize("workers", ["auto", 0, 3])
def test_workers(workers):
    assert CheckConfig(workers=workers).workers == workers


def test_a_rehearsal_decodes_only_where_that_decides_what_is_left():
    assert not CheckConfig().decoding_decides
    assert not CheckConfig(rules={"box_*": "drop", "missing_image": "drop"}).decoding_decides
    for rule in ("undecodable_image", "damaged_image", "same_picture", "near_duplicate"):
        assert CheckConfig(rules={rule: "drop"}).decoding_decides
