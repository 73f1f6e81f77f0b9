"""Clients that record a cluster's answers, and the judgement of them at the end.

Owns what each client does and what must be stored afterwards: records acknowledged with acks=all, at their offsets,
once and in order as far as a broker can ensure that (batches.py); transactions complete or not at all, matching their
answers; committed offsets that never go back. Never harms a broker.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.batches import judge, read_batches

PARTITIONS = 3
PATIENCE_S = 60
_PAUSE_S = 0.005
"""Between two records for a partition. With five times as many a start after 500 faults takes seconds for its recovery,
and the faults are no more."""
_BETWEEN_TRANSACTIONS_S = 0.05
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 200}


def _logger(lines: Path) -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.{lines}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = logging.FileHandler(lines)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
    logger.addHandler(handler)
    return logger


class Book:
    """What one idempotent producer was answered about its records, by partition."""

    def __init__(self, servers: str, topic: str, lines: Path | None = None) -> None:
        """`lines` is where the producer logs its epochs."""
        self.topic = topic
        self.acked: list[dict[int, int | None]] = [{} for _ in range(PARTITIONS)]
        self.sent = [0] * PARTITIONS
        self.failed: list[str] = []
        settings = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "delivery.timeout.ms": 10 * 60 * 1000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            **QUIET,
        }
        if lines is None:
            self.producer = Producer(settings)
        else:
            self.producer = Producer({**settings, "log_level": 7, "debug": "eos"}, logger=_logger(lines))
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
        while not self._stop.wait(_PAUSE_S):
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
    """What a transactional producer was answered about its transactions: a record in each partition, or in none."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self._servers = servers
        self.outcome: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="transactions")
        self.fenced = 0
        self.reasons: list[str] = []
        """Why and when a transactional producer could not continue."""
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
            while not self._stop.wait(_BETWEEN_TRANSACTIONS_S):
                try:
                    self._one(producer, number)
                except KafkaException as error:
                    self.outcome[number] = "unknown"
                    if self._is_aborted(producer, error):
                        self.outcome[number] = "aborted"
                    else:
                        self.fenced += 1
                        self.reasons.append(f"{time.monotonic():.3f} transaction {number}: {error}")
                        producer = self._producer()
                number += 1
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.error = error

    def _is_aborted(self, producer: Producer, error: KafkaException) -> bool:
        """Abort a failed transaction, if that is possible.

        librdkafka also ends a transaction that the coordinator does not know yet, because its AddPartitionsToTxn was
        lost in transit. Kafka's coordinators, too, answer that with INVALID_TXN_STATE, which is fatal for librdkafka.
        """
        if not error.args[0].txn_requires_abort():
            return False
        try:
            self._until(partial(producer.abort_transaction, 10))
        except KafkaException as second:
            if not second.args[0].fatal():
                raise
            return False
        return True

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
    """A consumer of a group that commits what it has read, and checks that the committed offset never goes back.

    A commit may never be answered: a synchronous commit of librdkafka was seen to hang for 48 minutes, while all other
    clients worked. Such a consumer is replaced, and counted. So is a consumer that is in a call at the end and does not
    return: every call has a timeout of at most 5 s, or waits for nobody, but two threads of librdkafka may have
    deadlocked (FINDINGS.md). The call that it is in is printed.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self.topic = topic
        self.committed = [-1] * PARTITIONS
        self.commits = 0
        self.given_up = 0
        self.back: list[str] = []
        self._asked: float | None = None
        """The time since when a commit is in progress."""
        self._consumer = self._new()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="group", daemon=True)

    def _new(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "on_commit": self._answered,
                **QUIET,
            }
        )
        consumer.subscribe([self.topic])
        return consumer

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.given_up += 1
            print("the consumer hangs:", *traceback.format_stack(sys._current_frames()[self._thread.ident or 0])[-2:])
            return
        self._leave(self._consumer)

    def _leave(self, consumer: Consumer) -> None:
        """Close a consumer; if that does not end, the consumer ends with the process."""
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S / 10)

    def _read(self) -> None:
        while not self._stop.is_set():
            self._consumer.consume(100, 0.2)
            if self._asked is None:
                self._commit()
            elif time.monotonic() - self._asked > PATIENCE_S:
                self.given_up += 1
                self._asked = None
                self._leave(self._consumer)
                self._consumer = self._new()
            self._look()

    def _commit(self) -> None:
        self._asked = time.monotonic()
        try:
            self._consumer.commit(asynchronous=True)
        except KafkaException:
            self._asked = None

    def _answered(self, error, partitions) -> None:
        self._asked = None
        if error is not None:
            return
        for each in partitions:
            if each.error is None and each.offset >= 0:
                self.committed[each.partition] = max(self.committed[each.partition], each.offset)
                self.commits += 1

    def _look(self) -> None:
        try:
            found = self._consumer.committed([TopicPartition(self.topic, index) for index in range(PARTITIONS)], 5)
        except KafkaException:
            return
        for each in found:
            if each.error is None and max(each.offset, -1) < self.committed[each.partition]:
                self.back.append(f"{each.partition}: {each.offset} after {self.committed[each.partition]}")


def read(servers: str, topic: str, isolation: str) -> list[list[tuple[int, int]]]:
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


def judge_plain(servers: str, book: Book) -> str:
    twice = epochs = 0
    for index, acked in enumerate(book.acked):
        judged = judge(read_batches(servers, "plain", index, PATIENCE_S), f"plain-{index}")
        for number, offset in acked.items():
            places = judged.places.get(number)
            assert places, f"plain-{index}: {number} was acknowledged at {offset} and is lost"
            # librdkafka also counts a record as written if a later one is acknowledged, and then knows no offset.
            assert offset is None or offset in places, f"plain-{index}: {number} at {places}, not {offset}"
        twice, epochs = twice + judged.twice, max(epochs, judged.epochs)
    told = sum(map(len, book.acked))
    return f"{told} acknowledged records, {twice} of them sent again by the producer in one of its {epochs} epochs"


def judge_paired(servers: str, ledger: Ledger) -> int:
    seen = [[number for _, number in records] for records in read(servers, "paired", "read_committed")]
    for index, numbers in enumerate(seen):
        assert len(numbers) == len(set(numbers)), f"paired-{index}: a transaction twice"
    for number, outcome in ledger.outcome.items():
        where = [number in numbers for numbers in seen]
        assert len(set(where)) == 1, f"transaction {number} is torn: {where}"
        if outcome != "unknown":
            assert where[0] == (outcome == "committed"), f"transaction {number} was {outcome}: {where}"
    return len(ledger.outcome)


class Clients:
    """All clients, on two topics with three replicas. Inside `with` they work; afterwards their records are judged."""

    def __init__(self, servers: str, lines: Path | None = None) -> None:
        self._servers = servers
        admin = AdminClient({"bootstrap.servers": servers})
        for topic in ("plain", "paired"):
            admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(PATIENCE_S)
        self.book, self.group = Book(servers, "plain", lines), Group(servers, "plain")
        self.ledger = Ledger(servers, "paired")

    def begin(self) -> None:
        for each in (self.book, self.ledger, self.group):
            each.begin()

    def end(self) -> None:
        """Let the clients finish; the cluster has recovered."""
        for each in (self.ledger, self.book, self.group):
            each.end()

    def judge(self) -> str:
        """Compare the clients' records with what is stored, and return the counts."""
        assert not self.group.back, self.group.back[:5]
        assert self.group.commits > 0, "the group committed nothing, so nothing could go back"
        plain, paired = judge_plain(self._servers, self.book), judge_paired(self._servers, self.ledger)
        return (
            f"{plain}, {paired} transactions, {self.group.commits} commits, "
            f"{self.ledger.fenced} new transactional producers, {self.group.given_up} consumers given up"
        )
