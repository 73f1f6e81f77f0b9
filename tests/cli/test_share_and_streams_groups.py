"""`kbroker group`, `config` and `consume --share` with share and streams groups."""

from __future__ import annotations

import sys
import threading
from itertools import product
from types import ModuleType

import pytest
from kafka import KafkaAdminClient

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import streams_groups
from kbroker.cli import remedies
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from kbroker.testing.waiting import hold
from tests.cli.conftest import CommandLine


@pytest.fixture
def jobs(anywhere: CommandLine, name: str) -> str:
    """Create a topic of two partitions with three jobs each, and the configs of a share group with the same name."""
    anywhere.ok("topic", "create", name, "-p", "2")
    for partition in range(2):
        anywhere.ok("produce", name, "-p", str(partition), stdin=b"a\nb\nc\n")
    anywhere.ok("config", "set", "share.auto.offset.reset=earliest", "share.delivery.count.limit=3", "--group", name)
    return name


def described(cli: CommandLine, group: str) -> dict[str, object]:
    (told,) = cli.ok("group", "describe", group, "--json").json
    return told


def starts(cli: CommandLine, group: str) -> dict[int, tuple[int | None, int | None]]:
    rows = described(cli, group)["partitions"]
    assert isinstance(rows, list)
    return {row["partition"]: (row["start_offset"], row["lag"]) for row in rows}


def lags(cli: CommandLine, group: str) -> dict[int, int | None]:
    return {partition: lag for partition, (_, lag) in starts(cli, group).items()}


@pytest.mark.long
def test_a_share_groups_life(anywhere: CommandLine, jobs: str) -> None:
    taken = anywhere.ok("consume", jobs, "--share", jobs, "-c", "6", "--timeout", "20000", "-f", "%p %o %v\\n")
    assert sorted(taken.lines) == [f"{p} {o} {v}" for p in range(2) for o, v in enumerate("abc")]
    assert lags(anywhere, jobs) == {0: 0, 1: 0}
    assert [line.split()[:3] for line in anywhere.ok("group", "list", "--type", "share").lines if jobs in line] == [
        [jobs, "Empty", "share"]
    ]
    told = described(anywhere, jobs)
    assert (told["type"], told["assignor"], told["members"]) == ("share", "simple", [])

    preview = anywhere.ok("group", "reset", jobs, "--topic", f"{jobs}:1", "--to-earliest")
    assert [line.split()[4] for line in preview.lines[1:]] == ["0"]
    assert preview.err == "nothing was changed; add --execute to do it\n"
    assert lags(anywhere, jobs) == {0: 0, 1: 0}
    anywhere.ok("group", "reset", jobs, "--topic", f"{jobs}:0", "--to-latest", "--execute")
    anywhere.ok("group", "reset", jobs, "--topic", f"{jobs}:1", "--to-offset", "1", "--execute")
    anywhere.ok("group", "reset", jobs, "--all-topics", "--shift-by", "1", "--execute")
    assert starts(anywhere, jobs) == {0: (3, 0), 1: (2, 1)}
    again = anywhere.ok("consume", jobs, "--share", jobs, "-c", "1", "--timeout", "20000", "--json").json
    assert (again["partition"], again["offset"], again["delivery_count"]) == (1, 2, 1)

    refused = anywhere.fails("group", "delete-offsets", jobs, "--topic", f"{jobs}:1")
    assert f"a share group's offsets are deleted for all partitions of {jobs} together" in refused
    done = anywhere.ok("group", "delete-offsets", jobs, "--topic", jobs)
    assert done.text == f"deleted the offsets of {jobs} in {jobs}\n"
    assert starts(anywhere, jobs) == {}
    assert anywhere.ok("group", "delete", jobs).text == f"deleted {jobs}\n"
    assert anywhere.fails("group", "describe", jobs).startswith(f"group {jobs} does not exist; ")


@pytest.mark.long
def test_records_are_released_and_rejected(anywhere: CommandLine, jobs: str) -> None:
    one = ("consume", jobs, "--share", jobs, "--timeout", "20000", "-f", "%p-%o\\n")
    assert len(anywhere.ok(*one, "-c", "3", "--ack", "release").lines) == 3
    assert (0, 3) in starts(anywhere, jobs).values()
    rejected = anywhere.ok(*one, "-c", "6", "--ack", "reject").lines
    assert sorted(rejected) == [f"{partition}-{offset}" for partition in range(2) for offset in range(3)]
    assert lags(anywhere, jobs) == {0: 0, 1: 0}


