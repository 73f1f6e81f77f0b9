"""`kbroker quota`: limits are set, listed and removed."""

from __future__ import annotations

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine


@pytest.fixture
def kbroker():
    with Broker() as running:
        yield CommandLine(running.bootstrap_servers)


def test_limits_from_the_first_day_to_the_last(kbroker):
    done = kbroker("quota", "set", "--user", "alice", "--producer-byte-rate", "1048576", "--request-percentage", "12.5")
    assert (done.status, done.text) == (0, "user alice: producer_byte_rate=1048576, request_percentage=12.5\n")
    assert kbroker("quota", "set", "--user", "alice", "--client-id", "app", "--consumer-byte-rate", "5").status == 0
    assert kbroker("quota", "set", "--default-user", "--controller-mutation-rate", "0.5").status == 0
    assert kbroker("quota", "set", "--default-client-id", "--producer-byte-rate", "7").status == 0
    assert kbroker("quota", "set", "--ip", "127.0.0.9", "--connection-creation-rate", "3").status == 0
    assert kbroker("quota", "list", "--json").json == [
        {"entity": {"client-id": None}, "limits": {"producer_byte_rate": 7.0}},
        {"entity": {"ip": "127.0.0.9"}, "limits": {"connection_creation_rate": 3.0}},
        {"entity": {"user": None}, "limits": {"controller_mutation_rate": 0.5}},
        {"entity": {"user": "alice"}, "limits": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}},
        {"entity": {"user": "alice", "client-id": "app"}, "limits": {"consumer_byte_rate": 5.0}},
    ]
    assert len(kbroker("quota", "list", "--user", "alice", "--json").json) == 2
    assert "user alice, client-id app" in kbroker("quota", "list", "--client-id", "app").text
    done = kbroker("quota", "remove", "--user", "alice", "request_percentage")
    assert (done.status, done.text) == (0, "user alice: without request_percentage from now on\n")
    assert kbroker("quota", "remove", "--user", "alice").status == 0
    assert kbroker("quota", "remove", "--default-user").status == 0
    assert [each["entity"] for each in kbroker("quota", "list", "--json").json] == [
        {"client-id": None},
        {"ip": "127.0.0.9"},
        {"user": "alice", "client-id": "app"},
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("set", "--producer-byte-rate", "1"), "say whose limit"),
        (("set", "--user", "alice"), "say what to limit"),
        (("set", "--user", "alice", "--default-user", "--producer-byte-rate", "1"), "exclude each other"),
        (("set", "--user", "alice", "--ip", "::1", "--producer-byte-rate", "1"), "limits of its own"),
        (("set", "--user", "alice", "--producer-byte-rate", "0"), "Quota producer_byte_rate must be greater than 0"),
        (("set", "--user", "alice", "--connection-creation-rate", "1"), "Invalid configuration key"),
        (("remove", "--user", "nobody"), "user nobody has no limit"),
        (("remove", "--user", "nobody", "producer_byte_rate"), "user nobody has no producer_byte_rate"),
        (("remove", "--user", "nobody", "bytes"), "bytes"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(kbroker, arguments, text):
    done = kbroker("quota", *arguments)
    assert done.status != 0
    assert text in done.err
    assert "Traceback" not in done.err
