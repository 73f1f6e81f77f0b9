"""Fetch sessions (KIP-227) in isolation: epochs, eviction, the contents of an incremental response."""

from __future__ import annotations

import pytest

from kbroker.handlers import fetch_session
from kbroker.handlers.fetch_session import CachedPartition, FetchSessions, next_epoch
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData


def wanted(*partitions):
    return [FetchTopic(topic="t", partitions=[FetchPartition(partition=p) for p in partitions])]


def answered(*partitions):
    return {("t", bytes(16), p): CachedPartition(FetchPartition(partition=p), 0, 0) for p in partitions}


def code_of(call):
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


def test_a_session_follows_its_epochs():
    sessions = FetchSessions(10)
    sid = sessions.open(answered(0, 1), 12, 0)
    request = FetchRequest(session_id=sid, session_epoch=1)
    session = sessions.begin(request, 12, 0)
    assert [k[2] for k in session.partitions] == [0, 1]
    assert code_of(lambda: sessions.begin(request, 12, 0)) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.begin(FetchRequest(session_id=sid, session_epoch=2, topics=wanted(5)), 12, 0) is session
    assert [k[2] for k in session.partitions] == [0, 1, 5]


def test_the_epoch_wraps_to_one():
    assert next_epoch(0x7FFFFFFF) == 1


def test_names_and_ids_do_not_mix():
    sessions = FetchSessions(10)
    sid = sessions.open(answered(0), 12, 0)
    request = FetchRequest(session_id=sid, session_epoch=1)
    assert code_of(lambda: sessions.begin(request, 13, 0)) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_full_request_closes_the_session_it_names():
    sessions = FetchSessions(10)
    sid = sessions.open(answered(0), 12, 0)
    assert sessions.begin(FetchRequest(session_id=sid, session_epoch=0, topics=wanted(0)), 12, 0) is None
    request = FetchRequest(session_id=sid, session_epoch=1)
    assert code_of(lambda: sessions.begin(request, 12, 0)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_ends():
    sessions = FetchSessions(10)
    sid = sessions.open(answered(0), 12, 0)
    forget = FetchRequest(
        session_id=sid, session_epoch=1, forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[0])]
    )
    assert sessions.begin(forget, 12, 0) is None
    assert len(sessions) == 0


def test_a_full_cache_gives_way_to_larger_or_after_staleness_only():
    sessions = FetchSessions(2)
    first, second = sessions.open(answered(0), 12, 0), sessions.open(answered(0, 1), 12, 1)
    assert 0 not in (first, second)
    assert sessions.open({}, 12, 2) == 0
    assert sessions.open(answered(0, 1, 2), 12, 2) > 0
    assert code_of(lambda: sessions.begin(FetchRequest(session_id=first, session_epoch=1), 12, 3)) == (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert sessions.open({}, 12, 200_000) > 0


def test_only_changes_are_answered():
    cached = CachedPartition(FetchPartition(partition=0), high_watermark=5, log_start_offset=0)
    same = PartitionData(high_watermark=5, log_start_offset=0, records=b"")
    assert not cached.must_answer(same)
    assert cached.must_answer(PartitionData(high_watermark=6, log_start_offset=0, records=b""))
    assert cached.must_answer(PartitionData(high_watermark=6, log_start_offset=2, records=b""))
    assert cached.must_answer(PartitionData(high_watermark=6, log_start_offset=2, records=b"x"))
    assert cached.must_answer(PartitionData(error_code=3, high_watermark=-1, log_start_offset=-1))
    assert cached.must_answer(PartitionData(high_watermark=6, log_start_offset=2, records=b""))


def test_all_sessions_together_remember_a_limited_number_of_partitions(monkeypatch):
    monkeypatch.setattr(fetch_session, "_MAX_PARTITIONS", 5)
    sessions = FetchSessions(10)
    first = sessions.open(answered(0, 1, 2), 12, 0)
    second = sessions.open(answered(0, 1), 12, 0)
    assert 0 not in (first, second)
    assert sessions.open(answered(0), 12, 1) == 0
    more = FetchRequest(session_id=second, session_epoch=1, topics=wanted(7))
    assert code_of(lambda: sessions.begin(more, 12, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.open(answered(0, 1), 12, 1) > 0
    assert sessions.open(answered(0, 1, 2), 12, 130_000) > 0, "the stale give way"


def test_consumers_make_room_for_followers_and_followers_for_none_of_them() -> None:
    sessions = FetchSessions(2)
    first = sessions.open(answered(0, 1, 2), 17, 0, of_follower=True)
    sessions.open(answered(0, 1, 2), 12, 0)
    second = sessions.open(answered(0), 17, 1, of_follower=True)
    assert second > 0
    assert sessions.open(answered(0, 1, 2, 3, 4), 12, 2) == 0
    assert sessions.get(first) is not None
    assert sessions.get(second) is not None
    assert sessions.open(answered(0, 1), 17, 3, of_follower=True) > 0, "the larger of two"
    assert sessions.get(second) is None
