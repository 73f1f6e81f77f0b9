"""SASL SCRAM: the RFCs' examples, both sides against each other, and messages that are wrong or out of order."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.sasl import scram
from kbroker.security.sasl.authentication import AuthenticationFailed
from kbroker.security.sasl.scram import ScramClient, ScramServer
from kbroker.security.sasl.scram_credential import HASHES, ScramCredential, from_password, new_salt

SHA256 = "SCRAM-SHA-256"
MECHANISMS = sorted(HASHES)
KNOWN = {mechanism: from_password(mechanism, "pencil", b"salt", 4096) for mechanism in MECHANISMS}


def server(mechanism=SHA256, name="alice"):
    return ScramServer(mechanism, {name: KNOWN[mechanism]}.get)


def converse(one, client):
    answer = one.respond(client.first())
    while (token := client.respond(answer)) is not None:
        answer = one.respond(token)
    return one.identity


def test_the_example_of_rfc_7677(monkeypatch):
    monkeypatch.setattr(scram.secrets, "token_hex", lambda _size: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    one = ScramServer(SHA256, {"user": from_password(SHA256, "pencil", salt, 4096)}.get)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    challenge = one.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge.decode() == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = one.respond(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert one.identity.name == "user"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "=2C", "zoë", "CN=x,O=y"])
def test_both_sides_agree(mechanism, name):
    assert converse(server(mechanism, name), ScramClient(mechanism, name, "pencil")).name == name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_does_not_know_the_password_is_told_as_who_does_not_exist(mechanism):
    said = []
    for name, password in (("alice", "pen"), ("nobody", "pencil")):
        one, client = server(mechanism), ScramClient(mechanism, name, password)
        challenge = one.respond(client.first())
        with pytest.raises(AuthenticationFailed) as failed:
            one.respond(client.respond(challenge))
        said.append((str(failed.value), failed.value.client_message))
        assert one.identity is None
    assert said[0] == said[1]
    assert said[0][1] is None


def test_who_does_not_exist_has_the_same_salt_each_time():
    def challenge(mechanism, name):
        return server(mechanism).respond(ScramClient(mechanism, name, "x").first()).split(b",", 1)[1]

    assert challenge(SHA256, "nobody") == challenge(SHA256, "nobody")
    assert challenge(SHA256, "nobody") != challenge(SHA256, "no one")
    assert challenge(SHA256, "nobody") != challenge("SCRAM-SHA-512", "nobody")
    assert challenge(SHA256, "nobody").endswith(b",i=4096")
    salt = base64.b64decode(challenge(SHA256, "nobody").split(b",")[0][2:])
    assert len(salt) == len(new_salt())
    assert salt.isalnum()


def test_a_credential_with_too_few_iterations_lets_nobody_in():
    one = ScramServer(SHA256, {"alice": from_password(SHA256, "pencil", b"salt", 4095)}.get)
    with pytest.raises(AuthenticationFailed):
        converse(one, ScramClient(SHA256, "alice", "pencil"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a c",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=a=lice,r=abc",
        b"n,,n=a=2clice,r=abc",
        b"n,alice,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=abc,1=x",
        b"n,,n=\xff,r=abc",
        b"n,,n=al\0ice,r=abc",
        b"n,,n=alice,r=abc" + b",a=b" * 100_000,
    ],
)
def test_a_first_message_that_is_none(message):
    one = server()
    with pytest.raises(AuthenticationFailed):
        one.respond(message)
    with pytest.raises(AuthenticationFailed):
        one.respond(b"n,,n=alice,r=abc")


def test_an_authzid_that_is_the_name_and_extensions_are_taken():
    one = server()
    challenge = one.respond(b"n,a=alice,n=alice,r=abc,ext=1").decode()
    assert one.respond(final(challenge, header="n,a=alice,", bare="n=alice,r=abc,ext=1")).startswith(b"v=")


def final(challenge, *, header="n,,", bare="n=alice,r=abc", nonce=None, binding=None, extensions="", key=None):
    credential = KNOWN[SHA256]
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    binding = base64.b64encode(header.encode()).decode() if binding is None else binding
    without = f"c={binding},r={nonce or parts['r']}{extensions}"
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", credential.salt, 4096)
    client_key = key or hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(credential.stored_key, f"{bare},{challenge},{without}".encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=False))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": "abc"},
        {"nonce": "somebodyelses"},
        {"binding": base64.b64encode(b"y,,").decode()},
        {"binding": base64.b64encode(b"n,a=bob,").decode()},
        {"binding": ""},
        {"binding": "biws="},
        {"key": b"short"},
        {"key": bytes(32)},
        {"extensions": ",1"},
    ],
)
def test_a_final_message_that_is_wrong(wrong):
    one = server()
    challenge = one.respond(b"n,,n=alice,r=abc").decode()
    with pytest.raises(AuthenticationFailed):
        one.respond(final(challenge, **wrong))
    assert one.identity is None
    with pytest.raises(AuthenticationFailed):
        one.respond(final(challenge))


def test_the_right_final_message_is_right():
    one = server()
    challenge = one.respond(b"n,,n=alice,r=abc").decode()
    assert one.respond(final(challenge, extensions=",x=y")).startswith(b"v=")
    with pytest.raises(AuthenticationFailed):
        one.respond(final(challenge, extensions=",x=y"))


def test_what_was_said_once_lets_nobody_in_again():
    one, other = server(), server()
    client = ScramClient(SHA256, "alice", "pencil")
    first = client.first()
    message = client.respond(one.respond(first))
    one.respond(message)
    other.respond(first)
    with pytest.raises(AuthenticationFailed):
        other.respond(message)


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(b"n,,n=alice,r=abc"), st.text(max_size=60).map(str.encode))))
def test_no_sequence_of_messages_lets_anybody_in(messages):
    one = server()
    for message in messages:
        try:
            one.respond(message)
        except AuthenticationFailed:
            continue
    assert one.identity is None


@given(st.data())
def test_a_right_message_with_one_change_is_wrong(data):
    client, one = ScramClient(SHA256, "alice", "pencil"), server()
    message = bytearray(client.respond(one.respond(client.first())))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    try:
        one.respond(bytes(message))
    except AuthenticationFailed:
        assert one.identity is None
    else:  # the last character of base64 may have bits that say nothing
        assert at >= len(message) - 2


@pytest.mark.parametrize("challenge", [b"", b"r=abc,s=x,i=4096", b"e=other-error", b"\xff"])
def test_a_client_does_not_take_what_is_no_challenge(challenge):
    client = ScramClient(SHA256, "alice", "pencil")
    with pytest.raises(AuthenticationFailed):
        client.respond(challenge)


def test_a_client_wants_to_know_that_the_server_knows_it():
    client, one = ScramClient(SHA256, "alice", "pencil"), server()
    one.respond(client.respond(one.respond(client.first())))
    with pytest.raises(AuthenticationFailed):
        client.respond(b"v=" + base64.b64encode(bytes(32)))


def test_a_client_does_not_work_for_nothing():
    client = ScramClient(SHA256, "alice", "pencil")
    for iterations in ("1", "100000000"):
        nonce = client._nonce + "x"
        with pytest.raises(AuthenticationFailed):
            client.respond(f"r={nonce},s=c2FsdA==,i={iterations}".encode())


def test_a_credential_is_read_as_it_was_written():
    credential = KNOWN[SHA256]
    assert ScramCredential.parse(credential.text()) == credential
    assert credential.text().startswith("salt=c2FsdA==,stored_key=")
    assert credential.text().endswith(",iterations=4096")
    assert "stored_key" not in repr(credential)


@given(st.one_of(st.text(max_size=80), st.just("salt=,stored_key=,server_key=,iterations=x")))
def test_what_is_no_credential_is_none(text):
    with pytest.raises(ValueError, match=r"^not a SCRAM credential$"):
        ScramCredential.parse(text)
