"""Each change of the table is on every surface, and has the same effect there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from kbroker import ApiError, Broker
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.changes import CHANGES, GROUP_DELETE, Change, Failure, partitions_by_topic
from kbroker.cli import changes as cli_changes
from kbroker.cli.main import cli
from kbroker.console import changes as console_changes
from kbroker.console.pages import ACTIONS
from kbroker.console.values import Values
from kbroker.control import changes as control_changes
from kbroker.control.application import OPERATIONS
from kbroker.fields import Field, WrongValue
from kbroker.protocol.errors import ErrorCode
from kbroker.testing.groups import Group
from kbroker.testing.topics import Topic
from tests.control.conftest import controlled

KINDS = {"string", "integer", "names"}
"""The kinds of fields that the command line, the console and the control API all read."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.topics.create("orders", 3)
        running.topics.create("payments")
        yield running


def committed(broker: Broker, group: str) -> Group:
    """Commit an offset of each partition of two topics."""
    client = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    places = [*(TopicPartition("orders", index, 0) for index in range(3)), TopicPartition("payments", 0, 0)]
    client.commit(offsets=places, asynchronous=False)
    client.close()
    return broker.groups[group]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: f"{each.of}-{each.name}")
def test_a_change_is_on_every_surface(change) -> None:
    noun = cli.get_command(click.Context(cli), change.of)
    assert isinstance(noun, click.Group)
    assert noun.commands[change.name].help == change.summary
    (action,) = [each for each in ACTIONS if each.name == f"{change.of}-{change.name}"]
    assert action.confirms == (change.of if change.destroys else None)
    assert {field.kind for field in change.fields} <= KINDS
    routes = {(each.method, each.path.replace(":path", "")) for each in OPERATIONS}
    assert tuple(change.route.split(" ")) in routes
    assert hasattr({"topic": Topic, "group": Group}[change.of], change.name.replace("-", "_"))


def test_a_change_works_on_every_surface(broker: Broker) -> None:
    """A change of the test's own, with fields of all kinds, which sends no request to Kafka."""
    asked: list[tuple[list[str], dict[str, object]]] = []

    def run(_cluster: object, names: Sequence[str], values: Mapping[str, object]) -> list[Failure]:
        asked.append(([*names], dict(values)))
        return [Failure(each, ErrorCode.POLICY_VIOLATION) for each in names if each == "payments"]

    fields = (
        Field("count", "integer", "How many.", required=True, least=-1, most=9),
        Field("note", "string", "A word.", choices=("a", "b")),
        Field("part", "names", "Some."),
    )
    change = Change(
        "topic", "try", "Try topic", "Try topics.", "POST /tries/{topic}", run, "try {topic}",
        "tried {topic} {count} times", "It is tried.", fields, destroys=False,
    )  # fmt: skip
    wanted = (["orders"], {"count": -1, "note": "b", "part": ["x"]})

    broker.topics["orders"].change(change, count=-1, note="b", part=["x"])
    with pytest.raises(ValueError, match="count is at most 9, not 10"):
        broker.topics["orders"].change(change, count=10)
    with pytest.raises(ValueError, match="count is missing: How many"):
        broker.topics["orders"].change(change)
    with pytest.raises(ApiError, match="POLICY_VIOLATION: topic payments"):
        broker.topics["payments"].change(change, count=1)

    where = ["-b", broker.bootstrap_servers]
    verb = CliRunner().invoke(
        cli_changes.command_of(change), ["orders", "--count", "-1", "--note", "b", "--part", "x", *where]
    )
    assert (verb.exit_code, verb.output) == (0, "tried orders -1 times\n")
    assert "count is at most 9" in str(
        CliRunner().invoke(cli_changes.command_of(change), ["orders", "--count", "10", *where]).exception
    )

    action = console_changes.action_of(change)
    form = [("topic", "orders"), ("count", "-1"), ("note", "b"), ("part", "x")]
    with Connection(broker.bootstrap_servers, {}).admin() as admin:
        assert action.run(admin, Values(form)).text == "Tried orders -1 times."
        with pytest.raises(AdminError, match="cannot try payments: "):
            action.run(admin, Values([("topic", "payments"), ("count", "1")]))
    assert action.confirms is None

    operation = control_changes.operation_of(change)
    control = SimpleNamespace(subject=broker)
    assert operation.work is not None
    assert operation.work(control, {"topic": "orders", "count": -1, "note": "b", "part": ["x"]}) == {"name": "orders"}
    assert [each for each in asked if each == wanted] == [wanted] * 4
    assert asked[-1] == wanted


