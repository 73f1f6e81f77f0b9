"""Share sessions alone: epochs, the limit, connections, and the partitions that a response must contain."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_partition.sessions import ShareSessions, next_epoch

A, B = (bytes(16), 0), (bytes(16), 1)


def code_of(call: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_epochs() -> None:
    assert [next_epoch(each) for each in (0, 1, 0x7FFFFFFF, -1)] == [1, 2, 1, -1]
    sessions = ShareSessions(10)
    assert code_of(lambda: sessions.proceed("g", "m", 1)) == ErrorCode.SHARE_SESSION_NOT_FOUND
    session = sessions.open("g", "m", "connection")
    assert code_of(lambda: sessions.proceed("g", "m", 2)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.proceed("g", "m", 1) is session
    assert code_of(lambda: sessions.proceed("g", "m", 1)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert session.epoch == 2


def test_the_limit_counts_a_member_once() -> None:
    sessions = ShareSessions(2)
    first = sessions.open("g", "m", 1)
    sessions.open("g", "n", 1)
    assert code_of(lambda: sessions.open("h", "m", 2)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    again = sessions.open("g", "m", 2)
    assert first.has_ended
    assert not again.has_ended
    assert len(sessions) == 2


def test_nothing_is_left_of_ended_sessions() -> None:
    sessions = ShareSessions(10_000)
    for number in range(1000):
        sessions.open(f"g{number % 7}", f"m{number}", number % 5)
    assert sessions.has_any("g3")
    assert len(list(sessions.of_connection(2))) == 200
    for number in range(5):
        for session in sessions.of_connection(number):
            sessions.end(session)
            sessions.end(session)
    assert (len(sessions), sessions._of_connection, sessions._of_group) == (0, {}, {})


def test_what_a_response_contains() -> None:
    sessions = ShareSessions(1)
    session = sessions.open("g", "m", 1)
    sessions.take(session, A, is_told=True)
    sessions.take(session, B, is_told=False)
    assert not session.must_tell(A, has_records=False, has_error=False)
    assert session.must_tell(B, has_records=False, has_error=False), "it is new"
    assert not session.must_tell(B, has_records=False, has_error=False)
    assert session.must_tell(A, has_records=True, has_error=False)
    assert list(session.partitions) == [B, A], "what had records is the last one to be read next time"
    assert session.must_tell(B, has_records=False, has_error=True)
    assert session.must_tell(B, has_records=False, has_error=False), "once more after an error"
    sessions.leave_out(session, B)
    assert session.must_tell(B, has_records=False, has_error=False), "forgotten while it was being read"


def test_all_sessions_together_have_so_many_partitions() -> None:
    sessions = ShareSessions(10, most_partitions=3)
    one, other = sessions.open("g", "m", 1), sessions.open("g", "n", 1)
    for key in (A, B, A):
        sessions.take(one, key, is_told=True)
    sessions.take(other, A, is_told=True)
    assert code_of(lambda: sessions.take(other, B, is_told=True)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.leave_out(one, B)
    sessions.leave_out(one, B)
    sessions.take(other, B, is_told=True)
    assert code_of(lambda: sessions.take(one, B, is_told=True)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.end(other)
    assert code_of(lambda: sessions.take(other, (bytes(16), 2), is_told=True)) == ErrorCode.SHARE_SESSION_NOT_FOUND
    sessions.leave_out(other, A)
    sessions.take(one, B, is_told=True)
    sessions.take(one, (bytes(16), 2), is_told=True)
    assert code_of(lambda: sessions.take(one, (bytes(16), 3), is_told=True)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
