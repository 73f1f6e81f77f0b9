"""A store of share state in memory, whose writes a test can delay and let fail, and the settings of groups."""

from __future__ import annotations

import asyncio

from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.persister import Change, Done, Persister, State, Summary
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.persister import EARLIEST, UNKNOWN_START
from kbroker.share_partition.states import Limits

Name = tuple[str, bytes, int]


class MemoryPersister(Persister):
    """Keeps the state of each offset. The next writes return `errors`; while `held` is set, writes wait for it."""

    def __init__(self) -> None:
        self.records: dict[Name, dict[int, tuple[int, int]]] = {}
        self.starts: dict[Name, int] = {}
        self.complete: dict[Name, int] = {}
        self.state_epoch = 7
        self.errors: list[int] = []
        self.read_errors: list[int] = []
        self.held: asyncio.Event | None = None
        self.writes = 0
        self.at_once = 0
        self.reads = 0

    async def read(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> State:
        self.reads += 1
        name = group, topic_id, partition
        if self.read_errors:
            return State(ErrorCode(self.read_errors.pop(0)))
        start = self.starts.get(name, UNKNOWN_START)
        known = sorted((at, value) for at, value in self.records.get(name, {}).items() if at >= start)
        batches: list[StateBatch] = []
        for at, value in known:  # the share coordinator joins batches in the same way
            if batches and batches[-1][1:] == (at - 1, *value):
                batches[-1] = batches[-1]._replace(last_offset=at)
            else:
                batches.append(StateBatch(at, at, *value))
        return State(ErrorCode.NONE, self.state_epoch, start, tuple(batches))

    async def write(self, group: str, topic_id: bytes, partition: int, change: Change) -> Done:
        self.writes += 1
        self.at_once += 1
        assert self.at_once == 1, "writes of one share partition follow each other"
        while self.held is not None:
            await self.held.wait()
        self.at_once -= 1
        if self.errors:
            return Done(ErrorCode(self.errors.pop(0)))
        if change.state_epoch != self.state_epoch:
            return Done(ErrorCode.FENCED_STATE_EPOCH)
        name = group, topic_id, partition
        self.starts[name] = change.start_offset
        self.complete[name] = change.delivery_complete_count
        for first, last, state, count in change.batches:
            for at in range(first, last + 1):
                self.records.setdefault(name, {})[at] = (state, count)
        return Done()

    async def initialize(
        self, group: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Done:
        raise NotImplementedError

    async def delete(self, group: str, topic_id: bytes, partition: int) -> Done:
        raise NotImplementedError

    async def read_summary(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> Summary:
        raise NotImplementedError


class Settings:
    """The same settings for all groups."""

    def __init__(self) -> None:
        self.now = Limits()
        self.committed = False
        self.reset = EARLIEST

    def limits(self, _group: str) -> Limits:
        return self.now

    def reads_committed(self, _group: str) -> bool:
        return self.committed

    def auto_offset_reset(self, _group: str) -> int:
        return self.reset
