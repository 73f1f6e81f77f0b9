"""Who may use the API, and how much of a request is read."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request

import pytest

from kbroker import Broker
from kbroker.control.application import OPERATIONS
from kbroker.control.guard import MAX_BODY, refusal
from kbroker.local_http import CONTROL, NoPlace, parse
from tests.control.conftest import Http, controlled

HOST = ("host", "127.0.0.1:9690")


def status(*headers: tuple[str, str], public: bool = False) -> int | None:
    found = refusal([(name.encode(), value.encode()) for name, value in headers], public=public)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9690", "localhost:9690", "LOCALHOST", "[::1]:9690", "192.168.1.5", "127.1.2.3"]
)
def test_addresses_and_localhost_are_its_own_names(host: str) -> None:
    assert status(("host", host)) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9690", "127.0.0.1.evil.example", "localhost.evil.example", ""]
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    assert status(("host", host)) == 421
    assert status(("host", host), public=True) is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "https://127.0.0.1:9690"])
def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    assert status(HOST, ("origin", origin)) == 403
    assert status(HOST, ("origin", origin), public=True) == 403


def test_its_own_page_and_programs_are_let_in() -> None:
    assert status(HOST, ("origin", "http://127.0.0.1:9690"), ("sec-fetch-site", "same-origin")) is None
    assert status(HOST, ("sec-fetch-site", "none")) is None


def test_what_has_no_origin_and_comes_from_another_site_is_refused() -> None:
    assert status(HOST, ("sec-fetch-site", "cross-site")) == 403


def test_one_host() -> None:
    assert status() == 400
    assert status(("host", "127.0.0.1"), ("host", "127.0.0.1")) == 400


def test_nothing_is_done_for_a_page_of_another_site(broker: Broker, api: Http) -> None:
    broker.topics.create("orders")
    assert "may not send" in api.refused(403, "POST", "/reset", Origin="http://evil.example")
    assert "Host must be" in api.refused(421, "POST", "/reset", Host="evil.example")
    assert "content-type" in api.refused(
        415, "POST", "/faults", {"kind": "full_disk"}, content_type="application/x-www-form-urlencoded"
    )
    assert "content-type" in api.refused(415, "POST", "/faults", {"kind": "full_disk"}, content_type="text/plain")
    assert list(broker.topics) == ["orders"]
    assert broker.faults.active == ()


def test_a_public_one_has_any_name() -> None:
    with Broker() as broker, controlled(broker, public=True) as api:
        assert api("GET", "/clock", None, {"Host": "kbroker:9690"})[0] == 200


def test_a_body_has_a_bound(api: Http) -> None:
    assert f"at most {MAX_BODY} bytes" in api.refused(413, "POST", "/faults", content_length=str(MAX_BODY + 1))
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(tuple(api.address.split(":")), timeout=20) as raw:
        raw.sendall(
            f"POST /faults HTTP/1.1\r\nHost: {api.address}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        answer = b""
        try:
            for _ in range(MAX_BODY // 0x10000 + 2):
                raw.sendall(chunk)
        except OSError:
            pass  # it was answered, and is no longer read
        try:
            while piece := raw.recv(65536):
                answer += piece
        except OSError:
            pass
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_other_paths_and_methods_are_named(api: Http) -> None:
    assert "there is no /fault; there are /broker, /groups, /in-flight/{group}, /groups/{group}," in api.refused(
        404, "GET", "/fault"
    )
    assert api.refused(405, "PATCH", "/faults") == "/faults has no PATCH; it has DELETE, GET, POST"
    with pytest.raises(urllib.error.HTTPError, match="405"):  # and not a response that never ends
        urllib.request.urlopen(urllib.request.Request(f"{api.url}/requests/live", method="HEAD"), timeout=20)
    assert "has no body" in api.refused(400, "POST", "/reset", {"all": True})
    assert "there is no 'x' here; there are api, topic" in api.refused(400, "GET", "/requests?x=1")
    assert "there is no 'x' here" in api.refused(400, "GET", "/clock?x=1")
    assert api.refused(404, "GET", "/faults/x")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9690", ("::1", 9690)), ("localhost:1", ("localhost", 1))],
)
def test_where_it_listens(text: str, wanted: tuple[str, int]) -> None:
    assert parse(text, "--control", CONTROL.default) == wanted


@pytest.mark.parametrize(
    "text", ["9690", ":9690", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "::1:9690", "[]:1", "h:²"]
)
def test_where_it_cannot_listen(text: str) -> None:
    with pytest.raises(NoPlace, match=r"--control takes HOST:PORT, as 127.0.0.1:9690, not"):
        parse(text, "--control", CONTROL.default)


def test_others_than_this_machine_are_let_in_by_an_option_alone() -> None:
    with pytest.raises(NoPlace, match=r"--control-public .* allows that"):
        CONTROL.listening("0.0.0.0", 0, "--control", public=False)
    CONTROL.listening("0.0.0.0", 0, "--control", public=True).close()
    with (
        CONTROL.listening("127.0.0.1", 0, "--control", public=False) as held,
        pytest.raises(NoPlace, match="already in use"),
    ):
        CONTROL.listening("127.0.0.1", held.getsockname()[1], "--control", public=False)
    with pytest.raises(NoPlace, match="unknown host"):
        CONTROL.listening("no..host", 0, "--control", public=False)


def test_the_lock_of_the_interpreter_changes_hands_often_while_it_serves() -> None:
    before = sys.getswitchinterval()
    with Broker() as broker:
        with controlled(broker):
            assert sys.getswitchinterval() <= 0.0005
        assert sys.getswitchinterval() == before


def test_the_document_tells_every_operation(api: Http) -> None:
    told = api.ok("GET", "/openapi.json")
    assert told["openapi"] == "3.1.0"
    assert sorted(told["paths"]["/faults/{id}"]) == ["delete", "get"]
    names = [each["operationId"] for ways in told["paths"].values() for each in ways.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    text = json.dumps(told)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in told["components"]["schemas"]


def test_the_page_needs_nothing_from_elsewhere(api: Http) -> None:
    with urllib.request.urlopen(f"{api.url}/", timeout=20) as answer:
        page = answer.read().decode()
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page
    assert "://" not in page
    assert "POST /clock/advance" in page
