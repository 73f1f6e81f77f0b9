"""How a session on ZooKeeper shows who it is, and what it lets others do with what it makes.

Owns the values, and how kazoo is told them. Never reads a configuration or a file.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kazoo.protocol.serialization import SASL, Auth
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE


class Others(Enum):
    """What others may do with a znode of this session's; whoever shows the same credentials may do everything."""

    CHANGE = tuple(OPEN_ACL_UNSAFE)
    READ = (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE)
    NOTHING = tuple(CREATOR_ALL_ACL)


def _everything(_path: str) -> Others:
    return Others.CHANGE


@dataclass(frozen=True, slots=True)
class Security:
    """What a session shows and asks for; by default nothing."""

    tls: ssl.SSLContext | None = None
    """With which ZooKeeper is reached; None: in clear text."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """Name and password for SASL with DIGEST-MD5."""
    digest: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper's own scheme `digest`."""
    others: Callable[[str], Others] = _everything
    """What others may do with the node that is made at a path."""

    def acl(self, path: str) -> list[Any]:
        """Return a new node's access control list."""
        return list(self.others(path).value)

    def client_options(self) -> dict[str, Any]:
        """Return what KazooClient is told of it, but for TLS, which is its handler's."""
        options: dict[str, Any] = {"use_ssl": self.tls is not None}
        if self.user is not None:
            name, password = self.user
            options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": name, "password": password}
        if self.digest is not None:
            options["auth_data"] = [("digest", self.digest)]
        return options


class Discreet(logging.Filter):
    """Keeps credentials and data out of the log, into which kazoo writes whatever comes and goes at the level DEBUG.

    Data, as passwords are in that of /config, and a session's own password, are told by their sizes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if any(isinstance(each, (Auth, SASL)) for each in arguments):
            return False
        record.args = tuple(map(_without_data, arguments)) if arguments else record.args
        return True


@dataclass(frozen=True, slots=True)
class _Bytes:
    size: int

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


def _without_data(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _Bytes(len(value))
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_without_data, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_without_data, value))
    return value
