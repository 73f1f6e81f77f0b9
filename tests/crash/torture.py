"""The broker is ended at failpoints and at random moments, over and over, and must never lose what it said it had.

    python -m tests.crash.torture --kills 1000 --seed 7

One client does one thing at a time: produces (idempotent, acks=all), commits positions, deletes records, moves
partitions between two log directories, creates and deletes topics. So at each end at most one thing is in doubt, and
`Model` knows all the others. After each start the model is compared with what the broker answers.

    kept        delete policy, nothing is ever deleted: every record, at its offset, with its bytes
    short       retention by size and DeleteRecords: the same from the log's start on, which never goes back
    compacted   the last value of each key, at its offset
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat_tests.harness.brokers import BrokerFailed, KBroker
from compat_tests.wire.client import CLOSED, WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.failpoints import NAMES, VARIABLE
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import build_batch, parse_header, read_records
from tests.crash.long_form import long_form, say

PARTITIONS = 3
KEYS = 50
GROUP = "group"
CONFIGS: dict[str, dict[str, str]] = {
    "kept": {"retention.ms": "-1"},
    "short": {"retention.bytes": str(3 << 20), "file.delete.delay.ms": "100"},
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
        "file.delete.delay.ms": "100",
    },
}
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "log.retention.check.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
}
START_SECONDS = 60.0
# The others are for transactions.py, pipeline.py, test_share_group.py and test_schedules.py.
_ELSEWHERE = ("txn", "archive", "replay", "visits", "share", "schedule")
_FAILPOINTS = tuple(name for name in NAMES if name.partition(".")[0] not in _ELSEWHERE)


class Gone(Exception):  # noqa: N818 - what happened
    """The broker ended while it was being asked."""


@dataclass
class PartitionModel:
    """The state of one partition. `values` has a (key, value) for each acknowledged offset, beginning at 0."""

    values: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    log_start: int = 0
    may_start: int = 0
    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0
    doubtful: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    position: int = -1
    maybe_position: int = -1


class Torture:
    """One data directory, one model, many ends."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.model = {(topic, p): PartitionModel() for topic in CONFIGS for p in range(PARTITIONS)}
        self.dirs = [str(directory / "a"), str(directory / "b")]
        self.broker = _TwoDirs(directory, SETTINGS)
        self._failpoints = itertools.cycle(self.rng.sample(_FAILPOINTS, len(_FAILPOINTS)))
        self._numbers = 0
        self._temporary = ""
        self._client: WireClient | None = None

    def summary(self) -> str:
        """Return the number of ends of each kind, of batches, records, and checks."""
        ends = sum(count for name, count in self.counts.items() if name.startswith("kills at "))
        return f"{ends} kills, {dict(self.counts)}"

    # -- one life of the broker

    def run(self, kills: int) -> None:
        """Let the broker start and end this often, then check everything once more."""
        self.broker.start()
        self._attach()
        self._create_topics()
        for number in range(kills):
            self._live_and_die()
            self._come_back(number)
            if number % 50 == 49:
                say(f"{number + 1} lives: {self.summary()}")
        self._detach()
        self.broker.kill()  # a failpoint may be armed, and would end the broker anywhere
        self.broker.armed = ""
        for _ in ("after a kill", "after a clean stop"):
            self._start_and_check(whole=True)
            self._detach()
            assert self.broker.stop() == 0, self.broker.log_tail()

    def _live_and_die(self) -> None:
        longest = 5.0 if self.broker.armed.startswith("swap.") else 1.0 if self.broker.armed else 0.25
        deadline = time.monotonic() + self.rng.uniform(0.0, longest)
        try:
            while time.monotonic() < deadline:
                self._act()
        except Gone:
            self._note_failpoint()
            return
        self._detach()
        if self.rng.random() < 0.1:
            self.counts["clean stops"] += self.broker.stop() == 0
            return
        self.counts["kills at a moment"] += 1
        self.broker.kill()
        self._damage()

    def _note_failpoint(self) -> None:
        """Note that the broker has ended by itself: at its failpoint, or because something is wrong."""
        self._detach()
        assert self.broker.died_by_kill(), self.broker.log_tail()
        self.counts[f"kills at {self.broker.armed}"] += 1
        self.broker.kill()
        self.broker.armed = ""

    def _come_back(self, number: int) -> None:
        self.broker.armed = ""
        while self.rng.random() < 0.15:
            self.broker.launch()
            time.sleep(self.rng.uniform(0.0, 0.5))  # the random moment itself
            self.broker.kill()
            self.counts["kills at a start"] += 1
        if self.rng.random() < 0.7:
            self.broker.armed = next(self._failpoints)
            self.broker.count = 1 if self.broker.armed.startswith("swap.") else self.rng.choice((1, 1, 2, 3, 8))
        try:
            self._start_and_check(whole=number % 25 == 0)
        except (Gone, BrokerFailed):
            self._note_failpoint()
            self._start_and_check(whole=True)

    def _start_and_check(self, *, whole: bool) -> None:
        self.broker.start()
        self._attach()
        self.check(whole=whole)

    def _damage(self) -> None:
        """Damage the files as S3, S4 and S6 describe; what is lost contains nothing acknowledged."""
        files = [path for each in self.dirs for path in Path(each).glob("*-[0-9]*/*") if path.is_file()]
        logs = sorted(path for path in files if path.suffix == ".log")
        helpers = sorted(path for path in files if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"))
        if self.rng.random() < 0.2:
            victim = self.rng.choice([path for path in logs if path == max(path.parent.glob("*.log"))])
            with open(victim, "ab") as file:
                file.write(self.rng.choice((bytes(100), self.rng.randbytes(200), b"\xff" * 61)))
            self.counts["garbage tails"] += 1
        if helpers and self.rng.random() < 0.3:
            victim = self.rng.choice(helpers)
            if self.rng.random() < 0.5:
                victim.unlink()
            else:
                victim.write_bytes(self.rng.randbytes(self.rng.choice((0, 7, 400))))
            self.counts["indexes and snapshots damaged"] += 1
        if self.rng.random() < 0.1:
            name = self.rng.choice(("recovery-point-offset-checkpoint", "replication-offset-checkpoint"))
            (Path(self.rng.choice(self.dirs)) / name).write_bytes(self.rng.choice((b"", b"0\nx\n", bytes(50))))
            self.counts["checkpoints damaged"] += 1

    # -- asking

    def _attach(self) -> None:
        self._client = WireClient(self.broker.bootstrap)

    def _detach(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, request: Any, version: int) -> Any:
        assert self._client is not None
        try:
            answer = self._client.ask(request, version)
        except OSError:
            raise Gone from None
        if isinstance(answer, str):
            assert answer == CLOSED, answer
            raise Gone
        return answer

    def _create_topics(self) -> None:
        topics = [
            CreatableTopic(name, PARTITIONS, 1, configs=[CreatableTopicConfig(k, v) for k, v in configs.items()])
            for name, configs in CONFIGS.items()
        ]
        answer = self._ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
        assert [t.error_code for t in answer.topics] == [0] * len(CONFIGS)
        self._ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
        for partition in self.model.values():
            found = self._ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)
            assert found.error_code == 0
            partition.producer = found.producer_id, found.producer_epoch

    # -- what a client does

    def _act(self) -> None:
        act = self.rng.choices(
            (self._produce, self._commit, self._delete_records, self._move, self._change_topics), (60, 15, 3, 4, 2)
        )[0]
        act()

    def _produce(self) -> None:
        (topic, index), partition = self.rng.choice(list(self.model.items()))
        if not partition.doubtful:
            records = []
            for _ in range(self.rng.randint(1, 20)):
                self._numbers += 1
                value = f"{self._numbers}:".encode().ljust(self.rng.choice((20, 3000)), b".")
                records.append((f"k{self.rng.randrange(KEYS)}".encode(), value))
            partition.doubtful = records
        self._send(topic, index, partition)
        self.counts["batches"] += 1

    def _send(self, topic: str, index: int, partition: PartitionModel) -> None:
        """Send the uncertain batch again; its sequence makes the repetition harmless."""
        now = int(time.time() * 1000)
        batch = build_batch(
            [(now, key, value, ()) for key, value in partition.doubtful],
            producer_id=partition.producer[0],
            producer_epoch=partition.producer[1],
            base_sequence=partition.sequence,
        )
        answer = self._ask(produce_request(topic, batch, partition=index), 9)
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == 0, (topic, index, found, partition.sequence)
        assert found.base_offset == len(partition.values), (topic, index, found.base_offset, len(partition.values))
        partition.values += partition.doubtful
        partition.sequence += len(partition.doubtful)
        self.counts["records"] += len(partition.doubtful)
        partition.doubtful = []

    def _commit(self) -> None:
        (topic, index), partition = self.rng.choice(list(self.model.items()))
        partition.maybe_position = self.rng.randint(0, len(partition.values))
        wanted = OffsetCommitRequestPartition(index, partition.maybe_position, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name=topic, partitions=[wanted])]
        answer = self._ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 8)
        assert answer.topics[0].partitions[0].error_code == 0
        partition.position = partition.maybe_position
        self.counts["commits"] += 1

    def _delete_records(self) -> None:
        index = self.rng.randrange(PARTITIONS)
        partition = self.model["short", index]
        offset = self.rng.randint(partition.log_start, max(len(partition.values), partition.log_start))
        partition.may_start = max(partition.may_start, offset)
        topics = [DeleteRecordsTopic("short", [DeleteRecordsPartition(index, offset)])]
        answer = self._ask(DeleteRecordsRequest(topics=topics, timeout_ms=5000), 2)
        found = answer.topics[0].partitions[0]
        if found.error_code == 0:  # retention may have been faster: OFFSET_OUT_OF_RANGE
            partition.log_start = max(partition.log_start, found.low_watermark)
            self.counts["deletions of records"] += 1

    def _move(self) -> None:
        topic, index = self.rng.choice(list(self.model))
        wanted = AlterReplicaLogDir(self.rng.choice(self.dirs), [AlterReplicaLogDirTopic(topic, [index])])
        answer = self._ask(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
        assert answer.results[0].partitions[0].error_code == 0
        self.counts["moves"] += 1

    def _change_topics(self) -> None:
        if self._temporary:
            name, self._temporary = self._temporary, ""
            self._ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), 6)
            return
        self._temporary = f"temporary-{self._numbers}"
        topics = [CreatableTopic(self._temporary, 2, 1)]
        answer = self._ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
        assert answer.topics[0].error_code == 0
        self.counts["topics"] += 1

    # -- what must hold

    def check(self, *, whole: bool = True) -> None:
        """Compare the model with the broker: everything, or the end of each partition."""
        for (topic, index), partition in self.model.items():
            if partition.doubtful:
                self._send(topic, index, partition)
            self._check_partition(topic, index, partition, whole=whole)
        self._check_positions()
        self.counts["checks"] += 1

    def _check_partition(self, topic: str, index: int, partition: PartitionModel, *, whole: bool) -> None:
        _, start, end, _ = self._fetch(topic, index, len(partition.values))
        assert end == len(partition.values), (topic, index, end, len(partition.values))
        assert start >= partition.log_start, (topic, index, "the log's start went back", start, partition.log_start)
        if topic != "short":
            assert start == 0
        partition.log_start = start
        position = start if whole else max(start, end - 60)
        found: dict[int, tuple[bytes | None, bytes]] = {}
        while position < end:
            records, _, _, behind = self._fetch(topic, index, position)
            assert behind > position, (topic, index, position, end)
            found.update(records)
            position = behind
        if topic == "compacted":
            _check_compacted(partition, found, whole=whole)
        else:
            first = min(found, default=end)
            assert found == dict(enumerate(partition.values[first:], first)), (topic, index)
            assert first == (start if whole else max(start, end - 60)), (topic, index, first)

    def _fetch(self, topic: str, index: int, offset: int) -> tuple[dict[int, Any], int, int, int]:
        """Return records by offset, the log's start and end, and the offset after the last record."""
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[wanted])]
        answer = self._ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0, (topic, index, offset, data.error_code)
        found = {}
        behind = offset
        view = memoryview(data.records)
        while len(view) > 12 and len(view) >= (size := int.from_bytes(view[8:12]) + 12):
            for record in read_records(view[:size], max_bytes=1 << 24):
                if record.offset >= offset:
                    key = None if record.key is None else bytes(record.key)
                    found[record.offset] = (key, bytes(record.value or b""))
            # Compaction leaves batches without records: a producer's last batch keeps its sequence.
            behind = parse_header(view).last_offset + 1
            view = view[size:]
        return found, data.log_start_offset, data.high_watermark, behind

    def _check_positions(self) -> None:
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(PARTITIONS))) for topic in CONFIGS]
        answer = self._ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=topics)]), 8)
        deadline = time.monotonic() + START_SECONDS
        while answer.groups[0].error_code == _LOADING and time.monotonic() < deadline:
            answer = self._ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=topics)]), 8)
        assert answer.groups[0].error_code == 0
        for topic in answer.groups[0].topics:
            for entry in topic.partitions:
                partition = self.model[topic.name, entry.partition_index]
                assert entry.committed_offset in (partition.position, partition.maybe_position), (topic.name, entry)
                partition.position = partition.maybe_position = entry.committed_offset


_LOADING = 14


def _check_compacted(partition: PartitionModel, found: dict[int, Any], *, whole: bool) -> None:
    last: dict[bytes | None, int] = {}
    for offset, (key, _) in enumerate(partition.values):
        last[key] = offset
    for offset, entry in found.items():
        assert entry == partition.values[offset]
    lowest = 0 if whole else max(len(partition.values) - 60, 0)
    missing = [offset for offset in last.values() if offset >= lowest and offset not in found]
    assert not missing, missing


class _TwoDirs(KBroker):
    """A broker with two log directories, and failpoints in its environment."""

    armed = ""
    count = 1

    def _command(self) -> list[str]:
        command = super()._command()
        where = command.index("--data-dir")
        directories = f"log.dirs={self.directory / 'a'},{self.directory / 'b'}"
        return [*command[:where], "--set", directories, *command[where + 2 :]]

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VARIABLE: f"{self.armed}:{self.count}" if self.armed else ""}


if __name__ == "__main__":
    long_form(__doc__, 1000, Torture, "nothing lost")
