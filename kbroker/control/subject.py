"""The interface of the controlled broker for the operations, and its implementation for `kbroker start`.

Owns the test tools for a broker whose event loop belongs to other code. All methods are called from threads other than
the broker's thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from kbroker.broker.node import BrokerNode
from kbroker.testing.asking import Asking
from kbroker.testing.faults import Faults
from kbroker.testing.groups import Groups
from kbroker.testing.requests import Requests
from kbroker.testing.snapshot import Snapshot
from kbroker.testing.steered_clock import SteeredClock
from kbroker.testing.steering import Steering
from kbroker.testing.topics import Topics


class Subject(Protocol):
    """The interface of a controlled broker. `kbroker.Broker` implements it."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def clock(self) -> SteeredClock: ...

    @property
    def faults(self) -> Faults: ...

    @property
    def requests(self) -> Requests: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def groups(self) -> Groups: ...

    def reset(self) -> None:
        """Return the broker to its state at the start."""

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the broker's content."""

    def restore(self, snapshot: Snapshot) -> None:
        """Return the broker to the state of a snapshot."""


class RunningBroker:
    """A broker in a loop of this process. This object is created in the loop's thread when the broker serves."""

    def __init__(self, node: BrokerNode, clock: SteeredClock) -> None:
        self._node = node
        self._steering = Steering(node, asyncio.get_running_loop(), threading.current_thread())
        self._first = node.controller.state
        self._asking = Asking(self._steering, node.services, node.config.listeners.bind[0].name)
        self.clock = clock
        clock.moved = self._steering.moved

    @property
    def bootstrap_servers(self) -> str:
        return self._node.bootstrap_servers

    @property
    def cluster_id(self) -> str:
        return self._node.cluster_id

    @property
    def faults(self) -> Faults:
        return self._steering.faults

    @property
    def requests(self) -> Requests:
        """The requests of clients. They are recorded from the first access on."""
        return self._steering.record()

    @property
    def topics(self) -> Topics:
        return Topics(self._asking)

    @property
    def groups(self) -> Groups:
        return Groups(self._asking)

    def reset(self) -> None:
        """Return the broker to its state at the start (see testing/reset.py). The clock shows the machine's time."""
        self._steering.reset(self._first)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the broker's content (see testing/snapshot.py)."""
        return self._steering.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Return the broker to the state of a snapshot (see testing/restoring.py)."""
        self._steering.restore(snapshot)
