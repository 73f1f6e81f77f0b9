"""Groups that a request names more than once.

Owns how they are answered: as often as they are named, which is what Apache Kafka does, but by work that is done once
for each, and within a bound. A few bytes that name a group again ask for all that is known of it again, so that without
one a request could ask for any amount. Answers beyond the bound are INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from kbroker.divided import Divided

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

MAX_REPEATED_BYTES = 4 << 20
"""What the answers of one response that are not the first of their kind may take."""
REFUSAL = "The request names this group too often."


def as_often(
    asked: Iterable[Key],
    answers: Mapping[Key, Answer],
    size_of: Callable[[Answer], int],
    refuse: Callable[[Key], Answer],
) -> Divided[list[Answer]]:
    """Return an answer for each of `asked`, in that order. `size_of` returns how many bytes one takes."""
    left = MAX_REPEATED_BYTES
    sizes: dict[Key, int | None] = {}
    out = []
    for key in asked:
        answer = answers[key]
        if key in sizes:
            size = sizes[key]
            if size is None:
                size = sizes[key] = size_of(answer)
            if size > left:
                answer = refuse(key)
            else:
                left -= size
        else:
            sizes[key] = None
        out.append(answer)
        yield
    return out


def distinct(asked: Iterable[Key]) -> Divided[dict[Key, None]]:
    """Return what is asked for, each once, in order."""
    found: dict[Key, None] = {}
    for key in asked:
        found[key] = None
        yield
    return found


def paired(keys: Iterable[Key], answers: Iterable[Answer]) -> Divided[dict[Key, Answer]]:
    """Return answers by what they are for."""
    found: dict[Key, Answer] = {}
    for key, answer in zip(keys, answers, strict=True):
        found[key] = answer
        yield
    return found
