"""A partition of a schedule topic in virtual time, with targets that lose answers, and leaders that die at any moment.

Owns the faults and the judgement. The log, the index and the engine are the real ones; the targets keep what Kafka's
producer state keeps: the last five batches of a producer, and the next sequence. After the faults everything heals, and
then each record must be in its target once, and none before its time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.log.append_info import COORDINATOR
from kbroker.log.batch_scan import scan_batches, scan_headers
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import Record, build_batch, build_marker, parse_header, read_records
from kbroker.schedules.marks import Done, Intent, Mark, build_marks, read_marks
from kbroker.scheduling.index import remove_index
from kbroker.scheduling.scheduled import ScheduledPartition
from kbroker.scheduling.shared import Outcome, Shared
from tests.log.builders import open_log
from tests.replica_manager.virtual_time import START_MS

T = TypeVar("T")
CONFIG = LogConfig(
    schedule_enable=True, message_timestamp_type="LogAppendTime", segment_bytes=1 << 14, file_delete_delay_ms=1
)
TARGETS = ("a", "b")
PARTITIONS = 2
POISON = b"poison"


class Clock:
    """The clock of all leaders, which may jump."""

    def __init__(self) -> None:
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return START_MS + int(self.monotonic_ms()) + self.wrong_ms

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class Ids:
    """The supply of producer ids."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


class Places:
    @asynccontextmanager
    async def place(self, _broker: int) -> AsyncIterator[None]:
        yield


@dataclass
class _Producer:
    batches: list[tuple[int, int]] = field(default_factory=list)
    next: int = 0


