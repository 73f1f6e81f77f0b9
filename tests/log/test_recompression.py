"""Recompression gives the same bytes as rebuilding the batch from its records; and its limits."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log import record_walk
from kbroker.log.append_info import CLIENT, AppendError
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_validation import open_batch
from kbroker.long_work import whole
from kbroker.protocol.compression import CODEC_NAMES, GZIP, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import (
    HEADER_SIZE,
    Record,
    build_batch,
    parse_header,
    put_number,
    read_number,
    read_records,
)
from tests.log.bombs import minimal, numbered, sealed
from tests.log.bombs import snappy_blocks as empty_blocks
from tests.log.builders import NOW
from tests.tries import tries
from tests.turns import turns

headers = st.lists(st.tuples(st.sampled_from(["", "h"]), st.none() | st.binary(max_size=70)), max_size=2)
rows = st.lists(
    st.tuples(
        st.integers(-1000, 1000).map(lambda ms: NOW + ms), st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300) | st.sampled_from([8192, 70_000]).map(bytes), headers,
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def opened(batch: bytes, target: str, **settings: int) -> bytes:
    rules = BatchRules("t-0", LogConfig(compression_type=target, **settings))
    return bytes(whole(open_batch(memoryview(batch), parse_header(batch), rules, NOW, CLIENT)).batch)


def built_anew(batch: bytes, codec: int) -> bytes:
    header = parse_header(batch)
    return build_batch(
        list(read_records(batch, max_bytes=1 << 26)), codec=codec, producer_id=header.producer_id,
        producer_epoch=header.producer_epoch, base_sequence=header.base_sequence, transactional=header.is_transactional,
    )  # fmt: skip


@settings(max_examples=tries(200))
@given(rows, st.sampled_from(range(5)), st.sampled_from(range(5)), st.booleans(), st.sampled_from([0, 0, 5, -7]))
def test_ordinary_batches(
    new: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    source: int,
    target: int,
    piecemeal: bool,
    base: int,
) -> None:
    """Also batches whose timestamps are not relative to the first record's."""
    batch = build_batch(new, codec=source, producer_id=4, producer_epoch=1, base_sequence=9, transactional=True)
    if base:
        shifted = build_batch([(new[0][0] + base, None, None, ()), *new])
        size, start = read_number(shifted, HEADER_SIZE, 5)
        body = renumbered(shifted[start + size :], len(new))
        batch = sealed(body, len(new), source, base_timestamp=new[0][0] + base)
    name = CODEC_NAMES[target] if target else "uncompressed"
    kept, record_walk._KEPT = record_walk._KEPT, 0 if piecemeal else record_walk._KEPT
    try:
        found = opened(batch, name)
    finally:
        record_walk._KEPT = kept
    if source == target:
        assert records_of(found) == records_of(batch)
    elif base and target == ZSTD:  # the size after renumbering is not known before, and the frame does not contain it
        assert records_of(found) == records_of(built_anew(batch, target))
    else:
        assert found == built_anew(batch, target)


def records_of(batch: bytes) -> list[Record]:
    return list(read_records(batch, max_bytes=1 << 26))


def test_records_out_of_order_are_renumbered() -> None:
    records = [(NOW + index, b"k%d" % index, b"v" * (index * 37 % 500), [("h", b"x")]) for index in range(2000)]
    batch = bytearray(build_batch(records))
    body = batch[HEADER_SIZE:]
    wrong = sealed(renumbered(bytes(body), 2000, first=17), 2000, 0, base_timestamp=NOW, max_timestamp=NOW + 1999)
    assert [record.offset for record in read_records(wrong, max_bytes=1 << 24)][:3] == [17, 18, 19]
    assert opened(wrong, "producer") == bytes(build_batch(records))


