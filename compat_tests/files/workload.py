"""Data of every kind in small files, which one broker writes and the other reads.

Owns the topics. Segments are small because the records' own timestamps make them roll: Apache Kafka 4 accepts no
segment.bytes below 1 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition

from compat_tests.clients.common import CODECS, T0, WAIT_S, wait_for
from compat_tests.clients.confluent.tools import QUIET, admin, answers, create, producer
from kbroker.log import checkpoints
from kbroker.log.files import LOG_SUFFIX, offset_of

CODED, PREFIX, TXN, COMPACTED = "files-codecs", "files-prefix", "files-txn", "files-compacted"
BASE: Final = {"segment.ms": "4000", "index.interval.bytes": "300", "retention.ms": "-1"}
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    CODED: BASE,
    PREFIX: BASE,
    TXN: BASE,
    COMPACTED: {**BASE, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
BROKER: Final = {"log.cleaner.backoff.ms": "100"}
"""Settings with which a broker's cleaner works immediately."""
_STEP_MS: Final = 700
_HALF_MS: Final = 600_000
_RECORDS: Final = 24
COMPACTED_RECORDS: Final = 2 * 3 * _RECORDS
"""Number of records, apart from transactions, that are written to the compacted topic."""
_CUT: Final = 17
"""Offset at which the deleted prefix ends: within a batch, and within a segment."""


def create_all(bootstrap: str, topics: Mapping[str, Mapping[str, str]]) -> None:
    for name, configs in topics.items():
        create(bootstrap, name, 1, **{key.replace(".", "_"): value for key, value in configs.items()})


def write_plain(bootstrap: str, half: int, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Write one half of the data that need no transactions."""
    begin = T0 + half * _HALF_MS
    for turn, codec in enumerate(CODECS):
        with producer(bootstrap, compression_type=codec, enable_idempotence=turn % 3 == 0, linger_ms=20) as client:
            for number in range(_RECORDS):
                value = os.urandom(20) + b"%d" % number * 30
                headers = [("codec", codec.encode()), ("none", None)]
                when = begin + (turn * _RECORDS + number) * _STEP_MS // 4
                client.produce(CODED, value, key=b"k%d" % number, timestamp=when, headers=headers)
                if number % 6 == 5:
                    client.flush(WAIT_S)
    with producer(bootstrap, linger_ms=20) as client:
        for number in range(_RECORDS):
            client.produce(PREFIX, b"p%d" % number * 20, timestamp=begin + number * _STEP_MS)
            if number % 3 == 2:
                client.flush(WAIT_S)
    if COMPACTED in topics:
        with producer(bootstrap, linger_ms=20, compression_type=CODECS[half * 4]) as client:
            for number in range(COMPACTED_RECORDS // 2):
                content = None if number % 11 == 7 else b"c%d-%d" % (half, number) * 10
                client.produce(COMPACTED, content, key=b"k%d" % (number % 7), timestamp=begin + number * _STEP_MS)
                if number % 4 == 3:
                    client.flush(WAIT_S)


def delete_prefix(bootstrap: str) -> None:
    client = admin(bootstrap)
    told = answers(client.delete_records([TopicPartition(PREFIX, 0, _CUT)]), lambda deleted: deleted.low_watermark)
    assert list(told.values()) == [_CUT], told


class Transactions:
    """Two transactional producers that alternate; the last transaction stays open."""

    def __init__(self, bootstrap: str, half: int) -> None:
        self._when = T0 + half * _HALF_MS
        self._producers = [self._producer(bootstrap, f"files-{half}-{index}") for index in range(2)]

    @staticmethod
    def _producer(bootstrap: str, name: str) -> Producer:
        client = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5, **QUIET})
        client.init_transactions(WAIT_S)
        return client

    def run(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        for turn in range(4):
            for client in self._producers:
                client.begin_transaction()
            for client in self._producers:
                self._send(client, TXN, turn)
            if COMPACTED in topics:
                self._send(self._producers[0], COMPACTED, turn)
            for index, client in enumerate(self._producers):
                self._send(client, TXN, turn)
                (client.abort_transaction if (turn + index) % 2 else client.commit_transaction)(WAIT_S)

    def leave_open(self) -> None:
        """Begin a transaction that nobody ends, followed by a committed one."""
        first, second = self._producers
        first.begin_transaction()
        self._send(first, TXN, 9)
        second.begin_transaction()
        self._send(second, TXN, 9)
        second.commit_transaction(WAIT_S)

    def _send(self, client: Any, topic: str, turn: int) -> None:
        for number in range(3):
            self._when += _STEP_MS
            client.produce(topic, b"t%d" % turn * 15, key=b"k%d" % number, timestamp=self._when)
        assert client.flush(WAIT_S) == 0


def wait_until_compacted(data_dir: Path) -> None:
    """Wait until the cleaner has compacted everything except the active segment."""
    directory = data_dir / f"{COMPACTED}-0"

    def active() -> int:
        return max(offset_of(path.name) or 0 for path in directory.glob(f"*{LOG_SUFFIX}"))

    def cleaned() -> bool:
        done = checkpoints.read_offsets(str(data_dir / checkpoints.CLEANER_OFFSETS)).get((COMPACTED, 0), -1)
        leftovers = [path for path in directory.iterdir() if path.suffix in (".deleted", ".swap", ".cleaned")]
        return done >= active() > 0 and not leftovers

    wait_for("the cleaner", cleaned)
