"""`kbroker start --metrics`, and its messages to systemd: separate processes, their errors, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from compat_tests.wire.client import WireClient
from kbroker.cli import start
from kbroker.cli.beside import _pushed
from kbroker.cli.systemd import Systemd
from kbroker.clock import SystemClock
from kbroker.extras import how_to_install
from kbroker.local_http import NoPlace, parse
from tests.broker.test_telemetry import GET, PUSH, advertised, push
from tests.cli.conftest import CommandLine
from tests.cli.test_start_control import started
from tests.metrics.pushes import data, gauge


@pytest.mark.long
def test_a_process_is_seen_told_of_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(where)
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", where)
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        with started(tmp_path, "--metrics", "127.0.0.1:0") as (process, ready):
            assert systemd.recv(100) == b"READY=1"
            assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            with urllib.request.urlopen(f"{ready['metrics']}/readyz", timeout=20) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(f"{ready['metrics']}/metrics", timeout=20) as answer:
                assert b"kafka_server_kafkaserver_brokerstate 3.0\n" in answer.read()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
            assert process.returncode == 0, err
            assert f"its metrics are at {ready['metrics']}/metrics" in out.decode()
            told = {b"WATCHDOG=1"}
            while b"STOPPING=1" not in told:
                told.add(systemd.recv(100))


def test_an_address_that_is_taken_is_one_line(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = cli.fails("start", "--memory", "--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}")
    assert line.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")


@pytest.mark.parametrize("text", ["9404", ":9404", "localhost:", "localhost:http", "127.0.0.1:65536", "::1:9404"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(NoPlace, match="--metrics takes HOST:PORT"):
        parse(text, "--metrics", "127.0.0.1:9404")
    result = CliRunner().invoke(start.command, ["--memory", "--listen", "127.0.0.1:0", "--metrics", text])
    assert result.exit_code == 1


def test_addresses() -> None:
    assert parse("127.0.0.1:0", "--metrics", "") == ("127.0.0.1", 0)
    assert parse("[::1]:9404", "--metrics", "") == ("::1", 9404)


def test_nothing_is_said_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    for environment, lines in [({}, 0), ({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000000"}, 1)]:
        systemd = Systemd(environment)
        systemd.ready(loop)
        systemd.stopping()
        systemd.close()
        assert len([each for each in caplog.records if each.name == "kbroker.cli.systemd"]) == lines
    loop.close()


def test_who_listens_may_come_back(tmp_path: Path) -> None:
    where, loop = str(tmp_path / "notify"), asyncio.new_event_loop()
    systemd = Systemd({"NOTIFY_SOCKET": where})
    systemd.ready(loop)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(where)
        listening.setblocking(False)
        systemd.stopping()
        assert listening.recv(100) == b"STOPPING=1"
    systemd.close()
    loop.close()


def test_the_watchdog_of_another_process_is_left_alone(tmp_path: Path) -> None:
    where = str(tmp_path / "notify")
    loop = asyncio.new_event_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(where)
        listening.setblocking(False)
        systemd = Systemd({"NOTIFY_SOCKET": where, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)})
        systemd.ready(loop)
        assert listening.recv(100) == b"READY=1"
        with pytest.raises(BlockingIOError):
            listening.recv(100)
        systemd.close()
    loop.close()


def test_a_start_without_metrics_loads_nothing_of_them() -> None:
    script = (
        "import sys, kbroker.cli.start; print([n for n in ('prometheus_client', 'http.server') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"[]"


def test_without_the_extra_clients_are_not_asked_for_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "kbroker.metrics.pushed", None)
    with caplog.at_level("INFO", "kbroker.cli.beside"):
        assert _pushed(SystemClock()) is None
    assert [each.getMessage() for each in caplog.records] == [
        f"clients push no metrics, because an extra is missing: {how_to_install('telemetry')}"
    ]


def test_a_process_asks_clients_for_their_metrics(tmp_path: Path) -> None:
    with (
        started(tmp_path, "--metrics", "127.0.0.1:0") as (_, ready),
        WireClient(ready["bootstrap_servers"], "app") as client,
    ):
        assert advertised(client) == {GET, PUSH}
        assert push(client, data(gauge("org.apache.kafka.g", 1.5))) == 0
        with urllib.request.urlopen(f"{ready['metrics']}/metrics", timeout=20) as answer:
            assert b'org_apache_kafka_g{client_id="app",' in answer.read()
