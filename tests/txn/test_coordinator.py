"""The coordinator around its shards: rounds of markers, failures in them, and logs that commit late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kbroker.coordination.encoding import record_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import iter_batches
from kbroker.txn.coordinator import Answer, TransactionCoordinator
from kbroker.txn.marker_sender import RETRY_MS, Answers, Marker, MarkerWriter
from kbroker.txn.records import transaction_record
from kbroker.txn.shard import Identity, TransactionConfig, TransactionShard
from kbroker.txn.transaction import COMPLETE_ABORT, COMPLETE_COMMIT, PREPARE_COMMIT, Transaction

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]


class Log:
    """`__transaction_state` in memory; with `lag`, appends wait until `commit` is called."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.lag = False
        self.waiters: list[asyncio.Future[None]] = []
        self.count = 1

    def partition_count(self) -> int:
        return self.count

    def append(self, partition: int, batch: bytes, now_ms: int, **_options: Any) -> int:
        ((_, header),) = iter_batches(batch)
        self.batches.append(self.end.to_bytes(8, "big") + batch[8:])
        self.end += header.record_count
        return self.end

    def max_batch_bytes(self, partition: int) -> int:
        return 1 << 20

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        if not self.lag:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        return future

    copied = committed

    def commit(self) -> None:
        self.lag = False
        for future in self.waiters:
            if not future.done():
                future.set_result(None)

    def read(self, partition: int, begin: int = 0) -> Iterator[memoryview]:
        return (memoryview(batch) for batch in self.batches)

    def end_offset(self, partition: int) -> int:
        raise NotImplementedError

    def ensure_topic(self) -> None:
        """Do nothing: the topic exists."""


class Clock:
    ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> float:
        return self.ms


class Ids:
    last = 0

    def next(self) -> int:
        self.last += 1
        return self.last

    def avoid(self, used: int) -> None:
        self.last = max(self.last, used)


class Cluster:
    """Leaders of partitions, and brokers that return the results that the test sets."""

    def __init__(self, log: Log | None = None) -> None:
        self.leaders: dict[tuple[str, int], int | None] = dict.fromkeys(PARTITIONS, 1)
        self.codes: dict[tuple[str, int], ErrorCode] = {}
        self.written: list[Marker] = []
        self.answer: Callable[[Marker], Any] = self._answer
        self.log = log or Log()
        self.clock = Clock()
        self.soon: list[Callable[[], None]] = []
        self.coordinator = TransactionCoordinator(
            TransactionConfig(num_partitions=1), self.log, self.clock, Ids(), lambda: 2,
            MarkerWriter(lambda partition: self.leaders[partition], self.target_of), self.soon.append,
        )  # fmt: skip
        self.coordinator.on_leadership(0, 5)

    def target_of(self, node: int) -> Any:
        return self if node in (1, 2) else None

    def write(self, marker: Marker) -> Any:
        self.written.append(marker)
        return self.answer(marker)

    def _answer(self, marker: Marker) -> Answers:
        return {partition: self.codes.get(partition, ErrorCode.NONE) for partition in marker.partitions}

    def run(self) -> None:
        """Run the deferred work."""
        while self.soon:
            self.soon.pop(0)()

    def retry(self) -> None:
        self.clock.ms += RETRY_MS
        self.coordinator.tick()
        self.run()

    def commit(self) -> Identity:
        """Commit a transaction on all partitions; its markers still have to be written."""
        producer = self.coordinator.init_producer_id("id", 60_000, None).producer  # type: ignore[union-attr]
        assert self.coordinator.add_partitions("id", producer, PARTITIONS, 2) is ErrorCode.NONE
        answer = self.coordinator.end("id", producer, True, 2)
        assert isinstance(answer, Answer)
        assert answer.code is ErrorCode.NONE
        return answer.producer

    @property
    def state(self) -> Any:
        return self.coordinator.find("id").state


