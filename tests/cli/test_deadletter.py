"""`kbroker deadletter`: dead letters of share groups and of Connect are replayed once, and purged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError, UnstableOffsetCommitError

from compat_tests.harness.brokers import ApacheKafka
from kbroker.admin import replays
from kbroker.admin.connection import Connection, patience
from kbroker.admin.dead_letters import replayed_to
from kbroker.testing.waiting import hold
from tests.cli.conftest import CommandLine
from tests.tries import tries

WAIT_S = 20
Header = tuple[str, bytes | None]


def died(topic: str, partition: int, offset: int, message: str = "rejected", group: str = "workers") -> list[Header]:
    """Return the headers that Apache Kafka gives a dead letter."""
    told = {"topic": topic, "partition": partition, "offset": offset, "group": group, "delivery.count": 5}
    return [(f"__dlq.errors.{name}", str(value).encode()) for name, value in (told | {"message": message}).items()]


def write(cli: CommandLine, topic: str, *records: tuple[int, str | None, str | None, Sequence[Header]]) -> None:
    producer = Producer({"bootstrap.servers": cli.bootstrap, "log_level": 0})
    for partition, key, value, headers in records:
        producer.produce(topic, value, key, partition, headers=list(headers))
    assert producer.flush(WAIT_S) == 0


def contents(cli: CommandLine, topic: str) -> list[str]:
    arguments = ("-f", "%p %k %v %h\\n", "--from-beginning", "--until-end", "--isolation-level", "read_committed")
    return sorted(cli.ok("consume", topic, *arguments).lines)


def replay(cli: CommandLine, topic: str, *options: str) -> list[tuple[int, int, str | None, int | None]]:
    rows = cli.ok("deadletter", "replay", topic, *options, "--json").json
    return [(row["partition"], row["count"], row["to_topic"], row["to_partition"]) for row in rows]


@pytest.fixture
def jobs(anywhere: CommandLine, name: str) -> str:
    """Create a topic with two partitions and three records, and its dead letter topic with four dead letters."""
    anywhere.ok("topic", "create", name, "-p", "2")
    anywhere.ok("topic", "create", f"dlq.{name}")
    own = [("trace", b"7")]
    write(anywhere, name, (0, "a", "first", own), (0, "b", "second", own), (1, "c", "third", own))
    write(
        anywhere,
        f"dlq.{name}",
        (0, None, None, died(name, 0, 0)),
        (0, None, None, died(name, 1, 0, "too often")),
        (0, "b", "second", died(name, 0, 1)),
        (0, "x", "gone", died(name, 1, 99, "too often")),
    )
    return name


BEFORE = ["0 a first trace=7", "0 b second trace=7", "1 c third trace=7"]


def test_causes(anywhere: CommandLine, jobs: str) -> None:
    rows = anywhere.ok("deadletter", "list", f"dlq.{jobs}", "--json").json
    found = [(row["topic"], row["partition"], row["group"], row["message"], row["count"]) for row in rows]
    assert found == [(jobs, 0, "workers", "rejected", 2), (jobs, 1, "workers", "too often", 2)]
    assert [row["replayed"] for row in rows] == [0, 0]
    text = anywhere.ok("deadletter", "list", f"dlq.{jobs}").lines
    assert text[1].split()[:6] == [jobs, "0", "workers", "rejected", "2", "0"]
    assert anywhere.fails("deadletter", "list", f"dlq.{jobs}-not").startswith(f"topic dlq.{jobs}-not does not exist")


def test_letters_are_shown_with_their_records(anywhere: CommandLine, jobs: str) -> None:
    first, *_, last = anywhere.ok("deadletter", "show", f"dlq.{jobs}", "--json").json
    assert first["origin"] == {
        "topic": jobs, "partition": 0, "offset": 0, "group": "workers", "deliveries": 5, "message": "rejected",
    }  # fmt: skip
    assert first["record"] == {"key": "a", "value": "first", "headers": [{"key": "trace", "value": "7"}]}
    assert last["record"] == {"key": "x", "value": "gone", "headers": []}, "the copy"
    one = anywhere.ok("deadletter", "show", f"dlq.{jobs}", "--offset", "1", "-c", "1").text
    assert "third" in one
    assert "first" not in one


@pytest.mark.long
def test_a_replay_begins_behind_the_last_one(anywhere: CommandLine, jobs: str) -> None:
    dead = f"dlq.{jobs}"
    assert replay(anywhere, dead) == [(0, 2, jobs, 0), (0, 2, jobs, 1)]
    assert anywhere.ok("deadletter", "replay", dead).err == "nothing was changed; add --execute to do it\n"
    assert contents(anywhere, jobs) == BEFORE
    assert replay(anywhere, dead, "-c", "1", "--execute") == [(0, 1, jobs, 0)]
    assert replay(anywhere, dead, "--execute") == [(0, 2, jobs, 1), (0, 1, jobs, 0)]
    assert contents(anywhere, jobs) == sorted([*BEFORE, *BEFORE, "1 x gone "])
    assert replay(anywhere, dead, "--execute") == [], "nothing is written twice"
    assert {row["replayed"] for row in anywhere.ok("deadletter", "list", dead, "--json").json} == {2}
    assert anywhere.ok("deadletter", "show", dead, "--json").json == []
    assert replay(anywhere, dead, "--again") == [(0, 2, jobs, 0), (0, 2, jobs, 1)]

    write(anywhere, dead, (0, "n", "new", died(jobs, 0, 77)))
    shown = anywhere.ok("deadletter", "purge", dead, "--replayed", "--json").json
    assert [(row["partition"], row["before_offset"]) for row in shown] == [(0, 4)]
    assert len(anywhere.ok("deadletter", "show", dead, "--all", "--json").json) == 5
    anywhere.ok("deadletter", "purge", dead, "--replayed", "--execute")
    (left,) = anywhere.ok("deadletter", "show", dead, "--all", "--json").json
    assert left["record"]["value"] == "new"
    anywhere.ok("deadletter", "purge", dead, "--all", "--execute")
    assert anywhere.ok("deadletter", "list", dead, "--json").json == []
    for last in ((), ("--execute",)):
        assert anywhere.ok("deadletter", "purge", dead, "--all", *last).err == "there is no such dead letter\n"
        assert anywhere.ok("deadletter", "replay", dead, *last).err.startswith("no dead letter is left to replay")


def test_another_topic_and_the_headers_of_the_death(anywhere: CommandLine, jobs: str) -> None:
    anywhere.ok("topic", "create", f"{jobs}.again")
    dead, to = f"dlq.{jobs}", f"{jobs}.again"
    assert replay(anywhere, dead, "--to", to, "--keep-headers", "-c", "1", "--execute") == [(0, 1, to, 0)]
    (line,) = contents(anywhere, to)
    assert line.startswith("0 a first trace=7,__dlq.errors.topic=")
    assert "__dlq.errors.offset=0,__dlq.errors.group=workers,__dlq.errors.delivery.count=5" in line
    done = anywhere("deadletter", "replay", dead, "--to", dead)
    assert (done.status, "their own topic" in done.err) == (2, True)


def test_letters_that_cannot_go_anywhere_stop_a_replay(anywhere: CommandLine, jobs: str) -> None:
    dead = f"dlq.{jobs}"
    write(
        anywhere,
        dead,
        (0, "k", "v", []),
        (0, "k", "v", died(f"{jobs}-gone", 0, 0)),
        (0, "k", "v", died("__consumer_offsets", 0, 0)),
        (0, "k", "v", died(jobs, 7, 0)),
        (0, None, None, died(jobs, 0, 1000)),
        (0, "k", "v", [*died(jobs, 0, 2000), ("null", None)]),
        (0, "k", "v", [("__dlq.errors.topic", jobs.encode()), ("__dlq.errors.partition", b"\xff")]),
    )
    done = anywhere("deadletter", "replay", dead, "--json")
    assert done.status == 1
    assert [row["problem"] for row in done.json if row["problem"]] == [
        "it does not say where it comes from",
        f"topic {jobs}-gone does not exist",
        "__consumer_offsets does not accept replayed records",
        f"topic {jobs} has no partition 7",
        "it has no copy of the record, which is gone from its topic",
        "it has a header without a value, which kafka-python cannot write",
    ]
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert said == (
        "7 dead letters cannot be replayed, the first at 0:4: it does not say where it comes from; "
        "--skip leaves such dead letters out"
    )
    assert contents(anywhere, jobs) == BEFORE, "nothing is replayed by halves"
    rows = anywhere.ok("deadletter", "replay", dead, "--skip", "--execute", "--json").json
    assert sum(row["count"] for row in rows if row["problem"]) == 7
    assert len(contents(anywhere, jobs)) == 7


def test_a_topic_without_dead_letters(anywhere: CommandLine, jobs: str) -> None:
    told = f"kbroker: 3 records have no header that names an origin: is {jobs} a dead letter topic?\n"
    assert anywhere.ok("deadletter", "list", jobs).err == told
    shown = anywhere.ok("deadletter", "show", jobs)
    assert (shown.err, shown.lines[1].split()) == (told, ["origin", "-"])
    for last in ((), ("--execute",)):
        said = anywhere.fails("deadletter", "purge", jobs, "--all", *last)
        assert said.startswith(f"{jobs}-0 offset 0 is no dead letter: it has no header that names its origin; ")
        said = anywhere.fails("deadletter", "purge", jobs, "-p", "1", "--before-offset", "1", *last)
        assert said.startswith(f"{jobs}-1 offset 0 is no dead letter: ")
    assert contents(anywhere, jobs) == BEFORE


def test_headers_are_hostile(anywhere: CommandLine, jobs: str) -> None:
    dead = f"hostile.{jobs}"
    anywhere.ok("topic", "create", dead)
    names = [
        "",
        "a/b",
        "..",
        "\x1b[31mred\n",
        "x" * 70_000,
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
    numbers = ["-1", "9" * 40, "1_0", "\u0663", " 1", "0x1"]
    write(anywhere, dead, *((0, "k", "v", died(name, 0, 0, "\x1b[2J\r\nm", "\x07")) for name in names))
    told = ["__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset"]
    write(
        anywhere,
        dead,
        *(
            (0, "k", "v", [(told[0], jobs.encode()), *((each, number.encode()) for each in told[1:])])
            for number in numbers
        ),
        (0, "k", "v", [(told[0], jobs.encode()), (told[1], b"0"), (told[2], str(2**62).encode())]),
        (0, "k", "v", [(told[0], jobs.encode()), (told[1], b"999999999999999999"), (told[2], b"0")]),
    )
    for verb in ("list", "show", "replay"):
        done = anywhere("deadletter", verb, dead, *(["--all"] if verb == "show" else []))
        assert done.text.replace("\n", "").isprintable(), verb
    rows = anywhere("deadletter", "replay", dead, "--json").json
    assert sum(row["count"] for row in rows if row["to_topic"]) == 1, "the one whose offset does not exist has a copy"
    assert all(len(row["problem"] or "") < 400 for row in rows)


def test_letters_of_connect(anywhere: CommandLine, jobs: str) -> None:
    told = {"topic": jobs, "partition": 1, "offset": 0, "connector.name": "sink", "exception.message": "no such column"}
    headers = [(f"__connect.errors.{name}", str(value).encode()) for name, value in told.items()]
    anywhere.ok("topic", "create", f"connect.{jobs}")
    write(anywhere, f"connect.{jobs}", (0, "c", "third", [("trace", b"7"), *headers]))
    (row,) = anywhere.ok("deadletter", "list", f"connect.{jobs}", "--json").json
    assert (row["topic"], row["partition"], row["group"], row["message"]) == (jobs, 1, "sink", "no such column")
    assert replay(anywhere, f"connect.{jobs}", "--execute") == [(0, 1, jobs, 1)]
    assert contents(anywhere, jobs) == sorted([*BEFORE, "1 c third trace=7"])


def test_a_replay_that_fails_has_written_nothing(
    anywhere: CommandLine, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"dlq.{jobs}"
    anywhere.ok("config", "set", "max.message.bytes=1000", "--topic", jobs)
    write(anywhere, dead, (0, "k", "x" * 5000, died(jobs, 0, 500)))
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert said.startswith(f"the dead letters from {dead}-0 0 on were not replayed: ")
    assert contents(anywhere, jobs) == BEFORE
    monkeypatch.setattr(replays, "_AT_ONCE", 2)
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert said.startswith(f"the dead letters from {dead}-0 4 on were not replayed: ")
    assert len(contents(anywhere, jobs)) == 7, "the first transactions stay, and the mark is behind them"
    anywhere.ok("config", "unset", "max.message.bytes", "--topic", jobs)
    assert replay(anywhere, dead, "--execute") == [(0, 1, jobs, 0)]


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_is_not_known_is_neither_lost_nor_repeated(
    anywhere: CommandLine, jobs: str, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    commit = KafkaProducer.commit_transaction

    def lost(producer: KafkaProducer) -> None:
        if is_committed:
            commit(producer)
        raise KafkaTimeoutError("the answer is lost")

    dead = f"dlq.{jobs}"
    monkeypatch.setattr(KafkaProducer, "commit_transaction", lost)
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert said.startswith(f"it is not known whether the dead letters from {dead}-0 0 on were replayed: ")
    monkeypatch.setattr(KafkaProducer, "commit_transaction", commit)
    assert len(replay(anywhere, dead, "--execute")) == (0 if is_committed else 2), "it ends the transaction, then looks"
    assert contents(anywhere, jobs) == sorted([*BEFORE, *BEFORE, "1 x gone "])


def test_a_first_mark_that_is_pending_is_not_taken_for_none(
    anywhere: CommandLine, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an answer for all topics, Kafka leaves out a partition whose first committed offset is pending."""

    def lost(_: KafkaProducer) -> None:
        raise KafkaTimeoutError("the transaction stays open")

    dead = f"dlq.{jobs}"
    with monkeypatch.context() as broken:
        broken.setattr(KafkaProducer, "commit_transaction", lost)
        assert anywhere("deadletter", "replay", dead, "--execute").status
    with (
        Connection(anywhere.bootstrap, {}).admin() as admin,
        patience(0.2),
        pytest.raises(UnstableOffsetCommitError),
    ):
        replayed_to(admin, dead)
    assert len(replay(anywhere, dead, "--execute")) == 2, "it ends the open transaction"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "give either a topic or --group"),
        (["replay", "t", "--execute", "--dry-run"], "exclude each other"),
        (["purge", "t"], "choose one of --replayed, --before-offset and --all"),
    ],
)
def test_wrong_usage(cli: CommandLine, arguments: list[str], said: str) -> None:
    done = cli("deadletter", *arguments)
    assert done.status == 2
    assert said in done.err


