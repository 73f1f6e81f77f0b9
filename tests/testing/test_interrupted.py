"""Restores that fail, are interrupted or overlap: the broker still serves, and the next restore succeeds."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker import Broker, Cluster, ErrorCode
from kbroker.testing import restoring, steering
from kbroker.testing.snapshot import Snapshot

PATIENCE_S = 20.0
LONG_S, SOON_S = 100.0, 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def ask_for_metadata(bootstrap_servers: str, topic: bytes = b"") -> socket.socket:
    """Send a Metadata request; return the connection, from which no answer was read."""
    host, port = bootstrap_servers.split(",", maxsplit=1)[0].rsplit(":", 1)
    connected = socket.create_connection((host, int(port)), PATIENCE_S)
    body = struct.pack(">ih", 1, len(topic)) + topic if topic else struct.pack(">i", 0)
    frame = struct.pack(">hhih", 3, 1, 7, 1) + b"c" + body
    connected.sendall(struct.pack(">i", len(frame)) + frame)
    return connected


def is_answered(bootstrap_servers: str) -> bool:
    with ask_for_metadata(bootstrap_servers) as connected:
        return bool(connected.recv(4))


def with_orders(broker: Broker) -> Snapshot:
    """Return a snapshot in which "orders" and "paid" contain "one"; both contain "two" as well by now."""
    broker.topics.create("orders").produce("one")
    broker.topics.create("paid").produce("one")
    snapshot = broker.snapshot()
    for name in ("orders", "paid"):
        broker.topics[name].produce("two")
    return snapshot


def values(broker: Broker) -> dict[str, list[bytes | None]]:
    return {name: topic.values() for name, topic in broker.topics.items()}


WANTED = {"orders": [b"one"], "paid": [b"one"]}


def test_a_log_of_the_same_size_is_not_the_same(broker: Broker) -> None:
    broker.topics.create("orders")
    empty = broker.snapshot()
    broker.topics["orders"].produce("one")
    filled = broker.snapshot()
    broker.restore(empty)
    broker.topics["orders"].produce("two")
    broker.restore(filled)
    assert broker.topics["orders"].values() == [b"one"]
    broker.restore(filled)
    partition = broker.node.replicas.get(("orders", 0))
    assert partition is not None
    epoch = partition.leader_epoch
    broker.restore(filled)
    assert partition.leader_epoch == epoch, "what is as it was is left alone"


def test_a_restore_that_fails_spoils_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = with_orders(broker)
    real, count = restoring._put_log_back, 0

    def failing(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        real(*args)

    monkeypatch.setattr(restoring, "_put_log_back", failing)
    with pytest.raises(OSError, match="No space"):
        broker.restore(snapshot)
    for name in WANTED:
        if name not in broker.topics:
            assert broker.topics.create(name).values() == [], "a new topic is empty"
    broker.restore(snapshot)
    assert values(broker) == WANTED


def test_a_restore_that_is_given_up_opens_the_gate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, begun, real = with_orders(broker), threading.Event(), restoring.put_back

    async def hanging(*args: Any) -> None:
        begun.set()
        await asyncio.sleep(LONG_S)

    monkeypatch.setattr(restoring, "put_back", hanging)
    monkeypatch.setattr(steering, "_COPYING_S", 0.5)
    with pytest.raises(TimeoutError):
        broker.restore(snapshot)
    assert begun.is_set()
    assert is_answered(broker.bootstrap_servers)
    assert broker.wait_for(lambda each: not [name for name in os.listdir(each.data_dir) if name.endswith("-delete")])
    monkeypatch.setattr(restoring, "put_back", real)
    monkeypatch.setattr(steering, "_COPYING_S", PATIENCE_S)
    broker.restore(snapshot)
    assert values(broker) == WANTED


def test_a_restore_that_never_began_shuts_no_gate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, loop, stuck = with_orders(broker), broker._loop, threading.Event()
    before = values(broker)
    assert loop is not None
    loop.call_soon_threadsafe(stuck.wait, PATIENCE_S)
    monkeypatch.setattr(steering, "_COPYING_S", 0.1)
    with pytest.raises(TimeoutError):
        broker.restore(snapshot)
    stuck.set()
    assert is_answered(broker.bootstrap_servers)
    assert values(broker) == before


def test_a_call_that_is_given_up_never_happens(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    steered, loop, done = broker._steering(), broker._loop, []
    assert loop is not None
    stuck = threading.Event()
    loop.call_soon_threadsafe(stuck.wait, PATIENCE_S)

    async def work() -> None:
        done.append("done")

    with pytest.raises(TimeoutError):
        steered.wait_for(work(), 0.05)
    stuck.set()
    steered.call(lambda: None)
    assert not done


def restored_slowly(
    broker: Broker,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], None],
    go_on: bool = True,
) -> list[BaseException]:
    """Call `meanwhile` after a restore has replaced the logs, before it ends; return the errors of the restore."""
    real, begun, may_end, raised = restoring.put_back, threading.Event(), asyncio.Event(), []

    async def slow(*args: Any) -> None:
        await real(*args)
        begun.set()
        await may_end.wait()

    def restore() -> None:
        try:
            broker.restore(snapshot)
        except RuntimeError as err:
            raised.append(err)

    monkeypatch.setattr(restoring, "put_back", slow)
    thread = threading.Thread(target=restore)
    thread.start()
    assert begun.wait(PATIENCE_S)
    meanwhile()
    if go_on:
        broker._loop.call_soon_threadsafe(may_end.set)  # type: ignore[union-attr]
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return raised


def test_faults_and_requests_leave_the_gate_shut(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = with_orders(broker)

    def meanwhile() -> None:
        fault = broker.faults.fail("Heartbeat", ErrorCode.NOT_COORDINATOR)
        assert broker.requests is not None
        with ask_for_metadata(broker.bootstrap_servers) as connected:
            connected.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connected.recv(4)
        fault.remove()

    assert not restored_slowly(broker, snapshot, monkeypatch, meanwhile)
    assert is_answered(broker.bootstrap_servers)
    assert values(broker) == WANTED


def test_who_waits_for_a_restore_is_told_of_a_stop(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = restored_slowly(broker, with_orders(broker), monkeypatch, broker.stop, go_on=False)
    assert [type(each) for each in raised] == [RuntimeError]


def test_others_wait_for_a_restore(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, done = with_orders(broker), []
    works: list[Callable[[], object]] = [broker.snapshot, broker.reset, lambda: broker.clock.advance(hours=1)]
    threads = [threading.Thread(target=lambda each=each: done.append(each())) for each in works]  # type: ignore[misc]

    def meanwhile() -> None:
        for each in threads:
            each.start()
        threads[0].join(0.2)
        assert not done

    assert not restored_slowly(broker, snapshot, monkeypatch, meanwhile)
    for each in threads:
        each.join(PATIENCE_S)
    assert len(done) == len(works)


def test_one_thing_is_done_at_a_time(broker: Broker) -> None:
    snapshot, raised = with_orders(broker), []
    kept = []

    def often(work: Callable[[], object]) -> None:
        try:
            for _ in range(40):
                work()
        except Exception as err:  # noqa: BLE001 - told by the test
            raised.append(err)

    works: list[Callable[[], object]] = [
        lambda: broker.restore(snapshot),
        lambda: kept.append(len(broker.snapshot().state.topics)),
        broker.reset,
        lambda: broker.clock.advance(hours=1),
    ]
    threads = [threading.Thread(target=often, args=(each,)) for each in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert not raised
    assert set(kept) <= {0, 2}, "a snapshot is of all or nothing"
    broker.restore(snapshot)
    assert values(broker) == WANTED


def test_a_restore_that_is_refused_leaves_the_clock_alone(broker: Broker) -> None:
    snapshot = broker.snapshot()
    snapshot.remove()
    broker.clock.advance(hours=3)
    ahead_ms = broker.clock.ahead_ms
    with pytest.raises(RuntimeError):
        broker.restore(snapshot)
    assert broker.clock.ahead_ms == ahead_ms


@pytest.mark.parametrize("what", ["reset", "restore"])
def test_a_delayed_request_never_comes_after_it(broker: Broker, what: str) -> None:
    snapshot = broker.snapshot()
    with broker.faults.delay("Metadata", LONG_S) as fault, ask_for_metadata(broker.bootstrap_servers, b"late") as late:
        fault.wait()
        if what == "reset":
            broker.reset()
        else:
            broker.restore(snapshot)
        assert late.recv(4) == b"", "its connection is broken"
    assert not list(broker.topics)


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stopping server wait so long for its connections that a slow machine cannot explain the wait."""
    monkeypatch.setattr("kbroker.network.server._LINGER_SECONDS", LONG_S)


