"""Topics and groups as Python values, which agree with the results of clients of the same broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import share_groups, streams_groups
from kbroker import ApiError, Broker, ErrorCode
from kbroker.protocol.messages.group_offsets import OffsetFetchResponse
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.logs import ListOffsetsResponse
from kbroker.testing.asking import Asking

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def consumer(broker: Broker, group: str, **settings: object) -> Consumer:
    own = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**own, **settings})


def test_what_a_client_wrote_is_there(broker: Broker) -> None:
    topic = broker.topics.create("written", 2, {"retention.ms": 1000000})
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    for number in range(200):
        client.produce(
            "written", f"v{number}", key="k", partition=number % 2, headers={"n": str(number)}, timestamp=number + 1
        )
    assert client.flush(PATIENCE_S) == 0
    assert (topic.partitions, topic.configs["retention.ms"], len(topic.records())) == (2, "1000000", 200)
    assert topic.leader() == topic.leader(1) == broker.node.config.node_id
    with pytest.raises(ApiError, match="topic written has 2 partitions, not 2"):
        topic.leader(2)
    last = topic.records(1)[-1]
    assert (last.topic, last.partition, last.offset, last.timestamp) == ("written", 1, 99, 200)
    assert (last.key, last.text, last.headers, last.transaction) == (b"k", "v199", (("n", b"199"),), None)


def test_partitions_that_are_known_and_not_hosted_yet_are_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topics.create("slow-to-come")
    topic.produce("one")
    ask, refused = Asking.ask, list[object]()

    def refused_once(asking: Asking, request: object, kind: type[object]) -> object:
        answer = ask(asking, request, kind)
        if isinstance(answer, ListOffsetsResponse) and not refused:
            answer.topics[0].partitions[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(answer)
        return answer

    monkeypatch.setattr(Asking, "ask", refused_once)
    assert topic.values() == [b"one"]
    assert refused


def test_what_is_written_here_a_client_reads(broker: Broker) -> None:
    topic = broker.topics.create("read", 3)
    stored = topic.produce("one", key="k", partition=2, headers=[("h", b"x")], timestamp=5)
    assert (stored.partition, stored.offset, stored.timestamp) == (2, 0, 5)
    assert topic.produce(None, key="k", partition=2).offset == 1
    assert topic.produce("by key", key="k").partition == topic.produce("again", key="k").partition
    client = consumer(broker, "reader")
    client.assign([TopicPartition("read", 2, 0)])
    message = client.poll(PATIENCE_S)
    client.close()
    assert (message.value(), message.key(), message.headers(), message.timestamp()[1]) == (
        b"one",
        b"k",
        [("h", b"x")],
        5,
    )


def test_a_group_has_a_coordinator_once_there_was_any() -> None:
    with Broker() as fresh:
        assert fresh.groups["billing"].coordinator is None
        client = consumer(fresh, "billing")
        client.subscribe(["orders"])
        fresh.topics.create("orders").produce("one")
        assert client.poll(PATIENCE_S) is not None
        client.close()
        assert fresh.groups["billing"].coordinator == fresh.node.config.node_id


def test_transactions_are_told(broker: Broker) -> None:
    topic = broker.topics.create("paid")
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "pay"})
    client.init_transactions(PATIENCE_S)
    for value, ends in (("kept", client.commit_transaction), ("dropped", client.abort_transaction), ("open", None)):
        client.begin_transaction()
        client.produce("paid", value)
        assert client.flush(PATIENCE_S) == 0
        if ends is not None:
            ends(PATIENCE_S)
    assert [(each.text, each.transaction) for each in topic.records()] == [
        ("kept", "committed"),
        ("dropped", "aborted"),
        ("open", "open"),
    ]
    assert topic.values() == [b"kept"]
    client.abort_transaction(PATIENCE_S)


def test_records_that_are_gone_are_passed_over(broker: Broker) -> None:
    with pytest.raises(TypeError, match=r"created with name=, partitions=, config=, .*, not with configs$"):
        broker.topics.create("aged", configs={})
    topic = broker.topics.create("aged", config={"retention.ms": 86_400_000})
    topic.produce("old", timestamp=1)
    broker.clock.advance(hours=1)
    topic.produce("new")
    assert [(each.offset, each.text) for each in topic.records()] == [(1, "new")]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(broker: Broker, protocol: str) -> None:
    name = f"shared-{protocol}"
    topic = broker.topics.create(name, 2)
    for index in (0, 1):
        for number in range(5):
            topic.produce(str(number), partition=index)
    client = consumer(
        broker,
        f"billing-{protocol}",
        **{"group.protocol": protocol, "client.id": "worker", "enable.auto.commit": False},
    )
    group = broker.groups[f"billing-{protocol}"]
    assert (group.state, group.members, group.offsets, group.lag(name)) == ("Dead", [], {}, 10)
    with pytest.raises(KeyError, match=f"there is no group '{group.id}'; "):
        group.lag()
    client.subscribe([name])
    while not client.assignment():
        client.poll(0.1)
    (member,) = group.members
    assert (member.client_id, member.assigned) == ("worker", ((name, 0), (name, 1)))
    assert (group.state, group.lag()) == ("Stable", 10), "what nothing is committed of is not read"
    client.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    assert group.lag() == 8
    client.commit(offsets=[TopicPartition(name, 0, 2), TopicPartition(name, 1, 5)], asynchronous=False)
    assert group.offsets == {(name, 0): 2, (name, 1): 5}
    assert (group.lag(), group.lag(name)) == (3, 3)
    with pytest.raises(KeyError, match=f"there is no topic '{name}s'; did you mean '{name}'"):
        group.lag(f"{name}s")
    client.close()
    broker.wait_for(lambda b: not b.groups[group.id].members)
    assert group.id in broker.groups


def test_a_group_that_nobody_has_heard_of_yet() -> None:
    with Broker() as broker:
        group = broker.groups["billing"]
        broker.topics.create("orders", 2).produce("one")
        assert (group.offsets, group.lag("orders"), group.id in broker.groups) == ({}, 1, False)
        for look, said in (
            (group.lag, "there is no group 'billing'; there are none"),
            (lambda: group.lag("nothing"), "there is no topic 'nothing'; there are orders"),
        ):
            with pytest.raises(KeyError) as raised:
                look()
            assert str(raised.value) == said


def test_a_topic_that_there_is_not_yet_is_waited_for() -> None:
    with Broker() as broker:
        group, soon = broker.groups["billing"], iter([False, False, True])

        def lag(_: Broker) -> bool:
            if next(soon):
                broker.topics.create("orders")
            return group.lag("orders") == 0

        assert broker.wait_for(lag)
        with pytest.raises(
            AssertionError, match=r"not within 0\.05 s: there is no topic 'order'; did you mean 'orders'\?"
        ):
            broker.wait_for(lambda _: group.lag("order") == 0, timeout=0.05)


def test_what_is_not_there(broker: Broker) -> None:
    broker.topics.create("something")
    with pytest.raises(KeyError, match="there is no topic 'somethin'; did you mean 'something'"):
        broker.topics["somethin"].records()
    topic = broker.topics.create("short-lived")
    for ask, said in (
        (
            lambda: broker.topics.create("short-lived"),
            "TOPIC_ALREADY_EXISTS: topic short-lived: Topic 'short-lived' already exists.",
        ),
        (
            lambda: topic.records(7),
            "UNKNOWN_TOPIC_OR_PARTITION: partition 7 of topic short-lived, which has 1: "
            "This server does not host this topic-partition.",
        ),
        (
            lambda: topic.produce("v", partition=7),
            "UNKNOWN_TOPIC_OR_PARTITION: partition 7 of topic short-lived, which has 1: "
            "This server does not host this topic-partition.",
        ),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert str(refused.value) == said
    topic.delete()
    assert "short-lived" not in broker.topics
    for again in (topic.delete, topic.records, lambda: topic.produce("v"), lambda: topic.partitions):
        with pytest.raises(KeyError, match="there is no topic 'short-lived'"):
            again()
    with pytest.raises(ValueError, match="isolation is"):
        broker.topics.create("other").records(isolation="serializable")
    assert not [name for name in broker.topics if name.startswith("__")]


def test_a_broker_that_has_stopped_is_asked_for_nothing() -> None:
    with Broker() as broker:
        topic = broker.topics.create("orders")
    assert repr(broker) == "<Broker that does not run>"
    for ask in (topic.records, lambda: broker.topics.create("other"), lambda: list(broker.groups), broker.reset):
        with pytest.raises(RuntimeError, match="does not run any more"):
            ask()


def test_a_refusal_is_told(broker: Broker) -> None:
    topic = broker.topics.create("small", config={"max.message.bytes": 100})
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE: partition 0 of topic small") as refused:
        topic.produce(b"x" * 1000)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_waiting(broker: Broker) -> None:
    assert broker.wait_for(lambda b: sorted(b.topics)) == sorted(broker.topics)
    with pytest.raises(AssertionError, match=r"not within 0\.05 s"):
        broker.wait_for(lambda _: False, timeout=0.05)

    def never(_: Broker) -> bool:
        raise AssertionError("three are missing")

    with pytest.raises(AssertionError, match="three are missing"):
        broker.wait_for(never, timeout=0.05)


def test_the_embedders_own_requests_meet_no_faults() -> None:
    with Broker() as broker:  # a separate broker: a client of an earlier test might still send requests
        topic = broker.topics.create("own")
        with broker.faults.fail("*", ErrorCode.KAFKA_STORAGE_ERROR) as fault:
            topic.produce("one")
            assert topic.values() == [b"one"]
        assert fault.hits == 0
        assert (repr(fault), repr(broker.faults)) == ("<Fault fail any hits=0>", "<Faults []>")
        assert repr(broker) == f"<Broker {broker.bootstrap_servers}>"


def test_what_no_record_has_is_refused_in_a_line(broker: Broker) -> None:
    topic = broker.topics.create("refused")
    for asked, said in (
        ({"value": 5}, "the value of a record is str, bytes or None, not int: 5"),
        ({"value": "v", "key": 1.5}, "the key of a record is str, bytes or None, not float: 1.5"),
        ({"value": "", "headers": [("n", 7)]}, "the value of header 'n' of a record is str, bytes or None, not int: 7"),
    ):
        with pytest.raises(TypeError) as raised:
            topic.produce(**asked)  # type: ignore[arg-type]
        assert str(raised.value) == said
    assert topic.produce("v", headers=[("n", "text"), ("nothing", None)]).headers == (("n", b"text"), ("nothing", None))
    assert len(topic.records()) == 1


def test_offsets_are_looked_for_until_the_coordinator_has_read_its_log(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.create("loading").produce("v")
    client = consumer(broker, "loading")
    client.subscribe(["loading"])
    assert client.poll(PATIENCE_S) is not None
    client.commit(asynchronous=False)
    client.close()
    fetch, asked = Asking.ask, []

    def ask(self: Asking, request: object, kind: type[object]) -> object:
        answer = fetch(self, request, kind)
        if isinstance(answer, OffsetFetchResponse):
            asked.append(answer)
            if len(asked) < 3:
                answer.groups[0].error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return answer

    monkeypatch.setattr(Asking, "ask", ask)
    assert broker.groups["loading"].offsets == {("loading", 0): 1}
    assert len(asked) == 3


def test_members_of_share_and_streams_groups():
    delay = {"group.streams.initial.rebalance.delay.ms": "0"}
    with Broker(delay) as broker, WireClient(broker.bootstrap_servers) as client:
        broker.topics.create("orders", 2)
        client.ask(FindCoordinatorRequest(key="app"), 3)
        epochs = {"workers": 0, "app": 0}

        def assigned(group: str) -> tuple[tuple[str, int], ...]:
            if group == "workers":
                request = share_groups.beat(group, "one", epochs[group], "orders")
            elif epochs[group]:
                request = streams_groups.beat(group, "one", epochs[group])
            else:
                request = streams_groups.enter(group, "one", streams_groups.reading("orders"))
            epochs[group] = client.ask(request, 1).member_epoch or epochs[group]
            members = broker.groups[group].members
            return members[0].assigned if members else ()

        for group in epochs:
            broker.wait_for(lambda _broker, group=group: assigned(group) == (("orders", 0), ("orders", 1)), timeout=20)
