"""What becomes of pushed metrics: the seam between the broker and whoever wants them.

Owns what a receiver is told of a client and of a push. Never decompresses: a receiver that does not look costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Protocol

MOST_UNPACKED_BYTES: Final = 16 << 20
"""Of a push; Kafka has no limit but its heap."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who pushes, as the broker knows him; texts that he sends himself are as he sent them."""

    instance_id: bytes
    """16 bytes, given by a broker."""
    client_id: str
    software_name: str
    software_version: str
    address: str
    principal: str


@dataclass(frozen=True, slots=True)
class Push:
    """What was pushed: OpenTelemetry's MetricsData, compressed with a codec of protocol/compression.py."""

    codec: int
    data: bytes
    interval_ms: int
    """Time in ms after which the next push of this client is to be expected."""
    terminating: bool
    """Whether it is the client's last."""


class Receiver(Protocol):
    """Takes what clients push. There may be one in a broker."""

    def export(self, client: Client, push: Push) -> Awaitable[None]:
        """Take a push; what it raises is told to the client as INVALID_RECORD, but for an ApiError, told as it is."""

    def forget(self, instance_id: bytes) -> None:
        """Let a client go that has said that it ends."""
