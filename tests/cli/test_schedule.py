"""`kbroker schedule`: what is pending, one by one, and cancelled; and when an expression fires."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker import Acl, Broker
from tests.cli.conftest import CommandLine

SCHEDULED = ["-c", "schedule.enable=true", "-c", "message.timestamp.type=LogAppendTime"]
LATE = "2200-01-01T00:00:00Z"


@pytest.fixture
def kbroker(embedded: Any) -> CommandLine:
    return CommandLine(embedded.bootstrap_servers)


@pytest.fixture
def topic(kbroker: CommandLine, name: str) -> str:
    """A schedule topic with two partitions and a target."""
    kbroker.ok("topic", "create", f"{name}.target", "-p", "4")
    kbroker.ok("topic", "create", name, "-p", "2", *SCHEDULED, "-c", f"schedule.target.topic={name}.target")
    return name


def put(kbroker: CommandLine, topic: str, key: str, value: str, *headers: str, partition: int = 0) -> None:
    options = [each for header in headers for each in ("-H", header)]
    kbroker.ok(
        "produce", topic, "--key-separator", ":", "-p", str(partition), *options, stdin=f"{key}:{value}".encode()
    )  # fmt: skip


def listed(kbroker: CommandLine, topic: str, *more: str) -> list[str]:
    return [row["key"] for row in kbroker.ok("schedule", "list", "--topic", topic, "--json", *more).json]


def test_what_is_pending_is_listed_as_it_is_due(kbroker: CommandLine, topic: str) -> None:
    put(kbroker, topic, "second", "v", f"x-deliver-at={LATE}", partition=1)
    put(kbroker, topic, "third", "v", "x-deliver-at=2200-01-02T00:00:00Z", "x-deliver-partition=3")
    put(kbroker, topic, "first", "v", "x-schedule=0 30 9 * * *", "x-schedule-timezone=Europe/Berlin")
    assert listed(kbroker, topic) == ["first", "second", "third"]
    assert listed(kbroker, topic, "--before", LATE) == ["first"]
    assert listed(kbroker, topic, "--failed") == []
    done = kbroker.ok("schedule", "list", "--topic", topic, "--limit", "2")
    assert done.lines[0].split() == ["TOPIC", "PARTITION", "OFFSET", "DUE", "STATE", "KEY", "TO", "REPEATS", "ERROR"]
    assert done.lines[2].split() == [topic, "1", "1", LATE, "pending", "second", f"{topic}.target", "-", "-"]
    assert done.err == "kbroker: 2 of 3 are shown; --limit N shows more\n"
    assert "0 30 9 * * * Europe/Berlin" in done.lines[1]
    every = kbroker.ok("schedule", "list", "--json", "--limit", "1000").json
    assert [row["key"] for row in every if row["topic"] == topic] == ["first", "second", "third"]


def test_a_target_that_takes_no_records_any_more_is_told(kbroker: CommandLine, topic: str) -> None:
    put(kbroker, topic, "job", "work", f"x-deliver-at={LATE}")
    kbroker.ok("config", "set", "--topic", f"{topic}.target", *SCHEDULED[1::2])
    (found,) = kbroker.ok("schedule", "show", topic, "job", "--json").json
    assert found["error"] == f"the target {topic}.target is a schedule topic itself"


def test_a_record_is_shown_with_its_next_times(kbroker: CommandLine, topic: str) -> None:
    put(kbroker, topic, "job", "work", "x-schedule=0 0 1 1 *", "a=b")
    (found,) = kbroker.ok("schedule", "show", topic, "job", "--json").json
    assert (found["value"], found["to_key"], found["state"], len(found["next_ms"])) == ("work", "job", "pending", 5)
    assert {"key": "a", "value": "b"} in found["headers"]
    text = kbroker.ok("schedule", "show", topic, "--partition", "0", "--offset", "1").text
    assert text.count("then  ") == 4
    assert "-01-01T00:00:00Z" in text
    missing = kbroker.fails("schedule", "show", topic, "other")
    assert missing == f"nothing is pending in {topic} with the key other"
    assert kbroker.fails("schedule", "show", topic, "--partition", "1", "--offset", "5").endswith("of partition 1")
    assert kbroker("schedule", "show", topic).status == 2
    assert kbroker("schedule", "show", topic, "job", "--offset", "5").status == 2


def test_a_newer_record_replaces_and_a_cancelled_one_is_gone(kbroker: CommandLine, topic: str) -> None:
    for partition in range(2):  # clients choose partitions in different ways
        put(kbroker, topic, "order-1", "old", f"x-deliver-at={LATE}", partition=partition)
        put(kbroker, topic, "order-1", "new", f"x-deliver-at={LATE}", partition=partition)
    put(kbroker, topic, "order-2", "v", f"x-deliver-at={LATE}")
    assert listed(kbroker, topic) == ["order-1", "order-2", "order-1"]
    done = kbroker.ok("schedule", "cancel", topic, "order-1")
    assert done.lines == [f"cancelled: {topic}-{n}, offset 2, due {LATE}" for n in range(2)]
    assert listed(kbroker, topic) == ["order-2"]
    refused = kbroker.fails("schedule", "cancel", topic, "order-2", "order-1")
    assert refused == f"nothing is pending in {topic} with the key 'order-1', so none of the keys was cancelled"
    assert listed(kbroker, topic) == ["order-2"]


def test_other_topics_are_no_schedule_topics(kbroker: CommandLine, topic: str) -> None:
    refused = kbroker.fails("schedule", "list", "--topic", f"{topic}.target")
    assert refused == f"topic {topic}.target is no schedule topic: its config schedule.enable is not true"
    assert "does not exist" in kbroker.fails("schedule", "cancel", f"{topic}.missing", "k")


def test_without_schedule_topics_the_list_says_so() -> None:
    with Broker() as broker:
        kbroker = CommandLine(broker.bootstrap_servers)
        config = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
        broker.topics.create("later", config=config)
        assert kbroker.ok("schedule", "list").err == ""
        kbroker.ok("config", "unset", "schedule.enable", "--topic", "later")
        done = kbroker.ok("schedule", "list", "--json")
        assert (done.json, done.err) == ([], "kbroker: no topic that you can read has schedule.enable=true\n")


def test_the_next_times_of_an_expression(kbroker: CommandLine) -> None:
    after = ["--after", "2026-10-24T12:00:00Z"]
    assert kbroker.ok("schedule", "next", "30 2 * * *", "--timezone", "Europe/Berlin", "-c", "2", *after).lines == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    assert kbroker.ok("schedule", "next", "@every 90s", "-c", "1", *after).lines == ["2026-10-24T12:01:30Z"]
    done = kbroker("schedule", "next", "0 0 30 2 *")
    assert (done.status, "x-schedule never fires" in done.err) == (2, True)


def test_a_topic_that_cannot_be_read_is_left_out() -> None:
    acls = [
        Acl(allow_principal="User:alice", operation="Describe", topic="*"),
        Acl(allow_principal="User:alice", operation="DescribeConfigs", topic="*"),
        Acl(allow_principal="User:alice", operation="Read", topic="mine"),
        Acl(allow_principal="User:alice", operation="Write", topic="*"),
    ]
    with Broker({"super.users": "User:admin"}, users={"admin": "a", "alice": "b"}, acls=acls) as broker:
        config = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
        for name in ("mine", "theirs", "target"):
            broker.topics.create(name, config={} if name == "target" else config)
        kbroker = CommandLine(broker.bootstrap_servers)
        login = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-256"]
        login += ["-X", "sasl.username=alice", "-X", "sasl.password=b"]
        for name in ("mine", "theirs"):
            headers = ["-H", f"x-deliver-at={LATE}", "-H", "x-deliver-to=target"]
            kbroker.ok("produce", name, *headers, *login, stdin=b"v")
        done = kbroker.ok("schedule", "list", "--json", *login)
        assert [row["topic"] for row in done.json] == ["mine"]
        assert done.err.startswith("kbroker: theirs is left out: ")
        assert "TOPIC_AUTHORIZATION_FAILED" in done.err
