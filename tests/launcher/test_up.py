"""`kbroker cluster` as people use it, with fake brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.launcher.child import Child, wait_until
from kbroker.launcher.control import ControlSocket, ask_launcher, launcher_runs

DEADLINE_S = 60.0
UP = (sys.executable, "-m", "tests.launcher.up")


class Up:
    """`kbroker cluster up` in a separate process."""

    def __init__(self, directory: Path, zookeeper: str, *options: str) -> None:
        self.directory = directory / "cluster"
        self.ready = directory / "ready.json"
        self.child = Child("up", directory / "up.log")
        self.options = ["--data-dir", str(self.directory), "--zookeeper", zookeeper, "--listen", "127.0.0.1:0"]
        self.options += ["--ready-file", str(self.ready), *options]

    def start(self) -> Up:
        self.child.start([*UP, "up", *self.options])
        assert wait_until(lambda: self.ready.exists() or not self.child.running, DEADLINE_S), self.child.tail(20)
        assert self.child.running, self.child.tail(20)
        return self

    def told(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.ready.read_text())
        return value

    def output(self) -> str:
        return self.child.log_file.read_text()

    def run(self, *arguments: str) -> tuple[int, str]:
        return run(*arguments, "--data-dir", str(self.directory))


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*UP, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def up(tmp_path: Path, zookeeper: str) -> Iterator[Up]:
    started = Up(tmp_path, zookeeper).start()
    yield started
    started.child.stop(DEADLINE_S)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_told(up: Up, zookeeper: str) -> None:
    told = up.told()
    assert told["zookeeper"] == zookeeper
    assert told["pid"] == up.child.pid
    assert [each["node_id"] for each in told["brokers"]] == [1, 2, 3]
    assert told["bootstrap_servers"] == ",".join(f"{each['host']}:{each['port']}" for each in told["brokers"])
    assert all(runs(each["pid"]) for each in told["brokers"])
    assert json.loads((up.directory / "cluster.json").read_text()) == told
    output = up.output()
    assert f"topic create hello --partitions 3 --replication-factor 3 --bootstrap {told['bootstrap_servers']}" in output
    assert f"kafka-topics.sh --describe --topic tools --bootstrap-server {told['bootstrap_servers']}" in output
    assert f"cluster restart 1 --data-dir {up.directory}" in output


def test_registries_are_told(tmp_path: Path, zookeeper: str) -> None:
    up = Up(tmp_path, zookeeper, "--registry", "127.0.0.1:0").start()
    try:
        urls = [each["registry"] for each in up.told()["brokers"]]
        assert len(set(urls)) == 3
        code, status = up.run("status")
        assert code == 0
        for url in urls:
            assert url.startswith("http://127.0.0.1:")
            assert url in up.output()
            assert url in status
    finally:
        up.child.stop(DEADLINE_S)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_in_order(up: Up, number: int) -> None:
    told = up.told()
    assert up.child.pid is not None
    os.kill(up.child.pid, number)
    assert wait_until(lambda: not up.child.running, DEADLINE_S)
    assert up.child.ended == 0, up.output()
    assert (up.directory / "order").read_text().split() == ["3", "2", "1"]
    assert not any(runs(each["pid"]) for each in told["brokers"])
    assert not up.ready.exists()
    assert up.output().endswith("kbroker: stopped\n")


@pytest.mark.long
def test_a_second_signal_kills(tmp_path: Path, zookeeper: str) -> None:
    up = Up(tmp_path, zookeeper, "--set", "fake.deaf=yes").start()
    pids = [each["pid"] for each in up.told()["brokers"]]
    assert up.child.pid is not None
    os.kill(up.child.pid, signal.SIGINT)
    assert wait_until(lambda: "stopping broker 3" in up.output(), DEADLINE_S)
    os.kill(up.child.pid, signal.SIGINT)
    assert wait_until(lambda: not up.child.running, DEADLINE_S)
    assert up.output().endswith("kbroker: killed\n")
    assert not any(map(runs, pids))


@pytest.mark.long
def test_none_outlives_an_up_that_is_killed(up: Up) -> None:
    pids = [each["pid"] for each in up.told()["brokers"]]
    up.child.kill()
    assert wait_until(lambda: not any(map(runs, pids)), DEADLINE_S)
    assert up.run("status") == (1, f"kbroker: no cluster runs in {up.directory}\n")
    assert up.ready.exists()
    up.child.start([*UP, "up", *up.options])
    assert wait_until(lambda: up.ready.exists() and up.told()["pid"] == up.child.pid, DEADLINE_S)
    assert up.run("status")[0] == 0


@pytest.mark.long
def test_stop_while_starting(tmp_path: Path, zookeeper: str) -> None:
    up = Up(tmp_path, zookeeper, "--set", "fake.silent=yes")
    up.child.start([*UP, "up", *up.options])
    assert wait_until(lambda: "starting 3 brokers" in up.output(), DEADLINE_S)
    assert up.run("kill", "1") == (1, "kbroker: the cluster is still starting\n")
    assert up.run("stop") == (0, "")
    assert wait_until(lambda: not up.child.running, DEADLINE_S)
    assert up.output().endswith("kbroker: stopped\n")
    assert not up.ready.exists()


def test_kill_status_restart(up: Up) -> None:
    before = up.told()["brokers"][1]
    assert up.run("kill", "2") == (0, "")
    assert not runs(before["pid"])
    down = up.told()["brokers"][1]
    assert down.pop("ended") == "killed by order"
    assert down == {key: None if key == "pid" else value for key, value in before.items() if key != "ended"}
    status, text = up.run("status", "--json")
    assert status == 0
    states = [(each["node_id"], each["state"], each["is_controller"]) for each in json.loads(text)["brokers"]]
    assert states == [(1, "serves", True), (2, "down", False), (3, "serves", False)]
    assert up.run("kill", "2") == (1, "kbroker: broker 2 does not run\n")
    assert up.run("kill", "7") == (1, "kbroker: no broker 7 here, only 1, 2, 3\n")
    assert up.run("restart", "2") == (0, "")
    assert wait_until(lambda: "kbroker: broker 2 serves again" in up.output(), DEADLINE_S)
    after = up.told()["brokers"][1]
    assert runs(after["pid"])
    assert {**after, "pid": 0} == {**before, "pid": 0}
    assert up.run("restart", "2") == (0, "")
    assert up.told()["brokers"][1]["pid"] != after["pid"]
    assert "DOWN" not in up.run("status")[1].upper()


@pytest.mark.long
def test_a_broker_that_ends_by_itself_is_told_of(up: Up) -> None:
    os.kill(up.told()["brokers"][2]["pid"], signal.SIGABRT)
    assert wait_until(lambda: "broker 3 has ended: signal 6; it printed last: settings" in up.output(), DEADLINE_S)
    assert wait_until(lambda: up.told()["brokers"][2]["pid"] is None, DEADLINE_S)
    assert "kbroker: broker 3 has ended: signal 6; it printed last: settings" in up.run("status")[1]
    assert up.run("restart", "3") == (0, "")
    os.kill(up.told()["brokers"][2]["pid"], signal.SIGKILL)
    told = "broker 3 has ended: killed (signal 9): by somebody, or for want of memory\n"
    assert wait_until(lambda: told in up.output(), DEADLINE_S), "what it printed last says nothing"
    assert wait_until(lambda: up.told()["brokers"][2]["pid"] is None, DEADLINE_S)
    assert f"kbroker: {told}" in up.run("status")[1]
    assert up.run("restart", "3") == (0, "")


@pytest.mark.long
def test_stop_of_one_and_of_all(up: Up) -> None:
    assert up.run("stop", "1") == (0, "")
    assert up.told()["brokers"][0]["pid"] is None
    assert (up.directory / "order").read_text().split() == ["1"]
    assert up.run("stop") == (0, "")
    assert wait_until(lambda: not up.child.running, DEADLINE_S)
    assert (up.directory / "order").read_text().split() == ["1", "3", "2"]
    assert up.run("stop") == (1, f"kbroker: no cluster runs in {up.directory}\n")


@pytest.mark.long
def test_a_directory_has_one_launcher(up: Up) -> None:
    status, text = run("up", *up.options)
    assert (status, text) == (
        1,
        f"kbroker: a cluster runs in {up.directory} already; `kbroker cluster stop` ends it\n",
    )
    assert up.run("status")[0] == 0


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, zookeeper: str) -> None:
    up = Up(tmp_path, zookeeper, "--set", "fake.failure=no room")
    status, text = run("up", *up.options)
    assert status == 1
    assert f"kbroker: broker 2 has ended: kbroker: no room (see {up.directory}/broker-2/broker.log)\n" in text
    assert (up.directory / "order").read_text().split()
    assert not up.ready.exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--set", "log.dirs=/x"], "--set log.dirs: it differs from broker to broker and is set by the launcher"),
        (["--listen", "9092"], "--listen takes HOST:PORT, not '9092'"),
        (["--zookeeper", "here"], "--zookeeper takes HOST:PORT[/chroot], not 'here'"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, options: list[str], line: str) -> None:
    status, text = run("up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "cluster"), *options)
    assert (status, text) == (1, f"kbroker: {line}\n")


def test_status_where_nothing_was_started(tmp_path: Path) -> None:
    nothing = f"kbroker: no cluster has been started in {tmp_path}; --data-dir names another place\n"
    assert run("status", "--data-dir", str(tmp_path)) == (1, nothing)
    (tmp_path / "cluster.json").write_text("{}")
    status, text = run("status", "--data-dir", str(tmp_path))
    assert (status, text) == (1, f"kbroker: {tmp_path}/cluster.json is not the file of a launcher\n")


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    with ControlSocket(deep) as control:
        assert launcher_runs(deep)
        client = subprocess.Popen([*UP, "kill", "1", "--data-dir", str(deep)], stderr=subprocess.PIPE, text=True)
        control.answer(lambda _request: {})  # the look before
        control.answer(lambda request: {"error": f"not {request['node_id']}"})
        assert client.communicate(timeout=DEADLINE_S)[1] == "kbroker: not 1\n"
    assert not launcher_runs(deep)


def test_who_says_nothing_is_passed_over(tmp_path: Path) -> None:
    with ControlSocket(tmp_path) as control:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(tmp_path / "control.sock"))
        control.answer(lambda _request: pytest.fail("nothing was asked"))
        with socket.socket(socket.AF_UNIX) as confused:
            confused.connect(str(tmp_path / "control.sock"))
            confused.sendall(b"[]\n")
            control.answer(lambda _request: pytest.fail("nothing was asked"))
    with pytest.raises(Exception, match="no cluster runs"):
        ask_launcher(tmp_path, {"do": "stop"}, 1)
