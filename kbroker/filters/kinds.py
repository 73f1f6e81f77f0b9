"""The kinds of operands that are known without a record, and which of them can be compared."""

from __future__ import annotations

from kbroker.filters.expressions import Arithmetic, Literal, Number, Operand
from kbroker.filters.tokens import FilterError, Token


def kind(operand: Operand) -> str:
    """Return text, number or truth for an operand that is always of this kind; otherwise an empty text."""
    if isinstance(operand, Literal):
        return "truth" if isinstance(operand.value, bool) else "text" if isinstance(operand.value, str) else "number"
    return "number" if isinstance(operand, Number | Arithmetic) else ""


def check_pair(sign: str, left: Operand, right: Operand, operator: Token) -> None:
    """Raise FilterError for a comparison that no record can satisfy."""
    kinds = {kind(left), kind(right)} - {""}
    if len(kinds) > 1:
        hint = "; a date is TIMESTAMP '2026-01-31T12:00:00Z'" if kinds == {"text", "number"} else ""
        names = {"text": "a text", "number": "a number", "truth": "TRUE or FALSE"}
        pair = " with ".join(sorted(names[each] for each in kinds))
        raise FilterError(operator.at, f"{pair} cannot be compared{hint}")
    if "truth" in kinds and sign not in ("=", "<>"):
        raise FilterError(operator.at, "TRUE and FALSE are only equal or not equal")