def test_a_group_without_a_dead_letter_topic(cli: CommandLine) -> None:
    said = cli.fails("deadletter", "list", "--group", "nobody")
    assert said == "group nobody has no dead letter topic: its config errors.deadletterqueue.topic.name is not set"


@pytest.mark.java
def test_letters_that_apache_kafka_writes(apache_kafka: ApacheKafka, name: str) -> None:
    cli = CommandLine(apache_kafka.bootstrap)
    cli.ok("topic", "create", name)
    cli.ok("topic", "create", f"dlq.{name}", "-c", "errors.deadletterqueue.group.enable=true")
    configs = (f"errors.deadletterqueue.topic.name=dlq.{name}", "share.auto.offset.reset=earliest")
    cli.ok("config", "set", *configs, "--group", name)
    write(cli, name, (0, "a", "first", [("trace", b"7")]), (0, "b", "second", []))
    cli.ok("consume", name, "--share", name, "-c", "2", "--ack", "reject", "--timeout", "20000")
    listed = hold(lambda: cli("deadletter", "list", "--group", name, "--json").json, 20)
    assert [(row["topic"], row["partition"], row["group"]) for row in listed] == [(name, 0, name)]
    hold(lambda: cli.ok("deadletter", "list", f"dlq.{name}", "--json").json[0]["count"] == 2, 20)
    first, second = cli.ok("deadletter", "show", "--group", name, "--json").json
    assert first["record"] == {"key": "a", "value": "first", "headers": [{"key": "trace", "value": "7"}]}
    assert (second["origin"]["offset"], second["origin"]["deliveries"]) == (1, 1)
    assert first["origin"]["message"] == "Offset rejected by client."
    assert replay(cli, f"dlq.{name}", "--execute") == [(0, 2, name, 0)]
    assert contents(cli, name) == sorted(["0 a first trace=7", "0 b second "] * 2)


