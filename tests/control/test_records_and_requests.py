"""The records in a broker, its requests, and its clock, over HTTP beside a real client."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kbroker import Broker, web_connection
from kbroker.control import application, as_json, known_snapshots, topics
from kbroker.control import requests as control_requests
from kbroker.testing import requests as kept_requests
from kbroker.testing.filters import Seen
from kbroker.testing.requests import Request
from kbroker.testing.subjects import Subjects
from tests.control.conftest import Http

PATIENCE_S = 20.0


def settings(broker: Broker) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}


def produced(broker: Broker, topic: str, *values: str) -> None:
    client = Producer({**settings(broker), "linger.ms": 0, "client.id": "shop"})
    for value in values:
        client.produce(topic, value)
    assert client.flush(PATIENCE_S) == 0


def test_what_is_written_over_http_a_client_reads(broker: Broker, api: Http) -> None:
    made = api.ok("POST", "/topics", {"name": "orders", "partitions": 2, "configs": {"retention.ms": 1000000}})
    assert made == {"name": "orders", "partitions": 2, "configs": {"retention.ms": "1000000"}}
    data = base64.b64encode(b"\xff\x00").decode()
    record = {
        "value": {"base64": data},
        "key": "k",
        "partition": 1,
        "headers": [{"key": "trace", "value": {"text": "ü"}}, {"key": "none", "value": None}],
        "timestamp": 5,
    }
    stored = api.ok("POST", "/topics/orders/records", record)
    assert stored == {
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestamp": 5,
        "key": {"text": "k"},
        "value": {"base64": data},
        "headers": [{"key": "trace", "value": {"text": "ü"}}, {"key": "none", "value": None}],
        "producer_id": -1,
        "transaction": None,
    }
    assert api.ok("GET", "/topics/orders/records") == {"records": [stored], "next": None}
    client = Consumer({**settings(broker), "group.id": "billing", "auto.offset.reset": "earliest"})
    client.subscribe(["orders"])
    message = client.poll(PATIENCE_S)
    assert message is not None
    assert (message.value(), message.key(), message.partition()) == (b"\xff\x00", b"k", 1)
    client.commit(asynchronous=False)
    group = api.ok("GET", "/groups/billing")
    assert (group["state"], group["lag"]) == ("Stable", 0)
    assert group["offsets"] == [{"topic": "orders", "partition": 1, "offset": 1}]
    (member,) = group["members"]
    assert member["assigned"] == [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]
    assert api.ok("GET", "/groups") == {"groups": [{"id": "billing", "state": "Stable"}]}
    client.close()
    assert api.ok("DELETE", "/topics/orders")["name"] == "orders"
    assert "there is no topic 'orders'" in api.refused(404, "GET", "/topics/orders")


def test_a_group_that_does_not_exist_yet(broker: Broker, api: Http) -> None:
    broker.topics.create("orders").produce("one")
    group = api.ok("GET", "/groups/a%2Fb?topic=orders")
    assert (group["id"], group["state"], group["members"], group["lag"]) == ("a/b", "Dead", [], 1)
    assert api.ok("GET", "/groups/a%2Fb")["lag"] == 0
    said = api.refused(404, "GET", "/groups/a%2Fb?topic=order")
    assert said == "there is no topic 'order'; did you mean 'orders'?"


def test_records_are_read_in_parts(broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_AT_ONCE", 4)
    topic = broker.topics.create("orders", 2)
    for number in range(10):
        topic.produce(f"v{number}", partition=0)
    topic.produce("last", partition=1)

    def read(query: str) -> tuple[list[str], Any]:
        told = api.ok("GET", f"/topics/orders/records?{query}")
        return [each["value"]["text"] for each in told["records"]], told["next"]

    everything = [*(f"v{number}" for number in range(10)), "last"]
    assert read("") == (everything, None)
    assert read("limit=11") == (everything, None)
    assert read("limit=10") == (everything[:10], {"partition": 1, "start": 0})
    assert read("limit=3") == (everything[:3], {"partition": 0, "start": 3})
    assert read("partition=0&start=3&limit=3") == (everything[3:6], {"partition": 0, "start": 6})
    assert read("partition=0&start=8") == (everything[8:10], None)
    assert read("partition=0&start=99") == ([], None)
    monkeypatch.setattr(topics, "MOST_BYTES", 5)
    assert read("partition=0") == (["v0", "v1"], {"partition": 0, "start": 2})
    assert "no partition 2" in api.refused(404, "GET", "/topics/orders/records?partition=2")
    assert "limit is at most" in api.refused(400, "GET", "/topics/orders/records?limit=100000")


def test_transactions_are_told_also_where_only_their_first_record_is_read(broker: Broker, api: Http) -> None:
    broker.topics.create("paid")
    client = Producer({**settings(broker), "transactional.id": "till"})
    client.init_transactions(PATIENCE_S)
    for commit in (True, False):
        client.begin_transaction()
        for _ in range(3):
            client.produce("paid", "yes" if commit else "no")
            client.flush(PATIENCE_S)
        if commit:
            client.commit_transaction(PATIENCE_S)
        else:
            client.abort_transaction(PATIENCE_S)

    def read(query: str) -> list[str]:
        return [each["transaction"] for each in api.ok("GET", f"/topics/paid/records?{query}")["records"]]

    assert read("") == ["committed"] * 3 + ["aborted"] * 3
    assert read("isolation=read_committed") == ["committed"] * 3
    assert read("partition=0&limit=1") == ["committed"]
    assert read("partition=0&start=4&limit=1") == ["aborted"]
    assert [each.transaction for each in broker.topics["paid"].records(0, start=6, count=5)] == ["aborted"]


def test_a_snapshot_is_put_back(broker: Broker, api: Http) -> None:
    broker.topics.create("orders").produce("one")
    number = api.ok("POST", "/snapshots")["id"]
    broker.topics["orders"].produce("two")
    broker.topics.create("more")
    api.ok("POST", "/faults", {"kind": "full_disk"})
    for _ in range(2):
        assert api.ok("POST", f"/snapshots/{number}/restore") == {"id": number}
        assert [each["name"] for each in api.ok("GET", "/topics")["topics"]] == ["orders"]
        (record,) = api.ok("GET", "/topics/orders/records")["records"]
        assert record["value"] == {"text": "one"}
        broker.topics["orders"].delete()
    assert api.ok("GET", "/faults") == {"faults": []}
    assert {"id": number} in api.ok("GET", "/snapshots")["snapshots"]
    api.ok("DELETE", f"/snapshots/{number}")
    assert api.refused(404, "POST", f"/snapshots/{number}/restore") == f"there is no snapshot {number}"


def test_snapshots_have_a_bound(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    there = len(api.ok("GET", "/snapshots")["snapshots"])
    monkeypatch.setattr(known_snapshots, "KEPT", there + 1)
    number = api.ok("POST", "/snapshots")["id"]
    assert "snapshots already" in api.refused(409, "POST", "/snapshots")
    api.ok("DELETE", f"/snapshots/{number}")


def test_what_kafka_refuses_has_its_name(api: Http) -> None:
    api.ok("POST", "/topics", {"name": "orders"})
    assert api("POST", "/topics", {"name": "orders"})[1]["code"] == "TOPIC_ALREADY_EXISTS"
    assert api("POST", "/topics", {"name": "a b"})[1]["code"] == "INVALID_TOPIC_EXCEPTION"
    assert api("POST", "/topics", {"name": "c", "configs": {"x": "y"}})[1]["code"] == "INVALID_CONFIG"
    assert api("POST", "/topics/orders/records", {"value": "v", "partition": 9})[0] == 409
    assert "not base64" in api.refused(400, "POST", "/topics/orders/records", {"value": {"base64": "?"}})


def test_time_is_moved(broker: Broker, api: Http) -> None:
    before = api.ok("GET", "/clock")
    assert before["ahead_ms"] < 1000
    after = api.ok("POST", "/clock/advance", {"hours": 25, "ms": 500})
    assert 0 <= after["now_ms"] - before["now_ms"] - (25 * 3600 * 1000 + 500) < 60_000
    assert after["now"].endswith("Z")
    told = api.ok("PUT", "/clock", {"now": "2030-01-31T12:00:00+01:00"})
    assert told["now"].startswith("2030-01-31T11:00:0")
    assert broker.clock.now().year == 2030
    assert api.ok("PUT", "/clock", {"now_ms": 0})["now"].startswith("1970-01-01T00:00:0")
    api.ok("POST", "/reset")
    assert abs(api.ok("GET", "/clock")["ahead_ms"]) < 1000


def test_time_is_not_moved_out_of_the_calendar_by_many_calls(api: Http) -> None:
    refused = ""
    for _ in range(4):
        status, told = api("POST", "/clock/advance", {"days": 36_500})
        refused = refused or ("" if status == 200 else f"{status} {told['error']}")
    assert refused == "400 the time lies between 1970 and 2169"
    assert "2026" < api.ok("GET", "/clock")["now"] < "2170"


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/clock/advance", {}, "say how long: days, hours"),
        ("POST", "/clock/advance", {"hours": -1}, "hours is at least 0"),
        ("POST", "/clock/advance", {"days": 1e6}, "a hundred years"),
        ("POST", "/clock/advance", {"weeks": 1}, "there is no 'weeks' here; there are days"),
        ("PUT", "/clock", {}, "either now or now_ms"),
        ("PUT", "/clock", {"now": "tomorrow"}, "2026-01-31T12:00:00Z, not 'tomorrow'"),
        ("PUT", "/clock", {"now": "2026-01-31T12:00:00"}, "its zone"),
        ("PUT", "/clock", {"now": "0001-01-01T00:00:00+14:00"}, "between 1970"),
    ],
)
def test_a_time_that_cannot_be(api: Http, method: str, path: str, body: Any, said: str) -> None:
    assert said in api.refused(400, method, path, body)


def test_what_was_asked(broker: Broker, api: Http) -> None:
    broker.topics.create("orders")
    assert api.ok("DELETE", "/requests") == {"recording": True}
    produced(broker, "orders", "one")
    (told,) = api.ok("GET", "/requests?api=Produce&topic=orders&client_id=shop&count=1&timeout_ms=20000")["requests"]
    assert (told["api"], told["client_id"], told["topics"], told["fault"]) == ("Produce", "shop", {"orders": [0]}, None)
    assert told["request"]["acks"] == -1
    assert told["answer"]["responses"][0]["partition_responses"][0]["base_offset"] == 0
    assert told["duration_ms"] >= 0
    assert told["cut"] is False
    assert api.ok("GET", "/requests?api=Produce&topic=bills") == {"requests": [], "left_out": 0}
    there = api.ok("GET", "/requests?client_id=shop&limit=1")
    assert there["requests"][0]["number"] is None or there["left_out"] > 0
    assert "1 of 2 Produce" in api.refused(504, "GET", "/requests?api=Produce&count=2&timeout_ms=0")


def test_a_list_of_large_ones_has_a_bound(broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.topics.create("orders")
    api.ok("DELETE", "/requests")
    produced(broker, "orders", *("v" * 1000 for _ in range(5)))
    api.ok("GET", "/requests?api=Produce&count=1")
    monkeypatch.setattr(control_requests, "MOST_BYTES", 100)
    told = api.ok("GET", "/requests")
    assert len(told["requests"]) == 1
    assert told["left_out"] > 0


def test_a_message_that_is_long_is_told_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic

    monkeypatch.setattr(as_json, "VALUES", 10)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{n}") for n in range(100)])
    told = as_json.request_json(Request(Seen("Metadata", 12, None, "User:a", "P", asked, Subjects()), 1, 0))
    assert told["cut"] is True
    assert 1 < len(told["request"]["topics"]) < 10
    assert told["request"]["topics"][0] == {"topic_id": "A" * 22, "name": "t0"}


@pytest.mark.parametrize("path", ["/requests", "/requests/live"])
def test_requests_that_cannot_be_are_told(api: Http, path: str) -> None:
    assert "no API 'Prodce'; did you mean 'Produce'?" in api.refused(400, "GET", f"{path}?api=Prodce")
    assert api.refused(400, "GET", f"{path}?api=Produce&group=g") == "no request of Produce names a group"


def follower(api: Http, query: str = "") -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(api.address, timeout=PATIENCE_S)
    connection.request("GET", f"/requests/live{query}")
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert json.loads(answer.readline()) == {"following": True}
    return connection, answer


def test_requests_are_followed(broker: Broker, api: Http) -> None:
    broker.topics.create("orders")
    connection, answer = follower(api, "?api=Produce")
    produced(broker, "orders", "one", "two")
    assert json.loads(answer.readline())["topics"] == {"orders": [0]}
    connection.close()


@contextmanager
def silent(api: Http) -> Iterator[socket.socket]:
    """Yield a follower that has little room for what it does not read."""
    host, port = api.address.split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE_S)
        raw.connect((host, int(port)))
        raw.sendall(f"GET /requests/live?api=Produce HTTP/1.1\r\nHost: {api.address}\r\n\r\n".encode())
        assert raw.recv(1) == b"H"
        yield raw


def much_is_produced(broker: Broker) -> None:
    """Produce more than sockets and the server can buffer, one request for each record."""
    client = Producer({**settings(broker), "linger.ms": 0, "batch.num.messages": 1, "compression.type": "none"})
    for _ in range(300):
        client.produce("orders", "v" * 100_000)
        client.flush(PATIENCE_S)


def test_who_does_not_read_holds_nobody_up_and_is_told_what_he_missed(
    broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker keeps a limited number of requests; what waits in sockets is bounded as well."""
    monkeypatch.setattr(kept_requests, "KEPT", 20)
    topic = broker.topics.create("orders")
    with silent(api) as raw:
        much_is_produced(broker)
        assert len(topic.records(0)) == 300
        assert len(broker.requests) <= 20
        told, deadline = b"", time.monotonic() + PATIENCE_S
        while b'"missed"' not in told[-20_000:] and time.monotonic() < deadline:
            told = told[-20_000:] + raw.recv(1 << 20)
    assert b'"missed"' in told


def test_who_does_not_read_for_long_is_cut_off(broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    write = application.Lines._write

    async def watched(lines: application.Lines, send: Any) -> None:
        try:
            await write(lines, send)
        finally:
            given_up.set()

    monkeypatch.setattr(application.Lines, "_write", watched)
    monkeypatch.setattr(web_connection, "READER_S", 0.05)
    broker.topics.create("orders")
    with silent(api) as raw:
        much_is_produced(broker)
        assert given_up.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while raw.recv(1 << 20):
                assert time.monotonic() < deadline
        except ConnectionResetError:
            pass


def test_a_server_that_stops_lets_nobody_wait(broker: Broker) -> None:
    from tests.control.conftest import controlled

    with controlled(broker) as api:
        connection, answer = follower(api)
        number = api.ok("POST", "/faults", {"kind": "drop", "api": "ListGroups"})["id"]
        waiting = http.client.HTTPConnection(api.address, timeout=PATIENCE_S)
        waiting.request("GET", f"/faults/{number}/wait?timeout_ms=600000")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert waiting.getresponse().status == 504
    assert answer.readline() in (b"", b"0\r\n")
    waiting.close()
    connection.close()
    with pytest.raises(OSError):
        api("GET", "/clock")
