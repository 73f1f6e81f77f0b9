"""The interface between the broker and a receiver of pushed metrics.

Owns the data about a client and a push for a receiver. Never decompresses: a receiver that ignores the content costs
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Protocol

MOST_UNPACKED_BYTES: Final = 16 << 20
"""Of a push; Kafka's only limit is its heap."""


@dataclass(frozen=True, slots=True)
class Client:
    """The pushing client, as known to the broker; its own texts are unchanged."""

    instance_id: bytes
    """16 bytes, assigned by a broker."""
    client_id: str
    software_name: str
    software_version: str
    address: str
    principal: str


@dataclass(frozen=True, slots=True)
class Push:
    """A push: OpenTelemetry's MetricsData, compressed with a codec of protocol/compression.py."""

    codec: int
    data: bytes
    interval_ms: int
    """Expected time until this client's next push, in ms."""
    terminating: bool
    """Whether it is the client's last."""


class Receiver(Protocol):
    """Processes clients' pushes. A broker has at most one."""

    def export(self, client: Client, push: Push) -> Awaitable[None]:
        """Process a push; the client gets its exceptions as INVALID_RECORD, except an ApiError, which is passed on."""

    def forget(self, instance_id: bytes) -> None:
        """Remove a client that has announced its end."""