@pytest.mark.long
def test_members_of_a_share_group(anywhere: CommandLine, jobs: str) -> None:
    with anywhere.started("consume", jobs, "--share", jobs, "-X", "client.id=worker") as process:
        assert process.stdout is not None
        assert process.stdout.readline() in (b"a\n", b"b\n", b"c\n")
        told = described(anywhere, jobs)
        assert told["state"] == "Stable"
        (member,) = told["members"]  # type: ignore[misc]
        assert (member["client_id"], member["subscribed_topics"]) == ("worker", [jobs])
        assert member["partitions"] == [{"topic": jobs, "partition": 0}, {"topic": jobs, "partition": 1}]
        assert f"{jobs}(0,1)" in anywhere.ok("group", "describe", jobs, "-o", "wide").text
        assert "has members (its state is Stable)" in anywhere.fails(
            "group", "reset", jobs, "--all-topics", "--to-earliest", "--execute"
        )


def test_configs_of_share_and_streams_groups(anywhere: CommandLine, name: str) -> None:
    anywhere.ok(
        "config", "set", "share.record.lock.duration.ms=20000", "streams.num.standby.replicas=1", "--group", name
    )
    told = anywhere.ok("config", "describe", "--group", name).text
    assert "share.record.lock.duration.ms" in told
    assert "streams.num.standby.replicas" in told
    assert "share.record.lock.duration.ms" in anywhere.fails(
        "config", "set", "share.record.lock.duration.ms=1", "--group", name
    )
    anywhere.ok("config", "unset", "share.record.lock.duration.ms", "streams.num.standby.replicas", "--group", name)
    assert "20000" not in anywhere.ok("config", "describe", "--group", name).text


def test_a_streams_group(anywhere: CommandLine, name: str) -> None:
    anywhere.ok("topic", "create", name, "-p", "2")
    anywhere.ok("config", "set", "streams.initial.rebalance.delay.ms=0", "--group", name)
    with WireClient(anywhere.bootstrap) as client:
        client.ask(FindCoordinatorRequest(key=name), 3)
        topology = streams_groups.reading(name)
        epoch = 0

        def has_tasks() -> bool:
            nonlocal epoch
            request = streams_groups.beat(name, "one", epoch) if epoch else streams_groups.enter(name, "one", topology)
            epoch = client.ask(request, 1).member_epoch or epoch
            return bool(epoch) and any(each["tasks"]["active"] for each in described(anywhere, name)["members"])  # type: ignore[attr-defined]

        hold(has_tasks, 20)
        told = described(anywhere, name)
        (subtopology,) = told["topology"]["subtopologies"]  # type: ignore[index]
        assert (subtopology["id"], subtopology["source_topics"]) == ("0", [name])
        (member,) = told["members"]  # type: ignore[misc]
        assert member["tasks"] == {"active": ["0_0", "0_1"], "standby": [], "warmup": []}
        assert member["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 1}]
        text = [line.split() for line in anywhere.ok("group", "describe", name).lines]
        assert ["type", "streams"] in text
        assert ["0", name, "-", "-", "-"] in text
        assert any("0_0," in line for line in text)
        client.ask(streams_groups.beat(name, "one", -1), 1)
    anywhere.ok("group", "reset", name, "--topic", f"{name}:0", "--to-offset", "0", "--execute")
    assert [(row["partition"], row["current_offset"]) for row in described(anywhere, name)["partitions"]] == [(0, 0)]  # type: ignore[attr-defined]
    assert anywhere.ok("group", "delete-offsets", name, "--topic", f"{name}:0").text.startswith("deleted ")
    assert anywhere.ok("group", "delete", name).text == f"deleted {name}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["t", "--ack", "release"], "--ack goes with --share"),
        (["t", "--share", "g", "-o", "5"], "--offset does not go with --share: its config share.auto.offset.reset"),
        (["t", "--share", "g", "-g", "h"], "--group does not go with --share\n"),
        (["t", "--share", "g", "-p", "0", "--until-end"], "--partition and --until-end do not go with --share\n"),
        (["t", "--share", "g", "-X", "session.timeout.ms=9000"], "confluent-kafka refuses a setting: "),
    ],
)
def test_wrong_usage(cli: CommandLine, arguments: list[str], said: str) -> None:
    if "-X" in arguments:
        cli.ok("topic", "create", "t")
    done = cli("consume", *arguments)
    assert done.status == 2
    assert said in done.err


