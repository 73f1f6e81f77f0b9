"""Delegation tokens on both brokers: the answers to each request, who can log in, and Kafka's own tools."""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from compat_tests.clients.java_tools.tool import run, run_class
from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import SASL, SCRAM, both, open_address
from compat_tests.security.token_clients import add_user, by_token, create, describe, log_in
from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from kbroker.protocol.messages.access import ExpireDelegationTokenRequest, RenewDelegationTokenRequest
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.cli.conftest import CommandLine

pytestmark = pytest.mark.java

MECHANISM: Final = "SCRAM-SHA-256"
LATEST: Final = (1 << 63) - 1
SECRET_KEY: Final = "delegation.token.secret.key"
SETTINGS: Final = {**SASL, SECRET_KEY: "a secret of all brokers"}
TOOL: Final = "org.apache.kafka.tools.DelegationTokenCommand"
NOT_FOUND: Final = 62
USERS: Final = ("alice", "bob", "carol")
_TIME_FIELDS = ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms")
_TOLD_TIMES = ("issue_timestamp", "expiry_timestamp", "max_timestamp")


@pytest.fixture(scope="module", params=["with a secret"])
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as running:
        found = both(kafka_libs, tmp_path_factory.mktemp("tokens"), SETTINGS)
        yield {each.name: _with_users(running.enter_context(each)) for each in found}


def _with_users(broker: BrokerProcess) -> BrokerProcess:
    for name in USERS:
        assert add_user(open_address(broker), name, "secret", MECHANISM)
    return broker


class Side:
    """The connections of all users to one broker, and its answers in a form that both brokers share."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.clients: list[WireClient] = []
        self.log: list[Any] = []

    def __call__(self, name: str) -> WireClient:
        """Return a new connection of a user; a new user might not be known for a moment."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                self.clients.append(log_in(self.broker.bootstrap, name, "secret", MECHANISM))
            except AssertionError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                return self.clients[-1]

    def stranger(self) -> WireClient:
        self.clients.append(WireClient(open_address(self.broker)))
        return self.clients[-1]

    def shows(self, token: Any, **more: Any) -> Any:
        """Log in with a token; record and return the answer."""
        client, answer = by_token(self.broker.bootstrap, token, MECHANISM, **more)
        self.clients.append(client)
        lasts = answer.session_lifetime_ms
        self.log.append((answer.error_code, answer.error_message, round(lasts / 10_000)))
        return client

    def settled(self, client: WireClient, token: Any) -> Any:
        """Wait until a token is known to the node that answers for it; return it."""
        self.until(lambda: any(each.token_id == token.token_id for each in describe(client).tokens))
        return token

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def created(self, client: WireClient, *arguments: Any, **more: Any) -> Any:
        """Create a token; record the answer."""
        answer = create(client, *arguments, **more)
        began = answer.issue_timestamp_ms
        times = [getattr(answer, name) for name in _TIME_FIELDS]
        is_now = abs(began - time.time() * 1000) < 60_000
        fields = {name: getattr(answer, name) for name in _principals(answer)}
        self.log.append(
            {
                **fields,
                "code": int(answer.error_code),
                "times": [each - began for each in times] if is_now else times,
                "id": bool(re.fullmatch(r"[\w][\w-]{21}", answer.token_id)) if answer.token_id else "",
                "hmac": len(answer.hmac),
            }
        )
        return answer

    def changed(self, client: WireClient, request: Any, version: int = 2, *, exists: bool = True) -> None:
        """Renew or expire a token; record the answer. The controller might not know yet that the token exists."""
        answer = client.ask(request, version)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while exists and answer.error_code == NOT_FOUND and time.monotonic() < deadline:
            time.sleep(0.05)
            answer = client.ask(request, version)
        left = answer.expiry_timestamp_ms
        is_time = left > 1_000_000
        self.log.append((answer.error_code, round((left - time.time() * 1000) / 5000) if is_time else left))

    def described(self, client: WireClient, owners: list[str] | None = None, version: int = 3) -> None:
        """Describe tokens; record the answer without the parts that differ."""
        answer = describe(client, owners, version)
        rows = []
        for each in answer.tokens:
            row = {name: getattr(each, name) for name in _principals(each)}
            row["times"] = [round((getattr(each, name) - each.issue_timestamp) / 20_000) for name in _TOLD_TIMES]
            row["renewers"] = [(one.principal_type, one.principal_name) for one in each.renewers]
            row["hmac"] = len(each.hmac)
            rows.append(row)
        self.log.append((answer.error_code, sorted(rows, key=repr)))

    def close(self) -> None:
        for client in self.clients:
            client.close()


