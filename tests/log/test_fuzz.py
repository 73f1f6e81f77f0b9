"""Hostile batches and broken files cause only the expected errors, and take little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log.append_info import AppendError
from kbroker.log.log_config import LogConfig
from kbroker.protocol.compression import GZIP, LZ4, ZSTD, compress
from kbroker.protocol.records import CRC_START, HEADER_SIZE, build_batch, build_marker, compute_crc
from tests.log.builders import NOW, batch, committed, open_log, purge, read_all, read_served
from tests.tries import tries

CONFIGS = [
    LogConfig(),
    LogConfig(compression_type="gzip"),
    LogConfig(compression_type="uncompressed", message_timestamp_type="LogAppendTime"),
    LogConfig(cleanup_policy=("compact",)),
]


def seeds() -> list[bytes]:
    found = [batch(4, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0) for codec in range(5)]
    found += [batch(2, codec=codec, timestamp=-1) for codec in range(5)]
    found.append(build_marker(producer_id=1, producer_epoch=0, commit=False, coordinator_epoch=1, timestamp=NOW))
    return found


def mutated(rng: random.Random, seed: bytes) -> bytearray:
    records = bytearray(seed)
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(records))
        records[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    if rng.random() < 0.1:
        del records[rng.randrange(len(records)) :]
    elif rng.random() < 0.1:
        records += seed[: rng.randrange(len(seed))]
    if rng.random() < 0.8 and len(records) >= HEADER_SIZE:  # get past the CRC and the length checks
        records[:8] = bytes(8)
        records[16] = 2
        if rng.random() < 0.9:
            struct.pack_into(">i", records, 8, len(records) - 12)
        struct.pack_into(">I", records, 17, compute_crc(records))
    return records


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_mutated_batches_are_appended_or_refused(tmp_path: Path, config: LogConfig) -> None:
    rng = random.Random(11)
    log = open_log(tmp_path / "topic-0")
    base = seeds()
    tracemalloc.start()
    for turn in range(tries(4000)):
        records = mutated(rng, rng.choice(base))
        before = (log.log_end_offset, log.size)
        log.update_config(replace(config, record_validation=("full", "header")[turn % 2]))
        try:
            log.append_as_leader(records, 0, NOW)
        except AppendError:
            assert (log.log_end_offset, log.size) == before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    committed(log)
    end = log.log_end_offset
    del log
    assert open_log(tmp_path / "topic-0", clean=False, config=config).log_end_offset == end


@pytest.mark.long
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_is_refused_within_the_bound(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(compression_type="uncompressed", max_message_bytes=200_000))
    payload = compress(codec, bytes(200 << 20)) if codec != LZ4 else compress(codec, bytes(45 << 20))
    records = bytearray(build_batch([(NOW, None, b"", ())], codec=codec)[:HEADER_SIZE]) + payload
    struct.pack_into(">i", records, 8, len(records) - 12)
    struct.pack_into(">I", records, 17, compute_crc(records))
    limit = log._rules.max_decompressed
    tracemalloc.start()
    with pytest.raises(AppendError):
        log.append_as_leader(records, 0, NOW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * limit


def test_any_file_may_be_broken(tmp_path: Path) -> None:
    """S3-S6 at random: however the files are damaged, opening succeeds and reading returns what was written."""
    rng = random.Random(5)
    config = LogConfig(segment_bytes=700, index_interval_bytes=100)
    source = tmp_path / "topic-0"
    for turn in range(tries(150)):
        log = open_log(source, config=config)
        log.truncate_fully(0)
        for index in range(20):
            log.append_as_leader(batch(2, producer_id=1, producer_epoch=0, base_sequence=index * 2), 0, NOW)
        purge(log, NOW * 2)
        whole = read_all(log)
        if turn % 2:
            log.close()
        del log
        paths = sorted(path for path in source.iterdir() if path.is_file())
        for path in rng.sample(paths, rng.randint(1, 4)):
            content = bytearray(path.read_bytes())
            if rng.random() < 0.4 or not content:
                content = content[: rng.randrange(len(content) + 1)] + rng.randbytes(rng.randrange(80))
            else:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
        log = open_log(source, clean=False, config=config)
        served, complete = read_served(log)
        assert served == whole[: log.log_end_offset if complete else len(served)]
        log.append_as_leader(batch(), 9, NOW)
        log.close()


def test_the_crc_begins_where_it_should() -> None:
    assert CRC_START == 21
