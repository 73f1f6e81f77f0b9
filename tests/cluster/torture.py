"""A cluster in one process whose brokers are killed, stopped, cut off and expired, under clients that keep books.

    python -m tests.cluster.torture --faults 1000 --seed 7

Owns the faults, the clients' books, and the judgement at the end: what was acknowledged with acks=all is there once, at
its offset and in order; a transaction is there whole or not at all, and as it was answered; committed offsets never go
back; the replicas' files are equal byte for byte. Never waits for luck: every wait has a deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster

PARTITIONS = 3
PATIENCE_S = 60
CONFIG = {
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 1500,
    "replica.fetch.backoff.ms": 50,
    "controlled.shutdown.retry.backoff.ms": 100,
    "transaction.state.log.min.isr": 2,
    "log.segment.bytes": 1 << 20,
}
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 200}


class Book:
    """What one idempotent producer was told of its records, by partition."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.acked: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.sent = [0] * PARTITIONS
        self.failed: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 10 * 60 * 1000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                **QUIET,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="producer")

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        left = self.producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records were not answered"

    def _write(self) -> None:
        while not self._stop.wait(0.001):
            for partition in range(PARTITIONS):
                number = self.sent[partition]
                if number - len(self.acked[partition]) > 2000:
                    continue
                self.sent[partition] += 1
                self.producer.produce(
                    self.topic, str(number).encode(), partition=partition, on_delivery=self._delivered
                )
            self.producer.poll(0)

    def _delivered(self, error, message) -> None:
        if error is not None:
            self.failed.append(f"{time.monotonic():.3f} {error}")
        else:
            self.acked[message.partition()][int(message.value())] = message.offset()


