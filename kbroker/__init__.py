"""kbroker: an event-streaming broker that speaks Apache Kafka's wire protocol.

from kbroker import Broker

with Broker() as broker:
print(broker.bootstrap_servers)
"""

from __future__ import annotations

# The same as typing.TYPE_CHECKING. An import of typing would be slow, and Ctrl-C may come during this import.
TYPE_CHECKING = False

__version__ = "0.3.0.dev0"
__all__ = [
    "Acl",
    "ApiError",
    "Broker",
    "BrokerTestCase",
    "ClientSettings",
    "Clock",
    "Cluster",
    "ConfigError",
    "ErrorCode",
    "ExternalBroker",
    "Faults",
    "LogDirError",
    "Snapshot",
    "SteeredClock",
    "__version__",
]

if TYPE_CHECKING:
    from typing import Any

    from kbroker.clock import Clock
    from kbroker.config.model import ConfigError
    from kbroker.embed import Broker
    from kbroker.embed_clients import ClientSettings
    from kbroker.embed_cluster import Cluster
    from kbroker.embed_security import Acl
    from kbroker.log.directories.dir_lock import LogDirError
    from kbroker.protocol.errors import ApiError, ErrorCode
    from kbroker.pytest_plugin import ExternalBroker
    from kbroker.testing.faults import Faults
    from kbroker.testing.snapshot import Snapshot
    from kbroker.testing.steered_clock import SteeredClock
    from kbroker.unittest_case import BrokerTestCase

_WHERE = {
    "Acl": "embed_security",
    "ApiError": "protocol.errors",
    "Broker": "embed",
    "BrokerTestCase": "unittest_case",
    "ClientSettings": "embed_clients",
    "Clock": "clock",
    "Cluster": "embed_cluster",
    "ConfigError": "config.model",
    "ErrorCode": "protocol.errors",
    "ExternalBroker": "pytest_plugin",
    "Faults": "testing.faults",
    "LogDirError": "log.directories.dir_lock",
    "Snapshot": "testing.snapshot",
    "SteeredClock": "testing.steered_clock",
}


if not TYPE_CHECKING:  # a type checker that sees this function would accept unknown names

    def __getattr__(name: str) -> Any:
        """Load a public name on first access, so that `import kbroker` costs nothing."""
        if name in _WHERE:
            from importlib import import_module

            return getattr(import_module(f"kbroker.{_WHERE[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return all names, even those that are not loaded yet."""
        return sorted({*globals(), *__all__})
