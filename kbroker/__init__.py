"""kbroker: an event-streaming broker that speaks Apache Kafka's wire protocol.

from kbroker import Broker

with Broker() as broker:
print(broker.bootstrap_servers)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Broker", "__version__"]

if TYPE_CHECKING:
    from kbroker.embed import Broker


def __getattr__(name: str) -> Any:
    """Load the embedding API when it is first asked for, so that `import kbroker` costs nothing."""
    if name == "Broker":
        from kbroker.embed import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
