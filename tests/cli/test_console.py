"""`kbroker console`, and the console beside a broker."""

from __future__ import annotations

import json
import re
import shlex
import signal
import urllib.request

import pytest

from kbroker import Broker
from kbroker.admin.connection import Connection
from kbroker.cli import beside
from kbroker.console.passwords import matches
from kbroker.extras import how_to_install
from kbroker.local_http import Service
from tests.cli.conftest import CommandLine
from tests.console.conftest import served
from tests.console.visitor import Visitor


def line_of(process):
    return process.stdout.readline().decode()


@pytest.mark.long
def test_it_serves_and_ends(cli):
    with cli.started("console", "--listen", "127.0.0.1:0") as process:
        url = re.search(r"is at (http://\S+) ", line_of(process))
        assert url is not None
        with urllib.request.urlopen(url[1], timeout=20) as answer:
            assert b"Overview" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.long
def test_a_broker_has_one_beside_it(tmp_path):
    ready = tmp_path / "ready"
    cli = CommandLine("")
    with cli.started(
        "start", "--memory", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", "--ready-file", str(ready)
    ) as process:
        while "console is at" not in (line := line_of(process)):
            assert line, process.stderr.read().decode()
        while not ready.exists():
            assert process.poll() is None
        url = json.loads(ready.read_text())["console"]
        assert url in line
        assert "controller 1" in Visitor(url).page("/").words
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "0.0.0.0:0"], "other machines could reach it, and no user would have to log in"),
        (["--listen", "8080"], "--listen takes HOST:PORT"),
        (["--user", "alice"], "--user needs a password"),
        (["--users", "/no/such/file"], "--users /no/such/file: no such file or directory"),
        (["--schemas", "/no/such/directory"], "is no directory"),
    ],
)
def test_what_cannot_be_is_one_line(cli, arguments, said):
    assert said in cli.fails("console", "--listen", "127.0.0.1:0", *arguments)


def test_a_certificate_that_is_none_is_one_line(cli, tmp_path):
    (tmp_path / "x.pem").write_text("nothing")
    file = str(tmp_path / "x.pem")
    assert "--tls-cert" in cli.fails("console", "--listen", "127.0.0.1:0", "--tls-cert", file, "--tls-key", file)
    assert cli("console", "--tls-cert", file).status == 2


def test_a_console_beside_a_broker_needs_a_plain_listener(refused):
    assert refused("start", "--console-public") == "--console-public has no effect without --console"
    assert "takes HOST:PORT" in refused("start", "--console", "x")
    assert "other machines could reach it" in refused("start", "--console", "0.0.0.0:0")


def test_what_is_not_installed_is_one_line(cli, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    said = cli.fails("console", "--listen", "127.0.0.1:0")
    assert said == f"kbroker console needs packages that are not installed: {how_to_install('console')}"


def test_a_password_becomes_a_line(cli):
    name, _, line = cli.ok("console", "--hash-password", "--user", "alice", stdin=b"one\n").text.strip().partition(":")
    assert name == "alice"
    assert matches("one", line)
    assert cli.fails("console", "--hash-password", stdin=b"\n") == "a password must not be empty"


def test_the_line_that_a_page_shows_prints_that_record(cli, name):
    cli.ok("topic", "create", name, "-p", "2")
    cli.ok("produce", name, "-p", "1", stdin=b"zero\none\ntwo\n")
    with served(cli.bootstrap) as server:
        page = Visitor(server.url).page(f"/topics/{name}/records/1/1").text
    found = re.search(r'<code id="command"[^>]*>([^<]+)</code>', page)
    assert found is not None
    words = shlex.split(found[1])
    assert words[0] == "kbroker"
    assert cli.ok(*words[1:]).text == "one\n"


def test_secrets_of_the_connection_are_in_no_line(monkeypatch):
    from kbroker.cli import console

    seen = {}

    def stop(connection, *_: object, **__: object):
        seen["cli"] = console._cli(connection)
        raise SystemExit(0)

    monkeypatch.setattr(Service, "require", lambda *_: stop(Connection("127.0.0.1:1", {})))
    CommandLine("127.0.0.1:1")("console", "-X", "sasl.password=hidden")
    assert seen["cli"] == ("--bootstrap", "127.0.0.1:1")


def test_a_broker_tells_its_console_what_is_in_flight(embedded: Broker) -> None:
    assert beside._in_flight(embedded.node, embedded.node._loop, "nobody", 10) == []
