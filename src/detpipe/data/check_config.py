"""Configuration of the data check (imports nothing heavy)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen
from detpipe.core.errors import ConfigError
from detpipe.data.rules import RULE_OF, Action, Severity


class RuleSetting(Frozen):
    """What to do about the findings of a rule."""

    action: Action
    """``error``, ``drop``, ``clip``, ``fix``, ``keep`` (and report) or ``ignore``."""
    severity: Literal["warning", "info"] | None = None
    """Of the findings, where they are reported and no error; without it the rule's own."""

    @model_validator(mode="after")
    def _severity_has_a_use(self) -> Self:
        if self.severity and self.action in ("error", "ignore"):
            raise ValueError(f"severity has no meaning where the action is {self.action}")
        return self


_OLD_KEYS: Mapping[str, str] = {
    "bad_box": "said by rule: rules: {box_outside: drop, box_without_area: drop, …}",
    "bad_image": "said by rule: rules: {missing_image: drop, undecodable_image: drop}",
    "outside": "said by rule: rules: {box_partly_outside: clip}",
    "empty_classes": "said by rule: rules: {class_without_boxes: drop}",
}


class CheckConfig(Frozen):
    """What the check looks for, and what it does about its findings."""

    decode: bool = True
    """Decode every image fully: finds truncated files before training does."""
    workers: Literal["auto"] | int = "auto"
    """Processes that decode; 0 decodes in the main process; ``auto``: as many as there are cores,
    for more than a few megabytes."""
    near_duplicates: int = Field(default=4, ge=0, le=16)
    """Bits (of 64) in which the perceptual hashes of two pictures that look the same may differ."""
    tiny: float = Field(default=4.0, ge=0)
    """Pixels at the model's size: a box of a shorter side is reported as ``tiny_box``."""
    max_pixels: int = Field(default=400_000_000, gt=0)
    """A picture with more pixels is not decoded: it may be a decompression bomb."""
    rules: dict[str, RuleSetting] = Field(default_factory=dict)
    """Rule, or pattern (``near_*``) → action, or ``{action: …, severity: …}`` (of a rule one of the
    two is enough), or null to take one back: docs/rules.md lists them. A pattern is of those rules
    that allow its action; a rule's own name counts before patterns, of these the last."""

    @model_validator(mode="wrap")
    @classmethod
    def _name_old_keys(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        old = [key for key in _OLD_KEYS if isinstance(data, Mapping) and key in data]
        if old:
            raise ConfigError("; ".join(f"'{key}' is now {_OLD_KEYS[key]}" for key in old))
        return handler(data)

    @field_validator("workers")
    @classmethod
    def _not_negative(cls, value: str | int) -> str | int:
        if isinstance(value, int) and value < 0:
            raise ValueError(f"workers must be auto or 0 and more, got {value}")
        return value

    @field_validator("rules", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if value is None:  # ``rules:`` with nothing below it
            return {}
        if not isinstance(value, Mapping):
            return value
        given = {key: setting for key, setting in value.items() if setting is not None}
        return {key: _in_full(key, setting) for key, setting in given.items()}

    @field_validator("rules")
    @classmethod
    def _known_rules(cls, value: dict[str, RuleSetting]) -> dict[str, RuleSetting]:
        mistakes = [text for key, setting in value.items() if (text := _flaw(key, setting.action))]
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return value

    @property
    def decoding_decides(self) -> bool:
        """Whether which images are left depends on their being decoded."""
        return any(self.setting(rule)[0] == "drop" for rule in _BY_DECODING)

    def chosen(self, rule: str) -> RuleSetting | None:
        """What configuration says of a rule, None for nothing."""
        found = None
        for key in sorted(self.rules, key=RULE_OF.__contains__):  # patterns first
            allowed = RULE_OF[rule].allowed if rule in RULE_OF else ()
            if fnmatchcase(rule, key) and self.rules[key].action in allowed:
                found = self.rules[key]
        return found

    def setting(self, rule: str) -> tuple[Action, Severity]:
        """(action, severity) of a rule as configured."""
        own, chosen = RULE_OF[rule], self.chosen(rule)
        if chosen is None:
            return own.action, "error" if own.action == "error" else own.severity
        if chosen.action == "error":
            return "error", "error"
        return chosen.action, chosen.severity or (
            "warning" if own.severity == "error" else own.severity
        )


_BY_DECODING = (
    "undecodable_image",
    "damaged_image",
    "same_picture",
    "same_picture_in_two_splits",
    "near_duplicate",
    "near_duplicate_in_two_splits",
)


def _in_full(key: str, setting: object) -> object:
    """A rule's setting with its action: a word is one, and a severity alone leaves the rule's."""
    if isinstance(setting, str):
        return {"action": setting}
    if isinstance(setting, Mapping) and key in RULE_OF:
        return {"action": RULE_OF[key].action, **setting}
    return setting


def _flaw(key: str, action: Action) -> str:
    """What is wrong with one entry of ``rules``; empty if nothing is."""
    fits = [name for name in RULE_OF if fnmatchcase(name, key)]
    if not fits:
        near = difflib.get_close_matches(key, RULE_OF, 1)
        hint = f"did you mean '{near[0]}'?" if near else "docs/rules.md lists them"
        return f"no rule of the check is called '{key}': {hint}"
    if any(action in RULE_OF[name].allowed for name in fits):
        return ""
    can = dict.fromkeys(allowed for name in fits for allowed in RULE_OF[name].allowed)
    return f"'{key}' cannot be set to {action}, only to {', '.join(can)}"
