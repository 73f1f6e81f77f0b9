"""The ledger: what customers owe. Each invoice is booked once, however often it is read."""

from __future__ import annotations

import sqlite3

from confluent_kafka import Message

from orders.model import Invoice

_SCHEMA = """
create table if not exists booked (order_id text primary key, customer text not null, cents integer not null);
create table if not exists balances (customer text primary key, cents integer not null);
"""


class Ledger:
    """The balances of customers in a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.executescript(_SCHEMA)

    def handle(self, message: Message) -> None:
        """Book the invoice in a message. Raises BadMessage."""
        self.book(Invoice.from_bytes(message.value()))

    def book(self, invoice: Invoice) -> bool:
        """Book an invoice; return False if it is booked already."""
        row = (invoice.order_id, invoice.customer, invoice.cents)
        with self._database:  # both or nothing
            added = self._database.execute("insert or ignore into booked values (?, ?, ?)", row).rowcount
            if added:
                self._database.execute(
                    "insert into balances values (?, ?) on conflict do update set cents = cents + excluded.cents",
                    (invoice.customer, invoice.cents),
                )
        return bool(added)

    def balance(self, customer: str) -> int:
        """Return what a customer owes, in cents."""
        row = self._database.execute("select cents from balances where customer = ?", (customer,)).fetchone()
        return 0 if row is None else int(row[0])

    def count(self) -> int:
        """Return how many invoices are booked."""
        (found,) = self._database.execute("select count(*) from booked").fetchone()
        return int(found)
