"""What the coordinators of a cluster's node ask of other brokers, put together over the node's ways to them.

Owns these parts and their end: producer ids by blocks of the controller, questions to transaction coordinators
elsewhere, markers for partitions that others lead. Never asks anything itself.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.clock import Clock
from kbroker.cluster_state import TRANSACTIONS_TOPIC, ClusterState
from kbroker.peers.by_node import Endpoint, PeersByNode
from kbroker.peers.interface import Peers
from kbroker.txn.marker_sender import Target
from kbroker.txn.other_coordinators import OtherCoordinators
from kbroker.txn.peer_markers import MarkerTargets
from kbroker.txn.producer_id_blocks import ProducerIdBlocks


class CoordinatorPeers:
    """The coordinators' ways to other brokers.

    `endpoint_of` returns where a broker is reached by brokers, None where it is not known to live; `state` what is
    known of the cluster; `partition_for` the partition that coordinates a transactional id. `timeout_ms` is
    request.timeout.ms.
    """

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        clock: Clock,
        timeout_ms: float,
        endpoint_of: Callable[[int], Endpoint | None],
        broker_epoch: Callable[[], int],
        state: Callable[[], ClusterState],
        partition_for: Callable[[str], int],
    ) -> None:
        self._node_id = node_id
        self._timeout_ms = timeout_ms
        self._state = state
        self._partition_for = partition_for

        def ways(what: str) -> PeersByNode:
            return PeersByNode(peers, endpoint_of, f"broker-{node_id}-{what}")

        self.producer_ids = ProducerIdBlocks(
            node_id, broker_epoch, lambda: state().controller_id, ways("producer-ids"), clock, timeout_ms
        )
        self.others = OtherCoordinators(node_id, self._coordinator_of, ways("txn-verification"), timeout_ms)
        self._markers = MarkerTargets(ways("txn-marker-sender"), timeout_ms)

    def marker_target(self, node_id: int, here: Target) -> Target | None:
        """Return who takes markers for what a broker leads; `here` does for this one."""
        return here if node_id == self._node_id else self._markers.of(node_id)

    def close(self) -> None:
        """Ask nothing more."""
        self._markers.close()
        self.others.close()
        self.producer_ids.close()

    def _coordinator_of(self, transactional_id: str) -> int | None:
        """Return the broker that coordinates an id as far as is known; -1 or None where nobody does."""
        partition = self._state().partition(TRANSACTIONS_TOPIC, self._partition_for(transactional_id))
        return None if partition is None else partition.leader
