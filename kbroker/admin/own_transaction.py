"""A transaction of an operation: its producer, bounded waits, and the reasons of its failures.

Owns the opening and the calls of kafka-python's transactional producer. The transactional id names the operation and
its object. So a second operation on the same object fences the first one, which then ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka.errors import InvalidProducerEpochError, InvalidRecordError, KafkaError, ProducerFencedError

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError, error_text
from kbroker.admin.records import AsItIs

PATIENCE_S: Final = 30.0
BATCH: Final = 16 * 1024
"""The size of a batch in bytes."""


@contextmanager
def transactional_producer(connection: Connection, name: str, batch_size: int = BATCH) -> Iterator[Any]:
    """Open the producer of the transactional id `name`. Raises AdminError."""
    producer = connection.producer(
        transactional_id=name,
        acks=-1,
        linger_ms=5,
        batch_size=batch_size,
        max_request_size=128 * 1024 * 1024,
        value_serializer=AsItIs(),
    )
    # If the topic is deleted meanwhile, the client must not create it again. kafka-python 3.0 ignores its setting for
    # this.
    producer._metadata.config["allow_auto_create_topics"] = False  # noqa: SLF001
    try:
        try:
            producer.init_transactions()
        except KafkaError as error:
            raise AdminError(f"no transaction of {name} can begin: {reason_of(error)}") from error
        yield producer
    finally:
        producer.close(timeout=PATIENCE_S)


def in_time(call: Callable[[], object]) -> None:
    """Call the client in a thread, because the client waits without limit while there is no coordinator.

    Raises TimeoutError, and every exception of the call.
    """
    done: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            done.append(error)
        else:
            done.append(None)

    thread = threading.Thread(target=run, name="kbroker-transaction", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not done:
        raise TimeoutError(f"no answer in {PATIENCE_S:.0f} seconds")
    if done[0] is not None:
        raise done[0]


def reason_of(error: Exception) -> str:
    """Return the reason of an error; the client may have wrapped it into a KafkaError with another text."""
    cause = next((each for each in (error, *error.args) if hasattr(each, "errno")), None)
    if isinstance(cause, (ProducerFencedError, InvalidProducerEpochError)):
        return "another operation on the same topic has begun"
    if isinstance(cause, InvalidRecordError) and cause.args and isinstance(cause.args[0], str):
        return error_text(cause, cause.args[0])
    return str(error) if cause is None else error_text(cause)
