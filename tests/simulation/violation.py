"""What a simulated world ends with that has broken a promise."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 - says what does not hold
    """A promise does not hold; the message names it."""
