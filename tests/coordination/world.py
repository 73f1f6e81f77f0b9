"""A shard that only remembers keys, a log whose high watermark the test moves, and a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterator
from typing import Any

from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import CoordinatorRecord, Outcome, Parked, Schedule
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import iter_batches


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.ms)

    def monotonic_ms(self) -> float:
        return self.ms


class FakeWriter:
    """A log of bytes whose high watermark the test moves. `lag` makes appends wait for it."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.high_watermark = 0
        self.copied_to = 0
        """The offset up to which all in-sync replicas have the log, if they are too few for the high watermark."""
        self.lag = False
        self.fail: BaseException | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.count = 4
        self.max_bytes = 1 << 20

    def partition_count(self) -> int:
        return self.count

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = None, transaction_version: int = 0
    ) -> int:
        if self.fail is not None:
            raise self.fail
        if len(batch) > self.max_bytes:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        ((_, header),) = iter_batches(batch)
        rebased = self.end.to_bytes(8, "big") + batch[8:]
        self.batches.append(rebased)
        self.end += header.record_count
        if not self.lag:
            self.high_watermark = self.end
        return self.end

    def max_batch_bytes(self, partition: int) -> int:
        return self.max_bytes

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        if offset <= self.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append((offset, future))
        return future

    def copied(self, partition: int, offset: int) -> Awaitable[None] | None:
        if offset <= self.copied_to:
            return None
        return self.committed(partition, offset)

    def commit_to(self, offset: int) -> None:
        self.high_watermark = offset
        for end, future in self.waiters:
            if end <= offset and not future.done():
                future.set_result(None)

    def read(self, partition: int, begin: int = 0) -> Iterator[memoryview]:
        for batch in self.batches:
            if int.from_bytes(batch[:8], "big") >= begin:
                yield memoryview(batch)

    def end_offset(self, partition: int) -> int:
        return self.end

    def ensure_topic(self) -> None:
        self.count = 4


class Journal:
    """A shard that only remembers keys. A request is a list of keys to write."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes, bytes | None]] = []
        self.events: list[Any] = []
        self.parked: list[Parked] = []
        self.fails = False
        self.steps_over_unreadable = False

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        if key == b"broken" or self.fails:
            raise ValueError("a broken record")
        self.seen.append((offset, producer_id, key, value))

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        if self.fails:
            raise ValueError("a broken marker")
        self.events.append(("end", producer_id, committed))

    def on_loaded(self, now_ms: int) -> Outcome:
        self.events.append("loaded")
        return Outcome(timers=[Schedule("tick", 100)])

    def on_unloaded(self, now_ms: int) -> Outcome:
        self.events.append("unloaded")
        return Outcome(replies=[(parked, "moved") for parked in self.parked])

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        self.events.append((key, now_ms))
        if key == "bad":
            raise ValueError("a timer that fails")
        return Outcome(records=[CoordinatorRecord(b"timer", None)])

    def write(self, *keys: bytes, **options: Any) -> Outcome:
        def after(code: ErrorCode, now_ms: int) -> Outcome:
            self.events.append((keys, code))
            return Outcome()

        return Outcome(reply="done", records=[CoordinatorRecord(k, b"v") for k in keys], after=after, **options)

    def park(self, parked: Parked) -> Outcome:
        self.parked.append(parked)
        return Outcome()


class World:
    def __init__(self, writer: FakeWriter | None = None) -> None:
        self.writer = writer or FakeWriter()
        self.clock = ManualClock()
        self.runtime: Runtime[Journal] = Runtime(
            "journal", lambda _partition: Journal(), self.writer, self.clock, 5_000
        )

    def lead(self, partition: int = 0, epoch: int = 1) -> Journal:
        self.runtime.lead(partition, epoch)
        return self.runtime.shard(partition)

    def write(self, *keys: bytes, **options: Any) -> Any:
        return self.runtime.run(0, lambda shard, _now: shard.write(*keys, **options), failed)

    def read(self) -> Any:
        return self.runtime.read(0, lambda shard, _now: len(shard.seen), failed)

    async def loaded(self) -> int:
        """Wait until all partitions are loaded; return how many turns of the loop other tasks had meanwhile."""
        for turns in range(100_000):
            if None not in dict(self.runtime.shards()).values():
                return turns
            await asyncio.sleep(0)
        raise AssertionError("the load does not end")

    def advance(self, ms: float) -> None:
        self.clock.ms += ms
        self.runtime.tick()


def failed(code: ErrorCode, message: str | None) -> Any:
    return (code, message)
