"""The reset of an embedded broker, between tests, to its state at the start. The broker is not restarted.

Owns the steps of a reset and their order. Never changes a file itself: it deletes topics as a client does. Groups,
offsets, transactions and the state of share partitions are deleted with the coordinators' topics.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import CONFIG_KINDS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState
from kbroker.long_work import whole


async def reset(node: BrokerNode, first: ClusterState, keep: Collection[str] = ()) -> None:
    """Undo all changes since the state `first`. Return when the state is restored.

    All topics are deleted, except those to `keep`.
    """
    controller = node.controller
    topics = controller.decided.topics
    controller.delete_topics(name for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) if name in topics)
    deleted = [name for name in controller.decided.topics if name not in keep]
    controller.delete_topics(deleted)  # this includes the coordinators' topics, so that no group offsets remain
    for kind in CONFIG_KINDS:
        held, wanted = controller.decided.all_configs(kind), first.all_configs(kind)
        for name in dict.fromkeys((*held, *wanted)):
            if held.get(name) != wanted.get(name):
                controller.set_configs(kind, name, wanted.get(name, {}))
    for token in [each for each in controller.decided.tokens if first.tokens.get(each.info.token_id) is None]:
        whole(controller.change_token(token.info.token_id, lambda _: None))
    controller.replace_acls(first.acls)
    controller.replace_features(first.features)
    settled = controller.published()
    if settled is not None:
        await settled
    node.services.share.forget_all()  # this also drops the state of topics that are kept
    delete_ownerless(node)
    node.server.shorten_pauses(math.inf)


def delete_ownerless(node: BrokerNode) -> None:
    """Delete the logs that belong to no topic. A failed restore leaves such logs."""
    topics = node.controller.decided.topics
    for home in node.logs.online:
        left = [key for key in home.logs if key[0] not in topics and node.replicas.get(key) is None]
        if left:
            home.delete_all(left, node.clock.now_ms())
