"""The outbox: one database transaction stores an order and its event, and the event goes to Kafka afterwards.

Every stored event is sent at least once, in order. After a crash between sending an event and noting that, it is sent
again with the same event id, by which readers recognise it.
"""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from orders.model import Order

EVENT_ID = "event-id"
_SCHEMA = """
create table if not exists orders (id text primary key, customer text not null, cents integer not null);
create table if not exists outbox (
    position integer primary key autoincrement,
    event_id text not null unique,
    key text not null,
    value blob not null,
    state text not null default 'waiting' check (state in ('waiting', 'sent', 'refused'))
);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """A row of the outbox."""

    position: int
    event_id: str
    key: str
    value: bytes


class Outbox:
    """Orders and their events in a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.executescript(_SCHEMA)

    def place(self, order: Order) -> str:
        """Store an order with its event, in the transaction that the caller has begun; return the event's id."""
        event_id = uuid.uuid4().hex
        self._database.execute("insert into orders values (?, ?, ?)", (order.id, order.customer, order.cents))
        self._database.execute(
            "insert into outbox (event_id, key, value) values (?, ?, ?)", (event_id, order.id, order.to_bytes())
        )
        return event_id

    def waiting(self, limit: int) -> list[Event]:
        """Return the events that must be sent, the oldest first."""
        rows = self._database.execute(
            "select position, event_id, key, value from outbox where state = 'waiting' order by position limit ?",
            (limit,),
        )
        return [Event(*row) for row in rows]

    def count(self, state: str) -> int:
        """Return how many events are waiting, sent or refused."""
        (found,) = self._database.execute("select count(*) from outbox where state = ?", (state,)).fetchone()
        return int(found)

    def note(self, event: Event, state: str) -> None:
        """Record the outcome of an event."""
        with self._database:
            self._database.execute("update outbox set state = ? where position = ?", (state, event.position))


class Relay:
    """Sends the events of an outbox to a topic."""

    def __init__(self, outbox: Outbox, producer: Producer, topic: str, batch: int = 100) -> None:
        self._outbox = outbox
        self._producer = producer
        self._topic = topic
        self._batch = batch

    def step(self) -> int:
        """Send the waiting events, up to a batch; return how many of them have arrived.

        Returns when every event has an outcome, at the latest after the producer's `message.timeout.ms`. From the first
        event that did not arrive, all events wait for the next step, so that their order is kept. An event that is too
        large can never arrive: it is marked as refused.
        """
        events = self._outbox.waiting(self._batch)
        outcomes = self._send(events)
        arrived = 0
        for event in events:
            error = outcomes[event.position]
            if error is None:
                self._outbox.note(event, "sent")
                arrived += 1
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._outbox.note(event, "refused")
            else:
                break
        return arrived

    def _send(self, events: list[Event]) -> dict[int, KafkaError | None]:
        """Return the error of each event, by its position; None: the event has arrived."""
        outcomes: dict[int, KafkaError | None] = {}
        for event in events:

            def told(error: KafkaError | None, _: Message, position: int = event.position) -> None:
                outcomes[position] = error

            self._producer.produce(
                self._topic, event.value, event.key, headers=[(EVENT_ID, event.event_id.encode())], on_delivery=told
            )
        self._producer.flush()
        return outcomes