def _principals(answer: Any) -> list[str]:
    names = ("principal_type", "principal_name", "token_requester_principal_type", "token_requester_principal_name")
    return [each for each in names if hasattr(answer, each)]


def compare(brokers: dict[str, BrokerProcess], scenario: Callable[[Side], None], name: str) -> None:
    found = {}
    for side, broker in brokers.items():
        one = Side(broker)
        try:
            scenario(one)
        finally:
            one.close()
        found[side] = one.log
    assert found["kbroker"] == found["apache"]
    report.count_exchanges(f"delegation tokens: {name}", len(found["kbroker"]))


def empty(side: Side, *names: str) -> None:
    """Expire all earlier tokens; Kafka's broker might not know yet of some."""

    def none_left(client: WireClient, name: str) -> bool:
        left = _own(client, name)
        for each in left:
            client.ask(ExpireDelegationTokenRequest(each.hmac, -1), 2)
        return not left

    for name in names:
        side.until(partial(none_left, side(name), name))


def _own(client: WireClient, name: str) -> list[Any]:
    return [each for each in describe(client, [name]).tokens if each.principal_name == name]


def creating(side: Side) -> None:
    alice = side("alice")
    for version in (1, 2, 3):
        side.created(alice, version, renewers=(("User", "bob"),))
    for lifetime in (0, -5, 1, 1000, 10**15, LATEST, -LATEST - 1):
        side.created(alice, lifetime_ms=lifetime)
    side.created(alice, owner=("User", "bob"))
    side.created(alice, owner=("User", ""))
    side.created(alice, owner=("User", "alice"))
    side.created(alice, owner=("Robot", "bob"))
    side.created(alice, owner=(None, "bob"))
    side.created(alice, owner=("User", None))
    side.created(alice, renewers=(("User", "bob"), ("Group", "x")))
    side.created(alice, renewers=(("user", "bob"),))
    side.created(alice, renewers=(("User", ""), ("User", "a,b=c ü")))


def a_life(side: Side) -> None:
    empty(side, *USERS)
    alice, bob, carol = (side(name) for name in USERS)
    token = side.settled(alice, side.created(alice, renewers=(("User", "bob"),), lifetime_ms=10**9))
    for client in (alice, bob, carol):
        for version in (1, 2, 3):
            side.described(client, None, version)
        for owners in ([], ["alice"], ["bob"], ["carol"], ["alice", "carol"], ["nobody"]):
            side.described(client, owners)
    for client in (alice, bob, carol):
        for period in (-1, 0, 20_000, 10**15, LATEST):
            side.changed(client, RenewDelegationTokenRequest(token.hmac, period))
        side.changed(client, ExpireDelegationTokenRequest(token.hmac, 30_000), 1)
        side.changed(client, ExpireDelegationTokenRequest(token.hmac, LATEST))
    for wrong in (b"", b"x", bytes(64)):
        side.changed(alice, RenewDelegationTokenRequest(wrong, 1), exists=False)
        side.changed(alice, ExpireDelegationTokenRequest(wrong, 1), exists=False)
    side.changed(bob, ExpireDelegationTokenRequest(token.hmac, -1))
    side.until(lambda: not _own(alice, "alice"))
    side.described(alice)


def the_end(side: Side) -> None:
    empty(side, *USERS)
    alice, carol = side("alice"), side("carol")
    token = side.settled(alice, side.created(alice))
    side.changed(alice, ExpireDelegationTokenRequest(token.hmac, 0))
    side.until(lambda: all(each.expiry_timestamp < time.time() * 1000 - 10 for each in _own(alice, "alice")))
    side.changed(alice, RenewDelegationTokenRequest(token.hmac, -1))
    side.changed(carol, RenewDelegationTokenRequest(token.hmac, -1))
    side.changed(alice, ExpireDelegationTokenRequest(token.hmac, 10))
    side.changed(carol, ExpireDelegationTokenRequest(token.hmac, 10))
    side.changed(alice, ExpireDelegationTokenRequest(token.hmac, -5))
    side.until(lambda: not _own(alice, "alice"))
    side.changed(alice, RenewDelegationTokenRequest(token.hmac, -1), exists=False)


