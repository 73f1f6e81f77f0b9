"""The difference of two sequences, and its lines, short enough to be read.

Owns which elements belong together, and which lines are left out. Never knows what the elements are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Want = TypeVar("Want")
There = TypeVar("There")
Pair = tuple[int | None, int | None]
"""What was expected and what is there, by their places; None where one has no other."""
_AROUND = 2
_CHANGES = 20
_CELLS = 250_000
"""How much is compared with each other for the shortest difference; beyond that all of it counts as different."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a difference: "-" and "+" are differences, all else stands around them."""

    mark: str
    text: str


def aligned(wanted: Sequence[Want], there: Sequence[There], same: Callable[[Want, There], bool]) -> list[Pair]:
    """Return pairs in order, as few without another as there can be."""
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
    """Return the pairs of a longest common subsequence, and what is around them."""
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
    """Return pairs in any order: those of what is there in its order, then what is missing.

    Each of `wanted` takes the first that fits and is left, so what fits few had better come first.
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
    """Return the lines of a difference with a little of what is around each change, and not too many changes."""
    changes = [at for at, row in enumerate(rows) if row.mark in "+-"][:_CHANGES]
    shown = {near for at in changes for near in range(at - _AROUND, at + _AROUND + 1)}
    lines, left_out, told = [], 0, 0
    for at, row in enumerate(rows):
        told += row.mark in "+-"
        if at not in shown or (row.mark in "+-" and told > _CHANGES):
            left_out += 1
            continue
        if left_out:
            lines.append(f"    ... {left_out} more")
            left_out = 0
        lines.append(f"  {row.mark} {row.text}".rstrip())
    return [*lines, f"    ... {left_out} more"] if left_out else lines
