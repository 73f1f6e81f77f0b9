"""How a session on ZooKeeper shows who it is, and what it lets others do with what it makes.

Owns the values, and how kazoo is told them. Never reads a configuration or a file.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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
