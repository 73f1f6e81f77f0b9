"""`kbroker pipeline events` with an embedded broker, and partly with Apache Kafka: every event is consumed back."""

from __future__ import annotations

import csv
import re
import signal
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from kbroker.pipeline.events.access_log import AccessLog
from kbroker.pipeline.events.generator import Counts, EventOptions, EventSource
from kbroker.pipeline.events.organisations import organisation_of
from tests.cli.conftest import CommandLine

WAIT_S = 60
START_MS = 1_767_225_600_000  # 2026-01-01
LAST_LINE = re.compile(
    r"sent ([\d,]+) records to \S+: ([\d,]+) events \(([\d,]+) late\), ([\d,]+) duplicates, ([\d,]+) malformed\n"
)
LOG = b'10.0.0.%d - - [10/Oct/2000:13:55:%02d +0000] "GET /x?q HTTP/1.1" 200 1 "-" "a"\n'


def consumed(bootstrap: str, topic: str) -> list[list[tuple[int, bytes | None, bytes | None]]]:
    """Read a complete topic: (timestamp, key, value) in order, by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        numbers = sorted(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), WAIT_S)[1] for number in numbers}
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found: list[list[tuple[int, bytes | None, bytes | None]]] = [[] for _ in numbers]
        deadline = time.monotonic() + WAIT_S
        while any(len(found[number]) < ends[number] for number in numbers):
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                found[message.partition()].append((message.timestamp()[1], message.key(), message.value()))
        return found
    finally:
        consumer.close()


def told(line: str) -> tuple[int, Counts]:
    found = LAST_LINE.fullmatch(line)
    assert found, line
    sent, *kinds = (int(text.replace(",", "")) for text in found.groups())
    return sent, Counts(*kinds)


def simulated(options: EventOptions) -> tuple[list[tuple[int, bytes | None, bytes]], Counts]:
    source = EventSource(options)
    return list(source), source.counts


def test_simulated_days_come_back_whole_and_in_order(anywhere: CommandLine, name: str, tmp_path: Path) -> None:
    lookup = tmp_path / "lookup.csv"
    shares = ("--late", "0.1", "--duplicates", "0.05", "--malformed", "0.02")
    span = ("--days", "0.5", "--start", "2026-01-01", "--rate", "0.2", "--seed", "5", "--visitors", "2000")
    done = anywhere.ok(
        "pipeline", "events", "--topic", name, "--partitions", "3", "--lookup-out", str(lookup), *span, *shares
    )
    records, counts = simulated(
        EventOptions(START_MS, 5, 0.2, 2000, days=0.5, late=0.1, duplicates=0.05, malformed=0.02)
    )
    assert told(done.err) == (len(records), counts)
    assert min(counts.late, counts.duplicates, counts.malformed) > 10

    partitions = consumed(anywhere.bootstrap, name)
    assert len(partitions) == 3
    assert sorted(map(repr, chain.from_iterable(partitions))) == sorted(map(repr, records))
    assert all(partitions)
    for found in partitions:
        keys = {key for _, key, _ in found if key is not None}
        assert [record for record in records if record[1] in keys] == [r for r in found if r[1] is not None]

    with lookup.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    names = [f"v{rank:06d}" for rank in range(1, 2001)]
    assert rows == [[visitor, organisation_of(visitor)] for visitor in names if organisation_of(visitor)]


@pytest.mark.long
def test_live_events_are_of_now(cli: CommandLine, name: str) -> None:
    before = time.time() * 1000
    done = cli.ok("pipeline", "events", "--topic", name, "--rate", "500", "--seconds", "0.5")
    after = time.time() * 1000
    sent, counts = told(done.err)
    stamps = sorted(stamp for stamp, _, _ in chain.from_iterable(consumed(cli.bootstrap, name)))
    assert sent == counts.records == len(stamps) > 100
    assert before - 1 <= stamps[0] <= stamps[-1] <= after


@pytest.mark.long
def test_count_ends_it(cli: CommandLine, name: str) -> None:
    done = cli.ok("pipeline", "events", "--topic", name, "--rate", "500", "--count", "50")
    assert told(done.err)[0] == 50 == sum(map(len, consumed(cli.bootstrap, name)))


def test_topic_that_exists_is_used(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name, "-p", "2")
    cli.ok("pipeline", "events", "--topic", name, "--rate", "500", "--count", "5", "--partitions", "7")
    assert len(consumed(cli.bootstrap, name)) == 2


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_and_all_that_was_counted_is_there(cli: CommandLine, name: str, number: signal.Signals) -> None:
    cli.ok("topic", "create", name)
    with cli.started("pipeline", "events", "--topic", name, "--rate", "300") as process:
        deadline = time.monotonic() + WAIT_S
        while not sum(map(len, consumed(cli.bootstrap, name))):
            assert time.monotonic() < deadline
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 128 + number
    sent, counts = told(err.decode())
    assert sent == counts.records == sum(map(len, consumed(cli.bootstrap, name)))


def test_log_files(cli: CommandLine, name: str, tmp_path: Path) -> None:
    one, other = tmp_path / "access.log", tmp_path / "other.log"
    one.write_bytes(b"".join(LOG % (n, n) for n in range(30)) + b"broken\n")
    other.write_bytes(LOG % (99, 1))
    done = cli.ok(
        "pipeline", "events", "--topic", name, "--from-log", str(one), "--from-log", str(other), "--salt", "s"
    )
    assert done.err == f"sent 31 events to {name}; 1 malformed lines were skipped\n"
    expected = [AccessLog("s").parse(LOG % (n, n), n + 1) for n in range(30)] + [AccessLog("s").parse(LOG % (99, 1), 1)]
    assert sorted(chain.from_iterable(consumed(cli.bootstrap, name))) == sorted(tuple(event) for event in expected)
    cli.ok("pipeline", "events", "--topic", name + "2", "--from-log", str(one), "--keep-query", "--count", "1")
    assert b'"/x?q"' in consumed(cli.bootstrap, name + "2")[0][0][2]


def test_no_broker_is_one_line(cli: CommandLine, name: str) -> None:
    line = cli.fails("pipeline", "events", "--topic", name, "--bootstrap", "127.0.0.1:1", "--count", "1")
    assert line.startswith("no broker answers at 127.0.0.1:1")


def test_what_the_topic_does_not_take_is_one_line(anywhere: CommandLine, name: str) -> None:
    anywhere.ok("topic", "create", name, "-c", "max.message.bytes=100")
    line = anywhere.fails("pipeline", "events", "--topic", name, "--rate", "500", "--count", "5")
    assert line.endswith("larger than the topic takes (max.message.bytes) (MSG_SIZE_TOO_LARGE)")


def test_timestamps_that_lie_ahead_are_one_line(anywhere: CommandLine, name: str) -> None:
    line = anywhere.fails("pipeline", "events", "--topic", name, "--days", "1", "--start", "2190-01-01", "--count", "5")
    assert line.startswith(f"not all records were delivered to {name}: the broker refused a record, perhaps since its")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--topic", "no/name", "--count", "1"], "cannot create no/name: "),
        (["--topic", "t", "--rate", "0"], "the rate is "),
        (["--topic", "t", "--late", "0.6", "--duplicates", "0.6"], "the shares of "),
        (["--topic", "t", "--rate", "100", "--visitors", "5"], "5 visitors who rest "),
        (["--topic", "t", "-X", "linger_ms=5"], "-X: linger_ms is no setting of security"),
        (["--topic", "t", "--from-log", "/nowhere/access.log"], "--from-log: /nowhere/access.log cannot be read"),
        (["--topic", "t", "--lookup-out", "/nowhere/x.csv"], "--lookup-out: /nowhere/x.csv cannot be written: "),
    ],
)
def test_what_cannot_be_done_is_one_line(cli: CommandLine, arguments: list[str], line: str) -> None:
    assert cli.fails("pipeline", "events", *arguments).startswith(line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--days", "1", "--seconds", "5"], "--seconds does not go with --days"),
        (["--start", "2026-01-01"], "--start goes with --days"),
        (["--days", "1", "--start", "soon"], "--start takes a date"),
        (["--from-log", "f", "--rate", "5"], "--rate does not go with --from-log"),
        (["--salt", "s"], "--salt goes with --from-log"),
    ],
)
def test_options_that_do_not_go_together(cli: CommandLine, arguments: list[str], words: str) -> None:
    done = cli("pipeline", "events", "--topic", "t", *arguments)
    assert done.status == 2
    assert words in done.err


def test_without_librdkafka_it_says_what_to_install(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert "install kbroker with its extra `spark`" in cli.fails("pipeline", "events", "--topic", "t", "--count", "1")
