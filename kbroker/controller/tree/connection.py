"""The connection of a session to ZooKeeper: credentials, access rights of znodes, connections and threads.

Owns the conversion of these values for kazoo, the opening of a connection (with or without TLS), and the report that a
thread has ended, which kazoo lacks. Never reads a configuration or a file, and never reads or writes on a connection.

kazoo's own TLS has no settings for versions and ciphers, and always trusts the system's certificates in addition to the
configured certificates.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE


class Others(Enum):
    """The rights of other users on a znode that this session created.

    Sessions with the same credentials have all rights.
    """

    CHANGE = tuple(OPEN_ACL_UNSAFE)
    READ = (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE)
    NOTHING = tuple(CREATOR_ALL_ACL)


def _everything(_path: str) -> Others:
    return Others.CHANGE


@dataclass(frozen=True, slots=True)
class Security:
    """A session's credentials and access rules; by default there are none."""

    tls: ssl.SSLContext | None = None
    """The TLS context of connections to ZooKeeper; None for clear text."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """Name and password for SASL with DIGEST-MD5."""
    digest: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper's own scheme `digest`."""
    others: Callable[[str], Others] = _everything
    """Returns the rights of other users on a new node at a path."""

    def acl(self, path: str) -> list[Any]:
        """Return a new node's access control list."""
        return list(self.others(path).value)

    def client_options(self) -> dict[str, Any]:
        """Return the options for KazooClient, except TLS, which belongs to the client's handler."""
        options: dict[str, Any] = {"use_ssl": self.tls is not None}
        if self.user is not None:
            name, password = self.user
            options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": name, "password": password}
        if self.digest is not None:
            options["auth_data"] = [("digest", self.digest)]
        return options


class Threads(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """The handler of one client. `trouble` is the error of the last connection over TLS, "" if it succeeded."""

    def __init__(self, tls: ssl.SSLContext | None, ended: Callable[[], None]) -> None:
        super().__init__()
        self._tls = tls
        self._ended = ended
        self.trouble = ""

    def start(self) -> None:
        """Start the threads for watches and responses, both or none: kazoo would leave the first thread running."""
        try:
            super().start()
        except BaseException:
            self._running = True  # without this, `stop` would do nothing
            self.stop()
            raise

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        """Run a function in a thread, and report the thread's end."""

        def run() -> None:
            try:
                func(*args, **kwargs)
            finally:
                self._ended()

        thread: threading.Thread = super().spawn(run)
        return thread

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_options: Any
    ) -> socket.socket:
        """Open a connection; `hostname` is the expected name in the certificate. Raises OSError."""
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return connection
            secured = self._tls.wrap_socket(connection, server_hostname=hostname)
        except OSError as error:
            connection.close()
            self.trouble = _trouble(error)
            raise
        self.trouble = ""
        return secured

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like select, but return immediately if decrypted data is waiting."""
        decrypted = [each for each in rlist if isinstance(each, ssl.SSLSocket) and each.pending()]
        found: tuple[list[Any], ...] = super().select(rlist, wlist, xlist, 0 if decrypted else timeout)
        ready, writable, wrong = found
        return [*ready, *(each for each in decrypted if each not in ready)], writable, wrong


def _trouble(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return ""
