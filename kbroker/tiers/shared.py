"""The objects that the tiered partitions of a broker share: the store, the metadata, the clock, and the counters.

Owns these objects. Never decides anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from kbroker.clock import Clock
from kbroker.partition import Partition
from kbroker.remote.store import Store
from kbroker.tiers.followed_metadata import RemoteMetadata
from kbroker.tiers.metadata import Owner
from kbroker.tiers.settings import TierSettings


class Use(Enum):
    """How a partition uses remote storage."""

    ON = "its topic uses remote storage"
    OFF = "its topic does not use remote storage"
    DELETED = "its topic was deleted"


@dataclass(slots=True)
class Counts:
    """The counters of this broker. Sizes are in bytes."""

    copied_bytes: int = 0
    failures: int = 0
    """The number of failed rounds of partitions, and of failed deletions of useless segments."""
    deleted: int = 0
    read_bytes: int = 0
    read_errors: int = 0
    state_copied_ms: int | None = None
    """The time of the newest state that is known to be in the store, in ms since 1970."""


@dataclass(slots=True)
class Shared:
    """The objects that a tiered partition uses."""

    broker_id: int
    settings: TierSettings
    store: Store
    prefix: str
    """The folder of all objects in the store."""
    metadata: RemoteMetadata
    clock: Clock
    is_hosted: Callable[[Partition], bool]
    save_log_starts: Callable[[], None]
    """Stores the start offsets of logs, so that deleted records do not reappear after a crash."""
    sync_metadata: Callable[[int], Awaitable[None]]
    """Syncs a partition of the metadata to the disk, if this broker has a replica. Raises OSError.

    In a cluster the other replicas protect the records, too.
    """
    use_of: Callable[[Owner], Awaitable[Use]]
    """Returns how a partition uses remote storage, from the place that decides it. Raises ApiError."""
    grace_ms: int
    """The time in ms for which a topic must be deleted, or without remote storage, before its segments are deleted."""
    copies: asyncio.Semaphore
    deletions: asyncio.Semaphore
    deadline_s: float = 30.0
    """The time limit in seconds for a call of the store with little data."""
    counts: Counts = field(default_factory=Counts)
    copy_after: float = 0.0
    """The monotonic time in ms before which no copy begins, by `remote.log.manager.copy.max.bytes.per.second`."""