class Ledger:
    """What a transactional producer was told of its transactions: a record in each partition, or in none."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self._servers = servers
        self.outcome: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="transactions")
        self.fenced = 0
        self.error: BaseException | None = None

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a transaction hangs"
        if self.error is not None:
            raise self.error

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": "ledger",
                "transaction.timeout.ms": 30_000,
                **QUIET,
            }
        )
        self._until(lambda: producer.init_transactions(10))
        return producer

    def _until(self, work) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return work()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _write(self) -> None:
        try:
            producer, number = self._producer(), 0
            while not self._stop.is_set():
                try:
                    self._one(producer, number)
                except KafkaException as error:
                    self.outcome[number] = "unknown"
                    if error.args[0].txn_requires_abort():
                        self._until(partial(producer.abort_transaction, 10))
                        self.outcome[number] = "aborted"
                    else:
                        self.fenced += 1
                        producer = self._producer()
                number += 1
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.error = error

    def _one(self, producer: Producer, number: int) -> None:
        self.outcome[number] = "unknown"
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self.topic, str(number).encode(), partition=partition)
        if number % 5 == 4:
            self._until(lambda: producer.abort_transaction(10))
            self.outcome[number] = "aborted"
        else:
            self._until(lambda: producer.commit_transaction(10))
            self.outcome[number] = "committed"


class Group:
    """A consumer of a group that commits what it has read, and looks that this never goes back."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic])
        self.topic = topic
        self.committed = [-1] * PARTITIONS
        self.commits = 0
        self.back: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="group")

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the consumer hangs"
        self._consumer.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            self._consumer.consume(100, 0.2)
            try:
                done = self._consumer.commit(asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._NO_OFFSET:
                    continue
                continue
            for each in done or ():
                if each.error is None and each.offset >= 0:
                    self.committed[each.partition] = max(self.committed[each.partition], each.offset)
                    self.commits += 1
            self._look()

    def _look(self) -> None:
        try:
            found = self._consumer.committed([TopicPartition(self.topic, index) for index in range(PARTITIONS)], 5)
        except KafkaException:
            return
        for each in found:
            if each.error is None and max(each.offset, -1) < self.committed[each.partition]:
                self.back.append(f"{each.partition}: {each.offset} after {self.committed[each.partition]}")


class Torture:
    """One run from one seed."""

    def __init__(self, seed: int, faults: int, brokers: int = 3) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        """What was done, and when: for whoever looks for the reason of a failure."""
        self.cluster = Cluster(brokers, CONFIG)

    def run(self) -> str:
        with self.cluster as cluster:
            servers = cluster.bootstrap_servers
            admin = AdminClient({"bootstrap.servers": servers})
            for topic in ("plain", "paired"):
                admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(PATIENCE_S)
            book, ledger, group = Book(servers, "plain"), Ledger(servers, "paired"), Group(servers, "plain")
            for each in (book, ledger, group):
                each.begin()
            try:
                for _ in range(self.faults):
                    self.fault()
                self.mend()
            finally:
                for each in (ledger, book, group):
                    each.end()
            self.wait_in_sync()
            assert not book.failed, (book.failed[:5], self.around(book.failed[0]))
            assert not group.back, group.back[:5]
            plain = self.judge_plain(servers, book)
            paired = self.judge_paired(servers, ledger)
            self.wait_in_sync()
            files = self.judge_files()
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return (
            f"nothing lost: {counts}; {plain} acknowledged records, {paired} transactions, {group.commits} commits, "
            f"{ledger.fenced} new transactional producers, {files} files equal"
        )

    # --- faults

    def around(self, failure: str) -> list[str]:
        """Return the faults around a failure whose text begins with its time."""
        when = float(failure.split(maxsplit=1)[0])
        return [each for each in self.history if abs(float(each.split()[0]) - when) < 3]

    def running(self):
        return [each for each in self.cluster.brokers.values() if each.is_running]

    def fault(self) -> None:
        """One fault, or the end of one."""
        down = [each for each in self.cluster.brokers.values() if not each.is_running]
        if down and (len(down) > 1 or self.random.random() < 0.6):
            broker = self.random.choice(down)
            self.history.append(f"{time.monotonic():.3f} start {broker.node_id}")
            broker.start()
        else:
            what = self.random.choice(("kill", "kill", "stop", "expire", "cut"))
            broker = self.random.choice(self.running())
            self.counts[what] += 1
            self.history.append(f"{time.monotonic():.3f} {what} {broker.node_id}")
            if what == "kill":
                broker.kill()
            elif what == "stop":
                broker.stop()
            else:
                self.cluster.run(self.session(broker, what))
        time.sleep(self.random.choice((0, 0.01, 0.05, 0.2, 0.5)))

    async def session(self, broker, what: str) -> None:
        tree = broker.node.tree
        if what == "expire":
            tree.expire()
            return
        tree.cut()
        expires, seconds = self.random.random() < 0.5, self.random.random() * 0.5

        def back() -> None:
            tree.heal()

        if expires:
            tree.expire()
        asyncio.get_running_loop().call_later(seconds, back)

    def mend(self) -> None:
        for each in self.cluster.brokers.values():
            if not each.is_running:
                each.start()

    def wait_in_sync(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            states = [each.node.member.state for each in self.running()]
            bad = [
                (topic.name, index, part)
                for state in states
                for topic in state.topics.values()
                for index, part in enumerate(topic.partitions)
                if part.leader < 0 or len(part.isr) < len(part.replicas)
            ]
            ends = Counter(
                (each.topic, each.index, each.log.log_end_offset, each.log.high_watermark)
                for broker in self.running()
                for each in list(broker.node.replicas)
            )
            if not bad and len(states) == 3 and all(count == 3 for count in ends.values()):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"not in sync: {bad[:5]} {[e for e in ends.items() if e[1] != 3][:8]}")
            time.sleep(0.05)

    # --- judgement

    def read(self, servers: str, topic: str, isolation: str) -> list[list[tuple[int, int]]]:
        """Return (offset, number) of every record, by partition."""
        found = []
        for index in range(PARTITIONS):
            consumer = Consumer(
                {
                    "bootstrap.servers": servers,
                    "group.id": "judge",
                    "isolation.level": isolation,
                    "enable.partition.eof": True,
                    "enable.auto.commit": False,
                    **QUIET,
                }
            )
            consumer.assign([TopicPartition(topic, index, 0)])
            records, ended = [], False
            deadline = time.monotonic() + PATIENCE_S
            while not ended:
                assert time.monotonic() < deadline, f"{topic}-{index} is not read to its end"
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    records.append((message.offset(), int(message.value())))
                else:
                    ended = message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            found.append(records)
        return found

    def judge_plain(self, servers: str, book: Book) -> int:
        for index, records in enumerate(self.read(servers, "plain", "read_uncommitted")):
            numbers = [number for _, number in records]
            assert numbers == sorted(set(numbers)), f"plain-{index}: twice, or out of order"
            there = {number: offset for offset, number in records}
            for number, offset in book.acked[index].items():
                assert number in there, f"plain-{index}: {number} was acknowledged at {offset} and is lost"
                # The answer to a retry of what was written already may not name the offset.
                assert offset in (there[number], -1), f"plain-{index}: {number} at {there[number]}, not {offset}"
        return sum(map(len, book.acked))

    def judge_paired(self, servers: str, ledger: Ledger) -> int:
        seen = [[number for _, number in records] for records in self.read(servers, "paired", "read_committed")]
        for index, numbers in enumerate(seen):
            assert len(numbers) == len(set(numbers)), f"paired-{index}: a transaction twice"
        for number, outcome in ledger.outcome.items():
            where = [number in numbers for numbers in seen]
            assert len(set(where)) == 1, f"transaction {number} is torn: {where}"
            if outcome != "unknown":
                assert where[0] == (outcome == "committed"), f"transaction {number} was {outcome}: {where}"
        return len(ledger.outcome)

    def judge_files(self) -> int:
        for each in self.running():
            self.cluster.run(self.flush(each))
        first, *others = [Path(each.data_dir) for each in self.running()]
        count = 0
        for path in sorted(first.glob("p*-*/*.log")):
            for other in others:
                assert (other / path.relative_to(first)).read_bytes() == path.read_bytes(), f"{path.name} differs"
            count += 1
        return count

    async def flush(self, broker) -> None:
        for each in list(broker.node.replicas):
            each.log.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    print(Torture(options.seed, options.faults).run(), f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
