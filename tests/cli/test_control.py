"""`kbroker fault|clock|requests|reset`, against an embedded broker's control API."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker import Broker
from kbroker.control.known_faults import FILTERS, KINDS
from kbroker.control.server import CONNECTIONS
from kbroker.control.values import ABOUT, LIMIT
from tests.cli.conftest import CommandLine
from tests.control.conftest import Http, controlled


@pytest.fixture(scope="module")
def of_module() -> Iterator[tuple[Broker, Http]]:
    with Broker() as made, controlled(made) as http:
        yield made, http


@pytest.fixture
def broker(of_module: tuple[Broker, Http]) -> Broker:
    of_module[1].ok("DELETE", "/faults")
    of_module[0].reset()
    return of_module[0]


@pytest.fixture
def control(broker: Broker, of_module: tuple[Broker, Http], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, with KBROKER_CONTROL set."""
    monkeypatch.setenv("KBROKER_CONTROL", of_module[1].address)
    return CommandLine(broker.bootstrap_servers)


def test_faults_are_set_listed_and_removed(control: CommandLine, broker: Broker) -> None:
    made = control.ok(
        "fault", "add", "fail", "Produce", "--error", "INVALID_RECORD", "--topic", "orders", "--times", "2"
    )
    number = made.text.split()[1].rstrip(":")
    assert made.text == f"fault {number}: fail Produce INVALID_RECORD topic=orders times=2\n"
    assert control("produce", "orders", stdin=b"one\n").status == 1
    head, row = control.ok("fault", "list").lines
    assert head.split() == ["ID", "FAULT", "OF", "REQUESTS", "WITH", "HITS", "ACTIVE"]
    assert row.split() == [number, "fail", "Produce", "INVALID_RECORD", "topic=orders", "times=2", "1", "yes"]
    assert control.ok("fault", "wait", number).text == f"fault {number} was met 1 times\n"
    late = control.fails("fault", "wait", number, "--hits", "9", "--timeout", "0")
    assert late == f"fault {number} was met 1 times in the time given, not 9 times"
    assert control.ok("fault", "remove", number).text == f"fault {number} is removed; it was met 1 times\n"
    control.ok("produce", "orders", stdin=b"one\n")
    assert control.fails("fault", "remove", number) == f"there is no fault {number}"
    assert broker.faults.active == ()


def test_the_help_names_every_kind(control: CommandLine) -> None:
    told = control.ok("fault", "add", "--help").text
    for kind in KINDS:
        assert kind in told


@pytest.mark.parametrize("verb", [["requests"], ["fault", "add"]])
def test_the_options_are_those_of_the_api(control: CommandLine, verb: list[str]) -> None:
    told = " ".join(control.ok(*verb, "--help").text.split())
    for field in (*ABOUT, LIMIT) if verb == ["requests"] else FILTERS:
        assert f"--{field.name.replace('_', '-')} " in told
        assert field.meaning.replace("`", "") in told


def test_faults_as_json(control: CommandLine) -> None:
    made = control.ok("fault", "add", "delay", "Fetch", "ListOffsets", "--ms", "5", "--rate", "0.5", "--json").json
    assert (made["api"], made["ms"], made["rate"], made["active"]) == (["Fetch", "ListOffsets"], 5, 0.5, True)
    assert control.ok("fault", "list", "--json").json == [made]
    assert control.ok("fault", "clear").text == f"fault {made['id']} is removed; it was met 0 times\n"
    assert control.ok("fault", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fault", "add", "fail", "Produce"], "fail needs error"),
        (["fault", "add", "drop", "Prodce"], "there is no API 'Prodce'; did you mean 'Produce'?"),
        (["fault", "add", "drop", "Produce", "--rate", "5"], "rate is at most 1, not 5"),
        (["fault", "add", "delay", "Produce", "--ms", "-1"], "ms is at least 0, not -1"),
        (["fault", "add", "drop", "Produce", "--principal", "bob"], "principal must be like \"User:alice\", not 'bob'"),
        (["fault", "remove", "0"], "there is no fault 0"),
        (["clock", "set", "tomorrow"], "now must be a time like 2026-01-31T12:00:00Z, not 'tomorrow'"),
        (["clock", "advance", "--hours", "-1"], "hours is at least 0, not -1"),
    ],
)
def test_what_the_broker_refuses_is_one_line(control: CommandLine, arguments: list[str], said: str) -> None:
    assert said in control.fails(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fault", "add", "explode"],
        ["fault", "add", "drop", "Produce", "--times", "many"],
        ["clock", "advance"],
        ["requests", "--clear", "--follow"],
        ["reset", "--control", "nowhere"],
    ],
)
def test_wrong_usage(control: CommandLine, arguments: list[str]) -> None:
    assert control(*arguments).status == 2


