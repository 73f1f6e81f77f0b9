"""The rights that docs/queues.md names for `kbroker deadletter` suffice; without one of them, a line names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kbroker import Acl, Broker
from tests.cli.conftest import CommandLine
from tests.cli.test_deadletter import WAIT_S, died

MARK = "kbroker-deadletter-dlq.t"
READS = [Acl(allow_principal="User:ann", operation=["Read"], topic=["dlq.t", "t"])]
LOOKS = [*READS, Acl(allow_principal="User:ann", operation="Describe", group=MARK)]
REPLAYS = [
    *READS,
    Acl(allow_principal="User:ann", operation="Read", group=MARK),
    Acl(allow_principal="User:ann", operation="Write", topic="t"),
    Acl(allow_principal="User:ann", operation="Write", transactional_id=MARK),
]
PURGES = [*LOOKS, Acl(allow_principal="User:ann", operation="Delete", topic="dlq.t")]
WITHOUT_ORIGIN = [
    Acl(allow_principal="User:ann", operation="Read", topic="dlq.t"),
    Acl(allow_principal="User:ann", operation="Describe", group=MARK),
]


class Ann(CommandLine):
    """The command line of a user."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.bootstrap_servers)
        settings = broker.client_settings("ann").java
        del settings["bootstrap.servers"]
        self._login = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]

    def __call__(self, *arguments: str, stdin: bytes = b""):  # type: ignore[no-untyped-def]
        return super().__call__(*arguments, *self._login, stdin=stdin)


@pytest.fixture
def ann(request: pytest.FixtureRequest) -> Iterator[CommandLine]:
    users = {"ann": "ann-secret", "root": "root-secret"}
    with Broker({"super.users": "User:root"}, users=users, acls=request.param) as broker:
        broker.topics.create("t").produce("one")
        broker.topics.create("dlq.t")
        producer = Producer(broker.client_settings("root").confluent_kafka)
        producer.produce("dlq.t", None, None, 0, headers=list(died("t", 0, 0)))
        producer.produce("dlq.t", "copy", None, 0, headers=list(died("t", 0, 9)))
        assert producer.flush(WAIT_S) == 0
        yield Ann(broker)


@pytest.mark.parametrize("ann", [LOOKS], indirect=True)
def test_who_may_look(ann: CommandLine) -> None:
    assert ann.ok("deadletter", "list", "dlq.t", "--json").json[0]["count"] == 2
    assert [each["record"]["value"] for each in ann.ok("deadletter", "show", "dlq.t", "--json").json] == ["one", "copy"]
    assert ann.ok("deadletter", "replay", "dlq.t", "--json").json[0]["count"] == 2
    said = ann.fails("deadletter", "replay", "dlq.t", "--execute")
    assert said.startswith(f"no transaction of {MARK} can begin: ")
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in said
    assert ann.fails("deadletter", "purge", "dlq.t", "--all", "--execute").startswith("dlq.t-0: ")
    assert ann.fails("deadletter", "list", "hidden").startswith("topic hidden: ")


@pytest.mark.parametrize("ann", [REPLAYS], indirect=True)
def test_who_may_replay(ann: CommandLine) -> None:
    assert ann.ok("deadletter", "replay", "dlq.t", "--execute", "--json").json[0]["count"] == 2
    assert ann.ok("deadletter", "list", "dlq.t", "--json").json[0]["replayed"] == 2


@pytest.mark.parametrize("ann", [[*REPLAYS[:2], *REPLAYS[3:]]], indirect=True)
def test_who_may_not_write_the_topic_of_origin(ann: CommandLine) -> None:
    said = ann.fails("deadletter", "replay", "dlq.t", "--execute")
    assert said.startswith("the dead letters from dlq.t-0 0 on were not replayed: ")
    assert "TOPIC_AUTHORIZATION_FAILED" in said
    assert ann.ok("deadletter", "list", "dlq.t", "--json").json[0]["replayed"] == 0


@pytest.mark.parametrize("ann", [[*READS, *REPLAYS[2:], LOOKS[1]]], indirect=True)
def test_who_may_not_move_the_mark(ann: CommandLine) -> None:
    said = ann.fails("deadletter", "replay", "dlq.t", "--execute")
    assert said.startswith(f"the dead letters from dlq.t-0 0 on were not replayed: group {MARK}: ")


@pytest.mark.parametrize("ann", [PURGES], indirect=True)
def test_who_may_purge(ann: CommandLine) -> None:
    ann.ok("deadletter", "purge", "dlq.t", "--all", "--execute")
    assert ann.ok("deadletter", "list", "dlq.t", "--json").json == []


@pytest.mark.parametrize("ann", [READS], indirect=True)
def test_who_may_not_see_the_mark(ann: CommandLine) -> None:
    for verb in ("list", "show", "replay"):
        said = ann.fails("deadletter", verb, "dlq.t")
        assert said.startswith(f"cannot read from group {MARK} how far dlq.t is replayed: ")


@pytest.mark.parametrize("ann", [WITHOUT_ORIGIN], indirect=True)
def test_who_may_not_see_the_topic_of_origin(ann: CommandLine) -> None:
    first, second = ann.ok("deadletter", "show", "dlq.t", "--json").json
    assert (first["record"], second["record"]["value"]) == (None, "copy")
    assert first["problem"] == "hidden from this user, and not copied"
    (row,) = ann("deadletter", "replay", "dlq.t", "--json").json
    assert row["problem"].startswith("topic t: ")
    assert "TOPIC_AUTHORIZATION_FAILED" in row["problem"]
