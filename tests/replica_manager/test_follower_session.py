"""What a fetcher sends in a session, and what it need not repeat."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse
from kbroker.replica_manager.follower_session import FollowerSession

A, B = (b"a" * 16, 0), (b"b" * 16, 3)


def wish(key: tuple[bytes, int], offset: int = 0) -> FetchPartition:
    return FetchPartition(partition=key[1], fetch_offset=offset)


def said(session: FollowerSession[str]) -> tuple[int, int, dict[tuple[bytes, int], int], list[tuple[bytes, int]]]:
    request = FetchRequest()
    session.put_into(request)
    asked = {(t.topic_id, p.partition): p.fetch_offset for t in request.topics for p in t.partitions}
    gone = [(t.topic_id, index) for t in request.forgotten_topics_data for index in t.partitions]
    return request.session_id, request.session_epoch, asked, gone


def begun() -> FollowerSession[str]:
    session: FollowerSession[str] = FollowerSession()
    session.want(A, "a", wish(A))
    session.want(B, "b", wish(B))
    assert said(session) == (0, 0, {A: 0, B: 0}, [])
    assert session.answered(FetchResponse(session_id=7))
    return session


def test_only_changes_are_said_again() -> None:
    session = begun()
    assert said(session) == (7, 1, {}, [])
    assert session.answered(FetchResponse(session_id=7))
    session.want(A, "a", wish(A, 5))
    session.drop(B)
    assert said(session) == (7, 2, {A: 5}, [B])
    assert session.sent(B) is None
    assert session.sent(A) == ("a", wish(A, 5))


def test_without_room_at_the_leader_all_is_said_each_time() -> None:
    session = begun()
    session.answered(FetchResponse(session_id=0))
    assert said(session) == (0, 0, {A: 0, B: 0}, [])


def test_all_is_said_again_after_an_error_or_no_answer() -> None:
    for error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, None):
        session = begun()
        said(session)
        if error is None:
            session.lost()
        else:
            assert not session.answered(FetchResponse(error_code=error))
        kept = 0 if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND else 7
        assert said(session) == (kept, 0, {A: 0, B: 0}, [])


def test_what_begins_anew_while_a_request_is_under_way_is_said_with_all_others() -> None:
    session = begun()
    said(session)
    session.drop(A)
    session.want(A, "another", wish(A, 2))
    assert session.sent(A) == ("a", wish(A)), "what the answer is about"
    session.answered(FetchResponse(session_id=7))
    assert said(session) == (7, 0, {B: 0, A: 2}, [])
