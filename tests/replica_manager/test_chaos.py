"""Brokers die, return, are cut off and lose leadership at random, under producers: nothing acknowledged is lost.

The real managers, logs and handlers in virtual time (cluster.py); the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import iter_batches, read_records
from tests.replica_manager.cluster import CONFIG as DEFAULTS
from tests.replica_manager.cluster import CONTROLLER, Cluster, as_of, batch
from tests.replica_manager.virtual_time import run
from tests.tries import tries

CONFIG = as_of(DEFAULTS, lag_max_ms=2000, backoff_ms=200)
NODES = (1, 2, 3)
STEPS = 40
AGAIN = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}


class Chaos:
    """One run: producers, faults, and the acknowledged records."""

    def __init__(self, cluster: Cluster, seed: int, partitions: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.keys = [("t", index) for index in range(partitions)]
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = {key: {} for key in self.keys}
        self.told: Counter[str] = Counter()
        self.over = False
        self.values = 0

    async def produce(self, index: int) -> None:
        """Produce to a partition, at the leader that the controller names, or at any broker."""
        while not self.over:
            self.values += 1
            value = b"%d-" % self.values + bytes(self.random.randrange(200))
            leader = self.cluster.partitions["t", index].leader
            to = leader if self.random.random() < 0.9 else self.random.choice(NODES)
            node = self.cluster.nodes.get(to)
            if node is None or not node.alive:
                await asyncio.sleep(0.05)
                continue
            acks = self.random.choice((-1, -1, -1, 1))
            answer = await self.cluster.produce(value, index=index, acks=acks, timeout_ms=3000, to=to)
            self.told[f"acks={acks} answered {answer.error_code}"] += 1
            if acks == -1 and not answer.error_code and node.alive:
                self.acknowledged["t", index][answer.base_offset] = value
            await asyncio.sleep(self.random.choice((0.01, 0.1, 0.2)))

    async def produce_once(self, index: int) -> None:
        """Produce as an idempotent producer does: the same batch until it is acknowledged."""
        sequence = 0
        while not self.over:
            node = self.cluster.nodes.get(self.cluster.partitions["t", index].leader)
            if node is None or not node.alive:
                await asyncio.sleep(0.05)
                continue
            value = b"%d" % sequence
            records = batch(value, producer_id=index + 1, producer_epoch=0, base_sequence=sequence)
            answer = await self.cluster.produce(records=records, index=index, timeout_ms=1000, to=node.id)
            self.told[f"answered {answer.error_code}"] += 1
            assert answer.error_code in AGAIN | {0}
            if node.alive and not answer.error_code:
                sequence += 1
                self.acknowledged["t", index][answer.base_offset] = value
            await asyncio.sleep(self.random.choice((0.01, 0.1, 0.2)))

    async def disturb(self) -> None:
        for _ in range(STEPS):
            await asyncio.sleep(self.random.choice((0.01, 0.2, 1.0, 3.0)))
            faults = self.kill, self.start, self.start, self.cut, self.heal, self.expire, self.elect
            await self.random.choice(faults)()
            self.check()

    async def kill(self) -> None:
        alive = [each for each in NODES if self.cluster.nodes[each].alive]
        if len(alive) > 1:
            self.told["killed"] += 1
            self.cluster.kill(self.random.choice(alive), clean=self.random.random() < 0.2)

    async def start(self) -> None:
        for each in NODES:
            if not self.cluster.nodes[each].alive:
                self.told["came back"] += 1
                await self.cluster.start(each)
                return
            if each not in self.cluster.registered:
                self.told["registered again"] += 1
                self.cluster.nodes[each].epoch = self.cluster.next_broker_epoch()
                await self.cluster.register(each)
                return

    async def cut(self) -> None:
        hosts = [*(f"broker{each}" for each in NODES), CONTROLLER]
        self.told["cut"] += 1
        self.cluster.network.cut.add((self.random.choice(hosts), self.random.choice(hosts)))
        self.cluster.network.change()

    async def heal(self) -> None:
        self.cluster.network.cut.clear()

    async def expire(self) -> None:
        """Let the session of a live broker expire, which continues to lead its partitions."""
        if len(self.cluster.registered) > 1:
            self.told["expired"] += 1
            self.cluster.unregister(self.random.choice(sorted(self.cluster.registered)))

    async def elect(self) -> None:
        key = self.random.choice(self.keys)
        candidates = [each for each in self.cluster.partitions[key].isr if each in self.cluster.registered]
        if candidates:
            self.told["elected"] += 1
            self.cluster.elect(key, self.random.choice(candidates))

    def check(self) -> None:
        """Check that two replicas agree below the lower high watermark (R2), and that an epoch has one leader (R3)."""
        for key in self.keys:
            leaders: dict[int, int] = {}
            held = []
            for node in self.cluster.nodes.values():
                partition = node.replicas.get(key) if node.alive else None
                if partition is None:
                    continue
                log = partition.log
                assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
                held.append((log.high_watermark, contents(self.cluster.contents(node.id, key))))
                if partition.leading:
                    assert leaders.setdefault(partition.leader_epoch, node.id) == node.id
            for mark, one in held:
                for other_mark, other in held:
                    common = min(mark, other_mark)
                    assert [one.get(o) for o in range(common)] == [other.get(o) for o in range(common)]

    def check_once(self) -> None:
        """Check that each value is in the log once, in order; the last one may not have been acknowledged."""
        for key in self.keys:
            there = contents(self.cluster.contents(1, key))
            assert [there[offset] for offset in sorted(there)] == [b"%d" % number for number in range(len(there))]
            assert 0 <= len(there) - len(self.acknowledged[key]) <= 1

    async def settle(self) -> None:
        self.cluster.network.cut.clear()
        for each in NODES:
            if not self.cluster.nodes[each].alive:
                await self.cluster.start(each)
            elif each not in self.cluster.registered:
                self.cluster.nodes[each].epoch = self.cluster.next_broker_epoch()
                await self.cluster.register(each)
        self.over = True
        for key in self.keys:
            await self.cluster.until(lambda key=key: self.cluster.in_sync(key) == set(NODES))
            await self.cluster.until(lambda key=key: self.cluster.are_equal(key))
            there = contents(self.cluster.contents(1, key))
            for offset, value in self.acknowledged[key].items():
                assert there.get(offset) == value, f"{value!r} was acknowledged at {offset} of {key}"
        self.check()


def contents(data: bytes) -> dict[int, bytes | None]:
    found = {}
    for position, header in iter_batches(data):
        for record in read_records(data[position : position + header.size], max_bytes=1 << 20):
            found[record.offset] = record.value
    return found


def play(
    directory: Path, seed: int, *, min_isr: int = 2, partitions: int = 2, idempotent: bool = False
) -> Counter[str]:
    async def main() -> Counter[str]:
        log = {"segment_bytes": 4096, "index_interval_bytes": 200}
        async with Cluster(directory, config=CONFIG, min_isr=min_isr, log=log) as cluster:
            await cluster.create(partitions=partitions)
            chaos = Chaos(cluster, seed, partitions)
            produce = chaos.produce_once if idempotent else chaos.produce
            producers = [asyncio.ensure_future(produce(index)) for index in range(partitions)]
            try:
                await chaos.disturb()
                await chaos.settle()
                await asyncio.gather(*producers)
                if idempotent:
                    chaos.check_once()
            finally:
                for producer in producers:
                    producer.cancel()
            chaos.told["acknowledged"] = sum(map(len, chaos.acknowledged.values()))
            return chaos.told

    return run(main())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(tries(4)))
@pytest.mark.parametrize(("min_isr", "idempotent"), [(1, False), (2, False), (1, True)])
def test_nothing_acknowledged_is_lost(
    tmp_path: Path, seed: int, min_isr: int, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_VERIFY", "1")
    cut = PartitionLog._cut

    def checked(self: PartitionLog, offset: int, now_ms: int = 0) -> None:
        assert offset >= self.high_watermark, f"R14: cut at {offset}, below {self.high_watermark}"
        cut(self, offset, now_ms)

    monkeypatch.setattr(PartitionLog, "_cut", checked)
    print(f"seed {seed}")
    told = play(tmp_path, seed, min_isr=min_isr, idempotent=idempotent)
    assert told["acknowledged"] > 10, told
