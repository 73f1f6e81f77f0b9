"""The page's metrics of quotas, and of the clients to which they apply."""

from __future__ import annotations

from confluent_kafka import Producer

from kbroker.long_work import whole
from kbroker.metrics.collection import quotas
from kbroker.metrics.values import Values
from kbroker.quota.configured import DEFAULT, MUTATION, PRODUCER, REQUEST, Entity
from tests.metrics.conftest import Seen

PREFIX = "kafka_server_quota"


def limit(seen: Seen, entity: Entity, **values: float) -> None:
    seen.in_loop(lambda: seen.broker.node.quotas.clients.alter(entity, values))


def test_a_client_that_runs_up_against_its_limit(seen: Seen) -> None:
    assert seen.value(f"{PREFIX}_byte_rate", resource="Produce", clientId="eager") is None
    limit(seen, Entity(None, "eager"), **{PRODUCER: 1000.0})
    producer = Producer({"bootstrap.servers": seen.broker.bootstrap_servers, "client.id": "eager"})
    producer.produce("orders", b"x" * 50_000)
    assert producer.flush(30) == 0
    rate = seen.value(f"{PREFIX}_byte_rate", resource="Produce", clientId="eager")
    assert rate is not None
    assert rate > 1000
    pause_ms = seen.value(f"{PREFIX}_throttle_time", resource="Produce", clientId="eager")
    assert pause_ms is not None
    assert pause_ms > 0


def told(seen: Seen, most: int) -> Values:
    values: Values = {}
    seen.in_loop(lambda: whole(quotas(seen.broker.node, values, most)))
    return values


def test_who_is_named_and_how_many(seen: Seen) -> None:
    clients = seen.broker.node.quotas.clients
    limit(seen, Entity("alice"), **{PRODUCER: 10.0, REQUEST: 50.0, MUTATION: 1.0})
    limit(seen, Entity(None, DEFAULT), **{PRODUCER: 100.0})

    def use() -> None:
        now_ms = clients.now_ms()
        clients.produced.record("alice", "app", 5.0, now_ms)
        clients.worked.record("alice", "app", 1.0, now_ms)
        clients.mutated.mutate("alice", "app", 30, now_ms, strict=False)
        for number in range(5):
            clients.produced.record("bob", f"c{number}", 5.0, now_ms)

    seen.in_loop(use)
    found = told(seen, 100)
    assert [labels for labels, _ in found[f"{PREFIX}_byte_rate"]] == [
        *({"resource": "Produce", "clientId": f"c{number}"} for number in (4, 3, 2, 1, 0)),
        {"resource": "Produce", "user": "alice"},
    ]
    assert [labels for labels, _ in found[f"{PREFIX}_request_time"]] == [{"resource": "Request", "user": "alice"}]
    ((labels, tokens),) = found[f"{PREFIX}_tokens"]
    assert labels == {"resource": "ControllerMutation", "user": "alice"}
    assert tokens < 0
    assert found["kbroker_left_out"] == [({"kind": "quotas"}, 0)]
    few = told(seen, 2)
    assert len(few[f"{PREFIX}_throttle_time"]) == 2
    assert few["kbroker_left_out"] == [({"kind": "quotas"}, 6)]


def test_a_limit_that_has_gone_is_told_of_no_more(seen: Seen) -> None:
    clients = seen.broker.node.quotas.clients
    limit(seen, Entity("alice"), **{PRODUCER: 10.0})
    limit(seen, Entity("bob"), **{PRODUCER: 10.0})
    seen.in_loop(lambda: clients.produced.record("alice", None, 5.0, clients.now_ms()))
    limit(seen, Entity("alice"))
    assert f"{PREFIX}_byte_rate" not in told(seen, 100)
