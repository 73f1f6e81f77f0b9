"""One module per API: the function that answers it, registered with the versions it serves."""

from __future__ import annotations

import importlib
import pkgutil

_NOT_APIS = frozenset(
    {
        "registry",
        "services",
        "fetch_session",
        "config_changes",
        "produce_answers",
        "produce_in_transaction",
        "transaction_verification",
    }
)


def load_all() -> None:
    """Import every handler module, so that all of them are registered."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NOT_APIS:
            importlib.import_module(f"{__name__}.{module.name}")