def test_a_topic_that_is_made_anew_is_not_replayed(anywhere: CommandLine, jobs: str) -> None:
    """A broker loses the mark with the topic; dead letters at the same offsets are different ones."""
    dead = f"dlq.{jobs}"
    assert len(replay(anywhere, dead, "--execute")) == 2
    anywhere.ok("topic", "delete", dead)
    anywhere.ok("topic", "create", dead)
    write(anywhere, dead, (0, "n", "new", died(jobs, 0, 500)))
    assert replay(anywhere, dead) == [(0, 1, jobs, 0)]


@pytest.mark.long
def test_many_dead_letters_are_replayed_once_each(cli: CommandLine, name: str) -> None:
    count, dead = tries(1_000), f"dlq.{name}"  # 10,000 in make torture
    cli.ok("topic", "create", name, "-p", "3")
    cli.ok("topic", "create", dead, "-p", "3")
    letters = [(n % 3, f"k{n}", f"v{n}", died(name, n % 3, 10**6 + n)) for n in range(count)]
    write(cli, dead, *letters)
    rows = replay(cli, dead, "--execute")
    assert sorted(rows) == [(each, count // 3 + (each < count % 3), name, each) for each in range(3)]
    assert contents(cli, name) == sorted(f"{n % 3} k{n} v{n} " for n in range(count))
    assert replay(cli, dead, "--execute") == []
