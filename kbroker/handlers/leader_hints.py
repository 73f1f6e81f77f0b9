"""The current leader of a partition, which an error response names to a client of the wrong broker (KIP-951).

Owns the choice of the source: LeaderAndIsr precedes UpdateMetadata, so the local replica may know a newer leader than
the cluster's metadata (KafkaApis.getCurrentLeader). A client trusts the response even if it names the old leader again.
If the old leader has left the cluster meanwhile, librdkafka sends nothing for two seconds. Serves no API: Produce and
Fetch use it.
"""

from __future__ import annotations

from operator import itemgetter

from kbroker.cluster_state import BrokerEndpoint
from kbroker.handlers.registry import RequestContext


class LeaderHints:
    """The leaders to name in one response. `nodes` returns the brokers that the client can reach."""

    __slots__ = ("_ctx", "_nodes")

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._nodes: dict[int, BrokerEndpoint] = {}

    @property
    def nodes(self) -> list[BrokerEndpoint]:
        return list(self._nodes.values())

    def leader(self, topic_id: bytes, topic: str, index: int) -> tuple[int, int] | None:
        """Return the leader (-1: none) and leader epoch of a partition, by topic id or name.

        Return None if the leader is unknown.
        """
        services = self._ctx.services
        state = services.controller.state
        name = state.topic_names.get(topic_id, topic)
        known = state.partition(name, index)
        if known is None:
            return None
        found = known.leader, known.leader_epoch
        here = services.replicas.get((name, index))
        if here is not None and here.topic_id == state.topics[name].topic_id:
            found = max(found, (here.leader, here.leader_epoch), key=itemgetter(1))
        if found[0] in self._nodes:
            return found
        broker = state.brokers.get(found[0])
        reached = broker.by(self._ctx.listener) if broker is not None else None
        if reached is not None:
            self._nodes[found[0]] = reached
        return found
