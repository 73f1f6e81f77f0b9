"""The seam: what a tree of znodes promises, whoever keeps it (ZooKeeper's own data model).

Owns the values that go over it and its errors. Never interprets what a znode holds.

A tree is seen through a session. Whatever the session made as ephemeral goes when it ends; it ends when it is closed or
when its keeper has not heard of it for the session's time-out. Each call may find the connection lost: then nobody
knows whether a change was made, and who asked has to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

ANY_VERSION = -1

Changed = Callable[[], None]
"""Called once, when what was read has changed or when that can't be known any more: time to look again."""


class Reason(Enum):
    """Why a change was refused."""

    NO_NODE = "there is no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    NO_CHILDREN_FOR_EPHEMERALS = "an ephemeral node can have no children"


class Refused(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """A batch of changes was refused, and nothing of it was done: `index` is that of the change at fault."""

    def __init__(self, index: int, path: str, reason: Reason) -> None:
        super().__init__(f"{path}: {reason.value}")
        self.index = index
        self.path = path
        self.reason = reason


class Unreachable(Exception):  # noqa: N818
    """The connection was lost before the answer came: whether a change was made is not known."""


class SessionExpired(Unreachable):
    """The session is gone, and what it made as ephemeral with it; another one begins by itself."""


class Denied(Exception):  # noqa: N818
    """The tree's access rules do not let this session do that; the message names the path."""


class Session(Enum):
    """What a session's listener hears."""

    LIVE = "live"
    """Connected, by the session that was before or by a new one: see `MetadataTree.session_id`."""
    UNREACHABLE = "unreachable"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Stat:
    """What is kept beside a node's data: `created` is the number of the transaction that made it (czxid).

    `version` is 0 at its creation and grows by one with each write; `owner` is the session of an ephemeral, else 0.
    """

    created: int
    version: int
    owner: int = 0
    created_ms: int = field(default=-1, compare=False)
    """When it was made by ZooKeeper's clock; -1 where nobody looked at a clock."""


@dataclass(frozen=True, slots=True)
class Znode:
    """A node's data, and what is kept beside it."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; with `sequential` a number of ten digits is put behind its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Write a node's data, if it has this version."""

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
    """Do nothing, but only if the node has this version."""

    path: str
    version: int


Change = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: the node's path, as it became; beside SetData, what is kept beside the data."""

    path: str
    stat: Stat | None = None


class MetadataTree(Protocol):
    """A tree of znodes, seen through a session. All calls raise Unreachable, SessionExpired or Denied.

    What a session asks for is done in the order in which it asked.
    """

    @property
    def session_id(self) -> int:
        """Return the number of the session that is live now, or was last."""

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return what stands at `path`, None if nothing does; `changed` is told of the next write, creation or end."""

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the names below `path`, sorted; `changed` is told of the next that comes or goes. Raises Refused."""

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        """Make all changes or none of them. Raises Refused."""

    def listen(self, listener: Callable[[Session], None]) -> None:
        """Tell `listener` what becomes of the session from now on."""

    async def close(self) -> None:
        """End the session, and with it what it made as ephemeral."""
