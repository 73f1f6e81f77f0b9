"""`kbroker record`: records are found, and deleted before an offset."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cli.conftest import CommandLine

DAY_MS = 86_400_000
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def topic(anywhere: CommandLine) -> str:
    """A topic of two partitions with ten records each, a day apart."""
    name = f"r-{uuid.uuid4().hex[:8]}"
    anywhere.ok("topic", "create", name, "--partitions", "2", "--config", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": anywhere.bootstrap})
    for number in range(20):
        producer.produce(
            name,
            b"value %d" % number,
            b"key %d" % number,
            number % 2,
            timestamp=BEGIN_MS + number // 2 * DAY_MS,
            headers={"even": b"yes" if number % 2 == 0 else b"no"},
        )
    assert producer.flush(30) == 0
    producer.close()
    return name


def found(cli: CommandLine, *arguments: str) -> list[str]:
    return sorted(json.loads(line)["key"] for line in cli.ok("record", "find", *arguments).lines)


def test_records_are_found_by_what_they_have(anywhere: CommandLine, topic: str) -> None:
    assert found(anywhere, topic, "--key", "key 7") == ["key 7"]
    assert found(anywhere, topic, "--key-pattern", "^key 1.$", "--header", "even=yes") == [
        "key 10", "key 12", "key 14", "key 16", "key 18",
    ]  # fmt: skip
    assert found(anywhere, topic, "--value-pattern", "value [34]$", "--header", "even") == ["key 3", "key 4"]
    since, until = str(BEGIN_MS + 2 * DAY_MS), str(BEGIN_MS + 3 * DAY_MS)
    assert found(anywhere, topic, "--since", since, "--until", until) == ["key 4", "key 5"]
    assert found(anywhere, topic, "--since", since, "--until", until, "--partition", "1") == ["key 5"]
    assert len(found(anywhere, topic)) == 20
    assert len(found(anywhere, topic, "--count", "3")) == 3
    assert anywhere.ok("record", "find", topic, "-k", "key 7", "-f", "%p %o %v\\n").text == "1 3 value 7\n"
    assert "no such record" in anywhere.fails("record", "find", topic, "--key", "key 77")


def test_records_before_an_offset_or_a_time_are_deleted(anywhere: CommandLine, topic: str, tmp_path: Path) -> None:
    done = anywhere.ok("record", "delete", topic, "--partition", "0", "--before-offset", "4", "--yes", "--json")
    assert done.json == [{"topic": topic, "partition": 0, "low_watermark": 4}]
    assert len(found(anywhere, topic)) == 16
    anywhere.ok("record", "delete", topic, "--before-time", str(BEGIN_MS + 6 * DAY_MS), "--yes")
    assert len(found(anywhere, topic)) == 8
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 1, "offset": 9}], "version": 1}))
    anywhere.ok("record", "delete", "--offset-json-file", str(file), "--yes")
    assert found(anywhere, topic, "--partition", "1") == ["key 19"]
    beyond = ("--partition", "0", "--before-offset", "99")
    assert "OFFSET_OUT_OF_RANGE" in anywhere.fails("record", "delete", topic, *beyond, "--yes")
    offsets = [{"topic": topic, "partition": 0, "offset": 8}, {"topic": topic, "partition": 1, "offset": 99}]
    file.write_text(json.dumps({"partitions": offsets, "version": 1}))
    done = anywhere("record", "delete", "--offset-json-file", str(file), "--yes", "--json")
    assert done.status == 1
    assert done.json == [{"topic": topic, "partition": 0, "low_watermark": 8}]  # what was deleted is told all the same
    anywhere.ok("record", "delete", topic, "--all", "--yes")
    assert "no such record" in anywhere.fails("record", "find", topic)


def test_offsets_at_a_time(anywhere: CommandLine, topic: str) -> None:
    def offsets(*arguments: str) -> list[tuple[int | None, int | None]]:
        rows = anywhere.ok("topic", "offsets", topic, *arguments, "--json").json
        assert {row["topic"] for row in rows} == {topic}
        return [(row["offset"], row["timestamp"]) for row in rows]

    assert offsets() == [(10, None), (10, None)]
    assert offsets("--time", "earliest", "-p", "1") == [(0, None)]
    assert offsets("--time", "max-timestamp") == [(9, BEGIN_MS + 9 * DAY_MS)] * 2
    assert offsets("--time", str(BEGIN_MS + 3 * DAY_MS)) == [(3, BEGIN_MS + 3 * DAY_MS)] * 2
    assert offsets("--time", str(BEGIN_MS + 30 * DAY_MS)) == [(None, None)] * 2
    assert offsets("--time", "earliest-local") == [(0, None)] * 2
    assert offsets("--time", "latest-tiered") == [(None, None)] * 2
    assert offsets("--time", "earliest-pending-upload") == [(None, None)] * 2
    assert "has no partition 7" in anywhere.fails("topic", "offsets", topic, "-p", "7")
    assert anywhere("topic", "offsets", topic, "--time", "noon").status == 2


def test_nothing_is_deleted_without_a_yes(anywhere: CommandLine, topic: str) -> None:
    done = anywhere("record", "delete", topic, "--all", stdin=b"n\n")
    assert done.status != 0
    assert f"delete records of {topic}-0 to its end" in done.err
    assert len(found(anywhere, topic)) == 20
    assert anywhere("record", "delete", topic, "--all", stdin=b"y\n").status == 0
    assert "no such record" in anywhere.fails("record", "find", topic)


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("find", "no-such-topic"), 1, "topic no-such-topic does not exist"),
        (("delete", "no-such-topic", "--all", "--yes"), 1, "topic no-such-topic does not exist; "),
        (("find", "t", "--key-pattern", "("), 2, "is no regular expression"),
        (("find", "t", "--since", "noon"), 2, "is no time"),
        (("find", "t", "-f", "%q"), 2, "--format"),
        (("delete", "t"), 2, "--before-offset"),
        (("delete", "t", "--all", "--before-offset", "3"), 2, "--before-offset"),
        (("delete", "--all"), 2, "--before-offset"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(cli: CommandLine, arguments: tuple[str, ...], status: int, line: str) -> None:
    done = cli("record", *arguments)
    assert done.status == status
    assert line in done.err
    assert "Traceback" not in done.err


def test_a_file_of_another_form_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "t"}]}')
    assert "does not have the form" in cli.fails("record", "delete", "--offset-json-file", str(file), "--yes")
