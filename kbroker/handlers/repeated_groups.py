"""Groups that a request names more than once.

Owns how they are answered: as often as they are named, which is what Apache Kafka does, but by work that is done once
for each, and within a bound. A few bytes that name a group again ask for all that is known of it again, so that without
one a request could ask for any amount. Answers beyond the bound are INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

MAX_REPEATED_BYTES = 4 << 20
"""What the answers of one response that are not the first of their kind may take."""
REFUSAL = "The request names this group too often."


def as_often(
    asked: Sequence[Key],
    answers: Mapping[Key, Answer],
    size_of: Callable[[Answer], int],
    refuse: Callable[[Key], Answer],
) -> list[Answer]:
    """Return an answer for each of `asked`, in that order. `size_of` returns how many bytes one takes."""
    if len(answers) == len(asked):
        return [answers[key] for key in asked]
    left = MAX_REPEATED_BYTES
    sizes: dict[Key, int | None] = dict.fromkeys(answers)
    seen: set[Key] = set()
    out = []
    for key in asked:
        answer = answers[key]
        if key in seen:
            size = sizes[key]
            if size is None:
                size = sizes[key] = size_of(answer)
            if size > left:
                answer = refuse(key)
            else:
                left -= size
        seen.add(key)
        out.append(answer)
    return out