def test_a_library_that_is_too_old(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("confluent_kafka")
    old.__version__ = "2.10.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "confluent_kafka", old)
    said = cli("consume", "t", "--share", "g").err
    assert "--share needs confluent-kafka 2.16 or newer; installed is 2.10.0" in said
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert "--share needs confluent-kafka: " in cli("consume", "t", "--share", "g").err


@pytest.mark.long
def test_a_group_of_another_type(anywhere: CommandLine, jobs: str, capfd: pytest.CaptureFixture[str]) -> None:
    consumers = f"{jobs}.consumers"
    anywhere.ok("consume", jobs, "-g", consumers, "--from-beginning", "-c", "1")
    said = anywhere.fails("consume", jobs, "--share", consumers, "-c", "1", "--timeout", "20000")
    assert said.endswith("(GROUP_ID_NOT_FOUND); is the group of another type? `kbroker group list` shows it")
    assert "FATAL" not in capfd.readouterr().err, "one line tells of it"
    anywhere.ok("consume", jobs, "--share", jobs, "-c", "1", "--timeout", "20000")
    said = anywhere.fails("consume", jobs, "-g", jobs, "-c", "1")
    assert said.endswith("(INCONSISTENT_GROUP_PROTOCOL); " + remedies._BY_NAME["INCONSISTENT_GROUP_PROTOCOL"])


def test_a_cluster_without_share_groups(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    cli.ok("feature", "downgrade", "share.version=0")
    try:
        said = cli.fails("consume", name, "--share", name)
        assert said.startswith("this cluster serves no share groups; share groups need share.version 1 or higher")
    finally:
        cli.ok("feature", "upgrade", "share.version=2")


def test_a_topic_that_does_not_exist(cli: CommandLine) -> None:
    assert cli.fails("consume", "no-such-topic", "--share", "g").startswith("topic no-such-topic does not exist")


@pytest.mark.long
def test_a_topic_that_is_named_twice(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    cli.ok("config", "set", "share.auto.offset.reset=earliest", "--group", name)
    cli.ok("produce", name, stdin=b"a\n")
    assert cli.ok("consume", name, name, "--share", name, "-c", "1", "--timeout", "20000").out == b"a\n"


def test_a_time_out_counts_while_the_group_is_joined(cli: CommandLine, name: str) -> None:
    """kafka-console-share-consumer counts it so, too: its first poll joins the group."""
    cli.ok("topic", "create", name)
    cli.ok("config", "set", "share.auto.offset.reset=earliest", "--group", name)
    cli.ok("produce", name, stdin=b"a\n")
    assert cli.ok("consume", name, "--share", name, "--timeout", "0").out == b""
    assert cli.ok("consume", name, "--share", name, "-c", "1", "--timeout", "20000").out == b"a\n"


def test_many_groups_are_listed_once(cli: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One list contains all groups: a list for each of 10,000 groups would take forever."""
    cli.ok("topic", "create", name)
    groups = [f"{name}-{number}" for number in range(3)]
    with WireClient(cli.bootstrap) as client:
        client.ask(FindCoordinatorRequest(key=name), 3)
        for group, epoch in product(groups, (0, -1)):  # a member joins, and leaves
            beat = ShareGroupHeartbeatRequest(group, "m", epoch, None, [name] if not epoch else None)
            hold(lambda beat=beat: not client.ask(beat, 1).error_code, 20)
    lists, list_groups, thread = [], KafkaAdminClient.list_groups, threading.current_thread()

    def counted(admin: KafkaAdminClient, **how: object) -> object:
        if threading.current_thread() is thread:  # a console of another test may still run
            lists.append(how)
        return list_groups(admin, **how)

    monkeypatch.setattr(KafkaAdminClient, "list_groups", counted)
    for arguments in (
        ["describe", "--all-groups"],
        ["describe", *groups],
        ["reset", *groups, "--all-topics", "--to-earliest"],
    ):
        lists.clear()
        cli.ok("group", *arguments)
        assert len(lists) == 1
