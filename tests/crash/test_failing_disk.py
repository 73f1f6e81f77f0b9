"""S11, bug 5: a disk repeatedly returns errors while clients produce, and what can be read later.

One of two log directories begins to fail at a random append: a write that fails, a partial write that cannot be cut
back, or a write that reaches the disk and fails all the same. From then on its partitions are offline, and those of the
other directory are served; at the next start the disk works again.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.log.segment.segment import Segment
from tests.crash.writing import Writer, create
from tests.figures import figure

SEED = 20261121
FAILURES = 15


class FailingDisk:
    """Makes appends below one directory fail, from a given append on."""

    def __init__(self, directory: str, rng: random.Random) -> None:
        self.directory, self.rng = directory, rng
        self.after: int | None = None
        self.failed = 0
        self._append = Segment.append

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = self

        def append(segment: Segment, buffers: tuple[bytes, ...], size: int, last_offset: int, timestamp: int) -> None:
            if not segment.path().startswith(disk.directory) or disk.after is None:
                return disk._append(segment, buffers, size, last_offset, timestamp)
            if disk.after > 0:
                disk.after -= 1
                return disk._append(segment, buffers, size, last_offset, timestamp)
            raise disk.failure(segment.handle.fd, b"".join(buffers), segment.size)

        monkeypatch.setattr(Segment, "append", append)

    def failure(self, fd: int, content: bytes, position: int) -> OSError:
        self.failed += 1
        error = OSError(errno.EIO, "Input/output error")
        written = self.rng.choice((0, len(content) // 2, len(content)))
        if written:
            os.pwrite(fd, content[:written], position)
            error.unrepaired = True  # type: ignore[attr-defined]
        return error


def test_a_disk_that_returns_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    dirs = str(tmp_path / "a"), str(tmp_path / "b")
    disk, writer = FailingDisk(dirs[1], rng), Writer()
    disk.install(monkeypatch)
    for failure in range(FAILURES):
        disk.after = None
        with Broker({"log.dirs": ",".join(dirs)}) as broker, WireClient(broker.bootstrap_servers) as client:
            if not failure:
                create(client)
            writer.check_with_refused(client)
            disk.after = rng.randrange(40)
            refused = writer.refused
            writer.write(client, 200, rng.choice((10, 3000)))
            assert writer.refused > refused
    disk.after = None
    with Broker({"log.dirs": ",".join(dirs)}) as broker, WireClient(broker.bootstrap_servers) as client:
        readable = writer.check_with_refused(client)
    assert disk.failed == FAILURES, "a directory is offline after its first error"
    figures = (
        f"{disk.failed} times, {writer.refused} batches refused, {readable} records acknowledged and readable later"
    )
    figure(f"a disk that returns errors, seed {SEED}", figures)
