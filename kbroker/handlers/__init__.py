"""The functions that answer requests, and the API versions that they serve. Each family of APIs has one module."""

from __future__ import annotations

import importlib
import pkgutil

_OF_CLUSTERS = "inter_broker"
"""The APIs that only a node of a cluster serves. Other nodes do not even import their modules."""


def load_all(*, in_cluster: bool = False) -> None:
    """Import every handler module, so that all of them are registered."""
    for module in pkgutil.iter_modules(__path__):
        if module.name != "authorized" and (in_cluster or module.name != _OF_CLUSTERS):
            importlib.import_module(f"{__name__}.{module.name}")
