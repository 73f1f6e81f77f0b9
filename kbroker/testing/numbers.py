"""Checks of numbers that a test gives to the test kit. An error is one line of text with the name of the number.

Owns the checks. Does not know the meaning of a number.
"""

from __future__ import annotations

import math


def check_whole(name: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Raise TypeError for a value that is not an int, and ValueError for an int out of bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    _check_bounds(name, value, least, most)


def check_number(name: str, value: object, most: float | None = None, least: float | None = 0) -> None:
    """Raise TypeError for a value that is not a number, and ValueError if it is not finite or out of bounds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    _check_bounds(name, value, least, most)


def _check_bounds(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise ValueError(f"{name} is at least {least:g}, not {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{name} is at most {most:.12g}, not {value!r}")
