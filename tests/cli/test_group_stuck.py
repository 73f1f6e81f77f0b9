"""`kbroker group stuck` and `kbroker group skip`: the record is named, copied once, and the group goes on after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer

from kbroker import Broker
from tests.cli.conftest import CommandLine

PATIENCE_S = 30.0
POISON = 2


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def kbroker(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    broker.topics.create(name)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(5):
        producer.produce(name, f"order {number}", key=f"k{number}", headers=[("trace", b"7"), ("empty", None)])
    assert producer.flush(20) == 0
    return name


@pytest.fixture(params=["classic", "consumer"])
def worker(broker: Broker, request: pytest.FixtureRequest) -> Callable[[str], list[int]]:
    """Return a function that is a member until it meets the poison, or all is read; it returns the offsets it read."""
    settings = {"group.protocol": request.param, "enable.auto.commit": False, "auto.offset.reset": "earliest"}

    def work(topic: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"g-{topic}", **settings})
        consumer.subscribe([topic])
        done: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while 4 not in done:
            assert time.monotonic() < deadline
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                if message.offset() == POISON:
                    break
                done.append(message.offset())
                consumer.commit(message, asynchronous=False)
        consumer.close()
        return done

    return work


def until_stuck(broker: Broker, kbroker: CommandLine, group: str) -> list[dict[str, object]]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        broker.clock.advance(seconds=2)
        found: list[dict[str, object]] = kbroker.ok("group", "stuck", group, "--json").json
        if found:
            return found
        assert time.monotonic() < deadline


def test_a_record_is_named_and_skipped(
    broker: Broker, kbroker: CommandLine, topic: str, worker: Callable[[str], list[int]]
) -> None:
    group, dead = f"g-{topic}", f"dlq.{topic}"
    assert [worker(topic) for _ in range(3)] == [[0, 1], [], []]
    (found,) = until_stuck(broker, kbroker, group)
    assert (found["topic"], found["partition"], found["offset"]) == (topic, 0, POISON)
    assert (found["cause"], found["times"]) == ("left", 3)
    assert kbroker.ok("group", "stuck").lines[1].split()[:4] == [group, topic, "0", "2"]
    (shown,) = kbroker.ok("group", "stuck", group, "--records", "--json").json
    assert (shown["record"]["key"], shown["record"]["value"]) == ("k2", "order 2")

    skip = ["group", "skip", group, "--to-deadletter", dead]
    assert "does not exist" in kbroker.fails(*skip)
    kbroker.ok("topic", "create", f"v-{topic}", "-c", f"view.source={topic}", "-c", "view.filter=*")
    other = ["group", "skip", group, "--to-deadletter", f"v-{topic}"]
    assert kbroker.fails(*other).endswith("it is a view, which takes no records")
    kbroker.ok("topic", "create", dead)
    goes = f"{topic}-0, offset 2: goes to {dead}-0; group {group} goes on at 3"
    assert kbroker.ok(*skip).lines == [goes]
    assert broker.groups[group].offsets == {(topic, 0): POISON}
    done = f"{topic}-0, offset 2: was copied to {dead}-0; group {group} is at 3 now"
    assert kbroker.ok(*skip, "--at", f"{topic}:0", "--execute").lines == [done]
    (letter,) = kbroker.ok("deadletter", "show", dead, "--json").json
    origin = {"topic": topic, "partition": 0, "offset": 2, "group": group, "deliveries": 3}
    assert letter["origin"] == {**origin, "message": "Skipped by an operator."}
    assert letter["record"]["value"] == "order 2"
    assert worker(topic) == [3, 4]
    assert broker.groups[group].lag() == 0
    assert kbroker.fails(*skip, "--execute").startswith(
        (f"group {group} is not at", f"no broker reports a record that group {group} does not get past")
    )


def test_a_dead_letter_of_a_view_goes_back_to_its_source(
    broker: Broker, kbroker: CommandLine, name: str, worker: Callable[[str], list[int]]
) -> None:
    topic, view, dead = name, f"v-{name}", f"dlq.{name}"
    broker.topics.create(topic)
    for number in range(5):
        broker.topics[topic].produce(f"order {number}")
    kbroker.ok("topic", "create", view, "-c", f"view.source={topic}", "-c", "view.filter=*")
    kbroker.ok("topic", "create", dead)
    for _ in range(3):
        worker(view)
    (found,) = until_stuck(broker, kbroker, f"g-{view}")
    assert (found["topic"], found["offset"]) == (view, POISON)
    kbroker.ok("group", "skip", f"g-{view}", "--to-deadletter", dead, "--execute")
    (letter,) = kbroker.ok("deadletter", "show", dead, "--json").json
    assert letter["origin"]["topic"] == topic
    kbroker.ok("deadletter", "replay", dead, "--execute")
    assert [each.text for each in broker.topics[topic].records()].count("order 2") == 2


def test_a_group_that_has_gone_on_is_not_moved(
    broker: Broker, kbroker: CommandLine, topic: str, worker: Callable[[str], list[int]]
) -> None:
    group = f"g-{topic}"
    for _ in range(3):
        worker(topic)
    until_stuck(broker, kbroker, group)
    kbroker.ok("group", "reset", group, "--topic", topic, "--to-offset", "4", "--execute")
    refused = kbroker.fails("group", "skip", group, "--drop", "--execute")
    assert refused.startswith((f"group {group} is not at {topic}-0, offset 2 any more", "no broker reports"))
    assert broker.groups[group].offsets == {(topic, 0): 4}


@pytest.mark.parametrize("how", [[], ["--drop", "--to-deadletter", "other"]])
def test_how_to_skip_has_to_be_said(kbroker: CommandLine, how: list[str]) -> None:
    done = kbroker("group", "skip", "g", *how)
    assert (done.status, done.err) == (2, "Error: give either --to-deadletter TOPIC or --drop\n")


def test_a_group_that_does_not_exist(kbroker: CommandLine) -> None:
    for verb in (["stuck", "nobody"], ["skip", "nobody", "--drop"]):
        assert kbroker.fails("group", *verb).startswith("group nobody does not exist")
