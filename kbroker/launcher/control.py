"""The connection from commands such as `kbroker cluster kill` to the launcher: a socket in the cluster's directory.

Owns the socket and its protocol: a line of JSON for the request, a line of JSON for the answer. The socket is a Unix
socket that only its owner may use, so no port is opened. Never interprets a request.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from kbroker.launcher.child import LauncherError

_NAME: Final = "control.sock"
_LOCK: Final = ".lock"
_MAX_LINE: Final = 64 * 1024
_LINE_TIMEOUT_S: Final = 2.0

Request = dict[str, Any]


class NobodyThere(LauncherError):  # noqa: N818 - a state
    """Raised if no launcher runs in a directory."""


class ControlSocket:
    """The launcher's end of the connection. Raises LauncherError if another launcher runs in the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = _locked(directory)
        try:
            self._socket = socket.socket(socket.AF_UNIX)
            with _reachable(directory) as path, contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # remove the socket file of a killed launcher
            with _reachable(directory) as path:
                self._socket.bind(path)
                os.chmod(path, 0o600)
            self._socket.listen()
        except BaseException:
            os.close(self._lock)
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when a request arrives."""
        return self._socket.fileno()

    def answer(self, handle: Callable[[Request], Request]) -> None:
        """Accept one request and answer it. A client that sends nothing, or disconnects, is ignored."""
        connection, _ = self._socket.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_LINE_TIMEOUT_S)
            request = json.loads(_line(connection))
            if isinstance(request, dict):
                connection.sendall(json.dumps(handle(request)).encode() + b"\n")

    def close(self) -> None:
        """Close the socket, and release the lock on the directory."""
        self._socket.close()
        with contextlib.suppress(OSError), _reachable(self._directory) as path:
            os.unlink(path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_launcher(directory: Path, request: Request, timeout_s: float) -> Request:
    """Send a request to the launcher of a directory. Raises NobodyThere, or LauncherError if the launcher refuses."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with _reachable(directory) as path:
                connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer: Request = json.loads(_line(connection))
        except TimeoutError:
            raise LauncherError(f"no answer within {timeout_s:.0f} s") from None
        except (OSError, ValueError):
            raise NobodyThere(f"no cluster runs in {directory}") from None
    if "error" in answer:
        raise LauncherError(str(answer["error"]))
    return answer


def _line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece or len(received) > _MAX_LINE:
            raise ConnectionError("the answer is not a complete line")
        received += piece
    return bytes(received)


@contextmanager
def _reachable(directory: Path) -> Iterator[str]:
    """Yield a short path of the socket.

    The kernel allows only about a hundred bytes; the directory's path may be longer.
    """
    if not os.path.isdir("/proc/self/fd"):
        yield str(directory / _NAME)
        return
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{_NAME}"
    finally:
        os.close(opened)


def _locked(directory: Path) -> int:
    """Return the descriptor of a lock that lasts as long as this process lives."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LauncherError(f"a cluster runs in {directory} already; `kbroker cluster stop` ends it") from None
    return descriptor


def launcher_runs(directory: Path) -> bool:
    """Whether a launcher runs in a directory, even if the launcher is stopping."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_LINE_TIMEOUT_S)
        try:
            with _reachable(directory) as path:
                connection.connect(path)
        except OSError:
            return False
        return True
