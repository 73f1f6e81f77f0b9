"""Three nodes of Apache Kafka 4.4.0, each both broker and controller, with the interface of the other clusters.

Owns the ports and the quorum's settings of the nodes. ApacheKafka starts and stops each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from compat_tests.harness.brokers import ApacheKafka, free_port
from compat_tests.harness.clusters import SETTINGS, THREE, Cluster

_QUORUM_STATE: Final = "__cluster_metadata-0/quorum-state"


class KRaftNode(ApacheKafka):
    """A node of a quorum, which has the same ports at each start."""

    def __init__(
        self, libs: Path, directory: Path, settings: Mapping[str, str], node_id: int, controllers: Mapping[int, int]
    ) -> None:
        """`controllers` are the ports of all nodes of the quorum."""
        super().__init__(libs, directory, {**settings, "node.id": str(node_id)})
        self._ports = free_port(), controllers[node_id]
        self._voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in controllers.items())

    def _addresses(self) -> tuple[int, int, str]:
        return *self._ports, self._voters


class KRaftCluster(Cluster):
    """Nodes of Apache Kafka 4.4.0."""

    name = "apache 4.4.0"

    def __init__(
        self,
        libs: Path,
        directory: Path,
        node_ids: Sequence[int] = THREE,
        settings: Mapping[str, str] | None = None,
        node: type[KRaftNode] = KRaftNode,
    ) -> None:
        super().__init__()
        self.node_ids = tuple(node_ids)
        whole = {**SETTINGS, **(settings or {})}
        controllers = {each: free_port() for each in self.node_ids}
        self._nodes = {each: node(libs, directory / f"node-{each}", whole, each, controllers) for each in self.node_ids}
        self.bootstrap = ""

    def start_all(self) -> None:
        for node in self._nodes.values():
            node.launch()  # no node is ready before most of them run
        for node in self._nodes.values():
            node.await_ready()
        self.bootstrap = ",".join(node.bootstrap for node in self._nodes.values())

    def stop_all(self) -> None:
        # Without a majority, a node cannot move its leaderships, and waits for long: so all are asked to stop together.
        for node in self._nodes.values():
            node.ask_to_stop()
        for node in self._nodes.values():
            node.stop()

    def start(self, node_id: int) -> None:
        self._nodes[node_id].start()

    def stop(self, node_id: int) -> None:
        self._nodes[node_id].stop()

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def pid(self, node_id: int) -> int | None:
        node = self._nodes[node_id]
        return node.pid if node.running else None

    def address(self, node_id: int) -> str:
        return self._nodes[node_id].bootstrap

    def data_dir(self, node_id: int) -> Path:
        return self._nodes[node_id].data_dir

    def log_tail(self, node_id: int) -> str:
        return self._nodes[node_id].log_tail(15)

    def controller(self) -> int:
        """Return the quorum's leader. Metadata does not return it: there each broker names a random one."""
        states = [json.loads((self.data_dir(each) / _QUORUM_STATE).read_text()) for each in self.serving]
        newest = max(states, key=lambda state: int(state["leaderEpoch"]))
        return int(newest["leaderId"])
