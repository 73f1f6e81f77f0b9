"""The result of a fetch is bounded, whatever a few bytes decompress to."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from kbroker.admin import fetching, partition_reader
from kbroker.admin.fetching import MOST_KEPT, MOST_RECORDS, UnreadableBatch, fetch
from kbroker.protocol import records
from kbroker.protocol.compression import ZSTD
from kbroker.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kbroker.protocol.records import build_batch

KEY = ("bomb", 0)


def batches(values):
    """Return a batch for each list of values, concatenated."""
    built, offset = b"", 0
    for each in values:
        rows = [(0, None, value, ()) for value in each]
        built += build_batch(rows, base_offset=offset, codec=ZSTD)
        offset += len(each)
    return built, offset


@pytest.fixture
def answer(monkeypatch):
    """Make a broker answer every fetch with these records."""

    def answer(records, end):
        told = PartitionData(0, high_watermark=end, last_stable_offset=end, log_start_offset=0, records=records)
        whole = FetchResponse(responses=[FetchableTopicResponse("bomb", partitions=[told])])
        monkeypatch.setattr(fetching, "ask_broker", lambda *_: whole)

    return answer


def test_a_place_deep_in_a_batch_is_reached_without_reading_what_is_before_it(answer, monkeypatch):
    packed, end = batches([[b"x"] * 50_000])
    answer(packed, end)
    rests, read = [], []
    monkeypatch.setattr(fetching.Pauses, "rest", lambda _self: rests.append(None))
    whole = records.record_at
    monkeypatch.setattr(records, "record_at", lambda *args: read.append(None) or whole(*args))
    piece = fetch(None, {KEY: 1}, {KEY: end - 10}, {"bomb": uuid.UUID(int=0)})[KEY]
    assert [each.offset for each in piece.records] == list(range(end - 10, end))
    assert len(read) == 10
    assert len(rests) >= 10 + 50_000 // 256


@pytest.mark.parametrize(
    "values",
    [
        [[b""] * 50_000],
        [[bytes(5_000_000)] * 4] * 4,
    ],
    ids=["many", "large"],
)
def test_a_few_bytes_that_hold_much_are_read_in_pieces(answer, values):
    packed, end = batches(values)
    assert len(packed) < 200_000
    answer(packed, end)
    at, found = 0, []
    while at < end:
        piece = fetch(None, {KEY: 1}, {KEY: at}, {"bomb": uuid.UUID(int=0)})[KEY]
        assert 0 < len(piece.records) <= MOST_RECORDS
        assert sum(each.size for each in piece.records[:-1]) < MOST_KEPT
        found += [each.offset for each in piece.records]
        at = piece.next_offset
    assert found == list(range(end))


def test_a_piece_ends_before_a_batch_that_cannot_be_read(answer):
    """A reader that skips the bad batch must not lose the records before it in the same answer."""
    built = [bytearray(build_batch([(0, None, b"v", ())] * 3, base_offset=3 * number)) for number in range(4)]
    built[2][-1] ^= 1
    answer(b"".join(built), 12)
    piece = fetch(None, {KEY: 1}, {KEY: 0}, {"bomb": uuid.UUID(int=0)})[KEY]
    assert ([each.offset for each in piece.records], piece.next_offset) == (list(range(6)), 6)
    answer(b"".join(built[2:]), 12)
    with pytest.raises(UnreadableBatch) as caught:
        fetch(None, {KEY: 1}, {KEY: 6}, {"bomb": uuid.UUID(int=0)})
    assert (caught.value.offset, caught.value.next_offset) == (6, 9)


def test_a_throttled_fetch_is_repeated(monkeypatch):
    """Apache Kafka answers without partitions, and the client has to wait (KIP-219)."""
    topic = SimpleNamespace(
        name="bomb", topic_id=uuid.UUID(int=0), partitions=[SimpleNamespace(partition_index=0, leader_id=1)]
    )
    view = SimpleNamespace(refused={}, topics={"bomb": topic})
    monkeypatch.setattr(partition_reader, "cluster_view", lambda *_: view)
    pieces = [{}, {}, {KEY: fetching.Piece(next_offset=7)}]
    monkeypatch.setattr(partition_reader, "fetch", lambda *_, **__: pieces.pop(0))
    assert partition_reader.PartitionReader(None).fetch(KEY, 0).next_offset == 7
    assert pieces == []
