"""`kbroker schema`, against a registry beside an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker import Acl, Broker
from kbroker.admin.schemas import SchemaRegistry
from tests.cli.conftest import CommandLine, Done

ONE = {"type": "record", "name": "One", "fields": [{"name": "a", "type": "int"}]}
TWO = {"type": "record", "name": "One", "fields": [*ONE["fields"], {"name": "b", "type": "int", "default": 0}]}
OTHER = {"type": "record", "name": "One", "fields": [{"name": "c", "type": "int"}]}


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


@pytest.fixture
def schema(served: Broker) -> Callable[..., Done]:
    """`kbroker schema`, with an empty registry."""
    served.reset()
    cli = CommandLine(served.bootstrap_servers)

    def run(*arguments: str) -> Done:
        return cli("schema", *arguments, "--registry", served.registry_url)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(schema: object, name: str = "one.avsc") -> str:
        path = tmp_path / name
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
        return str(path)

    return write


def test_a_schema_is_registered_listed_and_shown(schema, file):
    assert schema("register", "orders-value", file(ONE), "--json").json == {
        "subject": "orders-value",
        "version": 1,
        "id": 1,
    }
    assert schema("register", "orders-value", file(TWO)).lines[1].split() == ["version", "2"]
    assert [line.split() for line in schema("list").lines] == [
        ["SUBJECT", "VERSION", "ID", "TYPE"],
        ["orders-value", "2", "2", "AVRO"],
    ]
    assert schema("list", "--prefix", "x", "--json").json == []
    shown = schema("show", "orders-value").text
    assert "version        2 of 1, 2" in shown
    assert "compatibility  BACKWARD" in shown
    assert json.loads(shown[shown.index("{") :]) == TWO
    assert schema("show", "orders-value", "--version", "1", "--json").json["versions"] == [1, 2]


def test_a_schema_is_checked_before_it_is_registered(schema, file):
    schema("register", "orders-value", file(ONE))
    assert schema("check", "orders-value", file(TWO)).text == "compatible\n"
    refused = schema("check", "orders-value", file(OTHER))
    assert refused.status == 1
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.err
    assert refused.err.endswith("the schema is not compatible with subject orders-value\n")
    refused = schema("register", "orders-value", file(OTHER))
    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert refused.err.endswith("(40901)\n")


def test_versions_are_compared(schema, file):
    schema("register", "orders-value", file(ONE))
    schema("register", "orders-value", file(TWO))
    lines = schema("diff", "orders-value", "1").lines
    assert lines[:2] == ["--- orders-value version 1", "+++ orders-value version 2"]
    assert '+      "name": "b",' in lines
    assert schema("diff", "orders-value", "2", "2").text == ""


def test_references_and_other_formats(schema, file):
    schema("register", "one", file(ONE))
    holder = {"type": "record", "name": "Holder", "fields": [{"name": "one", "type": "One"}]}
    assert schema("register", "h", file(holder, "h.avsc")).status == 1
    assert schema("register", "h", file(holder, "h.avsc"), "--reference", "One=one:1").status == 0
    assert "reference One  one version 1" in schema("show", "h").text
    assert schema("register", "j", file({"type": "object"}, "j.json")).status == 0
    proto = 'syntax = "proto3"; message M { int32 a = 1; }'
    assert schema("register", "p", file(proto, "p.proto")).status == 0
    assert "message M {" in schema("show", "p").text
    assert [line.split()[-1] for line in schema("list").lines[1:]] == ["AVRO", "JSON", "AVRO", "PROTOBUF"]


def test_deletion(schema, file):
    schema("register", "a", file(ONE))
    schema("register", "a", file(TWO))
    assert schema("delete", "a", "--version", "1").text == "deleted 1 of a\n"
    assert schema("delete", "a").text == "deleted 2 of a\n"
    assert schema("list").lines[1:] == []
    assert len(schema("list", "--deleted").lines) == 2
    assert schema("delete", "a", "--permanent").text == "deleted 1, 2 of a\n"
    assert schema("delete", "a").err == "kbroker: Subject 'a' not found. (40401)\n"


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--registry", "127.0.0.1:1"), 1, "no registry answers at http://127.0.0.1:1: "),
        (("--registry", "ftp://here"), 2, "a registry's address is a URL, as http://127.0.0.1:8081, not 'ftp://here'"),
    ],
)
def test_what_is_no_registry_is_told_in_a_line(arguments, status, line):
    done = CommandLine("127.0.0.1:1")("schema", "list", *arguments)
    assert (done.status, done.err.count("\n")) == (status, 1)
    assert line in done.err


def test_a_file_whose_type_nobody_knows(schema, file):
    done = schema("register", "a", file(ONE, "one.txt"))
    assert done.status == 2
    assert "--type tells what it is" in done.err
    assert schema("register", "a", file(ONE, "one.txt"), "--type", "avro").status == 0


def test_the_list_has_the_subjects_of_all_contexts(schema, file):
    for subject in (":.blue:a", "b"):
        schema("register", subject, file(ONE))
    assert [each["subject"] for each in schema("list", "--json").json] == [":.blue:a", "b"]
    assert [each["subject"] for each in schema("list", "--prefix", "b", "--json").json] == ["b"]


def test_a_registry_that_knows_no_offset_is_listed_once(monkeypatch):
    rows = [{"subject": f"s{number}", "version": 1, "id": 1} for number in range(1_500)]
    monkeypatch.setattr(SchemaRegistry, "ask", lambda *_, **__: list(rows))
    done = CommandLine("127.0.0.1:1")("schema", "list", "--json", "--registry", "http://127.0.0.1:1")
    assert len(done.json) == 1_500


def test_a_reader_sees_a_schema_without_its_level():
    """The right Read shows the schema; its compatibility level needs DescribeConfigs."""
    root, reader, users = "root:of-root@", "reader:of-reader@", {"root": "of-root", "reader": "of-reader"}
    acls = [Acl(allow_principal="User:reader", operation="Read", topic="orders")]
    config = {"super.users": "User:root"}
    with Broker(config, registry=True, registry_auth=True, users=users, acls=acls) as broker:
        url = str(broker.registry_url)
        text = {"schema": json.dumps(ONE)}
        SchemaRegistry(url.replace("//", f"//{root}")).ask("POST", "subjects", "orders-value", "versions", body=text)
        cli, own = CommandLine(broker.bootstrap_servers), ("--registry", url.replace("//", f"//{reader}"))
        shown = cli.ok("schema", "show", "orders-value", *own).text
        assert "compatibility  -\n" in shown
        assert json.loads(shown[shown.index("{") :]) == ONE
        assert cli.ok("schema", "show", "orders-value", *own, "--json").json["compatibilityLevel"] is None
