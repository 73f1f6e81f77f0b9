"""Dead letters of refused records: retries while their partition moves, and the memory that they use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker import refused_records
from kbroker.broker.refused_records import RefusedRecords
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.log.append_info import BatchRefused
from kbroker.long_work import in_slices
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_batch, read_records

BATCH = memoryview(build_batch([(0, None, b"%d" % number, ()) for number in range(4)]))
LEADER = 2


class Own:
    """Produces nothing, and returns the given codes, the last one repeatedly (`OwnProduce`)."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.asked: list[list[bytes | None]] = []
        self.frozen: asyncio.Event | None = None
        self.running = 0

    def leader_of(self, _topic: str, _index: int) -> int:
        return LEADER

    async def produce(self, topic: str, index: int, batch: memoryview) -> ErrorCode:
        assert (topic, index) == ("bad", 1)
        self.asked.append([each.value for each in read_records(batch, max_bytes=1000)])
        self.running += 1
        try:
            if self.frozen is not None:
                await self.frozen.wait()
        finally:
            self.running -= 1
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]


def run(own: Own, scenario: Callable[[RefusedRecords], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        partitions = tuple(PartitionState((LEADER,), (LEADER,), LEADER, 0) for _ in range(3))
        state = ClusterState("c").with_topic(TopicState("bad", b"t" * 16, partitions))
        metadata: Any = SimpleNamespace(state=state)
        letters = RefusedRecords(metadata, own)
        try:
            await scenario(letters)
        finally:
            letters.close()

    asyncio.run(main())


def write(letters: RefusedRecords, to: str = "bad") -> Coroutine[Any, Any, str | None]:
    return letters.write("orders", to, 4, BATCH, {1: "why", 3: "why"})


def test_letters_are_tried_again_while_their_partition_moves() -> None:
    own = Own(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NONE)

    async def scenario(letters: RefusedRecords) -> None:
        assert await in_slices(write(letters)) is None
        assert own.asked == [[b"1", b"3"]] * 3

    run(own, scenario)


def test_what_does_not_pass_is_told_at_once() -> None:
    own = Own(ErrorCode.MESSAGE_TOO_LARGE)

    async def scenario(letters: RefusedRecords) -> None:
        assert await in_slices(write(letters)) == "MESSAGE_TOO_LARGE"
        assert len(own.asked) == 1
        assert await in_slices(write(letters, "none")) == "the topic does not exist"

    run(own, scenario)


def test_what_may_pass_later_is_no_fault_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_records, "_PATIENCE_S", 0.2)

    async def scenario(letters: RefusedRecords) -> None:
        with pytest.raises(BatchRefused, match="NOT_ENOUGH_REPLICAS; a later try may succeed") as refused:
            await in_slices(write(letters))
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(Own(ErrorCode.NOT_ENOUGH_REPLICAS), scenario)


def test_who_waits_for_a_frozen_leader_holds_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed connections leave no more batches than a leader may have; waiting ones give up."""
    monkeypatch.setattr(refused_records, "_PATIENCE_S", 0.2)
    own = Own(ErrorCode.NONE)

    async def scenario(letters: RefusedRecords) -> None:
        own.frozen = asyncio.Event()
        for _ in range(100):
            work = write(letters)  # as a connection runs it: without a task, and closed with the connection
            while (waits := work.send(None)) is None:
                pass
            assert waits is not None
            for _ in range(3):
                await asyncio.sleep(0)
            work.close()
        for _ in range(5):  # the last request ends
            await asyncio.sleep(0)
        assert own.running == len(letters._tasks) == 4
        with pytest.raises(BatchRefused):
            await in_slices(write(letters))
        own.frozen.set()
        assert await in_slices(write(letters)) is None
        assert not letters._tasks

    run(own, scenario)
