"""The exception with which a simulated world ends that has broken a promise."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 - says what does not hold
    """A promise is broken; the message names it."""
