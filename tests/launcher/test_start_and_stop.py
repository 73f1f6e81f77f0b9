"""A cluster of processes that answer like brokers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.launcher.child import Child, LauncherError, wait_until
from kbroker.launcher.plan import free_ports, make_plan
from kbroker.launcher.start_and_stop import Known, LocalCluster, ask_brokers
from tests.launcher.up import FAKE

DEADLINE_S = 30.0


@contextmanager
def running(directory: Path, zookeeper: str) -> Iterator[LocalCluster]:
    plan = make_plan(directory, 3, ("127.0.0.1", 0), zookeeper, {})
    with LocalCluster(plan, program=FAKE) as cluster:
        yield cluster


def test_each_broker_knows_all(tmp_path: Path, zookeeper: str) -> None:
    with running(tmp_path, zookeeper) as cluster:
        for broker in cluster.plan.brokers:
            assert ask_brokers(broker.contact) == Known(frozenset({1, 2, 3}), 1)
        description = cluster.describe()
        assert [each.pid for each in description.brokers] == [each.pid for each in cluster.brokers.values()]
        assert description.zookeeper == zookeeper
        assert description.zookeeper_pid is None


def test_the_controller_stops_last(tmp_path: Path, zookeeper: str) -> None:
    with running(tmp_path, zookeeper):
        pass
    assert (tmp_path / "order").read_text().split() == ["3", "2", "1"]


def test_a_broker_is_killed_and_started_again(tmp_path: Path, zookeeper: str) -> None:
    with running(tmp_path, zookeeper) as cluster:
        port, pid = cluster.plan.brokers[0].port, cluster.child(1).pid
        cluster.kill_broker(1)
        assert cluster.child(1).ended == -signal.SIGKILL
        assert cluster.controller() == 2
        with pytest.raises(LauncherError, match="does not run"):
            cluster.kill_broker(1)
        cluster.start_broker(1)
        assert cluster.child(1).pid != pid
        assert ask_brokers(("127.0.0.1", port)) == Known(frozenset({1, 2, 3}), 1)
        with pytest.raises(LauncherError, match="runs already"):
            cluster.start_broker(1)
        with pytest.raises(LauncherError, match="no broker 4 here, only 1, 2, 3"):
            cluster.stop_broker(4)


def test_a_frozen_broker_stops(tmp_path: Path, zookeeper: str) -> None:
    with running(tmp_path, zookeeper) as cluster:
        cluster.child(2).pause()
        cluster.stop_broker(2)
        assert cluster.child(2).ended == 0


def test_a_broker_that_cannot_start_is_named_and_nothing_is_left(tmp_path: Path, zookeeper: str) -> None:
    plan = make_plan(tmp_path, 3, ("127.0.0.1", 0), zookeeper, {"fake.failure": "the directory is another's"})
    cluster = LocalCluster(plan, program=FAKE)
    with pytest.raises(LauncherError, match="broker 2 has ended: kbroker: the directory is another's"), cluster:
        pytest.fail("it has started")
    assert [child.running for child in cluster.brokers.values()] == [False] * 3


def test_a_zookeeper_that_is_not_there_is_named(tmp_path: Path, zookeeper: str) -> None:
    host, port = "127.0.0.1", free_ports("127.0.0.1", 1)[0]
    plan = make_plan(tmp_path, 1, ("127.0.0.1", 0), f"{host}:{port}/chroot", {})
    with pytest.raises(LauncherError, match=f"no ZooKeeper takes a connection: {host}:{port}"):
        LocalCluster(plan, program=FAKE).start()
    plan = make_plan(tmp_path, 1, ("127.0.0.1", 0), "localhost", {})
    with pytest.raises(LauncherError, match="HOST:PORT"):
        LocalCluster(plan, program=FAKE).start()


def test_a_child_that_passes_over_sigterm_is_killed(tmp_path: Path) -> None:
    child = Child("deaf", tmp_path / "log")
    child.start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    assert wait_until(lambda: child.tail(1) == ["ready"], DEADLINE_S)
    assert not child.stop(0.1)
    assert child.ended == -signal.SIGKILL


def test_tails_are_of_the_last_run(tmp_path: Path) -> None:
    child = Child("talker", tmp_path / "log")
    for text in ("first", "second"):
        child.start(["sh", "-c", f"echo {text}; echo; echo end of {text}"])
        assert wait_until(lambda: not child.running, DEADLINE_S)
        assert child.tail(5) == [text, f"end of {text}"]
        assert child.last_words() == f"end of {text}"
    child.start(["sh", "-c", "printf '\\033[2J%0600d\\n' 0"])
    assert wait_until(lambda: not child.running, DEADLINE_S)
    assert child.last_words() == "?[2J" + "0" * 496, "no more than people read, and nothing that a terminal obeys"


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="only Linux ties a process to its parent")
def test_children_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    program = "\n".join(
        (
            "import sys, time",
            "from pathlib import Path",
            "from kbroker.launcher.child import Child",
            f"child = Child('sleeper', Path({str(tmp_path / 'log')!r}))",
            "child.start(['sleep', '600'])",
            f"Path({str(tmp_path / 'pid')!r}).write_text(f'{{child.pid}}.')",
            "time.sleep(600)",
        )
    )
    launcher = Child("launcher", tmp_path / "launcher.log")
    launcher.start([sys.executable, "-c", program])
    written = tmp_path / "pid"
    assert wait_until(lambda: written.exists() and written.read_text().endswith("."), DEADLINE_S), launcher.tail(9)
    pid = int(written.read_text().rstrip("."))
    assert wait_until(_is(pid, "sleep"), DEADLINE_S)
    launcher.kill()
    assert wait_until(lambda: not _is(pid, "sleep")(), DEADLINE_S)


def _is(pid: int, name: str) -> Callable[[], bool]:
    """Whether a process of an id has become a program, and is no zombie."""

    def look() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return f"({name}) " in stat and f"({name}) Z" not in stat

    return look
