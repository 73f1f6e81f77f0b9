"""The writer of dead letters: what it retries, when it gives up, and what happens to the other dead letters."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kbroker.broker import dead_letters
from kbroker.broker.dead_letters import DeadLetterWriter
from kbroker.broker.own_produce import Outcome
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.config.server_config import BrokerConfig
from kbroker.long_work import in_slices
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import HEADER_SIZE, build_batch, read_records
from kbroker.share_partition.dead_letters import REJECTED, Letter
from tests.coordination.world import ManualClock

SEED = 20261128
DLQ = "dlq.t"
NONE = ErrorCode.NONE
SOURCE: Any = SimpleNamespace(topic="t", index=4, key=("t", 4))


class World:
    """A cluster's state, and a leader that answers with `codes`, then with success."""

    def __init__(self, *codes: ErrorCode, partitions: int = 3, **settings: str) -> None:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        self.codes = list(codes)
        self.produced: list[tuple[str, int, list[int]]] = []
        self.pauses: list[float] = []
        self.creations: list[ApiError | None] = []
        self.created: list[TopicState] = []
        self.on_pause = lambda: None
        enabled = MappingProxyType({"errors.deadletterqueue.group.enable": "true"})
        self.topic = TopicState(DLQ, b"i" * 16, (PartitionState((1,), (1,), 1, 0),) * partitions, enabled)
        self.state = replace(
            ClusterState(""),
            topics={DLQ: self.topic},
            group_configs={"g": {"errors.deadletterqueue.topic.name": f" {DLQ}"}},
        )
        self.writer = DeadLetterWriter(
            BrokerConfig({"log.dirs": "unused", **config}),
            self,
            self,
            ManualClock(),
            self.pause,  # type: ignore[arg-type]
        )

    async def pause(self, ms: float) -> None:
        self.pauses.append(ms)
        self.on_pause()

    def leader_of(self, _topic: str, index: int) -> int:
        return index

    async def produce(self, topic: str, index: int, batch: bytes) -> Outcome:
        told = [dict(record.headers) for record in read_records(batch, max_bytes=1 << 20)]
        self.produced.append((topic, index, [int(each["__dlq.errors.offset"] or b"") for each in told]))
        return self.codes.pop(0) if self.codes else NONE

    def check_new_name(self, _name: str) -> None:
        pass

    def plan_topic(self, name: str, _partitions: int, _factor: int, _assignments: None, configs: Any) -> TopicState:
        return replace(self.topic, name=name, configs=configs)

    async def put_in_pieces(self, plans: list[TopicState]) -> dict[str, ApiError]:
        error = self.creations.pop(0) if self.creations else None
        if error is not None:
            return {plans[0].name: error}
        self.created += plans
        self.state = self.state.with_topics(plans)
        return {}

    def published(self) -> None:
        return None

    def write(self, *letters: Letter) -> None:
        asyncio.run(in_slices(self.writer.write("g", SOURCE, letters)))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return how many dead letters were written, how many batches were sent, and how many were refused."""
        counts = self.writer.counts().get("g", dead_letters.Counts())
        return counts.records, counts.requests, counts.failed


def letter(first: int, last: int | None = None) -> Letter:
    return Letter(first, first if last is None else last, 1, REJECTED)


def test_letters_are_written_together_in_order() -> None:
    world = World()
    world.write(letter(7, 8), letter(3))
    assert world.produced == [(DLQ, 1, [3, 7, 8])], "partition 4 modulo 3"
    assert world.counts == (3, 1, 0)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT,
     ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR],
)  # fmt: skip
def test_what_may_pass_is_tried_again_with_longer_pauses(code: ErrorCode) -> None:
    world = World(code, code, code, code)
    world.write(letter(1))
    assert len(world.produced) == 5
    assert world.counts == (1, 5, 4)
    for pause, expected in zip(world.pauses, (2000, 4000, 8000, 16000), strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected


def test_it_gives_up_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 9)
    with caplog.at_level(logging.ERROR):
        world.write(letter(1, 2))
    assert len(world.produced) == 5
    said = "group g gives up 2 records of t-4 from offset 1 on without dead letters: NOT_LEADER_OR_FOLLOWER"
    assert said in caplog.text


def test_an_error_that_does_not_pass(caplog: pytest.LogCaptureFixture) -> None:
    world = World(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with caplog.at_level(logging.ERROR):
        world.write(letter(1))
    assert len(world.produced) == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_a_batch_that_is_too_large_does_not_keep_others() -> None:
    world = World(ErrorCode.MESSAGE_TOO_LARGE)
    small = {**world.topic.configs, "max.message.bytes": "250"}
    world.state = replace(world.state, topics={DLQ: replace(world.topic, configs=small)})
    world.write(letter(1, 3))
    assert [offsets for _, _, offsets in world.produced] == [[1], [2], [3]], "one in a batch"
    assert world.counts == (2, 3, 1)


def test_a_topic_that_is_deleted_between_two_tries(caplog: pytest.LogCaptureFixture) -> None:
    world = World(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def delete() -> None:
        world.state = replace(world.state, topics={})

    world.on_pause = delete
    with caplog.at_level(logging.ERROR):
        world.write(letter(1))
    assert len(world.produced) == 1
    assert "the topic dlq.t does not exist" in caplog.text


def test_a_creation_that_fails_is_tried_again() -> None:
    world = World(errors_deadletterqueue_auto_create_topics_enable="true")
    world.state = replace(world.state, topics={})
    world.creations = [ApiError(ErrorCode.TOPIC_ALREADY_EXISTS), None]
    world.write(letter(1))
    assert [each.name for each in world.created] == [DLQ]
    assert dict(world.created[0].configs)["errors.deadletterqueue.group.enable"] == "true"
    assert len(world.pauses) == 1
    assert world.produced == [(DLQ, 1, [1])]


def test_a_creation_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    world = World(errors_deadletterqueue_auto_create_topics_enable="true")
    world.state = replace(world.state, topics={})
    world.creations = [ApiError(ErrorCode.INVALID_REPLICATION_FACTOR)]
    with caplog.at_level(logging.ERROR):
        world.write(letter(1))
    assert world.produced == world.pauses == []
    assert "INVALID_REPLICATION_FACTOR" in caplog.text


def test_counts_of_groups_without_configs_are_forgotten() -> None:
    world = World()
    world.write(letter(1))
    assert set(world.writer.counts()) == {"g"}
    world.state = replace(world.state, group_configs={})
    assert not world.writer.counts()


def test_the_size_of_a_record_is_known_before_it_is_built() -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    for _ in range(300):
        sizes = [rng.choice([0, 1, 63, 64, 8191, 8192, rng.randint(0, 70_000)]) for _ in range(2)]
        key, value = (None if rng.random() < 0.3 else bytes(size) for size in sizes)
        headers = tuple(("h" * rng.randint(1, 90), bytes(rng.randint(0, 90))) for _ in range(rng.randint(0, 70)))
        record = (1, key, value, headers)
        size = len(build_batch([record])) - HEADER_SIZE
        assert size <= dead_letters._size_of(record) <= size + 3


def many(world: World, index: int) -> list[asyncio.Future[None]]:
    """Begin 40 writes about a partition, each with one dead letter."""
    source: Any = SimpleNamespace(topic="t", index=index, key=("t", index))
    return [asyncio.ensure_future(in_slices(world.writer.write("g", source, [letter(at)]))) for at in range(40)]


def test_a_leader_that_never_answers_holds_up_only_its_own_letters() -> None:
    world, asked, frozen = World(), [], 0

    async def scenario() -> None:
        nobody: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        produce = world.produce

        async def slow(topic: str, index: int, batch: bytearray) -> Outcome:
            asked.append(index)
            return await (nobody if index == frozen else produce(topic, index, batch))

        world.produce = slow  # type: ignore[method-assign]
        writes = many(world, frozen)
        await asyncio.wait(writes, timeout=0)
        async with asyncio.timeout(10):
            await asyncio.gather(*many(world, 1))
        assert asked.count(frozen) < 16, "only a part of the places is its own"
        nobody.set_result(ErrorCode.NONE)
        async with asyncio.timeout(10):
            await asyncio.gather(*writes)
        assert asked.count(frozen) == 40
        assert len(world.writer._places) == 0

    asyncio.run(scenario())


def test_replicas_that_never_answer_hold_up_nobody() -> None:
    """The batch is in the log, so it needs no memory: its dead letters no longer count against the limit."""
    world = World()

    async def scenario() -> None:
        replicas: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        all_sent = asyncio.Event()

        async def sent(*_: object) -> Outcome:
            if world.counts[1] == 40:
                all_sent.set()
            return replicas

        world.produce = sent  # type: ignore[method-assign]
        writes = many(world, 0)
        async with asyncio.timeout(10):
            await all_sent.wait()
        replicas.set_result(ErrorCode.NONE)
        async with asyncio.timeout(10):
            await asyncio.gather(*writes)
        assert world.counts == (40, 40, 0)

    asyncio.run(scenario())
