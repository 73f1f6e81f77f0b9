"""`kbroker start --control`: a separate process, its errors, and its end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kbroker.extras import how_to_install
from tests.control.conftest import Http

PATIENCE_S = 20.0


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Run `kbroker start`, and yield it with the contents of its ready file."""
    ready = tmp_path / "ready"
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "start",
        "--memory",
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        str(ready),
    ]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not ready.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process, json.loads(ready.read_text())
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.long
def test_a_process_is_controlled(tmp_path: Path) -> None:
    with started(tmp_path, "--control", "127.0.0.1:0") as (process, ready):
        api = Http(ready["control"])
        assert api.ok("GET", "/broker")["bootstrap_servers"] == ready["bootstrap_servers"]
        client = Producer({"bootstrap.servers": ready["bootstrap_servers"], "log_level": 0})
        told: list[KafkaError | None] = []

        def produce() -> KafkaError | None:
            client.produce("orders", "one", on_delivery=lambda err, _: told.append(err))
            assert client.flush(PATIENCE_S) == 0
            return told.pop()

        fault = api.ok("POST", "/faults", {"kind": "fail", "api": "Produce", "error": "INVALID_RECORD"})
        error = produce()
        assert error is not None
        assert error.code() == KafkaError.INVALID_RECORD
        assert api.ok("DELETE", f"/faults/{fault['id']}")["hits"] == 1
        assert produce() is None
        (record,) = api.ok("GET", "/topics/orders/records")["records"]
        assert record["value"] == {"text": "one"}
        snapshot = api.ok("POST", "/snapshots")
        assert api.ok("POST", "/clock/advance", {"hours": 200})["ahead_ms"] >= 200 * 3600 * 1000
        assert api.ok("GET", "/topics/orders/records")["records"] == [], "a week has passed"
        api.ok("POST", "/reset")
        assert api.ok("GET", "/topics") == {"topics": []}
        api.ok("POST", f"/snapshots/{snapshot['id']}/restore")
        assert api.ok("GET", "/topics/orders/records")["records"] == [record]
        assert produce() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert f"its control API, with a page about it, is at {ready['control']}\n".encode() in out
        assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "the files of snapshots and of the broker are gone"


def test_without_the_option_there_is_none(tmp_path: Path) -> None:
    with started(tmp_path) as (_, ready):
        assert "control" not in ready


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--control", "9690"], "--control takes HOST:PORT, as 127.0.0.1:9690, not '9690'"),
        (
            ["--control", "0.0.0.0:0"],
            "--control 0.0.0.0:0: other machines could reach it, and it lets everybody",
        ),
        (["--control", "no..host:1"], "--control no..host:1: unknown host"),
        (
            ["--control", "--set", "zookeeper.connect=127.0.0.1:1", "--set", "broker.id=1"],
            "--control needs a broker without a cluster, but zookeeper.connect is set",
        ),
        (["--control-public"], "--control-public has no effect without --control"),
    ],
)
def test_where_it_cannot_be(refused: Callable[..., str], arguments: list[str], said: str) -> None:
    assert said in refused("start", *arguments)


def test_a_port_in_use(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        where = f"127.0.0.1:{held.getsockname()[1]}"
        assert refused("start", "--control", where) == f"--control {where}: address already in use"


def test_without_the_library_it_says_what_to_install(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else there(name))
    assert refused("start", "--control").endswith(f"is not installed: {how_to_install('control')}")


def test_without_the_option_the_library_is_not_loaded() -> None:
    code = (
        "import sys; from kbroker.cli import start, fault, clock, reset, requests, container; "
        "names = {each.partition('.')[0] for each in sys.modules}; "
        "print(sorted(names & {'starlette', 'uvicorn', 'h11', 'anyio', 'kafka'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True, env=os.environ)
    assert done.stdout.strip() == b"[]"


def test_a_start_loads_nothing_of_tests_but_the_clock() -> None:
    code = (
        "import sys; import kbroker.cli.start; "
        "print(sorted(each for each in sys.modules if each.startswith('kbroker.testing.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True, env=os.environ)
    assert done.stdout.strip() == b"['kbroker.testing.numbers', 'kbroker.testing.steered_clock']"
