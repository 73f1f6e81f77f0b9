"""The difference of two sequences, as a list of lines that is short enough to read.

Decides which elements match, and which lines are omitted. Knows nothing about the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Want = TypeVar("Want")
There = TypeVar("There")
Pair = tuple[int | None, int | None]
"""The positions of an expected and an actual element; None where an element has no match."""
_AROUND = 2
_CHANGES = 20
_CELLS = 250_000
"""The maximum number of comparisons for a minimal difference. In longer sequences all elements count as different."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a difference. The marks "-" and "+" are differences; all other marks are context."""

    mark: str
    text: str


def aligned(wanted: Sequence[Want], there: Sequence[There], same: Callable[[Want, There], bool]) -> list[Pair]:
    """Return the pairs in order. They have the minimum number of unmatched elements."""
    begin, end = 0, 0
    shorter = min(len(wanted), len(there))
    while begin < shorter and same(wanted[begin], there[begin]):
        begin += 1
    while end < shorter - begin and same(wanted[-1 - end], there[-1 - end]):
        end += 1
    pairs: list[Pair] = [(at, at) for at in range(begin)]
    pairs += _middle(wanted, there, same, range(begin, len(wanted) - end), range(begin, len(there) - end))
    return pairs + [(len(wanted) - left, len(there) - left) for left in range(end, 0, -1)]


def _middle(
    wanted: Sequence[Want], there: Sequence[There], same: Callable[[Want, There], bool], left: range, right: range
) -> list[Pair]:
    """Return the pairs of a longest common subsequence, and the unmatched elements between them."""
    if len(left) * len(right) > _CELLS:
        return [*((at, None) for at in left), *((None, at) for at in right)]
    longest = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    equal = [[same(wanted[i], there[j]) for j in right] for i in left]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            longest[i][j] = longest[i + 1][j + 1] + 1 if equal[i][j] else max(longest[i + 1][j], longest[i][j + 1])
    pairs: list[Pair] = []
    i = j = 0
    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right) and equal[i][j]:
            pairs.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif j == len(right) or (i < len(left) and longest[i + 1][j] >= longest[i][j + 1]):
            pairs.append((left[i], None))
            i += 1
        else:
            pairs.append((None, right[j]))
            j += 1
    return pairs


def matched(wanted: Sequence[Want], there: Sequence[There], same: Callable[[Want, There], bool]) -> list[Pair]:
    """Match elements in any order.

    Return the pairs: first the actual elements in their order, then the missing elements. Each element of `wanted`
    takes the first free match, so the most specific elements should come first.
    """
    taken: dict[int, int] = {}
    missing: list[Pair] = []
    for want, each in enumerate(wanted):
        at = next((at for at, other in enumerate(there) if at not in taken and same(each, other)), None)
        if at is None:
            missing.append((want, None))
        else:
            taken[at] = want
    return [*((taken.get(at), at) for at in range(len(there))), *missing]


def shortened(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a difference: a limited number of changes, each with some context lines."""
    changes = [at for at, row in enumerate(rows) if row.mark in "+-"][:_CHANGES]
    shown = {near for at in changes for near in range(at - _AROUND, at + _AROUND + 1)}
    lines, left_out, counted = [], 0, 0
    for at, row in enumerate(rows):
        counted += row.mark in "+-"
        if at not in shown or (row.mark in "+-" and counted > _CHANGES):
            left_out += 1
            continue
        if left_out:
            lines.append(f"    ... {left_out} more")
            left_out = 0
        lines.append(f"  {row.mark} {row.text}".rstrip())
    return [*lines, f"    ... {left_out} more"] if left_out else lines