def test_compressed_records_out_of_order_are_renumbered_only_for_another_codec() -> None:
    body = build_batch([(NOW, None, b"v", ())] * 3)[HEADER_SIZE:]
    wrong = sealed(renumbered(bytes(body), 3, first=17), 3, GZIP, base_timestamp=NOW)
    assert [record.offset for record in records_of(opened(wrong, "lz4"))] == [0, 1, 2]
    with pytest.raises(AppendError) as refused:
        opened(wrong, "gzip")
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_timestamp_below_minus_one_is_refused_only_for_another_codec() -> None:
    batch = bytes(build_batch([(NOW, None, b"v", ()), (-5, None, b"v", ())], codec=GZIP))
    assert [record.timestamp for record in records_of(opened(batch, "gzip"))] == [NOW, -5]
    with pytest.raises(AppendError) as refused:
        opened(batch, "lz4")
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def renumbered(body: bytes, count: int, first: int = 0) -> bytes:
    """Return records with other offset deltas."""
    out = bytearray()
    position = 0
    for delta in range(first, first + count):
        size, start = read_number(body, position, 5)
        _, place = read_number(body, start + 1, 10)
        _, rest = read_number(body, place, 5)
        new = bytearray(body[start:place])
        put_number(new, delta)
        new += body[rest : start + size]
        put_number(out, len(new))
        out += new
        position = start + size
    return bytes(out)


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_large_batches(target: str) -> None:
    rng = random.Random(7)
    new = [(NOW + index, b"%d" % index, rng.randbytes(rng.randrange(300)), ()) for index in range(3000)]
    batch = build_batch(new, codec=ZSTD if target != "zstd" else 1)
    codec = 0 if target == "uncompressed" else CODEC_NAMES.index(target)
    assert opened(batch, target, max_message_bytes=10 << 20) == built_anew(batch, codec)
    with pytest.raises(AppendError) as caught:
        opened(batch, target, max_message_bytes=100_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_what_becomes_too_large_takes_no_memory() -> None:
    bomb = numbered(100_000, base_timestamp=NOW)
    steps = 0
    rules = BatchRules("t-0", LogConfig(compression_type="uncompressed", max_message_bytes=200_000))
    tracemalloc.start()
    work = open_batch(memoryview(bomb), parse_header(bomb), rules, NOW, CLIENT)
    with pytest.raises(AppendError) as caught:  # noqa: PT012 - its steps are counted
        while True:
            work.send(None)
            steps += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert steps > 10
    assert peak < 8 << 20


def test_bounds_on_records_and_on_what_is_told_of_them() -> None:
    ahead = NOW + (2 << 40)
    rules = BatchRules("t-0", LogConfig())
    with pytest.raises(AppendError) as caught:
        opened_by(minimal(20_000, base_timestamp=ahead), rules)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in caught.value.record_errors] == list(range(1000))
    compact = BatchRules("t-0", LogConfig(cleanup_policy=("compact",)))
    with pytest.raises(AppendError) as caught:
        opened_by(numbered(20_000, key=None, base_timestamp=NOW), compact)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert len(caught.value.record_errors) == 1000
    assert caught.value.message is not None
    assert "due to 20000 record errors in total" in caught.value.message
    with pytest.raises(AppendError) as caught:
        opened_by(minimal(rules.max_records + 1, base_timestamp=ahead), rules)
    assert (caught.value.code, caught.value.record_errors) == (ErrorCode.INVALID_RECORD, [])


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_blocks_that_hold_nothing_are_steps_too(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    inner, calls = snappy.uncompress, 0

    def uncompress(block: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return inner(block)

    monkeypatch.setattr(snappy, "uncompress", uncompress)
    bomb = empty_blocks(5000)
    rules = BatchRules("t-0", LogConfig(cleanup_policy=(policy,)))
    dearest = before = 0
    with contextlib.suppress(AppendError):
        for _ in turns(open_batch(memoryview(bomb), parse_header(bomb), rules, NOW, CLIENT)):
            dearest, before = max(dearest, calls - before), calls
    assert calls > 5000
    assert dearest <= 16


def opened_by(batch: bytes, rules: BatchRules) -> None:
    whole(open_batch(memoryview(batch), parse_header(batch), rules, NOW, CLIENT))
