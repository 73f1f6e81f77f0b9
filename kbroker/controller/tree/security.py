"""How a session on ZooKeeper authenticates, and the access rights of its znodes.

Owns the values, and their form for kazoo. Never reads a configuration or a file.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE


class Others(Enum):
    """The rights of other users on a znode that this session created; a session with its credentials has all rights."""

    CHANGE = tuple(OPEN_ACL_UNSAFE)
    READ = (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE)
    NOTHING = tuple(CREATOR_ALL_ACL)


def _everything(_path: str) -> Others:
    return Others.CHANGE


@dataclass(frozen=True, slots=True)
class Security:
    """A session's credentials and access rules; none by default."""

    tls: ssl.SSLContext | None = None
    """The TLS context of connections to ZooKeeper; None for clear text."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """Name and password for SASL with DIGEST-MD5."""
    digest: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper's own scheme `digest`."""
    others: Callable[[str], Others] = _everything
    """Returns the rights of others on a new node at a path."""

    def acl(self, path: str) -> list[Any]:
        """Return a new node's access control list."""
        return list(self.others(path).value)

    def client_options(self) -> dict[str, Any]:
        """Return the options for KazooClient, except TLS, which its handler takes."""
        options: dict[str, Any] = {"use_ssl": self.tls is not None}
        if self.user is not None:
            name, password = self.user
            options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": name, "password": password}
        if self.digest is not None:
            options["auth_data"] = [("digest", self.digest)]
        return options
