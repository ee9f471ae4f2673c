"""Options of transforms that are chances and ranges."""

from __future__ import annotations

from detpipe.core.errors import ConfigError


def between(limits: tuple[float, float], share: float) -> float:
    """The number that lies ``share`` (0..1) of the way from the lower to the upper limit."""
    return limits[0] + (limits[1] - limits[0]) * share


def probability(p: float, name: str) -> float:
    """``p`` of the transform ``name``.

    Raises:
        ConfigError: it does not lie in 0..1.
    """
    return share(p, f"{name}: p")


def share(value: float, name: str) -> float:
    """``value`` of the option ``name``.

    Raises:
        ConfigError: it does not lie in 0..1.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie in 0..1, got {value}")
    return value


def interval(
    limits: tuple[float, float], name: str, least: float, most: float
) -> tuple[float, float]:
    """``limits`` of the option ``name``.

    Raises:
        ConfigError: they are not [low, high] within ``least`` and ``most``.
    """
    low, high = limits
    if not least <= low <= high <= most:
        raise ConfigError(f"{name}: must be [low, high] within {least}..{most}, got {limits}")
    return low, high


def colour(fill: int | tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """A grey value or RGB as RGB.

    Raises:
        ConfigError: a value does not lie in 0..255.
    """
    rgb = (fill,) * 3 if isinstance(fill, int) else fill
    if not all(0 <= value <= 255 for value in rgb):
        raise ConfigError(f"{name}: must be a grey value or RGB in 0..255, got {fill}")
    return rgb
