"""The index of headers: no match is missed, whatever lies in the records and on the disk."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.filters.filtering import compile_filter
from kbroker.log import header_indexing
from kbroker.log.files import HEADERS_SUFFIX
from kbroker.log.header_indexing import Stopped, ensure
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.header_index import Blocks, Column, DamagedIndexError, HeaderIndex, encode, hash_of
from kbroker.long_work import step
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.records import NewRecord, build_batch, enclose, iter_batches, put_number, read_records
from kbroker.views.header_indexes import HeaderIndexes
from tests.log.builders import NOW, open_log
from tests.tries import tries

CONFIG = LogConfig(segment_bytes=1 << 20, file_delete_delay_ms=0)
NAMES = ("region", "tenant", "aa", "d" * 50)
"""The last three may overlap with themselves, or with their length."""


def closed(tmp_path: Path, batches: list[bytes]) -> PartitionLog:
    """Return a log with one closed segment."""
    tmp_path.mkdir(exist_ok=True)
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    for each in batches:
        log.append_as_leader(bytearray(each), 0, NOW)
    log.roll(NOW)
    return log


def index_of(log: PartitionLog, names: tuple[str, ...] = NAMES) -> tuple[HeaderIndex, list[str]]:
    segment = log.segments[0]
    path = segment.path(HEADERS_SUFFIX)
    given_up = ensure(segment.path(), path, segment.base_offset, segment.size, names, lambda: False)
    return HeaderIndex(Path(path).read_bytes()), given_up


def check(log: PartitionLog, index: HeaderIndex, text: str) -> int:
    """Assert that no match lies outside the possible blocks; return how many blocks are possible."""
    wanted = compile_filter(text)
    bits = wanted.possible(index.lookup, index.every)
    data = Path(log.segments[0].path()).read_bytes()
    for position, header in iter_batches(data):
        if header.is_control:
            continue
        block = index.block_at(header.base_offset)
        assert index.position_of(block) <= position < index.position_of(block + 1)
        assert index.offset_of(block) <= header.base_offset
        for record in read_records(data[position : position + header.size], max_bytes=1 << 26):
            if wanted(record, 0):
                assert bits >> block & 1, (text, record)
    return bits.bit_count()


def some_records(rng: random.Random) -> list[NewRecord]:
    made: list[NewRecord] = []
    for _ in range(rng.choice((1, 3, 12))):
        headers = [
            (name, rng.choice((b"a", b"b", b"", None, b"EU", b"x" * 70, b"x" * 70 + b"y", name.encode() * 3, b"\x0c")))
            for name in rng.choices(NAMES, k=rng.randrange(4))
        ]
        value = rng.choice(
            (None, b"no", b'{"region": "EU", "tenant": "t"}', b"d" * rng.randrange(120), b"\x0ctenant\x02a" * 3)
        )
        made.append((NOW, rng.choice((None, b"tenantenant", b"aaa")), value, headers))
    return made


FILTERS = [
    *(f"header.{name} = '{value}'" for name in NAMES for value in ("a", "b", "EU", "x" * 70, "x" * 70 + "y", "none")),
    "header.region = ''", "header.region IN ('a', 'EU') AND header.tenant = 'b'", "NOT header.region = 'a'",
    "NOT (header.region <> 'a' OR header.aa <> 'b')", "header.region = 'a' OR value = 'no'", "'EU' = header.region",
    "header.region IS NULL", "header.region LIKE 'E%'", "header.region = header.tenant", "header.region > 'a'",
    "header.region IN ('a', 5)", "*", "header.other = 'a'",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20261130, 20261130 + tries(15)))
def test_no_match_lies_where_the_index_has_none(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(header_indexing, "BLOCK", rng.choice((1, 500, 5000)))
    monkeypatch.setattr(header_indexing, "LEAST", 1 << 20)
    if seed % 2:
        monkeypatch.setattr(header_indexing, "_PIECE", 300)
    log = closed(tmp_path, [build_batch(some_records(rng), codec=rng.choice((0, 1, 2, 3, 4))) for _ in range(80)])
    index, given_up = index_of(log)
    assert not given_up
    for text in FILTERS:
        check(log, index, text)
    assert check(log, index, "header.region = 'none'") < index.every.bit_count()


def test_lengths_in_longer_forms_are_not_missed(tmp_path: Path) -> None:
    """A length may have more bytes than it needs; such batches are stored with record.validation=header."""
    usual = build_batch([(NOW, None, None, [("region", b"EU")])])
    body = usual[61:]
    short = b"\x0cregion\x04EU"
    assert body.endswith(short)
    config = LogConfig(segment_bytes=1 << 20, record_validation="header")
    for number, odd in enumerate(
        (b"\x8c\x00region\x04EU", b"\x8c\x80\x80\x80\x70region\x84\x80\x00EU", b"\x0cregion\x84\x00EU")
    ):
        record = body[1 : -len(short)] + odd
        packed = bytearray()
        put_number(packed, len(record))
        batch = enclose(bytes(packed) + record, count=1, base_timestamp=NOW, max_timestamp=NOW)
        log = open_log(tmp_path / f"{number}-0", config=config)
        log.append_as_leader(bytearray(batch), 0, NOW)
        log.append_as_leader(bytearray(build_batch([(NOW, None, b"x" * 20000, [])])), 0, NOW)
        log.roll(NOW)
        index, _ = index_of(log)
        assert check(log, index, "header.region = 'EU'") == 1


def test_a_header_with_too_many_values_is_given_up(tmp_path: Path) -> None:
    rng = random.Random(1)
    batches = []
    for first in range(0, 6000, 100):
        headers = [[("region", b"%d" % (number % 3)), ("id", b"%d" % number)] for number in range(first, first + 100)]
        batches.append(build_batch([(NOW, None, rng.randbytes(50), each) for each in headers]))
    log = closed(tmp_path, batches)
    index, given_up = index_of(log, ("region", "id"))
    assert given_up == ["id"]
    assert index.counts() == [("id", None), ("region", 3)]
    assert check(log, index, "header.id = '7'") == index.every.bit_count()
    assert check(log, index, "header.region = 'x'") == 0
    assert Path(log.segments[0].path(HEADERS_SUFFIX)).stat().st_size < log.segments[0].size / 20


def test_batches_that_cannot_be_searched_may_have_any_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_batch([(NOW, None, b"x" * 20000, [])])
    large = build_batch([(NOW, None, bytes(1 << 20), [("region", b"EU")])], codec=4)
    many = build_batch([(NOW, None, b"region" * 5000, [])])
    log = closed(tmp_path, [plain, large, plain, many, plain, plain])
    monkeypatch.setattr(header_indexing, "_UNPACKED", 1 << 19)
    monkeypatch.setattr(header_indexing, "_MOST_FOUND", 4000)
    path = Path(log.segments[0].path())
    data = bytearray(path.read_bytes())
    last = [position for position, _ in iter_batches(data)][-1]
    data[last + 70] ^= 1  # the last batch is damaged
    path.write_bytes(data)
    index, _ = index_of(log)
    bits = compile_filter("header.region = 'US'").possible(index.lookup, index.every)
    assert [bits >> index.block_at(offset) & 1 for offset in range(6)] == [0, 1, 1, 1, 0, 1]


def test_the_search_of_a_large_batch_ends_when_the_broker_stops(tmp_path: Path) -> None:
    """The broker waits for the thread, and a batch of the greatest size takes seconds."""
    log = closed(tmp_path, [build_batch([(NOW, None, b"x" * 900, [("region", b"EU")])] * 900, codec=4)])
    segment, asked = log.segments[0], iter([False] * 6)
    with pytest.raises(Stopped):
        ensure(segment.path(), segment.path(HEADERS_SUFFIX), 0, segment.size, NAMES, lambda: next(asked, True))
    assert not Path(segment.path(HEADERS_SUFFIX)).exists()


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    log = closed(tmp_path, [build_batch(some_records(random.Random(number))) for number in range(40)])
    index_of(log)
    path = Path(log.segments[0].path(HEADERS_SUFFIX))
    good = path.read_bytes()
    for damage in (b"", good[:20], good[:-1], good[:50] + b"\xff" + good[51:], b"x" * 200):
        path.write_bytes(damage)
        with pytest.raises(DamagedIndexError):
            HeaderIndex(damage)
        index_of(log)
        assert path.read_bytes() == good
    index_of(log, ("region",))
    assert HeaderIndex(path.read_bytes()).names == {"region"}


def test_bytes_with_the_right_checksum_may_still_be_no_index(tmp_path: Path) -> None:
    log = closed(tmp_path, [build_batch(some_records(random.Random(number))) for number in range(40)])
    index_of(log)
    good = Path(log.segments[0].path(HEADERS_SUFFIX)).read_bytes()
    rng = random.Random(1)
    for _ in range(500):
        broken = bytearray(good[: rng.randrange(40, len(good) + 1)])
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(8, len(broken))] = rng.choice((0, 0xFF, rng.randrange(256)))
        broken[4:8] = crc32c(bytes(broken[8:])).to_bytes(4)
        try:
            HeaderIndex(bytes(broken)).lookup("region", b"EU")
        except DamagedIndexError:
            continue


def test_an_index_of_another_log_is_made_again(tmp_path: Path) -> None:
    one = closed(tmp_path / "one", [build_batch([(NOW, b"a", b"1", [("region", b"EU")])]) for _ in range(9)])
    other = closed(tmp_path / "other", [build_batch([(NOW, b"b", b"1", [("region", b"US")])]) for _ in range(9)])
    assert one.segments[0].size == other.segments[0].size
    index_of(one)
    Path(other.segments[0].path(HEADERS_SUFFIX)).write_bytes(Path(one.segments[0].path(HEADERS_SUFFIX)).read_bytes())
    index, _ = index_of(other)
    assert check(other, index, "header.region = 'US'") == 1


def test_values_that_differ_far_behind_count_as_one() -> None:
    assert hash_of(b"x" * 56 + b"1") == hash_of(b"x" * 56 + b"2")
    assert hash_of(b"x" * 55 + b"1") != hash_of(b"x" * 55 + b"2")


def test_all_headers_of_a_segment_share_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_indexing, "_MOST_TOGETHER", 12_000)
    names = ("a", "b", "c", "d")
    headers = [[(name, b"%s%d" % (name.encode(), number)) for name in names] for number in range(200)]
    log = closed(tmp_path, [build_batch([(NOW, None, b"", each)]) for each in headers])
    assert index_of(log, names)[1] == list(names)
    assert index_of(log, names[:2])[1] == []


def test_an_index_is_checked_without_a_copy(tmp_path: Path) -> None:
    blocks = Blocks(array("I", [0]), array("I", [0]), array("I", [0]))
    values: dict[int, array[int] | bytearray] = {number: bytearray(b"x" * 1000) for number in range(2000)}
    content = encode(0, 1, blocks, [Column("a", False, b"", values)])
    tracemalloc.start()
    try:
        HeaderIndex(content)
        assert tracemalloc.get_traced_memory()[1] < len(content) / 4
    finally:
        tracemalloc.stop()


def test_a_filter_of_many_values_is_looked_up_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value may be in many blocks, so each look takes up to some hundred us."""
    log = closed(tmp_path, [build_batch([(NOW, None, b"x" * 100, [("region", b"%d" % each)])]) for each in range(200)])
    index_of(log, ("region",))
    log.config = replace(CONFIG, filter_index_headers=("region",))
    looked: list[bytes] = []
    monkeypatch.setattr(HeaderIndex, "lookup", lambda _self, _name, value: looked.append(value))
    listed = ", ".join(f"'{each}'" for each in range(100))
    wanted = compile_filter(f"header.region IN ({listed})")
    plan = HeaderIndexes(SystemClock(), list).plan(log, log.segments[0], wanted)
    turns = 0
    while not step(plan):
        turns += 1
        assert len(looked) == turns
    assert turns == 100
