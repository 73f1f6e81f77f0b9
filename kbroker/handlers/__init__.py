"""One module per API: the function that answers it, registered with the versions it serves."""

from __future__ import annotations

import importlib
import pkgutil

_NOT_APIS = frozenset(
    {
        "acl_requests",
        "authorized",
        "registry",
        "token_requests",
        "services",
        "fetch_session",
        "first_news",
        "config_changes",
        "produce_refusals",
        "produce_in_transaction",
        "telemetry_clients",
        "transaction_verification",
    }
)
_OF_CLUSTERS = frozenset(
    {
        "allocate_producer_ids",
        "alter_partition",
        "controlled_shutdown",
        "leader_and_isr",
        "stop_replica",
        "update_metadata",
    }
)
"""APIs that only a node of a cluster serves; what they need is not even imported elsewhere."""


def load_all(*, in_cluster: bool = False) -> None:
    """Import every handler module, so that all of them are registered."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NOT_APIS and (in_cluster or module.name not in _OF_CLUSTERS):
            importlib.import_module(f"{__name__}.{module.name}")
