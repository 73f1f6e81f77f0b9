"""The store of the cluster's metadata: a small tree of paths, as in ZooKeeper.

Owns the `MetadataStore` interface and its errors. embedded_store.py implements it, for one node. Paths are those of
Apache Kafka 3.9 (`/brokers/topics/<t>`, `/config/topics/<t>`, ...), values are JSON objects.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

ANY_VERSION = -1


class VersionConflict(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """A compare-and-set found an unexpected version. No change of the batch was made."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and the number of times that it was written."""

    value: Mapping[str, Any]
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a path. `version` is the path's expected version (0 for a first write), or ANY_VERSION.

    The value belongs to the store from then on. Several paths may share one value.
    """

    path: str
    value: Mapping[str, Any]
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a path and everything below it."""

    path: str


Change = Put | Delete


class MetadataStore(Protocol):
    """A durable tree.

    `write` is atomic: it makes all changes or none. The changes are on disk when the future of `stored` is done.
    """

    def get(self, path: str) -> Node | None:
        """Return the node at `path`."""

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, sorted."""

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes or none. Raises VersionConflict, OSError."""

    def stored(self) -> Future[None] | None:
        """Return a future that is done when all writes are durable; None if they already are.

        Raises OSError, or sets it on the future.
        """

    def settle(self) -> None:
        """Wait until all writes are durable. Raises OSError."""

    def close(self) -> None:
        """Close the store's files or connection."""