@pytest.mark.usefixtures("lingering")
@pytest.mark.parametrize("kind", ["drop", "delay"])
def test_a_stop_waits_for_no_fault(kind: str) -> None:
    with Broker() as broker:
        fault = broker.faults.drop("Metadata") if kind == "drop" else broker.faults.delay("Metadata", LONG_S)
        with ask_for_metadata(broker.bootstrap_servers):
            fault.wait()
            began = time.monotonic()
            broker.stop()
            assert time.monotonic() - began < SOON_S


@pytest.mark.usefixtures("lingering")
def test_a_broker_of_a_cluster_stops_without_waiting_for_a_fault() -> None:
    with (
        Cluster(brokers=1) as cluster,
        cluster.faults.drop("Metadata") as fault,
        ask_for_metadata(cluster.bootstrap_servers),
    ):
        fault.wait()
        began = time.monotonic()
        cluster.brokers[1].stop()
        assert time.monotonic() - began < SOON_S


def test_two_threads_get_the_same_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    real = steering.Steering.__init__

    def slow(self: Any, *args: Any) -> None:
        time.sleep(0.05)  # the other threads arrive in this time
        real(self, *args)

    monkeypatch.setattr(steering.Steering, "__init__", slow)
    with Broker() as broker:
        together, found = threading.Barrier(3), []

        def look() -> None:
            together.wait()
            found.append(broker.faults)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len({id(each) for each in found}) == 1


def test_files_that_are_written_to_are_not_shared(broker: Broker) -> None:
    topic = broker.topics.create("orders", config={"segment.bytes": "1048576", "index.interval.bytes": "1"})
    for _ in range(5):
        topic.produce(b"x" * 400_000)
    directory = f"{broker.data_dir}/orders-0"

    def files() -> dict[str, int]:
        return {each.name: each.stat().st_nlink for each in os.scandir(directory) if each.name[0] == "0"}

    def check() -> None:
        shared = {name for name, links in files().items() if links > 1}
        assert {name.partition(".")[2] for name in shared} <= {"log"}
        assert len(shared) > 1

    before = {name for name in files() if name.endswith(".txnindex")}
    snapshot = broker.snapshot()
    check()
    topic.produce("more")
    broker.restore(snapshot)
    assert {name for name in files() if name.endswith(".txnindex")} <= before | {
        max(files()).split(".")[0] + ".txnindex"
    }
    assert len({name for name, links in files().items() if links > 1}) > 0
