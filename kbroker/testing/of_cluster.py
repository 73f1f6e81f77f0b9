"""Faults and recorded requests of a cluster in one process. All of its brokers share them.

Connects the faults and requests to all running brokers, and to brokers that start later. Requests between brokers meet
no fault and are not recorded. Never decides the outcome of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kbroker.broker.cluster_node import ClusterNode
from kbroker.handlers.registry import served
from kbroker.testing.faults import Faults
from kbroker.testing.interceptor import Interceptor
from kbroker.testing.requests import Requests


class ClusterSteering:
    """The faults and requests of one cluster. `call` runs a function on the brokers' loop. The brokers share one clock.

    `brokers` are the ids of all brokers, including stopped brokers.
    """

    def __init__(
        self,
        nodes: Callable[[], Iterable[ClusterNode]],
        call: Callable[[Callable[[], None]], None],
        now_ms: Callable[[], float],
        brokers: Collection[int],
    ) -> None:
        self._nodes = nodes
        self._call = call
        apis = [each.name for each in served(in_cluster=True).values()]
        self.faults = Faults(apis, now_ms, self._changed, brokers)
        self.requests = Requests(apis)
        self._interceptors: dict[ClusterNode, Interceptor] = {}

    def record(self) -> Requests:
        """Return the requests. The recording begins at the first call."""
        if not self.requests.on:
            self.requests.start(late=True)  # always: a count would include connections between brokers
            self._changed()
        return self.requests

    def follow(self) -> None:
        """Let the running brokers use the current faults and recording. Call this on the brokers' loop."""
        wanted = bool(self.faults.active) or self.requests.on
        running = list(self._nodes())
        for node in running:
            interceptor = self._interceptors.get(node)
            if interceptor is None:
                interceptor = Interceptor(node.server.dispatcher, self.faults, self.requests, node.services)
                self._interceptors[node] = interceptor
            node.server.refuses = self.faults.refuses_connections
            node.server.divert(interceptor.run if wanted else None)
        for stopped in self._interceptors.keys() - set(running):
            del self._interceptors[stopped]

    def break_waiting(self, node: ClusterNode) -> None:
        """Close the connections of requests that a fault delays at a broker. Call this on the loop."""
        interceptor = self._interceptors.get(node)
        if interceptor is not None:
            interceptor.break_waiting()

    def ended(self) -> None:
        """Wake all threads that wait for requests. Call this after the cluster has stopped."""
        self.faults.end()
        self.requests.end()

    def _changed(self) -> None:
        self._call(self.follow)
