"""The calls that each client must offer, and the outcomes that it may return.

Owns the timeouts that all clients get, so that their answers can be compared. Never knows a fault.
"""

from __future__ import annotations

from typing import Final, Protocol

REQUEST_MS: Final = 1_000
"""How long in ms a client waits for an answer, if it has such a setting."""
DELIVERY_MS: Final = 4_000
"""How long in ms a client tries to deliver a record, if it has such a setting."""
READ_MS: Final = 6_000
"""How long in ms a client tries to read a record."""
BACKOFF_MS: Final = 50
SESSION_MS: Final = 6_000


class Client(Protocol):
    """One client. Each call creates its own client object, and closes it.

    Each call returns its outcome in one word or two: "delivered", "read" or "committed", or the error's name. "nothing"
    means that nothing happened in time.
    """

    name: str

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        """Write records, each after the answer to the previous one; their values are "0", "1", ..."""

    def consume(self, bootstrap: str, topic: str) -> str:
        """Read one record from the beginning, without a group."""

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        """Read one record as a member of a group, and commit it after a pause."""

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        """Write one record in a transaction, and commit the transaction after a pause."""
