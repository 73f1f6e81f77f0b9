"""`kbroker retry-tiers`: topics for second tries, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.admin import retry_tiers
from kbroker.admin.configs import topic_config
from tests.cli.conftest import CommandLine


@pytest.fixture
def kbroker(embedded: Any) -> CommandLine:
    return CommandLine(embedded.bootstrap_servers)


def topics(command: CommandLine, of: str) -> set[str]:
    return {topic["name"] for topic in command.ok("topic", "list", "--json").json if of in topic["name"]}


def configs(command: CommandLine, topic: str) -> dict[str, str]:
    (described,) = command.ok("topic", "describe", topic, "--json").json
    found: dict[str, str] = described["configs"]
    return found


def test_tiers_are_made_in_one_command(kbroker: CommandLine, name: str) -> None:
    kbroker.ok("topic", "create", name, "-p", "3", "-c", "retention.ms=1000")
    arguments = ["retry-tiers", "create", name, "--delays", "5s,1m, 2h"]
    tried = kbroker.ok(*arguments, "--dry-run")
    assert tried.lines[0] == f"{name}-retry-5s: retry after 5000 ms, could be created"
    assert topics(kbroker, name) == {name}
    made = kbroker.ok(*arguments)
    assert made.lines == [
        f"{name}-retry-5s: retry after 5000 ms, created",
        f"{name}-retry-1m: retry after 60000 ms, created",
        f"{name}-retry-2h: retry after 7200000 ms, created",
        f"dlq.{name}: dead letters, created",
    ]
    assert configs(kbroker, f"{name}-retry-1m") == {
        "cleanup.policy": "delete",
        "delivery.delay.ms": "60000",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": "61000",
    }
    assert configs(kbroker, f"dlq.{name}") == {"errors.deadletterqueue.group.enable": "true"}
    assert kbroker.ok("retry-tiers", "list", name, "--json").json == [
        {"topic": f"{name}-retry-5s", "delay_ms": 5000, "partitions": 3},
        {"topic": f"{name}-retry-1m", "delay_ms": 60_000, "partitions": 3},
        {"topic": f"{name}-retry-2h", "delay_ms": 7_200_000, "partitions": 3},
    ]
    again = kbroker.ok("retry-tiers", "create", name, "--delays", "5s,1m,2h,500ms")
    assert [each.rpartition(", ")[2] for each in again.lines] == ["exists", "exists", "exists", "created", "exists"]


@pytest.mark.parametrize(("retention", "tiers"), [("0", "5001"), ("-1", "-1"), (str(2**63 - 1), "-1")])
def test_a_tier_keeps_records_as_long_as_its_topic(kbroker: CommandLine, name: str, retention: str, tiers: str) -> None:
    kbroker.ok("topic", "create", name, "-c", f"retention.ms={retention}")
    kbroker.ok("retry-tiers", "create", name, "--delays", "5s")
    assert configs(kbroker, f"{name}-retry-5s")["retention.ms"] == tiers


def test_tiers_of_a_tier_are_not_those_of_its_topic(kbroker: CommandLine, name: str) -> None:
    kbroker.ok("topic", "create", name)
    kbroker.ok("retry-tiers", "create", name, "--delays", "5s")
    kbroker.ok("retry-tiers", "create", f"{name}-retry-5s", "--delays", "1m")
    listed = kbroker.ok("retry-tiers", "list", name, "--json").json
    assert [each["topic"] for each in listed] == [f"{name}-retry-5s"]


def test_configs_without_the_right_to_read_them(
    kbroker: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kbroker.ok("topic", "create", name)
    kbroker.ok("retry-tiers", "create", name, "--delays", "5s")
    unreadable = name

    def readable(admin: Any, names: Sequence[str], key: str) -> dict[str, str]:
        return {topic: value for topic, value in topic_config(admin, names, key).items() if topic != unreadable}

    monkeypatch.setattr(retry_tiers, "topic_config", readable)
    arguments = "retry-tiers", "create", name, "--delays", "5s,1m"
    assert kbroker.fails(*arguments) == f"the configs of {name} cannot be read, but its tiers need retention.ms"
    unreadable = f"{name}-retry-5s"
    assert kbroker.fails(*arguments) == f"topic {name}-retry-5s exists, and its delivery.delay.ms cannot be read"


def test_names_as_springs(kbroker: CommandLine, name: str) -> None:
    kbroker.ok("topic", "create", name)
    made = kbroker.ok("retry-tiers", "create", name, "--delays", "1s,10s", "--naming", "spring")
    assert [each.partition(":")[0] for each in made.lines] == [
        f"{name}-retry-1000",
        f"{name}-retry-10000",
        f"{name}-dlt",
    ]


@pytest.mark.parametrize(
    ("delays", "why"),
    [
        ("5", "'5' is no delay like 500ms, 5s, 10m, 2h or 1d"),
        ("0s", "'0s' is no delay"),
        ("5s,,1m", "'' is no delay"),
        ("5s,5s", "the delay 5s is given twice"),
        ("60s,1m", "the delay 1m is given twice"),
        ("9" * 15 + "d", "Invalid value"),
    ],
)
def test_wrong_delays(kbroker: CommandLine, name: str, delays: str, why: str) -> None:
    kbroker.ok("topic", "create", name)
    refused = kbroker("retry-tiers", "create", name, "--delays", delays)
    assert (refused.status, len(refused.err.splitlines())) in [(1, 1), (2, 1)]
    assert why in refused.err
    assert topics(kbroker, name) == {name}


def test_nothing_is_created_unless_all_can_be(kbroker: CommandLine, name: str) -> None:
    assert f"topic {name} does not exist" in kbroker.fails("retry-tiers", "create", name, "--delays", "5s")
    kbroker.ok("topic", "create", name)
    kbroker.ok("topic", "create", f"{name}-retry-1m")
    refused = kbroker.fails("retry-tiers", "create", name, "--delays", "5s,1m")
    assert refused == f"topic {name}-retry-1m exists with delivery.delay.ms=0; it needs 60000"
    bad = kbroker.fails("retry-tiers", "create", name, "--delays", "5s", "--dead-letter", "not a name")
    assert "not a name" in bad
    own = kbroker("retry-tiers", "create", name, "--delays", "5s", "--dead-letter", name)
    assert own.err == f"Error: {name} cannot be the dead letter topic of its own records\n"
    assert topics(kbroker, name) == {name, f"{name}-retry-1m"}


@pytest.mark.java
def test_apache_kafka_has_none(apache_kafka: Any, name: str) -> None:
    kafka = CommandLine(apache_kafka.bootstrap)
    kafka.ok("topic", "create", name)
    refused = kafka.fails("retry-tiers", "create", name, "--delays", "5s")
    assert refused == f"cannot create {name}-retry-5s: this Kafka has no delay topics: they need kbroker"
    assert topics(kafka, name) == {name}
