"""The use of quotas: for each limit that applies to a client, how much was used, and how long the client must pause.

Owns which number is which metric. Never counts anything, and never makes a client pause.
"""

from __future__ import annotations

from typing import Final

from kbroker.broker.base_node import Node
from kbroker.long_work import turn
from kbroker.metrics.values import Values, put
from kbroker.quota.client_quotas import MutationQuota, RateQuota

_NAMES: Final = {
    "Produce": "byte_rate",
    "Fetch": "byte_rate",
    "Request": "request_time",
    "ControllerMutation": "tokens",
}
"""Kafka's names of the four quotas, and of their units."""


async def quotas(node: Node, values: Values, most: int) -> None:
    """Add the use of each quota, by the quota's user and client id, for at most `most` of them."""
    clients = node.quotas.clients
    now_ms = clients.now_ms()
    told = 0
    by_resource: dict[str, RateQuota | MutationQuota] = {
        "Produce": clients.produced,
        "Fetch": clients.fetched,
        "Request": clients.worked,
        "ControllerMutation": clients.mutated,
    }
    for resource, quota in by_resource.items():
        for used in quota.used(now_ms, most - told):
            labels = {"resource": resource}
            if used.user is not None:
                labels["user"] = used.user
            if used.client_id is not None:
                labels["clientId"] = used.client_id
            put(values, f"kafka_server_quota_{_NAMES[resource]}", used.amount, labels)
            put(values, "kafka_server_quota_throttle_time", used.pause_ms, labels)
            told += 1
            await turn
    known = len(clients.produced) + len(clients.fetched) + len(clients.worked) + len(clients.mutated)
    put(values, "kbroker_left_out", max(known - told, 0), {"kind": "quotas"})
