"""Where in a request's life its connection breaks: for faults of all kinds."""

from __future__ import annotations

from enum import Enum


class When(Enum):
    """Where in a request's life its connection breaks.

    REQUEST  it was read, and nothing is done
    BEFORE   what it asks is done, and not a byte of the answer has left
    MIDDLE   half of the answer has left
    AFTER    all of the answer has left
    """

    REQUEST = "request"
    BEFORE = "before"
    MIDDLE = "middle"
    AFTER = "after"

    @classmethod
    def of(cls, given: When | str) -> When:
        """Return one by itself or its value. Raises ValueError, with those that there are."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"when is one of {', '.join(each.value for each in cls)}, not {given!r}") from None