@pytest.fixture(autouse=True)
def _loads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load in one slice, on slow machines as well: most of these tests have no loop that could continue a load."""
    monkeypatch.setattr("kbroker.coordination.loading.SLICE_SECONDS", float("inf"))


def test_the_end_is_answered_before_any_marker_is_written() -> None:
    cluster = Cluster()
    after = cluster.commit()
    assert cluster.written == []
    assert cluster.state is PREPARE_COMMIT
    cluster.run()
    (marker,) = cluster.written
    assert marker == Marker(after.producer_id, after.epoch, 5, True, 2, tuple(PARTITIONS))
    assert cluster.state is COMPLETE_COMMIT


def test_markers_go_to_the_leader_of_each_partition() -> None:
    cluster = Cluster()
    cluster.leaders["t", 1] = 2
    cluster.commit()
    cluster.run()
    assert [marker.partitions for marker in cluster.written] == [(("t", 0), ("u", 0)), (("t", 1),)]
    assert cluster.state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_marker_that_is_refused_is_written_again_and_the_others_are_not(code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.codes["t", 1] = code
    cluster.commit()
    cluster.run()
    assert cluster.state is PREPARE_COMMIT
    cluster.retry()
    assert cluster.written[-1].partitions == (("t", 1),)
    cluster.codes.clear()
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


@pytest.mark.parametrize("leader", [-1, 9])
def test_a_partition_without_a_leader_is_waited_for(leader: int) -> None:
    cluster = Cluster()
    cluster.leaders["u", 0] = leader
    cluster.commit()
    cluster.run()
    assert cluster.state is PREPARE_COMMIT
    cluster.leaders["u", 0] = 1
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


def test_a_partition_that_is_gone_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.leaders["u", 0] = None
    cluster.commit()
    cluster.run()
    assert cluster.state is COMPLETE_COMMIT


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_whoever_is_fenced_gives_up(code: ErrorCode, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.codes["t", 0] = code
    cluster.commit()
    cluster.run()
    rounds = len(cluster.written)
    cluster.retry()
    assert len(cluster.written) == rounds
    assert cluster.state is PREPARE_COMMIT
    assert caplog.text.count("has been taken over") == 1


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
@pytest.mark.parametrize("leader", [1, 2])
def test_a_partition_that_is_fenced_says_nothing_about_the_others(code: ErrorCode, leader: int) -> None:
    """This holds if the same leader has both partitions, and if another leader has the fenced one."""
    cluster = Cluster()
    cluster.leaders["t", 0] = leader
    cluster.codes["t", 0] = code
    cluster.codes["t", 1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.commit()
    cluster.run()
    for _ in range(2):
        cluster.retry()
        assert cluster.written[-1].partitions == (("t", 1),)
    del cluster.codes["t", 1]
    cluster.retry()
    rounds = len(cluster.written)
    cluster.retry()
    assert len(cluster.written) == rounds
    txn = cluster.coordinator.find("id")
    assert (txn.state, txn.partitions) == (PREPARE_COMMIT, {("t", 0)})


def test_a_marker_that_is_refused_again_and_again_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cluster = Cluster()
    cluster.codes = dict.fromkeys(PARTITIONS[:2], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    cluster.commit()
    cluster.run()
    for _ in range(20):
        cluster.retry()
    assert caplog.text.count("NOT_LEADER_OR_FOLLOWER") == 1
    cluster.codes[PARTITIONS[0]] = ErrorCode.KAFKA_STORAGE_ERROR
    for _ in range(20):
        cluster.retry()
    assert caplog.text.count("KAFKA_STORAGE_ERROR") == 1
    cluster.codes.clear()
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


def test_the_markers_of_a_large_transaction_are_written_in_pieces() -> None:
    cluster = Cluster()
    partitions = [("t", index) for index in range(1000)]
    cluster.leaders = dict.fromkeys(partitions, 1)
    producer = cluster.coordinator.init_producer_id("id", 60_000, None).producer  # type: ignore[union-attr]
    cluster.coordinator.add_partitions("id", producer, partitions, 2)
    cluster.coordinator.end("id", producer, True, 2)
    cluster.run()
    assert [partition for marker in cluster.written for partition in marker.partitions] == partitions
    assert max(len(marker.partitions) for marker in cluster.written) < len(partitions) // 10
    assert cluster.state is COMPLETE_COMMIT


def test_a_transaction_goes_on_when_the_topic_of_its_coordinator_grows() -> None:
    """Its id stays in its old partition, where its markers are written and its end is recorded."""
    cluster = Cluster()
    cluster.codes["t", 1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    producer = cluster.coordinator.init_producer_id("id", 60_000, None).producer  # type: ignore[union-attr]
    cluster.coordinator.add_partitions("id", producer, PARTITIONS, 2)
    cluster.log.count = 50
    assert cluster.coordinator.partition_for("id") == 0
    answer = cluster.coordinator.end("id", producer, True, 2)
    assert isinstance(answer, Answer)
    assert answer.code is ErrorCode.NONE
    cluster.run()
    cluster.codes.clear()
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


def test_after_the_start_that_follows_growth_what_was_open_still_ends() -> None:
    """Its producer now finds another partition, but the partition with the transaction aborts it after its timeout."""
    first = Cluster()
    producer = first.coordinator.init_producer_id("id", 60_000, None).producer  # type: ignore[union-attr]
    first.coordinator.add_partitions("id", producer, PARTITIONS, 2)
    first.log.count = 50
    second = Cluster(first.log)
    assert second.coordinator.partition_for("id") != 0
    second.clock.ms += 60_001
    for _ in range(3):
        second.clock.ms += TransactionConfig().abort_interval_ms
        second.coordinator.tick()
        second.run()
    (txn,) = second.coordinator.all()
    assert txn.state is COMPLETE_ABORT
    assert [marker.partitions for marker in second.written] == [tuple(PARTITIONS)]


def test_a_round_that_breaks_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    good = cluster.answer

    def broken(_marker: Marker) -> Answers:
        raise RuntimeError("a bug")

    cluster.answer = broken
    cluster.commit()
    cluster.run()
    assert "could not be written" in caplog.text
    cluster.answer = good
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


def test_answers_that_come_later() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        answers: list[asyncio.Future[Answers]] = []

        def later(_marker: Marker) -> Awaitable[Answers]:
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        cluster.answer = later
        cluster.commit()
        cluster.run()
        await asyncio.sleep(0)
        assert cluster.state is PREPARE_COMMIT
        answers[0].set_exception(RuntimeError("the connection broke"))
        for _ in range(5):
            await asyncio.sleep(0)
        cluster.retry()
        await asyncio.sleep(0)
        answers[1].set_result(dict.fromkeys(PARTITIONS, ErrorCode.NONE))
        for _ in range(5):
            await asyncio.sleep(0)
        assert cluster.state is COMPLETE_COMMIT
        cluster.coordinator.close()

    asyncio.run(scenario())


def test_a_partition_whose_answer_is_awaited_is_not_asked_again() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.leaders["u", 0] = 2
        good, answers = cluster.answer, list[asyncio.Future[Answers]]()

        def mixed(marker: Marker) -> Any:
            if marker.partitions != (("u", 0),):
                return good(marker)
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        cluster.answer = mixed
        cluster.commit()
        cluster.run()
        for _ in range(3):
            cluster.retry()
        assert [marker.partitions for marker in cluster.written] == [(("t", 0), ("t", 1)), (("u", 0),)]
        answers[0].set_result({("u", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER})
        for _ in range(5):
            await asyncio.sleep(0)
        cluster.retry()
        assert len(answers) == 2, "once it is there, it is"
        answers[1].set_result({("u", 0): ErrorCode.NONE})
        for _ in range(5):
            await asyncio.sleep(0)
        assert cluster.state is COMPLETE_COMMIT
        assert not cluster.coordinator._marking._in_flight
        cluster.coordinator.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["to_mark", "marked", "completed"])
def test_a_fault_of_a_round_is_no_end_of_it(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> Any:
        raise RuntimeError("this is tried on purpose")

    cluster = Cluster()
    cluster.commit()
    with monkeypatch.context() as patch:
        patch.setattr(Transaction if step == "completed" else TransactionShard, step, broken)
        cluster.run()
    assert cluster.state is PREPARE_COMMIT
    cluster.retry()
    assert cluster.state is COMPLETE_COMMIT


def test_nothing_is_answered_or_marked_before_it_is_replicated() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        producer = cluster.coordinator.init_producer_id("id", 60_000, None).producer  # type: ignore[union-attr]
        cluster.coordinator.add_partitions("id", producer, PARTITIONS, 2)
        cluster.log.lag = True
        answer = cluster.coordinator.end("id", producer, True, 2)
        assert not isinstance(answer, Answer)
        waiting = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        cluster.run()
        assert not waiting.done()
        assert cluster.written == []
        busy = cluster.coordinator.end("id", producer, True, 2)
        assert busy == Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        cluster.log.commit()
        assert (await waiting).code is ErrorCode.NONE
        cluster.run()
        assert cluster.state is COMPLETE_COMMIT
        cluster.coordinator.close()

    asyncio.run(scenario())


def test_t12_another_broker_finishes_with_its_own_epoch() -> None:
    first = Cluster()
    first.coordinator._marking.markers = MarkerWriter(lambda partition: first.leaders[partition], lambda _node: None)
    first.commit()
    first.run()
    second = Cluster(first.log)
    second.coordinator.resign(0)
    second.coordinator.on_leadership(0, 6)
    second.run()
    assert {marker.coordinator_epoch for marker in second.written} == {6}
    assert second.state is COMPLETE_COMMIT


def test_t16_no_id_is_given_that_the_log_of_transactions_names() -> None:
    """This includes ids that are only the previous or the next producer id of a transactional id."""
    first = Cluster()
    for prev, current, following in ((-1, 3, -1), (90, 4, -1), (-1, 5, 700), (-1, 6, -1)):
        txn = Transaction(f"id-{current}", current, 0, prev_producer_id=prev, next_producer_id=following)
        first.log.append(0, record_batch([transaction_record(txn, 2)], 0, None, 0), 0)
    second = Cluster(first.log)
    assert second.coordinator.init_producer_id("new", 60_000, None) == Answer(ErrorCode.NONE, Identity(701, 0))


def test_a_closed_coordinator_answers_nobody() -> None:
    cluster = Cluster()
    cluster.commit()
    cluster.coordinator.close()
    cluster.run()
    assert cluster.written == []
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.coordinator.end("id", Identity(1, 0), True, 2) == Answer(gone)
    assert cluster.coordinator.verify("id", Identity(1, 0), [("t", 0)]) == {("t", 0): gone}


@pytest.mark.long
def test_thousands_that_are_due_after_a_crash_leave_the_loop_time_for_others() -> None:
    first = Cluster()
    first.coordinator._marking.markers = MarkerWriter(lambda partition: first.leaders[partition], lambda _node: None)
    names = [f"id-{number}" for number in range(2000)]
    for name in names:
        producer = first.coordinator.init_producer_id(name, 60_000, None).producer  # type: ignore[union-attr]
        first.coordinator.add_partitions(name, producer, PARTITIONS, 2)
        first.coordinator.end(name, producer, True, 2)

    async def scenario() -> None:
        second = Cluster(first.log)
        while not second.soon:  # noqa: ASYNC110
            await asyncio.sleep(0)  # the load also runs in slices
        turns = 0
        while second.soon:
            second.soon.pop(0)()
            turns += 1
        assert turns > 1
        assert len(second.written) == len(names)
        assert {second.coordinator.find(name).state for name in names} == {COMPLETE_COMMIT}
        second.coordinator.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
