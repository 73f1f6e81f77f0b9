"""Delivered records are the same bytes, whether they are passed on or decoded and encoded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.records import HEADER_SIZE, NewRecord, build_batch, parse_header, read_records
from kbroker.schedules.language import ScheduleError, fired_headers, read_schedule
from kbroker.scheduling.raw_records import Delivered, Raw, encoded, raw_records

NOW = 1_700_000_000_000
names = st.one_of(
    st.sampled_from(
        (
            *("x-deliver-at", "x-deliver-after", "x-delay", "x-deliver-to", "x-deliver-key", "x-deliver-partition"),
            *("x-schedule", "x-schedule-timezone", "__schedule.at", "__schedule.", "__other", "x-", "x-other", "x-d"),
        )
    ),
    st.text(max_size=80),
)
headers = st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=200))), max_size=6).map(tuple)
records = st.lists(
    st.tuples(
        st.integers(0, 10_000).map(lambda delta: NOW + delta),
        st.one_of(st.none(), st.binary(max_size=200)),
        st.one_of(st.none(), st.binary(max_size=5000)),
        headers,
    ),
    min_size=1,
    max_size=5,
)


def raws(batch: bytes, begin: int = 0) -> list[Raw | None]:
    return list(raw_records(batch, HEADER_SIZE, parse_header(batch), begin))


@given(records, st.booleans(), st.integers(0, 6))
def test_the_walk_finds_what_the_decoder_finds(written: list[NewRecord], is_stamped: bool, begin: int) -> None:
    batch = build_batch(written, base_offset=10, timestamp_type=int(is_stamped))
    expected = list(read_records(batch, max_bytes=1 << 24))
    found = raws(batch, 10 + begin)
    assert [each is None for each in found] == [each.offset < 10 + begin for each in expected]
    for raw, record in zip(found, expected, strict=True):
        if raw is not None:
            assert (raw.offset, raw.stamp_ms, raw.key_bytes(), raw.value_bytes(), raw.read_headers()) == tuple(
                getattr(record, name) for name in ("offset", "timestamp", "key", "value", "headers")
            )
            assert raw.has_value() == (record.value is not None)


@given(records, st.integers(0, 3000), st.integers(0, 1 << 45))
def test_both_ways_give_the_same_bytes(written: list[NewRecord], delta: int, due_ms: int) -> None:
    batch = build_batch(written, base_offset=123)
    delivered = Delivered("later", 7)
    for raw, record in zip(raws(batch), read_records(batch, max_bytes=1 << 24), strict=True):
        assert raw is not None
        short = delivered.short(raw, due_ms, delta)
        own = fired_headers(record.headers, "later", 7, record.offset, due_ms)
        if short is not None:
            assert short == encoded(record.key, record.value, own, delta)
            try:
                schedule = read_schedule(record.key, record.headers, NOW, "target")
            except ScheduleError:
                continue  # nothing that is refused when it is produced gets here
            assert schedule is None or (schedule.repeat, schedule.partition, schedule.key) == (None, None, record.key)


@given(records)
def test_an_encoded_record_is_as_in_a_batch(written: list[NewRecord]) -> None:
    of_now = [(NOW, key, value, headers) for _, key, value, headers in written]
    body = b"".join(encoded(key, value, tuple(own), number) for number, (_, key, value, own) in enumerate(of_now))
    assert body == build_batch(of_now)[HEADER_SIZE:]


def test_usual_records_take_the_short_way() -> None:
    batch = build_batch([(NOW, b"k", b"v", (("x-deliver-at", b"5"), ("x-deliver-to", b"t"), ("tag", b"a")))])
    (raw,) = raws(batch)
    assert raw is not None
    assert Delivered("later", 0).short(raw, 5, 0) is not None
