"""Orders and invoices as bytes."""

from __future__ import annotations

import pytest

from orders.model import BadMessage, Invoice, Line, Order

ORDER = Order("7", "ann", (Line("tea", 2, 150), Line("milk", 1, 90)))


def test_an_order_there_and_back() -> None:
    assert Order.from_bytes(ORDER.to_bytes()) == ORDER
    assert ORDER.cents == 390


def test_an_invoice_there_and_back() -> None:
    assert Invoice.from_bytes(Invoice("7", "ann", 390).to_bytes()) == Invoice("7", "ann", 390)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"id": 1, "customer": 2, "lines": []}',
        b'{"id": 1, "customer": 2, "lines": [{"article": "tea", "quantity": 0, "cents": 1}]}',
        b'{"id": 1, "customer": 2, "lines": [{"article": "tea", "quantity": "many", "cents": 1}]}',
    ],
)
def test_what_is_no_order(data: bytes | None) -> None:
    with pytest.raises(BadMessage):
        Order.from_bytes(data)
