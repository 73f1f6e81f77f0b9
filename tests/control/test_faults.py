"""Faults that are set over HTTP, as a real client meets them.

An invalid one gets one line that names the valid ones.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kbroker import Broker
from kbroker.control import known_faults
from tests.control.conftest import Http

PATIENCE_S = 20.0


def producer(broker: Broker, **settings: Any) -> Producer:
    own = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 0, "retry.backoff.ms": 10}
    return Producer({**own, **settings})


def produce(client: Producer, topic: str, value: str) -> tuple[KafkaError | None, int | None]:
    told: list[tuple[KafkaError | None, int | None]] = []
    client.produce(topic, value, on_delivery=lambda err, msg: told.append((err, msg.offset())))
    assert client.flush(PATIENCE_S) == 0
    return told[0]


def test_a_client_meets_a_fault_until_it_is_removed(broker: Broker, api: Http) -> None:
    client = producer(broker)
    wanted = {"kind": "fail", "api": "Produce", "error": "MESSAGE_TOO_LARGE", "topic": "orders"}
    made = api.ok("POST", "/faults", wanted)
    assert made == {"id": made["id"], **wanted, "api": ["Produce"], "active": True, "hits": 0}
    error, _ = produce(client, "orders", "one")
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert produce(client, "bills", "one") == (None, 0), "another topic"
    assert api.ok("GET", f"/faults/{made['id']}")["hits"] == 1
    assert api.ok("DELETE", f"/faults/{made['id']}")["hits"] == 1
    assert produce(client, "orders", "two") == (None, 0), "what failed was not written"
    assert "there is no fault" in api.refused(404, "GET", f"/faults/{made['id']}")


def test_reset_removes_faults_and_topics_and_clients_stay(broker: Broker, api: Http) -> None:
    client = producer(broker)
    produce(client, "orders", "one")
    api.ok("POST", "/faults", {"kind": "full_disk"})
    assert api.ok("POST", "/reset") == {"reset": True}
    assert api.ok("GET", "/faults") == {"faults": []}
    assert api.ok("GET", "/topics") == {"topics": []}
    assert produce(client, "orders", "two") == (None, 0)


def test_a_fault_that_is_used_up_tells_its_hits(broker: Broker, api: Http) -> None:
    number = api.ok(
        "POST", "/faults", {"kind": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
    )["id"]
    assert produce(producer(broker), "orders", "one")[0] is None
    (told,) = api.ok("GET", "/faults")["faults"]
    assert (told["id"], told["hits"], told["active"], told["times"]) == (number, 2, False, 2)
    assert [each["hits"] for each in api.ok("DELETE", "/faults")["faults"]] == [2]


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "delay", "api": ["Produce", "Fetch"], "ms": 50, "times": 1},
        {"kind": "drop", "api": "ListGroups"},
        {"kind": "disconnect", "api": "Produce", "when": "before", "times": 1},
        {"kind": "disconnect", "api": "Produce", "times": 1},
        {"kind": "throttle", "ms": 10, "times": 1},
        {"kind": "throttle", "ms": 10, "api": "Produce", "client_id": "rdkafka"},
        {"kind": "slow_disk", "ms": 5},
        {"kind": "refuse_connections"},
        {"kind": "storm", "seed": 7, "rate": 0.01, "seconds": 60},
        {"kind": "fail", "api": "*", "error": "THROTTLING_QUOTA_EXCEEDED", "message": "later", "principal": "User:bob"},
    ],
    ids=json.dumps,
)
def test_every_kind_can_be_set(broker: Broker, api: Http, wanted: dict[str, Any]) -> None:
    client = producer(broker, **{"enable.idempotence": True})
    assert produce(client, "orders", "one")[0] is None
    made = api.ok("POST", "/faults", wanted)
    assert {name: made[name] for name in wanted if name != "api"} == {
        name: value for name, value in wanted.items() if name != "api"
    }
    (fault,) = broker.faults.active
    assert fault.kind.value in (wanted["kind"], "delay" if wanted["kind"] == "slow_disk" else "refuse")
    assert produce(client, "orders", "two")[0] is None
    api.ok("DELETE", f"/faults/{made['id']}")
    assert broker.faults.active == ()


def test_waiting_for_hits(broker: Broker, api: Http) -> None:
    number = api.ok("POST", "/faults", {"kind": "delay", "api": "Produce", "ms": 1})["id"]
    said = api.refused(504, "GET", f"/faults/{number}/wait?hits=2&timeout_ms=50")
    assert said == f"fault {number} was met 0 times in the time given, not 2 times"
    client = producer(broker)
    later = threading.Thread(target=lambda: [produce(client, "orders", "v") for _ in range(2)])
    later.start()
    met = api.ok("GET", f"/faults/{number}/wait?hits=2&timeout_ms=20000")
    later.join(PATIENCE_S)
    assert met["hits"] == 2


def test_a_wrong_name_is_told_in_the_same_words_as_to_python(broker: Broker, api: Http) -> None:
    for name in ("Prodce", "x" * 300):
        with pytest.raises(ValueError, match="there is no API") as told:
            broker.faults.drop(name)
        assert len(str(told.value)) < 5000
        for kind in ({"kind": "drop"}, {"kind": "storm", "seed": 1}, {"kind": "throttle", "ms": 1}):
            assert api.refused(400, "POST", "/faults", {**kind, "api": name}) == str(told.value)
        assert api.refused(400, "GET", f"/requests?api={name}") == str(told.value)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"kind": "fail", "api": "Produce"}, "fail needs error"),
        ({"kind": "delay"}, "delay needs api and ms"),
        ({"api": "Produce"}, "kind is missing"),
        ({"kind": "broken"}, "kind is one of fail, delay, drop"),
        (
            {"kind": "fail", "api": "Prodce", "error": "UNKNOWN_SERVER_ERROR"},
            "no API 'Prodce'; did you mean 'Produce'?",
        ),
        (
            {"kind": "fail", "api": "Produce", "error": "NOT_LEADER"},
            "no error 'NOT_LEADER'; did you mean 'NOT_LEADER_OR_FOLLOWER'?",
        ),
        ({"kind": "fail", "api": "Produce", "error": "NONE"}, "there is no error 'NONE'"),
        ({"kind": "drop", "api": "Produce", "ms": 5}, "drop has no ms; it has api, client_id,"),
        ({"kind": "refuse_connections", "topic": "t"}, "refuse_connections has no topic; it has nothing"),
        ({"kind": "drop", "api": "Produce", "where": "seen"}, "there is no 'where' here; there are kind, api,"),
        ({"kind": "drop", "api": "Produce", "times": 0}, "times is at least 1"),
        ({"kind": "drop", "api": "Produce", "times": 1.5}, "times must be a whole number"),
        ({"kind": "drop", "api": "Produce", "times": True}, "times must be a whole number"),
        ({"kind": "drop", "api": [], "times": 1}, "api must be a string, or a list of strings"),
        ({"kind": "drop", "api": "Produce", "rate": 2}, "rate is at most 1"),
        ({"kind": "delay", "api": "Produce", "ms": 1e99}, "ms is at most"),
        ({"kind": "delay", "api": "Produce", "ms": -1}, "ms is at least 0, not -1"),
        ({"kind": "drop", "api": "Produce", "topic": ""}, "topic is empty: no request names it"),
        ({"kind": "drop", "api": "Produce", "principal": "bob"}, "principal must be like \"User:alice\", not 'bob'"),
        ({"kind": "disconnect", "api": "Produce", "when": "later"}, "when is one of request, before, middle, after"),
        ({"kind": "storm"}, "storm needs seed"),
        ([], "the body must be a JSON object"),
        (b"{", "the body is not JSON"),
        (b'{"kind": "delay", "api": "Fetch", "ms": NaN}', "NaN is no number"),
        (b'{"kind": "drop", "api": "\\ud800"}', "api must be"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"1" * 100_000, "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_wrong_is_said_and_nothing_is_set(broker: Broker, api: Http, wanted: Any, said: str) -> None:
    assert said in api.refused(400, "POST", "/faults", wanted)
    assert broker.faults.active == ()
    assert api.ok("GET", "/faults") == {"faults": []}


def test_those_whose_time_is_over_do_not_gather(broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_faults, "KEPT", 3)
    for _ in range(10):
        api.ok("POST", "/faults", {"kind": "drop", "api": "ListGroups", "seconds": 0})
    assert len(broker.faults.active) == 3


def test_there_is_a_bound_and_those_that_are_gone_are_forgotten(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_faults, "KEPT", 3)
    drop = {"kind": "drop", "api": "ListGroups"}
    first, second, _ = [api.ok("POST", "/faults", {**drop, "times": 1})["id"] for _ in range(3)]
    assert "3 faults already" in api.refused(409, "POST", "/faults", drop)
    connection = http.client.HTTPConnection(api.address, timeout=20)
    connection.request("DELETE", f"/faults/{second}")
    assert connection.getresponse().status == 200
    connection.close()
    made = api.ok("POST", "/faults", {**drop, "seconds": 0})
    assert made["active"] is False, "its time is over, though no request has come"
    assert [each["id"] for each in api.ok("GET", "/faults")["faults"]] == [first, made["id"] - 1, made["id"]]


def test_requests_are_served_while_others_wait(broker: Broker, api: Http) -> None:
    """Waiting takes no thread, so a hundred requests may wait."""
    number = api.ok("POST", "/faults", {"kind": "delay", "api": "Produce", "ms": 1})["id"]
    waiting = [http.client.HTTPConnection(api.address, timeout=20) for _ in range(50)]
    for each in waiting:
        each.request("GET", f"/faults/{number}/wait?timeout_ms=15000")
    began = time.monotonic()
    api.ok("GET", "/clock")
    assert time.monotonic() - began < 5
    produce(producer(broker), "orders", "one")
    for each in waiting:
        assert each.getresponse().status == 200
        each.close()
