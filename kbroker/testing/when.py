"""Where in a request's life its connection breaks: for faults of all kinds."""

from __future__ import annotations

from enum import Enum


class When(Enum):
    """Where in a request's life its connection breaks.

    REQUEST  the request was read, but nothing was done
    BEFORE   the request was done, but not a byte of the answer was sent
    MIDDLE   half of the answer was sent
    AFTER    all of the answer was sent
    """

    REQUEST = "request"
    BEFORE = "before"
    MIDDLE = "middle"
    AFTER = "after"

    @classmethod
    def of(cls, given: When | str) -> When:
        """Return a member from itself or its value. Raises ValueError that lists the members."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"when is one of {', '.join(each.value for each in cls)}, not {given!r}") from None
