"""The compiled shortcut for well-formed records does not change the verdict on a produced batch."""

from __future__ import annotations

import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from kbroker.log import record_validation, record_walk
from kbroker.log.append_info import CLIENT, COORDINATOR, AppendError, AppendOrigin
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_validation import is_in_order, open_batch
from kbroker.long_work import whole
from kbroker.protocol.compression import CODEC_NAMES
from kbroker.protocol.records import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, build_batch, parse_header
from tests.log.bombs import BOMBS, Bomb
from tests.log.builders import NOW
from tests.tries import tries

CONFIGS = [
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(cleanup_policy=("compact", "delete"), compression_type="gzip"),
    LogConfig(cleanup_policy=("compact",), message_timestamp_type="LogAppendTime"),
    LogConfig(cleanup_policy=("compact",), message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=1000),
    LogConfig(),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(max_decompressed_message_bytes=120),
]

keys = st.integers(0, 99).map(lambda n: b"%03d" % n) | st.binary(max_size=200) | st.just(b"k")
values = st.none() | st.binary(max_size=3) | st.sampled_from([63, 64, 100, 8191, 8192]).map(lambda n: b"v" * n)
headers = st.lists(st.tuples(st.sampled_from(["", "h", "long" * 20]), st.none() | st.binary(max_size=70)), max_size=2)
times = st.sampled_from([0, 0, 0, 1, 63, 64, 99, 1000, 1001, -100, -101, 2**40, -NOW - 1, -NOW - 2, -(2**62)])
number = st.sampled_from([1, 1, 1, 2, 7, 8, 9, 63, 64, 65, 150, 300])
groups = st.lists(st.tuples(times, keys, values, headers, number), min_size=1, max_size=6)
mutations = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)
# Positions in the header: offset delta, base and largest timestamp, count; and the timestamp type in the attributes.
fields = st.lists(
    st.tuples(st.sampled_from([5, 6, 7, 8, 12]), st.sampled_from([-1, 1, 8, 2**31 - 1])), max_size=1
)  # fmt: skip


def outcome(records: bytes, rules: BatchRules, origin: AppendOrigin) -> tuple[object, ...]:
    """Return the result for a batch, including the complete text of an error."""
    header = parse_header(records)
    if origin is CLIENT and is_in_order(memoryview(records), header, rules, NOW):
        return ("stored", records)
    try:
        opened = whole(open_batch(memoryview(records), header, rules, NOW, origin))
        return ("stored", bytes(opened.batch))
    except AppendError as error:
        return ("refused", error.code, error.message, error.detail, error.record_errors)


def compare(records: bytes, config: LogConfig, origin: AppendOrigin = CLIENT) -> tuple[object, ...]:
    rules = BatchRules("topic-0", config)
    found = outcome(records, rules, origin)
    with patch.object(record_walk, "scan", None):
        assert found == outcome(records, rules, origin)
    return found