def test_time(control: CommandLine, broker: Broker) -> None:
    assert control.ok("clock", "show").lines[0].startswith("now    2")
    before = broker.clock.now_ms()
    assert control.ok("clock", "advance", "--hours", "25").lines[1].startswith("ahead  90000.")
    assert broker.clock.now_ms() - before >= 25 * 3600 * 1000
    assert control.ok("clock", "set", "2030-01-31T12:00:00Z", "--json").json["now"].startswith("2030-01-31T12:00:0")
    assert control.ok("clock", "set", "0").text.startswith("now    1970-01-01T00:00:0")


def test_reset(control: CommandLine, broker: Broker) -> None:
    broker.topics.create("orders")
    control.ok("fault", "add", "full_disk")
    assert control.ok("reset").text == "as at its start: no topics, groups, transactions or faults\n"
    assert list(broker.topics) == []
    assert broker.faults.active == ()


def test_requests(control: CommandLine, broker: Broker) -> None:
    control.ok("requests", "--clear")
    control.ok("topic", "create", "orders")
    head, *rows = control.ok("requests", "--api", "CreateTopics").lines
    assert head.split() == ["TIME", "API", "VERSION", "CLIENT", "ABOUT", "MS", "FAULT"]
    (row,) = rows
    assert "CreateTopics" in row
    assert "orders" in row
    (told,) = control.ok("requests", "--topic", "orders", "--api", "CreateTopics", "--json").json
    assert told["request"]["topics"][0]["name"] == "orders"
    control.ok("topic", "list")
    limited = control.ok("requests", "--limit", "1")
    assert len(limited.lines) == 2
    assert limited.err.endswith("more are left out\n")
    control.ok("requests", "--clear")
    assert control.ok("requests", "--api", "CreateTopics", "--json").json == []


@pytest.mark.parametrize("as_json", [True, False])
def test_requests_are_followed(control: CommandLine, broker: Broker, as_json: bool) -> None:
    with control.started("requests", "--follow", "--api", "CreateTopics", *(["--json"] if as_json else [])) as process:
        assert process.stdout is not None
        lines: list[bytes] = []
        reading = threading.Thread(target=lambda: lines.append(process.stdout.readline()))
        reading.start()
        deadline, number = time.monotonic() + 20, 0
        while reading.is_alive() and time.monotonic() < deadline:  # earlier requests are not printed
            number += 1
            control.ok("topic", "create", f"t{number}")
            reading.join(0.05)
    reading.join(20)
    line = lines[0].decode()
    assert (json.loads(line)["api"] == "CreateTopics") if as_json else ("  CreateTopics  " in line)


def test_nobody_is_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
        for verb in (["fault", "list"], ["clock", "show"], ["reset"], ["requests"], ["requests", "--follow"]):
            said = CommandLine("").fails(*verb, "--control", where)
            assert said == (
                f"no control API answers at {where}: connection refused; `kbroker start --control {where}` serves it"
            )
    assert "unknown host" in CommandLine("").fails("reset", "--control", "no..host:1")


def test_somebody_else_is_there(embedded: Broker) -> None:
    where = embedded.bootstrap_servers
    assert CommandLine("").fails("clock", "show", "--control", where) == f"what answers at {where} is no control API"


def test_more_connections_than_there_may_be(control: CommandLine, broker: Broker) -> None:
    host, port = os.environ["KBROKER_CONTROL"].split(":")
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(socket.create_connection((host, int(port)), timeout=20))
        assert control.fails("clock", "show") == f"the control API at {host}:{port} has too many connections"
