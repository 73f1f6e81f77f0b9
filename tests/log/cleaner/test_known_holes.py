"""That a log was compacted once stays known: recovery takes a hole for a loss where nothing ever was."""

from __future__ import annotations

from pathlib import Path

from kbroker.log import checkpoints
from kbroker.log.log_config import LogConfig
from kbroker.log.log_manager import LogManager
from tests.log.builders import NOW, batch, committed, offsets_of, read_all

KEY = ("topic", 0)
CONFIG = LogConfig(segment_bytes=300)


def started(directory: Path) -> LogManager:
    manager = LogManager(str(directory), node_id=0, cluster_id="cluster")
    manager.open()
    manager.load(lambda _topic: CONFIG, NOW)
    return manager


def test_a_log_that_was_cut_off_below_what_was_clean_keeps_what_recovery_needs_to_know(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.get_or_create(*KEY, None, CONFIG)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    committed(log)
    bases = list(log.bases)
    manager.close(now_ms=NOW)
    first = tmp_path / "topic-0" / f"{bases[0]:020d}.log"
    size = len(batch())
    content = first.read_bytes()
    first.write_bytes(content[-size:])  # as compaction leaves it: all but the last record superseded
    cleaned = str(tmp_path / checkpoints.CLEANER_OFFSETS)
    checkpoints.write_offsets(cleaned, {KEY: 1000})  # the log was longer then

    for _ in range(2):  # two crashes: the first start must not forget for the second
        (tmp_path / checkpoints.CLEAN_SHUTDOWN).unlink(missing_ok=True)
        checkpoints.write_offsets(str(tmp_path / checkpoints.RECOVERY_POINTS), {KEY: 1})
        manager = started(tmp_path)
        assert offsets_of(read_all(manager.logs[KEY])) == list(range(bases[1] - 1, 20))
        manager.close(clean=False)
    assert KEY in checkpoints.read_offsets(cleaned)
