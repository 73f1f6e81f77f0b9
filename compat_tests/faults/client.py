"""What is asked of each client, and what it may say of it.

Owns the times that all clients are given, so that their answers can be held beside each other. Never knows a fault.
"""

from __future__ import annotations

from typing import Final, Protocol

REQUEST_MS: Final = 1_000
"""How long a client waits for an answer, where it can be told."""
DELIVERY_MS: Final = 4_000
"""How long a record is tried, where a client can be told."""
READ_MS: Final = 6_000
"""How long somebody looks for a record."""
BACKOFF_MS: Final = 50
SESSION_MS: Final = 6_000


class Client(Protocol):
    """One client. Each call makes a client of its own, and closes it.

    Each returns what came of it in one word or two: "delivered", "read" or "committed", or the error's name. Where
    nothing was told in time, "nothing".
    """

    name: str

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        """Write records, one after the other has been answered; their values are "0", "1", ..."""

    def consume(self, bootstrap: str, topic: str) -> str:
        """Read one record from the beginning, without a group."""

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        """Read one record as the member of a group, and commit it after a pause."""

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        """Write one record in a transaction, and commit that after a pause."""
