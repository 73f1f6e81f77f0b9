"""The snapshot of the metadata, written in pieces.

Owns the snapshot's bytes, and ensures that the file is either complete or missing. Never knows the journal.

    crc32c (8 hex digits), space, JSON [["load", {path: [version, value], ...}]], newline
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import islice

from kbroker.controller.store_interface import Node
from kbroker.protocol.checksum import crc32c

Steps = Generator["Callable[[], object] | None", None, None]
"""Work in pieces, as a generator.

The generator yields None to let other work run, or yields a function that waits for the disk. The caller runs this
function on a thread, and throws the function's exception into the generator.
"""
_AT_ONCE = 64
"""The number of nodes written between two turns of the event loop.

This takes about 0.1 ms, or longer if the nodes are large topics.
"""
_BEGIN, _END = b'[["load",{', b"}]]"
_HEAD = b"%08x "


def write_snapshot(path: str, nodes: Mapping[str, Node]) -> Steps:
    """Replace the snapshot at `path` with a snapshot of `nodes`, which must not change meanwhile. Raises OSError."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        crc, end = 0, len(_HEAD % 0)
        for piece in snapshot_pieces(nodes):
            crc, end = crc32c(piece, crc), end + _put(fd, piece, end)
            yield None
        _put(fd, b"\n", end)
        _put(fd, _HEAD % crc, 0)
        yield partial(os.fsync, fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    yield partial(sync_directory, os.path.dirname(path))


def snapshot_pieces(nodes: Mapping[str, Node]) -> Generator[bytes, None, None]:
    """Yield the JSON of a snapshot, without the CRC32C before it and the newline behind it."""
    yield _BEGIN
    left = iter(nodes.items())
    comma = b""
    while some := {path: [node.version, dict(node.value)] for path, node in islice(left, _AT_ONCE)}:
        yield comma + json.dumps(some, separators=(",", ":"), ensure_ascii=True)[1:-1].encode()
        comma = b","
    yield _END


def snapshot_line(body: bytes) -> bytes:
    """Return the content of a snapshot's file with a JSON of `snapshot_pieces`."""
    return _HEAD % crc32c(body) + body + b"\n"


def _put(fd: int, data: bytes, position: int) -> int:
    if os.pwrite(fd, data, position) != len(data):
        raise OSError("the metadata snapshot was written in part")
    return len(data)


def sync_directory(directory: str) -> None:
    """Sync a directory's entries to disk. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
