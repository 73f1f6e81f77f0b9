"""Basic authentication at a broker's registry: who may log in, what a check costs, and what is cached of it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kbroker import Broker, Cluster
from kbroker.admin.schemas import SchemaRegistry
from kbroker.registry_api import logins
from kbroker.registry_api.logins import Busy, Logins
from kbroker.security.sasl.scram_credential import LEAST_ITERATIONS, ScramCredential, from_password, new_salt
from tests.cli.conftest import CommandLine


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def asked(url: str, authorization: str | None, path: str = "/subjects") -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", path, headers={} if authorization is None else {"authorization": authorization})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True, registry_auth=True, users={"alice": "secret", "zoë": "pass:wörd"}) as made:
        yield made


def test_users_of_the_broker_get_in(broker: Broker) -> None:
    for name, password in (("alice", "secret"), ("zoë", "pass:wörd")):
        for _ in range(2):  # checked, then remembered
            assert asked(broker.registry_url, basic(name, password))[:2] == (200, [])
    url = broker.registry_url.replace("//", "//alice:secret@")
    assert SchemaRegistry(url).ask("GET", "subjects") == []


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Basic",
        "Basic ====",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b"\xff:secret").decode(),
        "Bearer " + base64.b64encode(b"alice:secret").decode(),
        basic("alice", ""),
        basic("alice", "Secret"),
        basic("nobody", "secret"),
        basic("", "secret"),
        basic("alice", "s" * 1_100),
        basic("alice", "s" * 5_000),
        basic("../alice", "secret"),
    ],
)
@pytest.mark.parametrize("path", ["/subjects", "/", "/nothing"])
def test_others_do_not(broker: Broker, given: str | None, path: str) -> None:
    status, told, headers = asked(broker.registry_url, given, path)
    assert (status, told) == (401, {"error_code": 401, "message": "Unauthorized"})
    assert headers["www-authenticate"].startswith("Basic realm=")


def test_a_changed_password_counts_at_once() -> None:
    with Broker(registry=True, registry_auth=True) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        at = broker.registry_url
        assert asked(at, basic("bob", "first"))[0] == 401
        cli.ok("user", "add", "bob", stdin=b"first\n")
        assert asked(at, basic("bob", "first"))[0] == 200
        cli.ok("user", "add", "bob", stdin=b"second\n")
        assert asked(at, basic("bob", "first"))[0] == 401
        assert asked(at, basic("bob", "second"))[0] == 200
        cli.ok("user", "remove", "bob")
        assert asked(at, basic("bob", "second"))[0] == 401


class Users:
    """The users of a test, whose look-ups are counted; their names begin with "user"."""

    def __init__(self) -> None:
        self.credential = from_password("SCRAM-SHA-256", "secret", new_salt(), LEAST_ITERATIONS)

    def __call__(self, name: str, mechanism: str) -> ScramCredential | None:
        return self.credential if mechanism == "SCRAM-SHA-256" and name.startswith("user") else None


def test_what_is_remembered_is_bounded_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "REMEMBERED", 3)

    async def scenario() -> None:
        made = Logins(Users())
        try:
            for number in range(5):
                name = f"user{number}"
                assert await made.user([basic(name, "secret").encode()]) == name
            assert len(made._known) == 3
            assert all(len(each) == 32 for each in made._known)
            assert await made.user([basic("user0", "wrong").encode()]) is None
            assert len(made._known) == 3
        finally:
            made.close()

    asyncio.run(scenario())


def test_a_remembered_login_is_not_hashed_again_and_the_loop_never_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    original = logins.salted_password

    def counted(*given: Any) -> bytes:
        hashed.append(threading.current_thread().name)
        return original(*given)

    monkeypatch.setattr(logins, "salted_password", counted)

    async def scenario() -> None:
        made = Logins(Users())
        try:
            found = await asyncio.gather(*(made.user([basic("user", "secret").encode()]) for _ in range(50)))
            assert set(found) == {"user"}
        finally:
            made.close()

    asyncio.run(scenario())
    assert 2 <= len(hashed) <= 4  # two mechanisms, and no more at once than there are threads
    assert all(name.startswith("kbroker-registry-logins") for name in hashed)


def test_an_unknown_user_costs_as_many_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[tuple[str, int]] = []

    def counted(mechanism: str, _password: str, _salt: bytes, iterations: int) -> bytes:
        hashed.append((mechanism, iterations))
        return b""

    monkeypatch.setattr(logins, "salted_password", counted)

    async def scenario() -> None:
        made = Logins(Users())
        try:
            for name in ("user", "nobody"):
                assert await made.user([basic(name, "wrong").encode()]) is None
        finally:
            made.close()

    asyncio.run(scenario())
    assert hashed[:2] == hashed[2:]


def test_checks_wait_in_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "MOST_WAITING", 3)
    go_on = threading.Event()

    def held(*_: Any) -> bytes:
        assert go_on.wait(20)
        return b""

    monkeypatch.setattr(logins, "salted_password", held)

    async def scenario() -> None:
        made = Logins(Users())
        try:
            waiting = [asyncio.ensure_future(made.user([basic("user", str(n)).encode()])) for n in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await made.user([basic("user", "4").encode()])
            go_on.set()
            assert await asyncio.gather(*waiting) == [None] * 3
            assert await made.user([basic("user", "5").encode()]) is None
        finally:
            go_on.set()
            made.close()

    asyncio.run(scenario())


def test_two_headers_are_no_login() -> None:
    async def scenario() -> None:
        made = Logins(Users())
        try:
            assert await made.user([basic("user", "secret").encode()] * 2) is None
        finally:
            made.close()

    asyncio.run(scenario())


def test_in_a_cluster_each_broker_checks_and_the_leader_again() -> None:
    with Cluster(2, registry=True, registry_auth=True, users={"alice": "secret"}) as cluster:
        for broker in cluster.brokers.values():
            SchemaRegistry(broker.registry_url.replace("//", "//alice:secret@")).ask(
                "POST", "subjects", "a", "versions", body={"schema": '"string"'}
            )
            assert asked(broker.registry_url, basic("alice", "secret"))[:2] == (200, ["a"])
            assert asked(broker.registry_url, basic("alice", "wrong"))[0] == 401
            assert asked(broker.registry_url, None)[0] == 401


def test_many_wrong_logins_do_not_keep_out_who_is_known(broker: Broker) -> None:
    assert asked(broker.registry_url, basic("alice", "secret"))[0] == 200
    with ThreadPoolExecutor(8) as threads:
        wrong = [threads.submit(asked, broker.registry_url, basic("alice", str(number))) for number in range(100)]
        for _ in range(20):
            assert asked(broker.registry_url, basic("alice", "secret"))[0] == 200
        assert {each.result()[0] for each in wrong} == {401}
