"""The share coordinator's answers about share partitions, and the interface through which brokers request them.

Owns the results of the five operations, and the `Persister`, with which a share partition's leader or the group
coordinator calls the share coordinator (Kafka: org.apache.kafka.server.share.persister). Never decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.state_batches import StateBatch


class Done(NamedTuple):
    """The result of an operation without a value: an error code, and its message if there is one."""

    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class State(NamedTuple):
    """The state of a share partition, for its leader. If the start offset is -1, the leader has to choose it."""

    error_code: ErrorCode = ErrorCode.NONE
    state_epoch: int = 0
    start_offset: int = 0
    batches: Sequence[StateBatch] = ()
    message: str | None = None


class Summary(NamedTuple):
    """Epochs and offsets of a share partition. The start offset is -1 if the share partition is not initialised."""

    error_code: ErrorCode = ErrorCode.NONE
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    message: str | None = None


class Change(NamedTuple):
    """A write of a share partition's state by its leader. `batches` contains only changed state batches."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class Persister(Protocol):
    """The share coordinator, on any broker. Results contain errors as Kafka's codes; no method raises an error."""

    async def initialize(
        self, group: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Done:
        """Begin the state of a share partition, or replace it. If the start offset is -1, the leader chooses it."""

    async def read(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> State:
        """Return the state, and fence all leaders with an epoch below `leader_epoch`."""

    async def write(self, group: str, topic_id: bytes, partition: int, change: Change) -> Done:
        """Change the state."""

    async def delete(self, group: str, topic_id: bytes, partition: int) -> Done:
        """Delete the state; this succeeds even if there is no state."""

    async def read_summary(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> Summary:
        """Return epochs and offsets, without fencing any leader."""