def strangers(side: Side) -> None:
    alice, stranger = side("alice"), side.stranger()
    token = side.settled(alice, side.created(alice))
    side.created(stranger)
    side.created(stranger, owner=("User", "bob"), renewers=(("Group", "x"),))
    side.created(stranger, 1)
    side.changed(stranger, RenewDelegationTokenRequest(token.hmac, 1), exists=False)
    side.changed(stranger, ExpireDelegationTokenRequest(token.hmac, 1), 1, exists=False)
    side.described(stranger)
    side.described(stranger, [])


def logging_in(side: Side) -> None:
    alice = side("alice")
    token = side.settled(alice, side.created(alice, lifetime_ms=100_000))
    client = side.shows(token)
    assert client.ask(MetadataRequest(topics=[]), 9).brokers
    side.created(client)
    side.described(client)
    side.changed(client, RenewDelegationTokenRequest(token.hmac, 1), exists=False)
    side.changed(client, ExpireDelegationTokenRequest(token.hmac, 1), exists=False)
    side.shows(token, password="wrong")
    side.changed(alice, ExpireDelegationTokenRequest(token.hmac, -1))
    side.until(lambda: all(each.token_id != token.token_id for each in describe(alice).tokens))
    side.shows(token)
    for_bob = side.settled(alice, side.created(alice, owner=("User", "bob")))
    side.shows(for_bob)


SCENARIOS: Final = {each.__name__: each for each in (creating, a_life, the_end, strangers, logging_in)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_answer_the_same(brokers: dict[str, BrokerProcess], name: str) -> None:
    compare(brokers, SCENARIOS[name], name)


def test_without_a_secret(sasl_brokers: dict[str, BrokerProcess]) -> None:
    def nothing(side: Side) -> None:
        alice = side("alice")
        side.created(alice, renewers=(("User", "bob"),))
        side.created(alice, 1, renewers=(("Group", "bob"),))
        side.changed(alice, RenewDelegationTokenRequest(b"x", 1), exists=False)
        side.changed(alice, ExpireDelegationTokenRequest(b"x", 1), exists=False)
        side.described(alice)
        side.described(alice, [])

    compare(sasl_brokers, nothing, "without a secret")


def test_the_secret_is_not_told(brokers: dict[str, BrokerProcess]) -> None:
    asked = DescribeConfigsRequest(resources=[DescribeConfigsResource(4, "1", [SECRET_KEY])])
    found = {}
    for side, broker in brokers.items():
        with WireClient(open_address(broker)) as client:
            (result,) = client.ask(asked, 4).results
        found[side] = [(each.name, each.value, each.is_sensitive, each.read_only) for each in result.configs]
    assert found["kbroker"] == found["apache"]


def _file(directory: Path, name: str, password: str, more: str = "") -> str:
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{SCRAM} required username="{name}" password="{password}"{more};',
    }
    path = directory / f"{uuid.uuid4().hex}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(path)


_PLACED: Final = [
    (re.compile(r"[A-Za-z0-9+/]{86}=="), "<hmac>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d"), "<date>"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "<id>"),
]


def _plain(lines: list[str]) -> list[str]:
    for pattern, name in _PLACED:
        lines = [pattern.sub(name, line) for line in lines]
    return lines


