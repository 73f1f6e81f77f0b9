"""ShareFetch and ShareAcknowledge over the wire: delivery, acknowledgement, locks, renewal, failed writes, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker import Broker
from kbroker.handlers import share_fetch_attempt
from kbroker.log.batch_scan import headers_in
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import BatchHeader
from kbroker.share_partition.states import RecordState
from tests.log.builders import damage

from .conversation import GROUP, Member, Served, acquired, offsets, partition_of

T = ("t", 0)


@pytest.fixture
def served() -> Iterator[Served]:
    with Broker() as broker:
        made = Served(broker)
        made.topic("t")
        yield made


def test_records_are_delivered_acknowledged_and_gone(served: Served) -> None:
    served.produce("t", 3, 2)
    with Member(served) as member:
        got = member.fetch(T, wait_ms=5000)
        assert acquired(got) == [(0, 4, 1)]
        assert offsets(got) == [(0, 2), (3, 4)]
        assert got.acquisition_lock_timeout_ms == 30_000
        assert acquired(member.fetch(wait_ms=0)) == [], "they are locked"
        answer = member.acknowledge({T: [(0, 4, [1])]})
        assert answer.acquisition_lock_timeout_ms == 30_000
        [[partition]] = [topic.partitions for topic in answer.responses]
        assert (partition.error_code, partition.partition_index) == (0, 0)
        assert served.in_flight("t") == 0
    name = (GROUP, served.topics["t"], 0)
    assert served.persister.records[name] == dict.fromkeys(range(5), (2, 1))


def test_a_damaged_batch_is_reported(served: Served) -> None:
    served.produce("t", 3)
    partition = served.broker.node.replicas.get(T)
    assert partition is not None
    damage(partition.log)
    with Member(served) as member:
        assert partition_of(member.fetch(T, wait_ms=5000)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert partition.log.damaged_at == 0


def test_acknowledgements_in_a_fetch_come_first(served: Served) -> None:
    served.produce("t", 10)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 9, 1)]
        got = member.fetch(acks={T: [(0, 3, [1]), (4, 9, [2])]}, wait_ms=5000)
        assert partition_of(got).acknowledge_error_code == 0
        assert acquired(got) == [(4, 9, 2)], "what was released just now is delivered again"
        assert offsets(got) == [(0, 9)], "as a whole batch: the client skips what it has not acquired"
        got = member.fetch(acks={T: [(4, 9, [1, 0, 2, 3, 1, 2])]}, wait_ms=5000)
        assert acquired(got) == [(6, 6, 3), (9, 9, 3)]


def test_a_lock_ends_and_the_record_is_delivered_again(served: Served) -> None:
    served.produce("t", 2)
    with Member(served) as one, Member(served, "m2") as two:
        assert acquired(one.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
        two.start(T, wait_ms=15_000)
        served.until(lambda: served.share.get(GROUP, served.topics["t"], 0).waiters)
        served.broker.clock.advance(seconds=31)
        got = two.finish()
        assert acquired(got) == [(0, 1, 2)], "to another member, which was waiting"
        late = one.acknowledge({T: [(0, 1, [1])]})
        assert late.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_lasts_longer(served: Served) -> None:
    served.produce("t", 2)
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
        served.broker.clock.advance(seconds=20)
        renewed = member.fetch(acks={T: [(0, 1, [4])]}, renew=True, records=0, min_bytes=0, max_bytes=0, wait_ms=0)
        assert partition_of(renewed).acknowledge_error_code == 0
        served.broker.clock.advance(seconds=20)
        assert acquired(other.fetch(T)) == []
        assert member.acknowledge({T: [(0, 1, [4])]}, renew=True).responses[0].partitions[0].error_code == 0
        refused = member.acknowledge({T: [(0, 1, [4])]})
        assert refused.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST, "without the flag"
        served.settings.now = served.settings.now._replace(renews=False)
        refused = member.acknowledge({T: [(0, 1, [4])]}, renew=True)
        assert refused.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE
        assert member.fetch(renew=True).error_code == ErrorCode.INVALID_REQUEST, "a renewal fetches nothing"


def test_what_fails_too_often_is_archived(served: Served) -> None:
    served.produce("t", 1)
    with Member(served) as member:
        for count in range(1, 6):
            got = member.fetch(T, wait_ms=5000)
            assert acquired(got) == [(0, 0, count)]
            assert member.acknowledge({T: [(0, 0, [2])]}).responses[0].partitions[0].error_code == 0
        assert acquired(member.fetch(T)) == []
        assert served.in_flight("t") == 0
    assert served.persister.records[GROUP, served.topics["t"], 0] == {0: (4, 5)}


def test_the_limit_of_locks_and_who_waits_for_it(served: Served) -> None:
    served.settings.now = served.settings.now._replace(record_locks=10)
    served.produce("t", *([1] * 12))
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 9, 1)]
        other.start(T, wait_ms=15_000)
        served.until(lambda: len(served.share.get(GROUP, served.topics["t"], 0).waiters) == 1)
        assert member.acknowledge({T: [(0, 4, [1])]}).error_code == 0
        assert acquired(other.finish()) == [(10, 11, 1)], "the acknowledgement made room, and woke the waiting fetch"


def test_no_more_is_read_than_the_limit_of_locks_allows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def noted(*where: Any) -> Iterator[tuple[int, BatchHeader]]:
        for position, header in headers_in(*where):
            read.append(header.base_offset)
            yield position, header

    monkeypatch.setattr(share_fetch_attempt, "headers_in", noted)
    served.settings.now = served.settings.now._replace(record_locks=100)
    served.produce("t", *([1] * 250))
    every_second = {at: (int(RecordState.ACKNOWLEDGED), 1) for at in range(1, 99, 2)}
    served.persister.starts[GROUP, served.topics["t"], 0] = 0
    served.persister.records[GROUP, served.topics["t"], 0] = every_second
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1), (2, 2, 1)], "room for two, of 50 that are left"
        assert read == [0, 1, 2]
        for at in range(4, 98, 2):
            assert acquired(member.fetch(records=1)) == [(at, at, 1)]
        assert acquired(member.fetch()) == [(98, 99, 1)], "the first new ones"
        read.clear()
        assert member.acknowledge({T: [(2, 2, [2])]}).error_code == 0
        assert acquired(member.fetch()) == [(2, 2, 2)], "without room"
        assert read == list(range(2, 100))


def test_the_mode_that_never_gives_more(served: Served) -> None:
    served.produce("t", 10, 10)
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000, records=4, limit=True)) == [(0, 3, 1)]
        assert acquired(other.fetch(T, wait_ms=5000, records=4)) == [(4, 9, 1)], "to the end of the batch"
        assert acquired(member.fetch(wait_ms=5000, records=4, batch_size=1)) == [(10, 19, 1)]


def test_new_records_wake_a_waiting_fetch(served: Served) -> None:
    with Member(served) as member:
        member.start(T, wait_ms=15_000)
        served.until(lambda: served.share.get(GROUP, served.topics["t"], 0) is not None)
        served.produce("t", 2)
        assert acquired(member.finish()) == [(0, 1, 1)]


def test_a_failed_write_is_undone(served: Served) -> None:
    served.produce("t", 4)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 3, 1)]
        served.persister.errors.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        failed = member.acknowledge({T: [(0, 3, [1])]})
        assert failed.responses[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert served.in_flight("t") == 4
        assert member.acknowledge({T: [(0, 3, [1])]}).responses[0].partitions[0].error_code == 0, "it still owns them"
        assert served.in_flight("t") == 0


def test_a_fenced_write_drops_what_is_known(served: Served) -> None:
    served.produce("t", 4)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 3, 1)]
        assert member.acknowledge({T: [(0, 0, [1])]}).error_code == 0
        served.persister.state_epoch += 1  # as if somebody had reset the group's offsets
        failed = member.acknowledge({T: [(1, 3, [1])]})
        assert failed.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert served.share.get(GROUP, served.topics["t"], 0) is None
        reads = served.persister.reads
        assert acquired(member.fetch(T, wait_ms=5000)) == [(1, 3, 1)], "read anew: what is stored is not delivered"
        assert served.persister.reads == reads + 1


def test_a_store_that_answers_nonsense_blocks_no_record(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.produce("t", 5)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 4, 1)]
        with monkeypatch.context() as broken:
            broken.setattr(served.persister, "write", nonsense)
            failed = member.acknowledge({T: [(0, 4, [1])]})
        assert failed.responses[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 4, 1)]


async def nonsense(*_: object) -> None:
    """Return None in place of a result, as a programming error in the store would."""


def test_a_client_that_dies_while_its_acknowledgement_is_stored(served: Served) -> None:
    """No record stays acquired: records whose acknowledgement is stored are done, the others are available again."""
    served.produce("t", 6)
    held: asyncio.Event = served.on_loop(asyncio.Event)
    member = Member(served)
    assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 5, 1)]
    served.persister.held = held
    member.client.start(member.fetching(acks={T: [(0, 2, [1])]}), 2)
    served.until(lambda: served.persister.at_once == 1)
    with Member(served, "m2") as other:
        other.start(T, wait_ms=15_000)
        served.until(lambda: len(served.share.get(GROUP, served.topics["t"], 0).waiters) == 1)
        member.client.close()
        served.until(lambda: len(served.share.sessions) == 1)
        served.persister.held = None
        served.on_loop(held.set)
        assert acquired(other.finish()) == [(3, 5, 2)]


def test_a_group_without_members_leaves_nothing(served: Served) -> None:
    served.produce("t", 6)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 5, 1)]
        assert len(served.share) == 1
    served.until(lambda: len(served.share) == 0 and len(served.share.sessions) == 0)
    assert not served.share._hosted
    assert not served.share.sessions._of_connection
    assert served.persister.records[GROUP, served.topics["t"], 0] == dict.fromkeys(range(6), (0, 1)), "given back"
    with Member(served, "m3") as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 5, 2)]


def test_a_deleted_group_and_a_deleted_topic_end_all_waits(served: Served) -> None:
    served.topic("u")
    with Member(served) as member, Member(served, "m2", "others") as other:
        member.start(T, wait_ms=15_000)
        other.start(("u", 0), wait_ms=15_000)
        served.until(lambda: len(served.share) == 2)
        served.on_loop(lambda: served.share.forget(GROUP))
        assert member.finish().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        served.broker.topics["u"].delete()
        served.until(lambda: len(served.share) == 0)
        assert other.finish().responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_sessions(served: Served) -> None:
    served.topic("u", 2)
    served.produce("t", 1)
    with Member(served) as member, Member(served, "m2") as other:
        assert member.fetch(T, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert member.fetch(T, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert member.acknowledge({}, epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert member.fetch(acks={T: [(0, 0, [1])]}, epoch=0).error_code == ErrorCode.INVALID_REQUEST
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
        assert member.fetch(epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert member.acknowledge({}, epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        told = member.fetch(("u", 0), ("u", 1)).responses  # the partitions that are loaded by now
        served.until(lambda: all(each.state for each in served.share.of_group(GROUP)))
        told += member.fetch(("u", 0), forget=(T,)).responses
        assert {each.partition_index for topic in told for each in topic.partitions} == {0, 1}, "they are new"
        assert member.fetch().responses == []
        served.share.sessions.limit = 1
        assert other.fetch(T, wait_ms=1).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert member.acknowledge({T: [(0, 0, [1])]}, epoch=-1).responses[0].partitions[0].error_code == 0
        assert other.fetch(T).error_code == 0


def test_bad_acknowledgements(served: Served) -> None:
    served.produce("t", 5)
    unknown = ("no", 0)
    served.topics["no"] = bytes(15) + b"\1"
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 4, 1)]
        other.fetch(T)

        def code(*batches: tuple[int, int, list[int]], by: Member = member) -> int:
            return by.acknowledge({T: list(batches)}).responses[0].partitions[0].error_code

        for wrong in [(1, 0, [1]), (0, 1, []), (0, 1, [1, 1, 1]), (0, 0, [5]), (0, 0, [-1])]:
            assert code(wrong) == ErrorCode.INVALID_REQUEST
        assert code((2, 3, [1]), (0, 1, [1])) == ErrorCode.INVALID_REQUEST, "descending"
        assert code((0, 2, [1]), (2, 3, [1])) == ErrorCode.INVALID_RECORD_STATE, "overlapping"
        assert code((3, 9, [1])) == ErrorCode.INVALID_REQUEST, "past what was acquired"
        assert code((0, 4, [1]), by=other) == ErrorCode.INVALID_RECORD_STATE
        answer = member.acknowledge({unknown: [(0, 0, [1])], ("t", 9): [(0, 0, [1])]})
        codes = [each.error_code for topic in answer.responses for each in topic.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert code((0, 4, [1])) == 0, "nothing of all that has had an effect"
        assert code((0, 4, [1])) == 0, "what is done may be acknowledged again"


def test_unknown_partitions_and_the_state_that_cannot_be_read(served: Served) -> None:
    served.topics["no"] = bytes(15) + b"\1"
    with Member(served) as member:
        answer = member.fetch(("no", 0), ("t", 7), wait_ms=10_000)
        codes = [each.error_code for topic in answer.responses for each in topic.partitions]
        assert sorted(codes) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
    served.persister.read_errors.append(ErrorCode.NOT_COORDINATOR)
    served.produce("t", 1)
    with Member(served, "m2") as member:
        failed = partition_of(member.fetch(T, wait_ms=10_000))
        assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert acquired(member.fetch(wait_ms=10_000)) == [(0, 0, 1)], "the next fetch reads it again"


def test_a_member_that_comes_back_ends_its_earlier_fetch(served: Served) -> None:
    with Member(served) as before, Member(served) as after:
        before.start(T, wait_ms=15_000)
        served.until(lambda: len(served.share) == 1)
        after.fetch(T)
        assert before.finish().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        served.produce("t", 1)
        assert acquired(after.fetch(wait_ms=5000)) == [(0, 0, 1)]
        before.client.close()
        served.until(lambda: len(served.share.sessions) == 1)
        assert after.acknowledge({T: [(0, 0, [1])]}).responses[0].partitions[0].error_code == 0, "still its own"


def test_without_share_groups_the_apis_are_closed() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.topic("t")
        served.set_feature(0)
        with Member(served) as member:
            assert member.fetch(T).error_code == ErrorCode.UNSUPPORTED_VERSION
            assert member.acknowledge({}, epoch=1).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_session_with_too_many_partitions_ends_and_gives_back_its_records() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.topic("t")
        served.produce("t", 2)
        served.share.sessions._most_partitions = 2
        with Member(served) as greedy, Member(served, "m2") as other:
            assert acquired(greedy.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
            assert greedy.fetch(("t", 1), ("t", 2)).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert greedy.fetch(T, epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            assert acquired(other.fetch(T, wait_ms=5000)) == [(0, 1, 2)]
