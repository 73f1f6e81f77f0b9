"""`kbroker acl`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def guarded() -> Iterator[CommandLine]:
    with Broker({"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}) as broker:
        yield CommandLine(broker.bootstrap_servers)


def test_the_life_of_acls(guarded):
    added = guarded.ok(
        "acl",
        "add",
        "--allow-principal",
        "User:alice",
        "--producer",
        "--topic",
        "orders",
        "--transactional-id",
        "mover",
    )
    assert len(added.lines) == 5
    assert added.lines[0] == "added: User:alice has ALLOW permission for WRITE from * on Topic:LITERAL:orders"
    guarded.ok(
        "acl", "add", "--deny-principal", "User:bob", "--deny-host", "192.0.2.1", "--operation", "Read", "--group", "g",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    guarded.ok("acl", "add", "--allow-principal", "User:bob", "--consumer", "--topic", "pay", "--group", "billing")
    listed = guarded.ok("acl", "list", "--json", "--principal", "User:bob").json
    assert {(each["resource"], each["name"], each["operation"]) for each in listed} == {
        ("Group", "g", "Read"), ("Group", "billing", "Read"), ("Topic", "pay", "Read"), ("Topic", "pay", "Describe"),
    }  # fmt: skip
    (one,) = guarded.ok("acl", "list", "--json", "--group", "gx", "--resource-pattern-type", "match").json
    assert one == {
        "resource": "Group", "name": "g", "pattern": "Prefixed", "principal": "User:bob", "host": "192.0.2.1",
        "permission": "Deny", "operation": "Read",
    }  # fmt: skip
    header, row = guarded.ok("acl", "list", "--group", "billing").lines
    assert header.split() == ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "PERMISSION", "OPERATION"]
    assert row.split() == ["Group", "billing", "Literal", "User:bob", "*", "Allow", "Read"]

    removed = guarded.ok(
        "acl", "remove", "--allow-principal", "User:bob", "--consumer", "--topic", "pay", "--group", "x"
    )
    assert len(removed.lines) == 2
    assert len(guarded.ok("acl", "remove", "--topic", "orders").lines) == 3
    again = guarded.ok("acl", "remove", "--topic", "orders")
    assert again.text == "no ACL matches\n"
    everything = guarded.ok("acl", "remove", "--resource-pattern-type", "any", "--group", "g", "--group", "billing")
    assert len(everything.lines) == 2
    left = guarded.ok("acl", "list", "--json").json
    assert {each["name"] for each in left} == {"mover"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "--topic", "a"], "say whose"),
        (["add", "--allow-principal", "User:a"], "say which resource"),
        (["remove"], "say which resource"),
        (["add", "--allow-principal", "alice", "--topic", "a"], "not a principal"),
        (["add", "--allow-principal", "User:a", "--group", "g", "--operation", "Write"], "no operation Write on Group"),
        (["add", "--allow-principal", "User:a", "--producer", "--group", "g"], "--producer needs --topic"),
        (["add", "--allow-principal", "User:a", "--consumer", "--topic", "t"], "--consumer --topic and --group"),
        (
            ["add", "--allow-principal", "User:a", "--producer", "--topic", "t", "--operation", "Read"],
            "leave --operation",
        ),
    ],
)
def test_what_cannot_be(guarded, arguments, said):
    done = guarded("acl", *arguments)
    assert done.status == 2
    assert said in done.err


def test_without_an_authorizer(cli):
    assert "SECURITY_DISABLED" in cli.fails("acl", "list")
    assert "SECURITY_DISABLED" in cli.fails("acl", "add", "--allow-principal", "User:a", "--topic", "t")
    assert "SECURITY_DISABLED" in cli.fails("acl", "remove", "--topic", "t")
