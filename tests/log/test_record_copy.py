"""Copies of single records: equal to those of a complete reader, bounded in memory, without unreadable records."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from kbroker.log import record_copy
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.record_copy import Copies, copied
from kbroker.long_work import step, whole
from kbroker.protocol.compression import GZIP, NONE, ZSTD
from kbroker.protocol.records import build_batch
from tests.log.builders import NOW, committed, open_log, read_all
from tests.tries import tries

SEED = 20261128
MB = 1 << 20


def appended(log: PartitionLog, *batches: bytes) -> PartitionLog:
    for each in batches:
        log.append_as_leader(bytearray(each), 0, NOW, patient=True)
    return committed(log)


def test_beside_a_reader_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    monkeypatch.setattr(record_copy, "_PIECE", 97)
    monkeypatch.setattr(record_copy, "_READ", 3000)
    log = open_log(tmp_path / "topic-0")
    for _ in range(40):
        records = [
            (NOW + rng.randint(-9, 9), rng.choice([None, b"", b"k" * rng.randint(1, 300)]),
             rng.choice([None, b"", rng.randbytes(rng.randint(1, 900))]), (("h", b"x" * rng.randint(0, 90)),))
            for _ in range(rng.randint(1, 30))
        ]  # fmt: skip
        appended(log, build_batch(records, codec=rng.randint(0, 4)))
    all_of = {record.offset: (record.key, record.value) for record in read_all(log)}
    for _ in range(tries(60)):
        wanted = sorted(rng.sample(range(log.high_watermark), rng.randint(1, 40)))
        assert whole(copied(log, wanted, MB, MB)) == Copies({at: all_of[at] for at in wanted}, wanted[-1] + 1)
        most = rng.randint(1, 2000)
        found, end = whole(copied(log, wanted, most, most))
        assert all(all_of[at] == copy for at, copy in found.items())
        assert sum(len(key or b"") + len(value or b"") for key, value in found.values()) <= most
        assert end in (wanted[-1] + 1, *wanted[1:])
        assert found or end > wanted[0], "it goes on"


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_a_large_batch_takes_little_memory(tmp_path: Path, codec: int) -> None:
    """The batch contains a record beside one of 40 MB; the copy skips the larger one, whatever the codec is."""
    records = [(NOW, b"a", b"1", ()), (NOW, None, bytes(40 * MB), ()), (NOW, b"b", b"2", ())]
    config = LogConfig(max_message_bytes=100 * MB)
    log = appended(open_log(tmp_path / "topic-0", config=config), build_batch(records, codec=codec))
    copies: list[Copies] = []

    async def work() -> None:
        copies.append(await copied(log, [0, 1, 2], MB, MB))

    running, turns = work(), 0
    tracemalloc.start()
    try:
        while not step(running):
            turns += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copies == [Copies({0: (b"a", b"1"), 2: (b"b", b"2")}, 3)]
    assert peak < 4 * MB
    assert turns > 40, "others have their turn after each megabyte, at least"


def test_one_record_may_be_larger_than_several(tmp_path: Path) -> None:
    records = [(NOW, None, bytes(size), ()) for size in (300, 5000, 200, 9000)]
    log = appended(open_log(tmp_path / "topic-0"), build_batch(records, codec=GZIP))
    assert list(whole(copied(log, [0, 1, 2, 3], 6000, 1000)).found) == [0]
    assert whole(copied(log, [0, 1, 2, 3], 6000, 1000)).end == 1
    assert list(whole(copied(log, [1, 2, 3], 6000, 1000)).found) == [1]
    assert whole(copied(log, [2, 3], 6000, 1000)).end == 4, "the last one is too large"


def test_what_is_not_in_the_log(tmp_path: Path) -> None:
    log = appended(open_log(tmp_path / "topic-0"), *[build_batch([(NOW, b"%d" % at, None, ())]) for at in range(6)])
    log.advance_log_start(2)
    found, end = whole(copied(log, [0, 1, 2, 5, 6, 9], MB, MB))
    assert found == {2: (b"2", None), 5: (b"5", None)}
    assert end == 10


def test_a_damaged_batch_ends_the_search(tmp_path: Path) -> None:
    log = appended(open_log(tmp_path / "topic-0"), build_batch([(NOW, b"k", b"v" * 99, ())] * 2))
    with open(log.segments.items[-1].path(), "r+b") as file:
        file.seek(61)
        file.write(b"\xff" * 12)
    assert whole(copied(log, [0, 1], MB, MB)) == Copies({}, 2)
