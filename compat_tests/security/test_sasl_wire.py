"""Sequences of frames before and after authentication, valid and invalid, on both brokers: equal outcomes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import MECHANISMS, open_address
from compat_tests.wire.client import CLOSED, WireClient
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.java

Step = Callable[[WireClient], Any]
RIGHT: Final = b"\0alice\0secret"


def versions(version: int, name: str = "t") -> Step:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    return lambda client: _outcome(client.ask(request, version))


def unknown_versions(client: WireClient) -> Any:
    client.send_bytes(struct.pack(">ihhihb", 11, 18, 99, 7, -1, 0))
    got = client.receive()
    return got if isinstance(got, str) else struct.unpack_from(">ih", got)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Step:
    return lambda client: _outcome(client.ask(SaslHandshakeRequest(mechanism), version))


def token(data: bytes | Callable[[], bytes] = RIGHT, version: int = 2) -> Step:
    def step(client: WireClient) -> Any:
        return _outcome(client.ask(SaslAuthenticateRequest(data() if callable(data) else data), version))

    return step


def bare(data: bytes = RIGHT) -> Step:
    def step(client: WireClient) -> Any:
        client.send_bytes(struct.pack(">i", len(data)) + data)
        return client.receive()

    return step


def raw(data: bytes) -> Step:
    def step(client: WireClient) -> Any:
        client.send_bytes(data)
        return client.receive()

    return step


def metadata(version: int = 9) -> Step:
    def step(client: WireClient) -> Any:
        answer = client.ask(MetadataRequest(topics=[]), version)
        return answer if isinstance(answer, str) else f"{len(answer.brokers)} brokers"

    return step


def _outcome(answer: Any) -> Any:
    if isinstance(answer, str):
        return answer
    kept = {"error_code": answer.error_code}
    for name in ("error_message", "auth_bytes", "session_lifetime_ms"):
        if hasattr(answer, name):
            kept[name] = getattr(answer, name)
    if hasattr(answer, "mechanisms"):
        kept["mechanisms"] = sorted(answer.mechanisms)
    return kept


def scram(mechanism: str, password: bytes = b"secret", name: str = "alice", **changes: str) -> Step:
    """Return all messages of an exchange, with some of their parts replaced."""

    def step(client: WireClient) -> Any:
        first = changes.get("first", f"n,,n={name},r=abc")
        answer = client.ask(SaslAuthenticateRequest(first.encode()), 2)
        if isinstance(answer, str) or answer.error_code:
            return _outcome(answer)
        challenge = bytes(answer.auth_bytes).decode()
        parts = dict(part.split("=", 1) for part in challenge.split(","))
        hash_name = "sha" + mechanism[-3:]
        salted = hashlib.pbkdf2_hmac(hash_name, password, base64.b64decode(parts["s"]), int(parts["i"]))
        key = hmac.digest(salted, b"Client Key", hash_name)
        without = f"c={changes.get('binding', 'biws')},r={changes.get('nonce', parts['r'])}"
        said = f"{first[3:]},{challenge},{without}".encode()
        proof = bytes(
            a ^ b for a, b in zip(key, hmac.digest(hashlib.new(hash_name, key).digest(), said, hash_name), strict=True)
        )
        last = changes.get("last", f"{without},p={base64.b64encode(proof).decode()}")
        answer = client.ask(SaslAuthenticateRequest(last.encode()), 2)
        outcome = _outcome(answer)
        if isinstance(outcome, dict) and outcome["auth_bytes"]:
            signature = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), said, hash_name)
            assert outcome["auth_bytes"] == b"v=" + base64.b64encode(signature)
            outcome["auth_bytes"] = "the server's signature"
        return [parts["i"], outcome]

    return step


def oauth(seconds: int = 600, alg: str = "none", sub: str | None = "alice", tail: str = "") -> bytes:
    now = int(time.time())
    claims = {"sub": sub, "iat": now, "exp": now + seconds}
    parts = [{"alg": alg}, {name: value for name, value in claims.items() if value is not None}]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
    return f"n,,\x01auth=Bearer {text}.{tail}\x01\x01".encode()


SEQUENCES: Final[dict[str, list[Step]]] = {
    "plain": [versions(4), handshake(), token(), metadata()],
    "plain v0": [versions(0), handshake(), token(version=0), metadata()],
    "plain v1": [handshake(), token(version=1), metadata()],
    "plain bare": [handshake(version=0), bare(), metadata()],
    "plain bare wrong": [handshake(version=0), bare(b"\0alice\0x")],
    "plain wrapped after v0": [handshake(version=0), token()],
    "plain wrong": [handshake(), token(b"\0alice\0x"), metadata()],
    "plain nobody": [handshake(), token(b"\0nobody\0secret"), metadata()],
    "plain no name": [handshake(), token(b"\0\0secret")],
    "plain no password": [handshake(), token(b"\0alice\0")],
    "plain two parts": [handshake(), token(b"alice\0secret")],
    "plain four parts": [handshake(), token(b"\0alice\0secret\0")],
    "plain empty": [handshake(), token(b"")],
    "plain own authzid": [handshake(), token(b"alice\0alice\0secret"), metadata()],
    "plain other authzid": [handshake(), token(b"bob\0alice\0secret")],
    "plain not utf-8": [handshake(), token(b"\0\xff\0\xfe")],
    "metadata first": [metadata()],
    "metadata v0 first": [metadata(0)],
    "metadata after versions": [versions(3), metadata()],
    "token first": [token()],
    "versions twice": [versions(3), versions(3)],
    "versions with a bad name, then well": [versions(3, "-"), versions(3), handshake(), token(), metadata()],
    "versions unknown, then well": [unknown_versions, versions(3), handshake(), token(), metadata()],
    "versions unknown after versions": [versions(3), unknown_versions],
    "versions after the handshake": [handshake(), versions(3)],
    "handshake twice": [handshake(), handshake()],
    "unknown mechanism": [handshake("X-UNKNOWN"), metadata()],
    "mechanism in lower case": [handshake("plain")],
    "gssapi": [handshake("GSSAPI")],
    "no mechanism": [handshake("")],
    "handshake v2": [raw(struct.pack(">ihhihh", 12, 17, 2, 1, -1, 0))],
    "authenticate v3": [handshake(), raw(struct.pack(">ihhih", 10, 36, 3, 1, -1))],
    "unknown key": [raw(struct.pack(">ihhih", 10, 999, 0, 1, -1))],
    "no header": [raw(struct.pack(">ib", 1, 0))],
    "empty frame": [raw(struct.pack(">i", 0))],
    "negative frame": [raw(struct.pack(">i", -1))],
    "huge frame": [raw(struct.pack(">i", 600_000))],
    "http": [raw(b"GET / HTTP/1.1\r\n\r\n")],
    "authenticated twice": [handshake(), token(), handshake(), token(), metadata()],
    "oauth": [handshake("OAUTHBEARER"), token(oauth)],
    "oauth expired": [handshake("OAUTHBEARER"), token(partial(oauth, -600)), token(b"\x01"), metadata()],
    "oauth no subject": [handshake("OAUTHBEARER"), token(partial(oauth, sub=None)), token(b"\x01")],
    "oauth signed": [handshake("OAUTHBEARER"), token(partial(oauth, alg="RS256", tail="abc")), token(b"\x01")],
    "oauth garbage": [handshake("OAUTHBEARER"), token(b"n,,\x01auth=Bearer a.b.c\x01\x01"), token(b"\x01")],
    "oauth no message": [handshake("OAUTHBEARER"), token(b"abc")],
    **{
        f"{mechanism} {name}": [handshake(mechanism), step, metadata()]
        for mechanism in MECHANISMS[1:3]
        for name, step in {
            "right": scram(mechanism),
            "wrong": scram(mechanism, b"x"),
            "nonce": scram(mechanism, nonce="abcdef"),
            "final garbage": scram(mechanism, last="x"),
            "first garbage": scram(mechanism, first="x"),
            "y": scram(mechanism, first="y,,n=alice,r=abc"),
            "name that cannot be": scram(mechanism, first="n,,n=a=lice,r=abc"),
            "other authzid": scram(mechanism, first="n,a=bob,n=alice,r=abc"),
        }.items()
    },
}
LIFETIMES: Final = {"oauth"}
"""Sequences whose sessions expire; the lifetime varies by up to a second."""


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_comes_to_the_same(sasl_brokers: dict[str, BrokerProcess], name: str) -> None:
    outcomes = {side: _run(broker.bootstrap, SEQUENCES[name]) for side, broker in sasl_brokers.items()}
    if name in LIFETIMES:
        for outcome in outcomes.values():
            assert 590_000 < outcome[1].pop("session_lifetime_ms") <= 600_000
    assert outcomes["kbroker"] == outcomes["apache"]


def _run(address: str, steps: list[Step]) -> list[Any]:
    outcomes: list[Any] = []
    with WireClient(address) as client:
        for step in steps:
            try:
                outcomes.append(step(client))
            except ConnectionError:
                outcomes.append(CLOSED)
            if outcomes[-1] == CLOSED:
                break
    return outcomes


def test_who_does_not_exist_fails_later_than_in_kafka_with_the_same_words(
    sasl_brokers: dict[str, BrokerProcess],
) -> None:
    """Declared: Kafka answers immediately, so that an attacker can find out which users exist."""
    steps = [handshake("SCRAM-SHA-256"), scram("SCRAM-SHA-256", name="nobody")]
    apache, ours = (_run(sasl_brokers[side].bootstrap, steps)[1] for side in ("apache", "kbroker"))
    assert ours[1] == apache


def test_credentials_are_changed_and_described_alike(sasl_brokers: dict[str, BrokerProcess]) -> None:
    outcomes = {}
    for side, broker in sasl_brokers.items():
        with WireClient(open_address(broker)) as client:
            outcomes[side] = [_altered(client, *each) for each in CHANGES]
            outcomes[side] += [_described(client, names) for names in (["bob"], ["alice", "none"], ["bob", "bob"])]
    assert outcomes["kbroker"] == outcomes["apache"]


def up(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"x" * 32)


CHANGES: Final[list[list[Any]]] = [
    [up("bob")],
    [up("bob", 2, 16384)],
    [up("c", 1, 4095)],
    [up("c", 1, 16385)],
    [up("", 1)],
    [up("c", 0)],
    [up("c", 9)],
    [up("c"), up("c", 2)],
    [up("c"), ScramCredentialDeletion("c", 1)],
    [ScramCredentialDeletion("c", 1)],
    [ScramCredentialDeletion("c", 9)],
    [ScramCredentialDeletion("bob", 1), up("d")],
    [ScramCredentialDeletion("d", 1)],
]


def _altered(client: WireClient, *changes: Any) -> Any:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    return sorted((each.user, each.error_code, each.error_message) for each in client.ask(request, 0).results)


def _described(client: WireClient, names: list[str]) -> Any:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name) for name in names])
    answer = client.ask(request, 0)
    return answer.error_code, sorted(
        (
            each.user,
            each.error_code,
            each.error_message,
            sorted((i.mechanism, i.iterations) for i in each.credential_infos),
        )
        for each in answer.results
    )
