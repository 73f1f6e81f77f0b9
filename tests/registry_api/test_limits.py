"""Requests that are too large, too slow, or of another kind than they should be."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from kbroker.registry_api import application, requests
from kbroker.registry_api.requests import Bodies, Refused
from tests.registry_api.conftest import Http
from tests.registry_api.test_api import ONE, text

VERSIONS = "/subjects/a/versions"


def test_a_schema_whose_record_is_too_large_is_told_so(registry: Http) -> None:
    quoted = {"type": "record", "name": "R", "doc": '"' * 500_000, "fields": []}
    assert registry.refused("POST", VERSIONS, {"schema": text(quoted)}) == (
        42209,
        "Register operation failed because schema is too large",
    )
    long = {"type": "record", "name": "R", "doc": "x" * 1_040_000, "fields": []}
    assert registry.register("a", long)["version"] == 1


def test_half_of_a_surrogate_pair_is_no_text(registry: Http) -> None:
    schema = '{"type":"record","name":"R","doc":"\\ud800","fields":[]}'
    code, message = registry.refused("POST", VERSIONS, {"schema": schema})
    assert (code, message) == (42201, "The schema has half of a surrogate pair")
    for body in (b'{"schema":"\\ud800"}', b'{"schema":"\\"int\\"","metadata":{"properties":{"a":"\\uDFFF"}}}'):
        assert registry.raw("POST", VERSIONS, body)[0] == 400
    assert (
        registry.raw("POST", VERSIONS, b'{"schema":"{\\"type\\":\\"string\\",\\"x\\":\\"\\ud83d\\ude00\\"}"}')[0] == 200
    )


@pytest.mark.parametrize(
    "more",
    [
        {"references": ["one"]},
        {"references": {"name": "n"}},
        {"references": [{"name": 7}]},
        {"references": [{"name": "n", "subject": "s", "version": 2**31}]},
        {"id": 2**31},
        {"id": -(2**40)},
        {"version": "1"},
        {"version": 1.0},
        {"version": True},
        {"schemaType": 7},
        {"metadata": []},
        {"ruleSet": "x"},
        {"schemaTagsToAdd": [{"schemaEntity": "x"}]},
        {"propagateSchemaTags": "yes"},
    ],
)
def test_a_field_of_another_kind_is_refused(registry: Http, more: dict[str, Any]) -> None:
    assert registry.refused("POST", VERSIONS, {"schema": text(ONE), **more})[0] == 400


def test_a_body_has_only_so_many_values(registry: Http) -> None:
    many = {"properties": {str(number): "" for number in range(60_000)}}
    code, message = registry.refused("POST", VERSIONS, {"schema": text(ONE), "metadata": many})
    assert (code, message) == (400, "A body has at most 20000 values")
    commas = {**ONE, "doc": "," * 60_000}
    assert registry.register("a", commas)["version"] == 1, "those within a text do not count"
    assert registry.raw("POST", VERSIONS, b'{"schema":NaN}')[0] == 400


def test_a_body_that_does_not_arrive_is_given_up(registry: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_S", 0.2)
    address = urlsplit(registry.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = f"POST {VERSIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer.lower()


def test_large_bodies_are_refused_while_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_BODIES", 3_000_000)
    bodies, one, other, small = Bodies(), {}, {}, {}  # type: ignore[var-annotated]
    with bodies(one):
        bodies.take(one, 2_000_000)
        with bodies(other), pytest.raises(Refused) as refused:
            bodies.take(other, 2_000_000)
        assert refused.value.status == 503
        with bodies(small):
            bodies.take(small, 1_000)
    with bodies(other):
        bodies.take(other, 2_000_000)


def test_a_long_list_is_sent_in_pieces(registry: Http) -> None:
    """The JSON of 60 MB in one piece held the interpreter, and so the broker's loop, for more than a second."""
    schemas = [{"type": "record", "name": "R", "doc": str(number) * 70_000, "fields": []} for number in range(5)]
    for number, schema in enumerate(schemas):
        registry.register(f"s{number}", schema)
    assert [json.loads(each["schema"]) for each in registry.ok("GET", "/schemas")] == schemas
    assert registry.ok("GET", "/schemas?offset=9") == []
    assert registry.raw("HEAD", "/schemas") == (200, b"")

    async def pieces() -> list[bytes]:
        return [each async for each in application._pieces([{"a": "x" * 70_000}, {"b": 1}, {"c": "y" * 70_000}])]

    sizes = [len(each) for each in asyncio.run(pieces())]
    assert (len(sizes), max(sizes) < 80_000) == (3, True)


@pytest.mark.parametrize("count", [0, 1, 1_000, 1_001, 20_000])
def test_a_list_in_pieces_is_the_list(count: int) -> None:
    names = [f"subject {number}" for number in range(count)]

    async def whole() -> bytes:
        return b"".join([each async for each in application._pieces(names)])

    assert json.loads(asyncio.run(whole())) == names


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://{host}", "sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_may_not_ask(registry: Http, headers: dict[str, str], status: int) -> None:
    sent = {name: value.format(host=registry.address) for name, value in headers.items()}
    connection = http.client.HTTPConnection(registry.address, timeout=20)
    try:
        connection.request("POST", VERSIONS, json.dumps({"schema": text(ONE)}), sent)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read()).get("error_code", 200)) == (status, status)
    finally:
        connection.close()


def test_of_several_parameters_the_first_one_counts(registry: Http) -> None:
    registry.register("a", ONE)
    assert registry.ok("GET", "/subjects?subjectPrefix=a&subjectPrefix=b") == ["a"]
    assert registry.ok("GET", "/subjects?deletedOnly=true&deletedOnly=false") == []


@pytest.mark.parametrize("number", ["1_0", " 1", "\u0663", "1.0", "0x1", "9" * 5_000])
def test_what_only_python_takes_for_a_number_is_none(registry: Http, number: str) -> None:
    registry.register("a", ONE)
    assert registry.refused("GET", f"/schemas/ids/{quote(number)}/schema")[0] == 404
    assert registry.refused("GET", f"/subjects?limit={quote(number)}")[0] == 404
    if number != " 1":
        assert registry.refused("GET", f"{VERSIONS}/{quote(number)}")[0] == 42202


@pytest.mark.parametrize("subject", ["a/b", "ü€😀", "a b%2Fc", "..", ".", "a?b#c", ":.:x", "'\"\\"])
def test_names_of_subjects_are_any_text(registry: Http, subject: str) -> None:
    registry.register(subject, json.dumps("string"))
    name = subject.removeprefix(":.:")
    assert registry.ok("GET", "/subjects") == [name]
    assert registry.ok("GET", "/schemas/ids/1/versions") == [{"subject": name, "version": 1}]