def test_the_tool_and_the_verb(
    brokers: dict[str, BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool and the verb each show, renew and expire a token that the other one created."""
    monkeypatch.setenv("TZ", "UTC")  # the tool's dates are in the time zone of its machine
    for broker in brokers.values():
        one = Side(broker)
        empty(one, "alice")
        one("alice")
        one.close()
        own = ["--command-config", _file(tmp_path, "alice", "secret")]
        where = ["--bootstrap-server", broker.bootstrap]
        tool, verb = partial(run_class, TOOL, *own, *where), CommandLine(broker.bootstrap)
        whose = ["--describe", "--owner-principal", "User:alice"]
        may = ["--owner-principal", "User:alice", "--renewer-principal", "User:bob"]
        made = verb.ok("token", "create", *own, *may, "--max-life-time-period", "3600000", "--json").json
        assert tool("--create", *may, "--max-life-time-period", "7200000")[0] == "exit 0"

        def own_tokens(*more: str, verb: CommandLine = verb, own: list[str] = own) -> list[Any]:
            """Tokens of other users that alice is allowed to renew, which other tests leave, are left out."""
            found = verb.ok("token", "list", *own, *more, "--json").json
            return [each for each in found if each["owner"] == "User:alice"]

        told: list[Any] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(told) < 2 and time.monotonic() < deadline:  # Apache Kafka shows a token a moment after its creation
            told = own_tokens("--hmac")
        rows = [row for row in map(str.split, tool(*whose)) if len(row) == 8 and row[2] == "User:alice"]
        shown = {row[0]: row[1:] for row in rows}
        assert len(shown) == 2
        assert shown == {
            each["token"]: [
                each["hmac"],
                each["owner"],
                each["requester"],
                f"[{','.join(each['renewers'])}]",
                *(each[key][:16] for key in ("issued", "expires", "renewable_until")),
            ]
            for each in told
        }
        assert tool("--renew", "--renew-time-period", "60000", "--hmac", made["hmac"])[0] == "exit 0"
        until = made["expires"]
        while until == made["expires"]:
            assert time.monotonic() < deadline
            until = next(each["expires"] for each in own_tokens() if each["token"] == made["token"])
        assert until < made["expires"]
        verb.ok("token", "expire", made["token"], *own)
        while any(made["hmac"] in line for line in tool(*whose)):
            assert time.monotonic() < deadline
        for each in told:
            tool("--expire", "--expiry-time-period", "-1", "--hmac", each["hmac"])
        while own_tokens():
            assert time.monotonic() < deadline


def test_kafka_delegation_tokens(brokers: dict[str, BrokerProcess], tmp_path: Path) -> None:
    """The tool creates a token, and Kafka's programs log in with it."""
    outcomes = {}
    for side, broker in brokers.items():
        one = Side(broker)
        empty(one, "alice")
        one("alice")
        one.close()
        file = _file(tmp_path, "alice", "secret")

        def tool(*arguments: str, file: str = file, broker: BrokerProcess = broker) -> list[str]:
            return run_class(TOOL, *arguments, "--command-config", file, "--bootstrap-server", broker.bootstrap)

        said = [tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")]
        found = re.search(r"([\w-]{22}) ([A-Za-z0-9+/]{86}==)", "\n".join(said[0]))
        assert found is not None, said
        token_id, hmac = found[1], found[2]
        assert len(base64.b64decode(hmac)) == 64
        deadline = time.monotonic() + DEADLINE_SECONDS
        described = tool("--describe", "--owner-principal", "User:alice")
        while not any(token_id in line for line in described):  # Apache Kafka shows a token a moment after its creation
            assert time.monotonic() < deadline
            described = tool("--describe", "--owner-principal", "User:alice")
        said.append(described)
        said.append(tool("--renew", "--renew-time-period", "-1", "--hmac", hmac))
        by = _file(tmp_path, token_id, hmac, ' tokenauth="true"')
        topic = f"t-{uuid.uuid4().hex}"
        with_token = {"bootstrap": broker.bootstrap}
        said.append(run("topics", "--create", "--topic", topic, "--command-config", by, **with_token)[:1])
        said.append(
            run("console-producer", "--topic", topic, "--command-config", by, stdin="one\ntwo\n", **with_token)[:1]
        )
        consume = ["--topic", topic, "--from-beginning", "--max-messages", "2", "--command-config", by]
        said.append(sorted(run("console-consumer", *consume, **with_token)[:3]))
        refused = run_class(TOOL, "--describe", "--command-config", by, "--bootstrap-server", broker.bootstrap)
        said.append([line for line in refused if line.startswith("exit") or "Exception" in line][:2])
        said.append(tool("--expire", "--expiry-time-period", "-1", "--hmac", hmac))
        outcomes[side] = [sorted(_plain(lines)) for lines in said]  # the rows come in any order
    assert outcomes["kbroker"] == outcomes["apache"]
    assert ["exit 0" in lines for lines in outcomes["kbroker"]] == [True] * 6 + [False, True]
    assert {"one", "two"} <= set(outcomes["kbroker"][5])
    report.count("kafka-delegation-tokens", "both")
