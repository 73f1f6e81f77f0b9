"""The interface of a tree of znodes, in any store (ZooKeeper's own data model).

Owns the interface's values and errors, and the creation of a node that may exist. Never interprets a znode's content.

A tree is used through a session. A session ends when it is closed, or when the server receives nothing from it for the
session timeout; its ephemeral nodes are then removed. Each call may fail because the connection is lost. It is then
unknown whether a change was made, and the caller has to check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

ANY_VERSION = -1

Changed = Callable[[], None]
"""A function that is called once, when the read data has changed or may have changed unnoticed.

The caller should read again.
"""


class Reason(Enum):
    """The reason for which a change was refused."""

    NO_NODE = "there is no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    NO_CHILDREN_FOR_EPHEMERALS = "an ephemeral node can have no children"


class Refused(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """A batch of changes was refused, and no change was made; `index` is the index of the change at fault."""

    def __init__(self, index: int, path: str, reason: Reason) -> None:
        super().__init__(f"{path}: {reason.value}")
        self.index = index
        self.path = path
        self.reason = reason


class Unreachable(Exception):  # noqa: N818
    """The connection was lost before the response: it is unknown whether a change was made."""


class SessionExpired(Unreachable):
    """The session and its ephemeral nodes have ended. Another session begins automatically."""


class Denied(Exception):  # noqa: N818
    """The tree's access rules do not permit this session's request. The message names the path."""


class Session(Enum):
    """The events of a session's listener."""

    LIVE = "live"
    """Connected, in the previous session or in a new session: see `MetadataTree.session_id`."""
    UNREACHABLE = "unreachable"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Stat:
    """A node's metadata: `created` is the number of the transaction that created it (czxid).

    `modified` is the number of the transaction that wrote it last (mzxid); -1 if it is unknown.

    `version` is 0 at the node's creation and grows by one with each write. `owner` is the session of an ephemeral node,
    else 0.
    """

    created: int
    version: int
    owner: int = 0
    created_ms: int = field(default=-1, compare=False)
    """The time of the node's creation by ZooKeeper's clock, in ms; -1 without a clock."""
    modified: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Znode:
    """A node's data and metadata."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; with `sequential`, a number of ten digits is appended to its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Write a node's data if the node has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but require that the node has this version."""

    path: str
    version: int


Change = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: the node's final path, and after SetData its new metadata."""

    path: str
    stat: Stat | None = None


class MetadataTree(Protocol):
    """A tree of znodes in a session. All calls raise Unreachable, SessionExpired or Denied.

    The requests of a session are processed in their order.
    """

    @property
    def session_id(self) -> int:
        """The number of the current session, or of the last session."""

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return the node at `path`; None if it is missing.

        The next write, creation or deletion of the node calls `changed`.
        """

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the sorted names below `path`. `changed` is called when a name is next added or removed.

        Raises Refused.
        """

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        """Make all changes or none of them. Raises Refused."""

    def listen(self, listener: Callable[[Session], None]) -> None:
        """Call `listener` with the session's events from now on."""

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""


async def ensure(tree: MetadataTree, path: str) -> None:
    """Create a node below an existing one, if it is missing."""
    try:
        await tree.commit([Create(path)])
    except Refused as refused:
        if refused.reason is not Reason.NODE_EXISTS:
            raise
