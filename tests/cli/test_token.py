"""`kbroker token`: users with passwords create, list, renew and expire tokens."""

from __future__ import annotations

import base64
import datetime

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "delegation.token.secret.key": "a secret",
}
HOUR_MS = "3600000"


@pytest.fixture(scope="module")
def secured():
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def open_to_all(secured):
    return CommandLine(secured.bootstrap_servers.split(",")[0])


@pytest.fixture
def token(secured, open_to_all, tmp_path):
    """Run `kbroker token ...` as a given user."""
    command = CommandLine(secured.bootstrap_servers.split(",")[1])

    def run(*arguments, user="alice"):
        path = tmp_path / f"{user}.properties"
        if not path.exists():
            assert open_to_all("user", "add", user, "--password", "hunter2").status == 0
            settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
            settings |= {"sasl.username": user, "sasl.password": "hunter2"}
            path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return command("token", *arguments, "--command-config", str(path))

    yield run
    for user in ("alice", "bob"):
        for each in run("list", "--owner-principal", f"User:{user}", "--json", user=user).json:
            if each["owner"] == f"User:{user}":
                assert run("expire", each["token"], user=user).status == 0


def when(text):
    return datetime.datetime.fromisoformat(text)


def test_a_token_from_its_first_day_to_the_last(token):
    made = token("create", "--renewer-principal", "User:bob", "--max-life-time-period", HOUR_MS, "--json").json
    assert len(base64.b64decode(made["hmac"])) == 64
    assert made["owner"] == "User:alice"
    for user in ("alice", "bob"):
        done = token("list", "--json", user=user)
        (row,) = done.json
        assert (row["token"], row["owner"], row["renewers"]) == (made["token"], "User:alice", ["User:bob"])
        assert when(row["expires"]) - when(row["issued"]) == datetime.timedelta(hours=1)
        assert made["hmac"] not in done.text
    assert token("list", "--hmac", "--json").json[0]["hmac"] == made["hmac"]
    lines = token("list", "--hmac").lines
    assert lines[0].split()[-4:] == ["EXPIRES", "RENEWABLE", "UNTIL", "HMAC"]
    assert made["hmac"] in lines[1]
    assert "HMAC" not in token("list").lines[0]
    renewed = token("renew", made["token"], "--renew-time-period", "60000", user="bob")
    assert (renewed.status, renewed.text.startswith(f"token {made['token']} expires at ")) == (0, True)
    assert made["hmac"] not in renewed.text
    sooner = token("expire", made["token"], "--expiry-time-period", "30000")
    assert (sooner.status, "expires at" in sooner.text) == (0, True)
    assert token("expire", made["token"]).text == f"token {made['token']} is gone\n"
    assert token("list", "--json").json == []


def test_it_may_be_for_somebody_else(token):
    facts = dict(line.split(None, 1) for line in token("create", "--owner-principal", "User:bob").lines if " " in line)
    assert facts["owner"] == "User:bob"
    (row,) = token("list", "--json", user="bob").json
    assert (row["owner"], row["requester"]) == ("User:bob", "User:alice")
    refused = token("renew", row["token"])
    assert refused.status == 1
    assert "DELEGATION_TOKEN_OWNER_MISMATCH" in refused.err.replace(" ", "_").upper() or "owner" in refused.err.lower()


def test_what_cannot_be_is_told_in_a_line(token, open_to_all):
    missing = token("renew", "none")
    assert (missing.status, "there is no token none" in missing.err) == (1, True)
    assert token("create", "--renewer-principal", "bob").status == 2
    nobody = open_to_all("token", "create")
    assert (nobody.status, nobody.err.count("\n")) == (1, 1)
    assert open_to_all("token", "list").status == 1


def test_verbs_log_in_by_a_token(token, secured, tmp_path):
    """Verbs log in with a token, through a settings file in the form for Java's tools."""
    inside = CommandLine(secured.bootstrap_servers.split(",")[1])
    made = token("create", "--json").json
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    path = tmp_path / "by-token.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={module} required username="{made["token"]}" password="{made["hmac"]}" tokenauth="true";\n'
    )
    assert inside("topic", "list", "--command-config", str(path)).status == 0
    refused = inside("token", "create", "--command-config", str(path))
    assert refused.status == 1
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.err
    assert made["hmac"] not in refused.err
