"""Runs the brokers of one cluster as child processes, with its own ZooKeeper or one that already runs.

Owns the order of starts and stops. At a start, ZooKeeper is first. At a stop, the brokers stop one by one with the
controller last, and then ZooKeeper stops. Also owns the Metadata request that shows which brokers a broker knows: each
request has its own connection and a timeout. Never prints. `pause` waits between two checks, and may raise an exception
to end the wait.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Self

from kbroker.launcher.child import Child, LauncherError, Pause, wait_until
from kbroker.launcher.description import BrokerDescription, ClusterDescription
from kbroker.launcher.plan import ClusterPlan, broker_command, free_ports, require_free
from kbroker.launcher.zookeeper import HOST, ZooKeeperServer, require_reachable
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.connections import RequestHeader

PROGRAM: Final = (sys.executable, "-m", "kbroker")
START_TIMEOUT_S: Final = 300.0
"""The maximum duration of a start, in seconds. After a crash, a broker may have to read its logs."""
STOP_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 2.0
_METADATA: Final = 3
_VERSION: Final = 12  # Kafka 3.9 also has this version
_FLEXIBLE_HEADER: Final = 2
_HEAD: Final = 5  # bytes of the response header: correlation id, empty tag buffer
_MAX_ANSWER: Final = 16 * 1024 * 1024


class LocalCluster:
    """A cluster of processes. As a context manager, it starts and stops them.

    `program` is the command that runs a broker, before its arguments. `report` receives progress lines. The thread that
    starts a broker must live as long as the broker (see child.py).
    """

    def __init__(
        self,
        plan: ClusterPlan,
        pause: Pause = time.sleep,
        program: Sequence[str] = PROGRAM,
        report: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.plan = plan
        self.pause = pause
        self._program = program
        self._report = report
        self._zookeeper: ZooKeeperServer | None = None
        self._plans = {broker.node_id: broker for broker in plan.brokers}
        self._children = {broker.node_id: Child(f"broker {broker.node_id}", broker.log_file) for broker in plan.brokers}

    # -- all of it

    def start(self) -> Self:
        """Start everything, and wait until each broker knows all others. After a failure, `stop` must be called."""
        require_free(self.plan.brokers)
        if self.plan.zookeeper is None:
            self._report("starting ZooKeeper")
            self._zookeeper = ZooKeeperServer(self.plan.zookeeper_directory, free_ports(HOST, 1)[0])
            self._zookeeper.start(self.pause)
        else:
            require_reachable(self.plan.zookeeper)
        count = len(self._plans)
        self._report(f"starting {count} broker{'s' if count > 1 else ''}")
        for node_id in self._plans:
            self._launch(node_id)
        self._wait_until_known(self._plans)
        return self

    def stop(self) -> list[str]:
        """Stop the brokers in order, then ZooKeeper if it was started here. Return the names of killed brokers."""
        try:
            forced = [self._children[each].name for each in self._order_of_stop() if not self._stop_child(each)]
            if self._zookeeper is not None:
                self._zookeeper.stop(self.pause)
        except BaseException:
            self.kill()
            raise
        return forced

    def kill(self) -> None:
        """Kill all processes."""
        for child in self._children.values():
            child.kill()
        if self._zookeeper is not None:
            self._zookeeper.child.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def began(self) -> bool:
        """Whether any process was started."""
        return self._zookeeper is not None or any(child.ran for child in self._children.values())

    @property
    def bootstrap_servers(self) -> str:
        return self.plan.bootstrap_servers

    @property
    def zookeeper(self) -> str:
        """The connection string of ZooKeeper; "" before the cluster's own ZooKeeper has a port."""
        if self.plan.zookeeper is not None:
            return self.plan.zookeeper
        return "" if self._zookeeper is None else self._zookeeper.address

    @property
    def own_zookeeper(self) -> Child | None:
        """The ZooKeeper that was started here; None if there is none."""
        return None if self._zookeeper is None else self._zookeeper.child

    @property
    def brokers(self) -> dict[int, Child]:
        """The brokers' processes by id."""
        return self._children

    def describe(self) -> ClusterDescription:
        """Return the current state of all processes."""
        brokers = []
        for each in self.plan.brokers:
            child = self._children[each.node_id]
            pid = child.pid
            ended = child.describe_end() if child.ran and pid is None else None
            registry = None if each.registry is None else f"http://{each.registry}"
            brokers.append(
                BrokerDescription(each.node_id, *each.contact, pid, str(each.data_dir), each.metrics, ended, registry)
            )
        own = None if self._zookeeper is None else self._zookeeper.child.pid
        return ClusterDescription(self.bootstrap_servers, self.zookeeper, os.getpid(), own, brokers)

    # -- one broker; each raises LauncherError for an unknown id

    def start_broker(self, node_id: int) -> None:
        """Start a stopped broker, and wait until it and all running brokers know each other."""
        if self.child(node_id).running:
            raise LauncherError(f"broker {node_id} runs already")
        self._launch(node_id)
        self._wait_until_known([each for each, child in self._children.items() if child.running or each == node_id])

    def stop_broker(self, node_id: int) -> None:
        """Stop a broker cleanly."""
        self.child(node_id)
        self._stop_child(node_id)

    def kill_broker(self, node_id: int) -> None:
        """Kill a broker, as a crash would."""
        child = self.child(node_id)
        if not child.running:
            raise LauncherError(f"broker {node_id} does not run")
        child.kill()

    def child(self, node_id: int) -> Child:
        """Return a broker's process."""
        if node_id not in self._children:
            raise LauncherError(f"no broker {node_id} here, only {', '.join(map(str, self._children))}")
        return self._children[node_id]

    def controller(self) -> int:
        """Return the controller's id according to a running broker; -1 if no broker knows it."""
        for node_id, child in self._children.items():
            known = ask_brokers(self._plans[node_id].contact) if child.running else None
            if known is not None and known.controller >= 0:
                return known.controller
        return -1

    def _launch(self, node_id: int) -> None:
        plan = self._plans[node_id]
        self._children[node_id].start(broker_command(self._program, self.plan, plan, self.zookeeper))

    def _stop_child(self, node_id: int) -> bool:
        child = self._children[node_id]
        if child.running:
            self._report(f"stopping {child.name}")
        return child.stop(STOP_TIMEOUT_S, self.pause)

    def _order_of_stop(self) -> list[int]:
        """Return the ids with the controller last, because it moves the leaderships of brokers that stop."""
        running = sorted((each for each, child in self._children.items() if child.running), reverse=True)
        controller = self.controller() if len(running) > 1 else -1
        return sorted(running, key=lambda node_id: node_id == controller)

    def _wait_until_known(self, wanted: Collection[int]) -> None:
        """Wait until each broker knows all others and a controller. Raises LauncherError if a broker has ended."""
        expected = frozenset(wanted)
        waiting = list(wanted)

        def all_known() -> bool:
            for node_id in waiting:
                child = self._children[node_id]
                if not child.running:
                    raise LauncherError(f"broker {node_id} has ended: {child.last_words()} (see {child.log_file})")
            while waiting and self._knows(waiting[0], expected):
                waiting.pop(0)
            return not waiting

        if not wait_until(all_known, START_TIMEOUT_S, self.pause):
            logs = ", ".join(str(self._plans[node_id].log_file) for node_id in waiting)
            raise LauncherError(
                f"after {START_TIMEOUT_S:.0f} s not every broker knows the brokers "
                f"{', '.join(map(str, sorted(expected)))}: see {logs}"
            )

    def _knows(self, node_id: int, expected: frozenset[int]) -> bool:
        known = ask_brokers(self._plans[node_id].contact)
        return known is not None and known.controller >= 0 and known.brokers >= expected


@dataclass(frozen=True, slots=True)
class Known:
    """A broker's view of its cluster. `controller` is -1 if there is no controller."""

    brokers: frozenset[int]
    controller: int


def ask_brokers(address: tuple[str, int], timeout_s: float = ANSWER_TIMEOUT_S) -> Known | None:
    """Return the view of the broker at an address. Return None if it sends no answer, or an invalid answer."""
    header = encode(RequestHeader(_METADATA, _VERSION, 1, "kbroker-launcher"), _FLEXIBLE_HEADER)
    body = header + encode(MetadataRequest(topics=[], allow_auto_topic_creation=False), _VERSION)
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", _exactly(connection, 4))[0]
            if not _HEAD <= size <= _MAX_ANSWER:
                return None
            answer = decode(MetadataResponse, _VERSION, memoryview(_exactly(connection, size))[_HEAD:])
    except (OSError, Malformed, IndexError):
        return None
    return Known(frozenset(broker.node_id for broker in answer.brokers), answer.controller_id)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 65536))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)
