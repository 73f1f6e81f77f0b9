"""S11: clients fill a real, small disk while they produce. Nothing is lost, no partial batch stays, no SIGBUS.

The disk is a tmpfs of a few megabytes, which needs the right to mount it; without that right the test is skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness.brokers import BrokerFailed, KBroker
from compat_tests.wire.client import WireClient
from tests.crash.writing import PARTITIONS, Writer, create
from tests.figures import figure

DISK_BYTES = 24 << 20
FILLER_BYTES = 8 << 20
SETTINGS = {"log.segment.bytes": str(1 << 20), "log.index.interval.bytes": "0"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def write_until_refused(writer: Writer, client: WireClient) -> None:
    before = writer.refused
    while writer.refused < before + 20:
        writer.write(client, PARTITIONS, 8_000)
    writer.write(client, 200, 100)  # smaller ones may still find room, and must not follow a partial one


def start_or_say_why(broker: KBroker, writer: Writer) -> None:
    """Start on a full disk: either the start's writes find room and all is served, or one line gives the reason."""
    refusal = ""
    try:
        broker.start()
    except BrokerFailed as failure:
        refusal = str(failure)
    if refusal:
        assert "No space left" in refusal
        assert "Traceback" not in refusal
        return
    with WireClient(broker.bootstrap) as client:
        writer.check(client)
    broker.stop()


def test_a_disk_that_fills_up_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(os.urandom(FILLER_BYTES))
    writer = Writer()
    broker = KBroker(tmp_path / "broker", SETTINGS)
    broker.data_dir = small_disk / "data"
    with broker:
        with WireClient(broker.bootstrap) as client:
            create(client)
            write_until_refused(writer, client)
            full = writer.check(client)
            assert full > 0
        assert broker.stop() == 0, broker.log_tail()
        start_or_say_why(broker, writer)
        filler.unlink()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            assert writer.check(client) == full
            filler.write_bytes(os.urandom(FILLER_BYTES))
            write_until_refused(writer, client)
            before, refused = writer.check(client), writer.refused
            filler.unlink()
            writer.write(client, 300, 800)
            assert writer.refused == refused, "there is room, and nobody had to restart anything"
            assert writer.check(client) == before + 3000
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            after = writer.check(client)
    figure("a full disk", f"{writer.refused} batches refused, {after} records acknowledged, {after} readable later")
