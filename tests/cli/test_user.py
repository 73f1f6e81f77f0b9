"""`kbroker user` and `--command-config`: users are added, listed and removed, and log in through a settings file."""

from __future__ import annotations

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secured():
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    with Broker(settings) as running:
        yield running


@pytest.fixture
def kbroker(secured):
    return CommandLine(secured.bootstrap_servers.split(",")[0])


@pytest.fixture
def inside(secured):
    return CommandLine(secured.bootstrap_servers.split(",")[1])


@pytest.fixture
def alice(kbroker, tmp_path):
    """Return the settings file with which alice logs in."""
    assert kbroker("user", "add", "alice", "--password", 'hunter2 "x"').status == 0
    path = tmp_path / "alice.properties"
    path.write_text(
        "# as Kafka's tools have it\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={MODULE} required username="alice" password="hunter2 \\\\"x\\\\"";\n'
        "metadata.recovery.strategy=none\n"
    )
    yield path
    kbroker("user", "remove", "alice")


def test_a_user_from_the_first_day_to_the_last(kbroker):
    done = kbroker("user", "add", "bob", stdin=b"hunter2\n")
    assert done.status == 0
    assert "hunter2" not in done.text + done.err
    assert (
        kbroker("user", "add", "bob", "--mechanism", "scram-sha-512", "--password", "x", "--iterations", "9000").status
        == 0
    )
    assert kbroker("user", "list", "bob", "--json").json == [
        {"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 9000},
    ]
    assert kbroker("user", "list").lines[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    assert kbroker("user", "remove", "bob", "--mechanism", "SCRAM-SHA-256").status == 0
    assert [each["mechanism"] for each in kbroker("user", "list", "bob", "--json").json] == ["SCRAM-SHA-512"]
    assert kbroker("user", "remove", "bob").status == 0
    gone = kbroker("user", "remove", "bob")
    assert gone.status == 1
    assert "RESOURCE_NOT_FOUND" in gone.err
    assert kbroker("user", "list", "bob").status == 1


@pytest.mark.parametrize("arguments", [("--iterations", "1"), ("--mechanism", "PLAIN"), ("--password", "")])
def test_what_cannot_be_is_refused_before_anybody_is_asked(kbroker, arguments):
    assert kbroker("user", "add", "bob", *arguments).status == 2


def test_a_standard_input_without_a_password_is_told_of(kbroker):
    done = kbroker("user", "add", "bob")
    assert done.status == 2
    assert done.err.endswith("type it at the prompt, or write it to standard input\n")


def test_verbs_log_in_by_a_file_of_settings(inside, alice):
    done = inside("topic", "create", "by-file", "--command-config", str(alice))
    assert (done.status, done.err.count("\n")) == (0, 1)
    assert "metadata.recovery.strategy has no effect here" in done.err
    assert inside("produce", "by-file", "--command-config", str(alice), stdin=b"one\n").status == 0
    consumed = inside("consume", "by-file", "--from-beginning", "--count", "1", "--command-config", str(alice))
    assert consumed.lines == ["one"]


@pytest.mark.parametrize("user", ["sasl.username", "sasl_plain_username"])
def test_verbs_log_in_by_single_settings(inside, alice, user):
    settings = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=SCRAM-SHA-256", f"{user}=alice"]
    arguments = [part for each in (*settings, 'sasl.password=hunter2 "x"') for part in ("-X", each)]
    assert inside("topic", "list", *arguments).status == 0


@pytest.mark.long
def test_a_single_setting_wins_over_the_file(inside, alice):
    wins = inside("topic", "list", "--command-config", str(alice), "-X", "sasl.password=wrong")
    assert wins.status == 1
    assert "lets this client in" in wins.err
    assert "hunter2" not in wins.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sasl.jaas.config=nonsense hunter2\n", "is not of the form"),
        ("sasl.jaas.config=a.B required;\n", "has no username"),
        ("ssl.truststore.type=JKS\n", "reads PEM files only"),
        ("security.protocol=TLS\n", "security_protocol is one of"),
    ],
)
def test_a_file_with_what_cannot_be_is_refused(kbroker, tmp_path, text, said):
    path = tmp_path / "file"
    path.write_text(text)
    done = kbroker("topic", "list", "--command-config", str(path))
    assert done.status != 0
    assert said in done.err
    assert "hunter2" not in done.err


def test_a_file_that_is_not_there(kbroker, tmp_path):
    done = kbroker("topic", "list", "--command-config", str(tmp_path / "none"))
    assert done.status == 1
    assert "No such file" in done.err
