"""The copies of a broker's state in remote storage. After the loss of a disk, restoration.py restores it from them.

Owns the time of a copy, its content, and the deletion of older copies. A copy has the metadata, the logs of the
broker's own topics (group offsets, transactions, share groups, schemas, remote segments), and the offsets of all other
logs. A copy is one object, so it is complete or absent.

The logs are copied up to the ends that they have at one moment. The offsets of other logs are noted afterwards. So no
committed offset in a copy is higher than the noted end of its partition.

Sources: Apache Kafka has nothing like it. A restored broker of Apache Kafka with remote storage has no groups.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.metadata_snapshot import snapshot_pieces
from kbroker.failpoints import passed
from kbroker.long_work import begun_in_slices, each, turn
from kbroker.partition import Partition
from kbroker.remote.object_client import StoredObject
from kbroker.remote.segment_objects import FilePart
from kbroker.remote.state_object import (
    FOLDER,
    LogCopy,
    LogEnd,
    StateCopy,
    folder_of_states,
    parse_state_name,
    state_name,
    write_state,
)
from kbroker.remote.store_errors import ObjectNotFoundError, StoreError
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.tiers.shared import Shared
from kbroker.topic_names import INTERNAL_TOPICS

log = logging.getLogger(__name__)

COPIED_TOPICS: Final = INTERNAL_TOPICS | {REMOTE_LOG_METADATA_TOPIC, SCHEMAS_TOPIC}
"""The topics whose logs are in a copy. All of them are small: they are compacted, or grow slowly."""
_KEPT: Final = 2
"""The number of newest copies that stay in the store: the newest one may be damaged."""
_DAY_MS: Final = 86_400_000
_LEAST_RATE: Final = 1 << 20
"""The rate in bytes per second that copies have in the mean at most. Also the minimum rate of one copy."""


class StateCopies:
    """Makes copies of the state of a broker alone. `partitions` returns all hosted partitions."""

    def __init__(
        self,
        shared: Shared,
        cluster_id: str,
        directory_id: str,
        metadata: EmbeddedStore,
        partitions: Callable[[], Iterable[Partition]],
    ) -> None:
        self._shared = shared
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._metadata = metadata
        self._partitions = partitions
        self._task: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._fails = 0
        self._copied: int | None = None
        """A hash of the sizes and offsets in the newest copy. Without a change, there is no new copy."""
        self._name = ""
        """The name of the newest copy."""
        self._knows_others = False
        """Whether the first list of the store's copies has been examined for those of other data directories."""

    def tick(self) -> None:
        """Begin a copy if the time has come."""
        if self._task is not None and not self._task.done():
            return
        if self._shared.clock.monotonic_ms() >= self._not_before:
            self._not_before = self._shared.clock.monotonic_ms() + self._shared.settings.state_interval_ms
            self._task = asyncio.get_running_loop().create_task(begun_in_slices(self._copy))

    async def close(self) -> None:
        """Stop a copy that is being made."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _copy(self) -> None:
        shared = self._shared
        try:
            size = await self._copy_if_changed()
        except (StoreError, OSError) as error:
            shared.counts.failures += 1
            if not self._fails:
                log.warning("the state of the broker is not copied to remote storage, which is tried again: %s", error)
            self._fails = min(self._fails + 1, 30)
            pause_ms = min(shared.settings.retry_ms * 2**self._fails, shared.settings.longest_retry_ms)
        except Exception:
            shared.counts.failures += 1
            log.exception("the state of the broker is not copied to remote storage")
            pause_ms = shared.settings.state_interval_ms
        else:
            self._fails = 0
            pause_ms = max(shared.settings.state_interval_ms, size * 1000 // _LEAST_RATE)
        self._not_before = shared.clock.monotonic_ms() + pause_ms

    async def _copy_if_changed(self) -> int:
        """Make a copy if something has changed; return its size in bytes, or 0. Raises StoreError and OSError."""
        shared = self._shared
        now_ms = shared.clock.now_ms()
        partitions = list(self._partitions())
        # Take logs and metadata without a turn between them. A transaction is complete in one log only after it is in
        # the others, and a topic that is created again belongs to another partition.
        logs, files = _logs_of(each for each in partitions if each.topic in COPIED_TOPICS)
        nodes, written_bytes = self._metadata.nodes(), self._metadata.written_bytes
        ends, seen = await _ends_of(partitions, hash((written_bytes, tuple(logs))))
        if seen == self._copied and await self._is_there():
            shared.counts.state_copied_ms = now_ms
            return 0
        metadata = b"".join(await each(snapshot_pieces(nodes), bytes))
        copy = StateCopy(
            self._cluster_id, self._directory_id, shared.broker_id, now_ms, len(metadata), tuple(logs), tuple(ends)
        )
        name = state_name(self._cluster_id, self._directory_id, now_ms, uuid.uuid4().bytes)
        deadline_s = shared.deadline_s + sum(copy.part_sizes) / _LEAST_RATE
        shared.store.make_private(FOLDER)
        size = await write_state(shared.store, name, copy, metadata, files, deadline_s=deadline_s)
        passed("tiers.state_copied")
        self._copied, self._name, shared.counts.state_copied_ms = seen, name, now_ms
        try:
            await self._delete_older()
        except StoreError as error:
            log.warning("older copies of the broker's state stay in remote storage: %s", error)
        return size

    async def _is_there(self) -> bool:
        """Whether the newest copy is still in the store."""
        try:
            await self._shared.store.head(self._name, deadline_s=self._shared.deadline_s)
        except ObjectNotFoundError:
            return False
        return True

    async def _delete_older(self) -> None:
        """Delete the copies of this data directory that are not kept. Raises StoreError."""
        store, own = self._shared.store, []
        others = set()
        async for found in store.list(folder_of_states(self._cluster_id)):
            name = parse_state_name(found.name)
            if name is not None and name.directory_id == self._directory_id:
                own.append(found)
            elif name is not None:
                others.add(name.directory_id)
        if others and not self._knows_others:
            log.warning(
                "remote storage has copies of the state of other data directories of this cluster: %s; if this"
                " directory replaces a lost one, stop the broker and restore the lost one: kbroker log restore",
                ", ".join(sorted(others)),
            )
        self._knows_others = True
        for old in superfluous(own, self._shared.clock.now_ms()):
            await store.delete(old, deadline_s=self._shared.deadline_s)


def superfluous(copies: list[StoredObject], now_ms: int) -> list[str]:
    """Return the names of the copies of one data directory that are not needed any more.

    These stay: the newest copies, the oldest copy of the last 24 hours, and the newest copy before these hours. So
    there is always a copy that is 24 to 48 hours old, unless the directory is younger.
    """
    copies = sorted(copies, key=lambda each: (each.modified_ms, each.name))
    old = [each for each in copies if each.modified_ms < now_ms - _DAY_MS]
    young = copies[len(old) :]
    kept = {each.name for each in (*copies[-_KEPT:], *young[:1], *old[-1:])}
    return [each.name for each in copies if each.name not in kept]


def _logs_of(partitions: Iterable[Partition]) -> tuple[list[LogCopy], list[list[FilePart]]]:
    """Return the logs with their present sizes, and the files of each log. Raises OSError."""
    logs, files = [], []
    for partition in partitions:
        if partition.log.size:
            segments = list(partition.log.segments)
            sizes = tuple((each.base_offset, each.size) for each in segments)
            logs.append(LogCopy(partition.topic, partition.index, partition.log.log_start_offset, sizes))
            files.append([FilePart(each.path(), each.size, os.stat(each.path()).st_ino) for each in segments])
    return logs, files


async def _ends_of(partitions: Iterable[Partition], seen: int) -> tuple[list[LogEnd], int]:
    """Return the ends of the logs that are not copied, and a hash of them and of `seen`."""
    ends = []
    for partition in partitions:
        found = partition.log
        if partition.topic not in COPIED_TOPICS and found.log_end_offset:
            end = LogEnd(partition.topic, partition.index, found.earliest_offset, found.log_end_offset)
            ends.append(end)
            seen = hash((seen, end))
        await turn
    return ends, seen
