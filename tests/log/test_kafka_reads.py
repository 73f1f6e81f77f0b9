"""Kafka's own tool reads every file that the log writes, without complaint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat_tests.harness.jvm import dump_log_segments
from kbroker.log.append_info import COORDINATOR
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.records import build_batch, build_marker
from tests.log.builders import NOW, batch, committed, open_log

pytestmark = pytest.mark.java

BATCHES = 120
TROUBLE = re.compile(r"mismatch|exception|error|corrupt|invalid|isvalid: false|not found", re.IGNORECASE)


def write_everything(directory: Path, *, clean: bool) -> PartitionLog:
    log = open_log(directory, config=LogConfig(segment_bytes=8000, index_interval_bytes=500))
    for index in range(BATCHES):
        records = build_batch(
            [
                (NOW + index * 10 + i, b"key" if i else None, b"value" * 20, [("h", b"v"), ("n", None)])
                for i in range(4)
            ],
            codec=index % 5,
        )
        log.append_as_leader(records, index // 50, NOW)
        produced = batch(2, producer_id=5, producer_epoch=1, base_sequence=index * 2, transactional=True)
        log.append_as_leader(produced, index // 50, NOW)
        if index % 10 == 9:
            marker = build_marker(
                producer_id=5, producer_epoch=1, commit=index % 20 == 9, coordinator_epoch=3, timestamp=NOW
            )
            log.append_as_leader(marker, index // 50, NOW, origin=COORDINATOR)
    committed(log)
    if clean:
        log.close()
        return log
    del log
    recovered = open_log(directory, clean=False, config=LogConfig(segment_bytes=8000, index_interval_bytes=500))
    recovered.close()
    return recovered


@pytest.mark.parametrize("clean", [True, False], ids=["written", "recovered"])
def test_dump_log_segments_reads_every_file(tmp_path: Path, kafka_libs: Path, clean: bool) -> None:
    directory = tmp_path / "topic-0"
    log = write_everything(directory, clean=clean)
    files = {
        suffix: list(directory.glob(f"*{suffix}"))
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    }
    assert all(len(found) > 3 for found in files.values()), files
    logs = dump_log_segments(kafka_libs, files[".log"], "--deep-iteration", "--print-data-log")
    assert not TROUBLE.search(re.sub(r"isvalid: true", "", logs))
    assert logs.count("| offset: ") == log.log_end_offset
    assert logs.count("isvalid: true") == BATCHES * 2 + BATCHES // 10
    assert logs.count("endTxnMarker: ABORT") == BATCHES // 20
    for suffix in (".index", ".timeindex"):
        text = dump_log_segments(kafka_libs, files[suffix], "--deep-iteration")
        assert not TROUBLE.search(text), text
        assert len(re.findall(r"^(offset|timestamp): \d+", text, re.MULTILINE)) > 20
    sane = dump_log_segments(kafka_libs, files[".index"] + files[".timeindex"], "--index-sanity-check")
    assert sane.count("passed sanity check") == len(files[".index"]) + len(files[".timeindex"])
    aborted = dump_log_segments(kafka_libs, files[".txnindex"])
    assert aborted.count("producerId: 5") == BATCHES // 20
    snapshots = dump_log_segments(kafka_libs, files[".snapshot"])
    assert not TROUBLE.search(snapshots), snapshots
    assert f"lastSequence: {BATCHES * 2 - 1}" in snapshots
