"""Where the cluster's metadata is kept: a small tree of paths, as ZooKeeper has it.

Owns the `MetadataStore` seam and its errors. embedded_store.py stands behind it, for one node. Paths are those of
Apache Kafka 3.9 (`/brokers/topics/<t>`, `/config/topics/<t>`, ...), values are JSON objects.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

ANY_VERSION = -1


class VersionConflict(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """A compare-and-set met another version than it expected; nothing of the batch was done."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value and how often it has been written."""

    value: Mapping[str, Any]
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a path. `version` is the one it must have (0 for a first write), or ANY_VERSION.

    The value belongs to the store from then on, and several may share one.
    """

    path: str
    value: Mapping[str, Any]
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a path and all below it."""

    path: str


Change = Put | Delete


class MetadataStore(Protocol):
    """A durable tree. `write` is atomic: all changes or none, on disk when what `stored` returns is done."""

    def get(self, path: str) -> Node | None:
        """Return what stands at `path`."""

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, sorted."""

    def write(self, changes: Sequence[Change]) -> None:
        """Do all changes or none. Raises VersionConflict, OSError."""

    def stored(self) -> Future[None] | None:
        """Return what is done once all that was written will last, None if it will; raises OSError, then or now."""

    def settle(self) -> None:
        """Wait for that; raises OSError."""

    def close(self) -> None:
        """Give up the store's files or connection."""