def with_body(header: BatchHeader, body: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Return a batch with other records and some changed header fields; nothing here checks the CRC."""
    numbers = [*header]
    numbers[1] = HEADER_SIZE - LOG_OVERHEAD + len(body)
    for place, change in changes:
        numbers[place] += change
    numbers[12] = numbers[12] or 1  # a batch without records is refused before its records are checked
    try:
        return HEADER.pack(*numbers) + body
    except Exception:  # noqa: BLE001 - a number that does not fit in its field
        return HEADER.pack(*header[:1], numbers[1], *header[2:]) + body


@settings(max_examples=tries(400))
@given(
    groups, st.booleans(), mutations, fields, st.sampled_from([0, 0, 1, 4]), st.sampled_from(CONFIGS),
    st.sampled_from([CLIENT, COORDINATOR]),
)  # fmt: skip
@example([(0, b"k", b"v", [], 150)], False, [], [], 0, CONFIGS[0], CLIENT)
@example([(0, b"k", b"v", [], 150), (1, b"k", None, [], 1)], True, [], [], 0, CONFIGS[0], CLIENT)
@example([(-101, b"k", b"v", [], 9), (0, b"k", b"", [], 1)], False, [], [], 0, CONFIGS[3], CLIENT)
@example([(0, b"k", b"v", [], 9), (1001, b"k", b"", [], 1)], False, [], [], 0, CONFIGS[3], CLIENT)
def test_the_outcome_is_that_of_reading_record_by_record(
    groups: list[tuple[int, bytes, bytes | None, list[tuple[str, bytes | None]], int]],
    keyless: bool,
    mutations: list[tuple[int, int]],
    fields: list[tuple[int, int]],
    codec: int,
    config: LogConfig,
    origin: AppendOrigin,
) -> None:
    new = [(NOW + time, key, value, tuple(h)) for time, key, value, h, times_over in groups for _ in range(times_over)]
    if keyless:
        new[len(new) // 2] = (NOW, None, b"v", ())
    if mutations:
        codec = 0
    batch = build_batch(new, codec=codec)
    body = bytearray(batch[HEADER_SIZE:])
    for place, byte in mutations:
        body[place % len(body)] = byte
    found = compare(with_body(parse_header(batch), bytes(body), fields), config, origin)
    event(f"{found[0]} {found[1] if found[0] == 'refused' else ''}")


@settings(max_examples=tries(400))
@given(
    st.sampled_from([1, 2, 8, 70]),
    st.booleans(),
    st.sampled_from([(), (("h", b""),)]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2),
    st.none() | st.integers(0, 3),
)
def test_no_byte_of_a_record_makes_a_difference(
    count: int,
    alike: bool,
    record_headers: tuple[tuple[str, bytes], ...],
    mutations: list[tuple[int, int]],
    last: int | None,
) -> None:
    """The records are small, so that a changed byte mostly hits a field that describes their layout."""
    batch = build_batch([(NOW, b"k", b"v" * (alike or index % 3), record_headers) for index in range(count)])
    body = bytearray(batch[HEADER_SIZE:])
    for place, byte in mutations:
        body[place % len(body)] = byte
    if last is not None:
        body[-1] = last
    compare(with_body(parse_header(batch), bytes(body), []), CONFIGS[0])


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the time budget: no batch has been opened just now, so that a busy machine does not exhaust it."""
    monkeypatch.setattr(record_validation, "_AT_ONCE_SECONDS", 60.0)
    monkeypatch.setattr(record_validation, "_allowance", record_validation._Allowance())


@pytest.mark.usefixtures("rested")
@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
@pytest.mark.parametrize("rows", [1, 500])
def test_a_small_batch_in_order_takes_one_call(codec: int, rows: int) -> None:
    if record_walk.scan is None:
        pytest.skip("kbroker was built without a C compiler")
    records = build_batch([(NOW + row, b"k", b"v" * 100, []) for row in range(rows)], codec=codec)
    rules = BatchRules("topic-0", LogConfig(cleanup_policy=("compact",)))
    assert is_in_order(memoryview(records), parse_header(records), rules, NOW)


@pytest.mark.long
@pytest.mark.usefixtures("rested")
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name)
def test_what_grows_is_not_unpacked_at_once(bomb: Bomb) -> None:
    records = memoryview(bomb.batch)
    tracemalloc.start()
    try:
        is_in_order(records, parse_header(records), BatchRules("topic-0", LogConfig()), NOW)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_record_of_negative_size_is_refused() -> None:
    """Earlier, among records of different sizes, such a record was read with the size of its size byte."""
    batch = bytearray(build_batch([(NOW, b"k" * (index % 3), b"v" * 3, ()) for index in range(9)]))
    place = HEADER_SIZE + sum(batch[HEADER_SIZE] // 2 + 1 + key_size for key_size in range(3))
    size = batch[place] // 2
    assert size % 2 == 1
    batch[place] = size  # which encodes the number -5
    assert compare(bytes(batch), CONFIGS[0])[0] == "refused"