class Targets:
    """The targets' leaders."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        self._rng = rng
        self._clock = clock
        self.is_faulty = True
        self.dead: set[tuple[str, int]] = set()
        """The partitions that append nothing."""
        self.records: list[tuple[int, Record]] = []
        """The time of the append by the present clock, and the record."""
        self._producers: dict[tuple[str, int, int], _Producer] = defaultdict(_Producer)
        self.counts: Counter[str] = Counter()
        self._late: set[asyncio.Task[ErrorCode]] = set()

    def leader_of(self, _topic: str, _index: int) -> int:
        return 1

    async def produce(self, topic: str, index: int, batch: memoryview, _topic_id: bytes | None = None) -> Outcome:
        data = bytes(batch)
        if (topic, index) in self.dead:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if not self.is_faulty:
            return self._append(topic, index, data)
        chance = self._rng.random()
        if chance < 0.1:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        # The request travels whether or not its sender lives and waits.
        task = asyncio.get_running_loop().create_task(self._arrive(topic, index, data, chance))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return asyncio.shield(task)

    async def _arrive(self, topic: str, index: int, data: bytes, chance: float) -> ErrorCode:
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.05, 1.0)) * self._rng.random())
        code = ErrorCode.REQUEST_TIMED_OUT if chance < 0.2 else self._append(topic, index, data)
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.05)) * self._rng.random())
        return ErrorCode.NETWORK_EXCEPTION if 0.2 <= chance < 0.35 else code

    def _append(self, topic: str, index: int, data: bytes) -> ErrorCode:
        header = parse_header(data)
        found = list(read_records(data, max_bytes=1 << 20))
        producer = self._producers[topic, index, header.producer_id]
        place = header.base_sequence, header.record_count
        if place in producer.batches[-5:]:
            self.counts["repeated"] += 1
            return ErrorCode.NONE
        if self.is_faulty and any(each.value == POISON for each in found):
            self.counts["refused"] += 1
            return ErrorCode.INVALID_RECORD
        if header.base_sequence != producer.next:
            self.counts["out of order"] += 1
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        producer.batches.append(place)
        producer.next += header.record_count
        self.records += [(self._clock.now_ms(), each) for each in found]
        return ErrorCode.NONE


def topic_of(name: str, partitions: int) -> TopicState:
    return TopicState(name, name.encode() * 16, (PartitionState((1,), (1,), 1, 0),) * partitions, {})


class Inline(Shared):
    """Does the work of the index at once, or a little later."""

    def __init__(self, rng: random.Random, clock: Clock, targets: Targets, ids: Ids) -> None:
        self.topics = {name: topic_of(name, PARTITIONS) for name in TARGETS}
        super().__init__(
            clock, self.topics.get, lambda _topic: 2000, ids, targets, Places(), lambda partition: partition.leader == 1
        )
        self._rng = rng
        self._free = 0.0
        self.boot = "boot"

    def call(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish() -> None:
            try:
                found = work(*args)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(found)

        # One thread does all work, in its order.
        self._free = max(self._free, loop.time()) + self._rng.choice((0, 0, 0.001, 0.02)) * self._rng.random()
        loop.call_at(self._free, finish)
        return future


class World:
    """One log, one leader after the other, a client, and the faults."""

    kind_of_partition: type[Partition] = Partition

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self.clock = Clock()
        self.targets = Targets(self._rng, self.clock)
        self._shared = Inline(self._rng, self.clock, self.targets, Ids())
        self._log: PartitionLog = open_log(directory, config=CONFIG)
        self._epoch = 0
        self._number = 0
        self._producers = 1000
        self._open: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.fires: set[bytes] = set()
        """What must arrive once."""
        self.may_fire: set[bytes] = set()
        """What may arrive once: it was replaced or cancelled."""
        self.never: set[bytes] = set()
        self.repeats: dict[bytes, bytes] = {}
        self._by_key: dict[bytes, bytes] = {}
        self._healthy = False
        self._partition = self._new_leader()
        self._followed = self._follow()

    def _new_leader(self) -> Partition:
        partition = self.kind_of_partition("later", b"t" * 16, 0, self._log)
        partition.leading, partition.leader, partition.leader_epoch = True, 1, self._epoch
        partition.isr = partition.replicas = (1, 2)
        return partition

    def _follow(self) -> ScheduledPartition:
        followed = ScheduledPartition(self._partition, self._shared)
        followed.begin(is_change=False)
        return followed

    # -- the client

    def _produce(self) -> None:
        rng = self._rng
        self._number += 1
        value = b"v%d" % self._number
        chance = rng.random()
        if chance < 0.1 and self._by_key:
            key = rng.choice(list(self._by_key))
            self._supersede(key)
            if rng.random() < 0.5:
                self._append([(key, None, ())])
                return
            self._by_key[key] = value
            self._schedule(value, key)
        elif chance < 0.15:
            key = b"r%d" % self._number
            self.repeats[key] = value
            self._by_key[key] = value
            self._append([(key, value, (("x-schedule", b"@every 7s"), ("x-deliver-to", b"a")))])
        elif chance < 0.2:
            self._schedule(POISON, None, is_poison=True)
        elif chance < 0.3:
            self._transact(value)
        elif chance < 0.6:
            key = b"k%d" % self._number
            self._by_key[key] = value
            self._schedule(value, key)
        else:
            self._schedule(value, None)

    def _supersede(self, key: bytes) -> None:
        old = self._by_key.pop(key)
        self.fires.discard(old)
        if self.repeats.pop(key, None) is None:
            self.may_fire.add(old)
        else:
            self.may_fire.add(old + b"*")

    def _headers(self) -> tuple[tuple[str, bytes], ...]:
        rng = self._rng
        delay = rng.choice((0, 10, 500, rng.randrange(20_000)))
        return ("x-deliver-after", b"%d" % delay), ("x-deliver-to", rng.choice(TARGETS).encode()), ("other", b"1")

    def _schedule(self, value: bytes, key: bytes | None, *, is_poison: bool = False) -> None:
        self._append([(key, value, self._headers())])
        if not is_poison:
            self.fires.add(value)

    def _append(self, records: list[tuple[bytes | None, bytes | None, Any]], **fields: Any) -> None:
        batch = build_batch([(0, key, value, headers) for key, value, headers in records], **fields)
        self._partition.append(bytearray(batch), -1, self.clock.now_ms(), COORDINATOR)

    def _transact(self, value: bytes) -> None:
        """Write a record in a transaction that stays open for a while."""
        self._producers += 1
        producer = self._producers
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        self._append([(None, value, self._headers())], **fields)
        commits = self._rng.random() < 0.5
        if commits:
            self.fires.add(value)
        else:
            self.never.add(value)
        wait_s = self._rng.choice((0, 0.1, 3.0))
        asyncio.get_running_loop().call_later(wait_s, self._end_transaction, producer, commits)

    def _end_transaction(self, producer: int, commits: bool) -> None:
        if not self._partition.leading:
            asyncio.get_running_loop().call_later(0.1, self._end_transaction, producer, commits)
            return
        marker = build_marker(
            producer_id=producer, producer_epoch=0, commit=commits, coordinator_epoch=0, timestamp=self.clock.now_ms()
        )
        if producer in self._log.producers.entries:
            self._partition.append(bytearray(marker), -1, self.clock.now_ms(), COORDINATOR)

    def schedule(
        self, value: bytes, key: bytes | None, target: str, delay_ms: int, partition: int | None = None
    ) -> None:
        """Write one record, and commit it."""
        headers: tuple[tuple[str, bytes], ...] = (
            ("x-deliver-after", b"%d" % delay_ms), ("x-deliver-to", target.encode()),
        )  # fmt: skip
        if partition is not None:
            headers = (*headers, ("x-deliver-partition", b"%d" % partition))
        self._append([(key, value, headers)])
        self._commit()

    async def settle(self, holds: Callable[[], bool], seconds: float) -> None:
        """Let time pass without faults until something holds."""
        end = asyncio.get_running_loop().time() + seconds
        while not holds():
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
            self._commit()
            self._followed.tick()

    def resize(self, target: str, partitions: int) -> None:
        """Give a target another number of partitions; with 0, it does not exist."""
        if partitions:
            self._shared.topics[target] = topic_of(target, partitions)
        else:
            self._shared.topics.pop(target, None)

    def configure(self, **more: Any) -> None:
        """Change configs of the topic."""
        self._log.update_config(replace(self._log.config, **more))
        self._followed.reconfigured()

    def let_others_lead(self, *marks: Mark) -> None:
        """Let another broker lead, and write marks; then this one leads again."""
        self._partition.leading = False
        for each in marks:
            self._log.append_as_leader(build_marks([each], self.clock.now_ms()), 1, 0, origin=COORDINATOR)
        self._epoch += 2
        self._partition.leading, self._partition.leader_epoch = True, self._epoch
        self._followed.poke()

    def marks(self) -> list[Mark]:
        """Return all marks in the log."""
        batches = [found for each in self._log.segments for found in scan_batches(each.handle, 0, each.size)]
        return [mark for _, header, batch in batches if header.is_control for _, mark in read_marks(batch)]

    @property
    def has_replayed(self) -> bool:
        """Whether the index has all records."""
        return self._followed._at.records_to == self._log.log_end_offset

    def fill_up(self) -> None:
        """Let the index find no room on its disk any more."""
        assert self._followed._index is not None
        self._followed._index._db.execute("PRAGMA max_page_count = 1")

    async def end(self) -> None:
        await self._followed.close(clean=True)
        self._log.close()

    # -- replication and faults

    def _commit(self) -> None:
        """Let the followers have everything."""
        if self._log.high_watermark < self._log.log_end_offset:
            self._log.set_high_watermark(self._log.log_end_offset)
            self._partition.poke()

    def _fail_over(self) -> None:
        """Let another leader begin, while what the old one has sent still travels, and what it builds goes on."""
        old = self._followed
        self._partition.leading = False
        assert old._task is not None
        old._task.cancel()
        leading = old._leading
        if leading is not None:
            asyncio.get_running_loop().call_later(self._rng.random() * 3, leading.end)
        remove_index(str(self._directory))
        self._lead_anew()

    async def _crash(self) -> None:
        """End the leader at any await, and start it again with the index as it is."""
        self._partition.leading = False
        await self._followed.close(clean=self._rng.random() < 0.3)
        if self._rng.random() < 0.2:
            remove_index(str(self._directory))
        self._lead_anew()

    def _lead_anew(self) -> None:
        self._commit_some()
        self._epoch += 1
        self._log.leader_epochs.assign(self._epoch, self._log.log_end_offset)
        self._partition = self._new_leader()
        self._followed = self._follow()

    def _commit_some(self) -> None:
        """Lose intents that were not committed: the marks at the end of the log, as they may be on no other replica."""
        first = self._log.log_end_offset
        for segment in reversed(list(self._log.segments)):
            headers = [each for _, each in scan_headers(segment.handle, 0, segment.size)]
            while headers and headers[-1].is_control and headers[-1].producer_id < 0:
                last = headers.pop()
                if last.base_offset < self._log.high_watermark:
                    headers.clear()
                    break
                first = last.base_offset
            if headers or first <= self._log.high_watermark:
                break
        if first < self._log.log_end_offset and self._rng.random() < 0.5:
            self._log.truncate_to(max(first, self._log.high_watermark), self.clock.now_ms())

    # -- the run

    async def run(self, seconds: float) -> None:
        """Let things happen for some virtual time, then heal everything, and judge."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        next_fault = loop.time() + self._rng.random() * 3
        while loop.time() < end:
            await asyncio.sleep(self._rng.choice((0, 0.001, 0.02, 0.2)) * self._rng.random())
            if self._rng.random() < 0.3:
                self._produce()
            if self._rng.random() < 0.5:
                self._commit()
            self._followed.tick()
            if self._rng.random() < 0.02:
                self.clock.wrong_ms += self._rng.choice((-8000, -500, 500, 8000))
            if loop.time() > next_fault:
                next_fault = loop.time() + self._rng.random() * 4
                if self._rng.random() < 0.5:
                    self._fail_over()
                else:
                    await self._crash()
        self.targets.is_faulty = False
        for key in [each for each in self._by_key if each in self.repeats]:
            self._supersede(key)
            self._append([(key, None, ())])
        heal_until = loop.time() + 900
        while loop.time() < heal_until:
            await asyncio.sleep(0.05 if self._log.high_watermark < self._log.log_end_offset else 1)
            self._commit()
            self._followed.tick()
            if self.fires <= {each.value for _, each in self.targets.records} and self._followed.is_settled:
                break
        rows = [] if self._followed._index is None else self._followed._index.rows()
        await self._followed.close(clean=True)
        self._judge_intents()
        self._log.close()
        self.judge(rows)

    def _judge_intents(self) -> None:
        """No leader decides before a record is due by its clock, and no two intents name a record for one time."""
        seen: dict[tuple[int, int], int] = {}
        refused: set[int] = set()
        for segment in self._log.segments:
            for _, header, batch in scan_batches(segment.handle, 0, segment.size):
                if not header.is_control or header.producer_id >= 0:
                    continue
                for offset, mark in read_marks(batch):
                    if isinstance(mark, Done) and mark.error_code:
                        refused.add(mark.intent)
                    if isinstance(mark, Intent):
                        assert all(due.due_ms <= header.max_timestamp for due in mark.records), "early"
                        for due in mark.records:
                            assert seen.get(due, -1) in {-1, *refused}, f"{due} has two intents"
                            seen[due] = offset

    def judge(self, rows: list[Any]) -> None:
        """Compare what has arrived with what had to."""
        counts = Counter(each.value for _, each in self.targets.records)
        one_shots = self.fires | (self.may_fire - {value for value in self.may_fire if value.endswith(b"*")})
        again = {value: count for value, count in counts.items() if value in one_shots and count > 1}
        assert not again, f"fired again: {again}"
        missing = self.fires - counts.keys() - set(self.repeats.values())
        assert not missing, f"lost: {missing}, {rows}"
        assert not self.never & counts.keys(), "a record of an aborted transaction fired"
        seen: set[tuple[bytes, bytes]] = set()
        for _, record in self.targets.records:
            told = dict(record.headers)
            at = told["__schedule.at"]
            assert at is not None
            assert int(at) <= record.timestamp, "early"
            place = (record.value or b"") + (told["__schedule.offset"] or b""), at
            assert place not in seen, f"{place} fired twice"
            seen.add(place)