def test_a_test_deletes_offsets_and_groups(broker: Broker) -> None:
    group = committed(broker, "billing")
    group.delete_offsets("orders:0,2")
    assert sorted(group.offsets) == [("orders", 1), ("payments", 0)]
    group.delete_offsets("payments", "orders")
    assert group.offsets == {}
    for wrong, said in (
        (lambda: group.delete_offsets("order"), "there is no topic 'order'; did you mean 'orders'"),
        (lambda: broker.groups["biling"].delete_offsets("orders"), "there is no group 'biling'"),
        (broker.groups["biling"].delete, "there is no group 'biling'"),
    ):
        with pytest.raises(KeyError, match=said):
            wrong()
    with pytest.raises(ValueError, match="a topic is TOPIC or TOPIC:0,1"):
        group.delete_offsets("orders:x")
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: group billing: topic orders has no partition 7"):
        group.delete_offsets("orders:7")
    with pytest.raises(TypeError, match="a topic is a str"):
        group.delete_offsets(["orders"])  # type: ignore[arg-type]
    committed(broker, "gone").delete()
    assert "gone" not in broker.groups


def test_a_group_with_members_stays(broker: Broker) -> None:
    client = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "busy"})
    client.subscribe(["orders"])
    broker.wait_for(lambda b: client.poll(0.1) is not None or b.groups["busy"].state == "Stable")
    with pytest.raises(ApiError, match="NON_EMPTY_GROUP: group busy") as refused:
        broker.groups["busy"].delete()
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
    with controlled(broker) as api:
        assert "group busy" in api.refused(409, "DELETE", "/groups/busy")
    broker.wait_for(lambda b: [each.assigned for each in b.groups["busy"].members] != [()] or client.poll(0.1))
    with pytest.raises(ApiError, match="GROUP_SUBSCRIBED_TO_TOPIC: group busy, orders 0, 1, 2"):
        broker.groups["busy"].delete_offsets("orders")
    client.close()


def test_a_group_is_missing_before_any_has_existed() -> None:
    with Broker() as fresh, pytest.raises(KeyError, match="there is no group 'billing'"):
        fresh.groups["billing"].delete()


def test_over_http(broker: Broker) -> None:
    group = committed(broker, "a/b")
    with controlled(broker) as api:
        assert api.ok("POST", "/delete-offsets/a%2Fb", {"topic": ["orders:0", "payments"]}) == {"name": "a/b"}
        assert sorted(group.offsets) == [("orders", 1), ("orders", 2)]
        assert "topic is missing" in api.refused(400, "POST", "/delete-offsets/a%2Fb", {})
        assert "no partition 9" in api.refused(409, "POST", "/delete-offsets/a%2Fb", {"topic": "orders:9"})
        assert "there is no topic 'none'" in api.refused(404, "POST", "/delete-offsets/a%2Fb", {"topic": "none"})
        assert api.ok("DELETE", "/groups/a%2Fb") == {"name": "a/b"}
        assert "there is no group 'a/b'" in api.refused(404, "DELETE", "/groups/a%2Fb")
        described = api.ok("GET", "/openapi.json")["paths"]["/groups/{group}"]["delete"]
        assert described["summary"] == GROUP_DELETE.summary


def test_partitions_in_texts() -> None:
    assert partitions_by_topic(["a", "b:0,2", "b:1"]) == {"a": None, "b": {0, 1, 2}}
    assert partitions_by_topic(["b:0", "b"]) == partitions_by_topic(["b", "b:0"]) == {"b": None}
    for wrong in ("a:", "a:x", "a:0,", "a:" + "9" * 5000):
        with pytest.raises(WrongValue, match="a topic is"):
            partitions_by_topic([wrong])
