"""Driver and broker are killed repeatedly while visits are counted; the result is the same as that of a recount.

A producer writes events, some late, twice or malformed. The driver of `kbroker pipeline visits --every` is killed at
failpoints and at random moments, then the broker is, under a driver that goes on. At the end the stream is finished and
the topic archived. Then the table, the compacted topic, a recount of the archive, and a plain count in Python must be
the same, day for day, and each malformed event must have its dead letter.

Run as a module for the long form: `python -m tests.crash.visits --kills 20 --seed 7`.
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.pipeline.visit_model import Record, counted, event_of, event_stream, lookup_text
from kbroker.pipeline.visits.rules import DAY_MS, VisitRules
from tests.crash.driving import PATIENCE_S, Feed, Kills
from tests.crash.long_form import long_form

PARTITIONS = 3
TOPIC = "events"
STEPS = ("visits.written", "visits.committed", "visits.published")
DAYS_BACK = 60
STEP_MS = 5_000
"""The event time between two events, in ms: a run covers some days."""
Counts = dict[tuple[str, str], tuple[int, int, int]]
"""By (organisation, day): visits, events, late."""


class CountedVisits:
    """The complete run in one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._kills = Kills(folder, seed)
        self.broker = self._kills.broker
        self.counts = self._kills.counts
        begin_ms = (int(time.time() * 1000) // DAY_MS - DAYS_BACK) * DAY_MS
        self._events = event_stream(seed, begin_ms, STEP_MS, PARTITIONS)
        self._records: list[Record] = []

    def run(self, kills: int) -> None:
        """Kill drivers this often, and the broker as often."""
        (self._folder / "lookup.csv").write_text(lookup_text())
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
        admin.create_topics([topic])[TOPIC].result(30)
        feed = Feed(self.broker.bootstrap, 0.05, self._produce, 10)
        feed.write(5_000)
        feed.start()
        visits = ("visits", "--topic", TOPIC, "--lookup", self._at("lookup.csv"), "--to", self._at("table"))
        visits += ("--checkpoint", self._at("checkpoint"))
        stream = (*visits, "--every", "1s", "--batch-records", "2000")
        try:
            self._kills.drivers(stream, STEPS, kills)
            self._kills.brokers(stream, kills)
        finally:
            feed.stop()
        said = self._kills.finish(visits).said
        archive = ("archive", "--topics", TOPIC, "--to", self._at("archive"), "--checkpoint", self._at("archiving"))
        self._kills.finish(archive)
        self._check(said, self._recounted())

    def _produce(self, producer: Producer, _number: int) -> None:
        for record in next(self._events):
            self._records.append(record)
            producer.produce(TOPIC, record.value, record.key, partition=record.partition, timestamp=record.stamp)

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    # -- what must hold -----------------------------------------------------------------------------------------

    def _recounted(self) -> Counts:
        recount = ("recount", "--from", self._at("archive"), "--topic", TOPIC, "--lookup", self._at("lookup.csv"))
        recount += ("--checkpoint", self._at("checkpoint"), "--compare", self._at("table"), "--json")
        driver = self._kills.finish(recount, clients=False)
        assert "; visits, events and late events agree" in driver.said, driver.said
        return by_key(json.loads("".join(driver.lines)))

    def _check(self, said: str, recounted: Counts) -> None:
        model = {
            (name, str(datetime.date(1970, 1, 1) + datetime.timedelta(day))): tuple(numbers)
            for (name, day), numbers in counted(self._records, VisitRules()).items()
        }
        malformed = places(self._records)
        assert f"{len(self._records):,} so far, of which {len(malformed):,} malformed" in said, said
        assert recounted == model
        assert self._table() == model
        newest = {m.key(): m.value() for m in consumed(self.broker.bootstrap, f"{TOPIC}-visits")}
        assert by_key([json.loads(value) for value in newest.values()]) == model
        dead = [dict(m.headers() or []) for m in consumed(self.broker.bootstrap, f"{TOPIC}-malformed")]
        found = {(int(each["kbroker.partition"]), int(each["kbroker.offset"])) for each in dead}
        assert found == malformed
        self.counts["dead letters sent again"] += len(dead) - len(found)
        self.counts["malformed"] = len(malformed)
        self.counts["visits"] = sum(visits for visits, _, _ in model.values())
        self.counts["late"] = sum(late for _, _, late in model.values())

    def _table(self) -> Counts:
        query = "select organisation, cast(day as varchar) as day, visits, events, late from read_parquet(?)"
        with duckdb.connect() as database:
            found = database.execute(query, [f"{self._at('table')}/day=*/visits.parquet"]).fetchall()
        return {(name, day): (visits, events, late) for name, day, visits, events, late in found}

    def summary(self) -> str:
        """Return the counts in one line."""
        return f"{len(self._records):,} records, " + ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items()))


def places(records: list[Record]) -> set[tuple[int, int]]:
    """Return (partition, offset) of the malformed events, in a topic that contains only these records."""
    ends = [0] * PARTITIONS
    found = set()
    for record in records:
        if event_of(record) is None:
            found.add((record.partition, ends[record.partition]))
        ends[record.partition] += 1
    return found


def by_key(rows: list[dict[str, Any]]) -> Counts:
    return {(row["organisation"], row["day"]): (row["visits"], row["events"], row["late"]) for row in rows}


def consumed(bootstrap: str, topic: str) -> list[Message]:
    """Return the records of a topic's single partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
    raise AssertionError(f"{topic} was not read to its end")


if __name__ == "__main__":
    long_form(__doc__, 20, CountedVisits, "all four counts are the same")
