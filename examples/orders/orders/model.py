"""Orders and invoices, and their JSON form on the wire."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


class BadMessage(ValueError):  # noqa: N818 - what it is
    """A message that nobody can interpret, however often it is tried."""


@dataclass(frozen=True, slots=True)
class Line:
    """A quantity of an article, at a unit price in cents."""

    article: str
    quantity: int
    cents: int


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer orders."""

    id: str
    customer: str
    lines: tuple[Line, ...]

    @property
    def cents(self) -> int:
        """Return the total price in cents."""
        return sum(line.quantity * line.cents for line in self.lines)

    def to_bytes(self) -> bytes:
        """Return the order as the bytes of a message."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes | None) -> Order:
        """Parse an order. Raises BadMessage."""
        found = _object(data)
        try:
            lines = tuple(
                Line(str(each["article"]), int(each["quantity"]), int(each["cents"])) for each in found["lines"]
            )
            order = Order(str(found["id"]), str(found["customer"]), lines)
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"not an order: {error!r}") from None
        if not lines or any(line.quantity < 1 or line.cents < 0 for line in lines):
            raise BadMessage(f"order {order.id} has no lines, or impossible ones")
        return order


@dataclass(frozen=True, slots=True)
class Invoice:
    """What a customer has to pay for an order."""

    order_id: str
    customer: str
    cents: int

    def to_bytes(self) -> bytes:
        """Return the invoice as the bytes of a message."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes | None) -> Invoice:
        """Parse an invoice. Raises BadMessage."""
        found = _object(data)
        try:
            return Invoice(str(found["order_id"]), str(found["customer"]), int(found["cents"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"not an invoice: {error!r}") from None


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"")
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadMessage("not a JSON object")
    return found
