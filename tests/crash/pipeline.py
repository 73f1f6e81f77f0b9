"""Driver and broker are killed repeatedly while a topic is archived and replayed; each record is there once.

A producer writes to a topic. The driver of `kbroker pipeline archive` is killed at failpoints and at random moments;
then the broker is killed under a running driver. At the end `verify` must find no fault. The archive is replayed into
another topic, with the same kills, and that topic is archived: both archives must contain the same records.

Run as a module for the long form: `python -m tests.crash.pipeline --kills 20 --seed 7`.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.pipeline.replay.replay import HEADER
from tests.crash.driving import Feed, Kills
from tests.crash.long_form import long_form

PARTITIONS = 3
TOPIC, COPY = "source", "copy"
ARCHIVE_STEPS = ("archive.staged", "archive.committed", "archive.moved", "archive.placed")
REPLAY_STEPS = ("replay.begun", "replay.sent")
BATCH = 2_000


def numbered(producer: Producer, number: int) -> None:
    """Produce a numbered record, with or without a key."""
    key = f"key-{number % 97}" if number % 5 else None
    headers = [("number", str(number).encode())] if number % 2 else []
    producer.produce(TOPIC, value=f"value-{number}", key=key, partition=number % PARTITIONS, headers=headers)


class Pipeline:
    """The complete run in one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._kills = Kills(folder, seed)
        self.broker = self._kills.broker
        self.counts = self._kills.counts
        self.records = 0

    def run(self, kills: int) -> None:
        """Kill drivers this often, and the broker as often, while archiving and while replaying."""
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)]).values():
            future.result(30)
        feed = Feed(self.broker.bootstrap, 0.05, numbered)
        feed.write(5 * BATCH)
        feed.start()
        archive = ("archive", "--topics", TOPIC, "--to", self._at("archive"), "--checkpoint", self._at("checkpoint"))
        stream = (*archive, "--every", "1s", "--batch-records", str(BATCH))
        try:
            self._kills.drivers(stream, ARCHIVE_STEPS, kills)
            self._kills.brokers(stream, kills)
        finally:
            feed.stop()
        self._finish(archive)
        self._verify("archive", feed.written)
        replay = ("replay", "--from", self._at("archive"), "--to-topic", COPY, "--exactly-once")
        replay += ("--slice-records", str(max(feed.written // (4 * (2 * kills) + 4), 200)))
        self._kills.drivers(replay, REPLAY_STEPS, kills)
        self._kills.brokers(replay, kills)
        self._finish(replay)
        again = ("archive", "--topics", COPY, "--to", self._at("again"), "--checkpoint", self._at("other"))
        self._finish(again)
        self._verify("again", feed.written)
        self._compare()
        self.records = feed.written

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    # -- what must hold -----------------------------------------------------------------------------------------

    def _finish(self, verb: tuple[str, ...]) -> str:
        return "".join(self._kills.finish(verb).lines)

    def _verify(self, archive: str, expected: int) -> None:
        report = json.loads(self._finish(("verify", "--from", self._at(archive), "--json")))
        assert report["faults"] == []
        assert sum(state["records"] for state in report["partitions"]) == expected
        assert sum(state["compared"] for state in report["partitions"]) == expected
        self.counts["verified"] += 1

    def _compare(self) -> None:
        """Check that both archives contain the same records, in the same order in each partition."""
        first, second = (self._rows(name) for name in ("archive", "again"))
        assert [sorted(each) for each in first] == [sorted(each) for each in second]
        moved = sum(one != other for a, b in zip(first, second, strict=True) for one, other in zip(a, b, strict=True))
        self.counts["records in another order"] += moved

    def _rows(self, archive: str) -> list[list[str]]:
        query = """
            select partition, cast(key as varchar), cast(value as varchar),
                   cast(list_filter(headers, lambda h: h.key <> ?) as varchar)
            from read_parquet(?, hive_partitioning = true) order by partition, "offset"
        """
        files = f"{self._at(archive)}/topic=*/*/*.parquet"
        found: list[list[str]] = [[] for _ in range(PARTITIONS)]
        with duckdb.connect() as database:
            for partition, key, value, headers in database.execute(query, [HEADER, files]).fetchall():
                found[partition].append(str((key, value, None if headers == "[]" else headers)))
        return found

    def summary(self) -> str:
        """Return the counts in one line."""
        return f"{self.records:,} records, " + ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items()))


if __name__ == "__main__":
    long_form(__doc__, 20, Pipeline, "each once")
