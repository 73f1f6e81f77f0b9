"""A broker's copy of the cluster's schemas, with a topic in memory whose leader moves, fails and loses its state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_batch
from kbroker.record_checks import followed_schemas
from kbroker.record_checks.followed_schemas import FollowedSchemas, Piece, Place, Unread
from kbroker.record_checks.schema_lookup import ClusterLookup, Unavailable
from kbroker.schema_registry.records import Content, Version, delete_subject_record, schema_record, schema_tombstone
from kbroker.schema_registry.state import State
from tests.tries import tries

HERE, OTHER = 1, 2
SUBJECT = "orders-value"
FIRST, SECOND = b"1" * 16, b"2" * 16


def version(number: int, *, deleted: bool = False) -> CoordinatorRecord:
    """Return the record of a schema version; the schema's id equals the version's number."""
    return schema_record(Version(SUBJECT, number, number, Content(f'"{number}"'), deleted))


class Topic:
    """The topic and its leader (`Source`)."""

    def __init__(self) -> None:
        self.now: Place | None = Place(OTHER, 0, FIRST)
        self.elected: Place | None = None
        """The leader that was elected, if nobody else knows it yet."""
        self.trouble: str | None = None
        self.batches: list[tuple[int, bytes]] = []
        self.end_offset = 0
        self.high_watermark = 0
        self.first = 0
        self.cut = False
        self.throttled = False
        self.written = asyncio.Event()
        self.ends = 0
        self.reads = 0
        self.provided = 0
        self.before_end: Callable[[], Coroutine[Any, Any, None]] | None = None

    def write(self, *records: CoordinatorRecord, **fields: Any) -> None:
        made = [(0, each.key, each.value, ()) for each in records]
        epoch = 0 if self.now is None else self.now.epoch
        batch = build_batch(made, base_offset=self.end_offset, leader_epoch=epoch, **fields)
        self.batches.append((self.end_offset + len(records), batch))
        self.end_offset += len(records)
        self.commit()

    def commit(self) -> None:
        self.high_watermark = self.end_offset
        self.written.set()

    def place(self) -> Place | None:
        return self.now

    async def provide(self) -> None:
        self.provided += 1
        if self.provided > 2:
            self.now = Place(OTHER, 0, FIRST)

    def is_here(self, place: Place) -> bool:
        return place.leader == HERE

    async def confirm(self, place: Place) -> None:
        if self.elected is not None and place != self.elected:
            raise Unread("it leads no more")

    async def begin(self, place: Place) -> int:
        await self._asked(place)
        return self.first

    async def end(self, place: Place) -> int:
        self.ends += 1
        await self._asked(place)
        found = self.high_watermark
        if self.before_end is not None:
            await self.before_end()
        return found

    async def read(self, place: Place, offset: int, last_epoch: int, wait_ms: int) -> Piece:
        self.reads += 1
        await self._asked(place)
        if self.throttled:
            await asyncio.sleep(wait_ms / 1000)
            return Piece(memoryview(b""), offset, is_throttled=True)
        if self.cut or offset < self.first:
            self.cut = False
            return Piece(memoryview(b""), 0, is_elsewhere=True)
        if offset >= self.high_watermark:
            self.written.clear()
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self.written.wait()
            except TimeoutError:
                pass
            await self._asked(place)
        found = b"".join(batch for end, batch in self.batches if offset < end <= self.high_watermark)
        return Piece(memoryview(found), self.high_watermark)

    async def _asked(self, place: Place) -> None:
        await asyncio.sleep(0)
        if self.trouble is not None:
            raise Unread(self.trouble)
        if place != self.now:
            raise Unread("NOT_LEADER_OR_FOLLOWER")


def run(scenario: Callable[[Topic, FollowedSchemas], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario; it must leave no task, and no unhandled error."""
    unseen: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
        topic = Topic()
        schemas = FollowedSchemas(topic)
        try:
            await asyncio.wait_for(scenario(topic, schemas), 60)
        finally:
            schemas.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert unseen == []


def ids(schemas: FollowedSchemas) -> list[int] | None:
    """Return the valid ids; None if nothing is known."""
    state = schemas.state
    return None if state is None else [each.id for each in state.versions(SUBJECT)]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


def test_a_look_takes_in_everything_that_was_acknowledged() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        assert ids(schemas) is None
        assert topic.reads == 0  # nobody has asked
        for number in range(2, 102):
            topic.write(version(number))
            assert await schemas.look() is None
            assert ids(schemas) == list(range(1, number + 1))

    run(scenario)


def test_what_others_delete_is_followed_without_a_look() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1), version(2))
        assert await schemas.look() is None
        looks = topic.ends
        topic.write(version(1, deleted=True))
        await until(lambda: ids(schemas) == [2])
        topic.write(schema_tombstone(SUBJECT, 1), delete_subject_record(SUBJECT, 2))
        await until(lambda: ids(schemas) == [])
        assert topic.ends == looks

    run(scenario)


def test_looks_at_the_same_time_share_a_question_but_not_one_that_was_asked_before() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        assert await schemas.look() is None
        before = topic.ends
        assert await asyncio.gather(*(schemas.look() for _ in range(200))) == [None] * 200
        assert topic.ends <= before + 2
        asked = asyncio.Event()
        goes_on = asyncio.Event()

        async def hold() -> None:
            topic.before_end = None
            asked.set()
            await goes_on.wait()

        topic.before_end = hold
        first = asyncio.ensure_future(schemas.look())
        await asked.wait()
        topic.write(version(1))
        second = asyncio.ensure_future(schemas.look())
        await asyncio.sleep(0)
        goes_on.set()
        await first
        seen = topic.ends
        await second
        assert topic.ends > seen or not second.done()
        assert ids(schemas) == [1]

    run(scenario)


def test_without_the_leader_the_copy_answers_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_schemas, "PATIENCE_S", 0.2)
    monkeypatch.setattr(followed_schemas, "STALE_S", 1.0)

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        lookup = ClusterLookup(schemas)
        topic.write(version(1))
        await lookup.ready()
        revision = lookup.revision()
        topic.trouble = "it is away"
        with pytest.raises(Unavailable, match="The schema registry cannot be asked: it is away") as refused:
            await lookup.look()
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert lookup.revision() == revision is not None
        assert await lookup.has(1, SUBJECT)
        await until(lambda: lookup.revision() is None)
        with pytest.raises(Unavailable):
            await lookup.has(1, SUBJECT)
        topic.trouble = None
        monkeypatch.setattr(followed_schemas, "PATIENCE_S", 30.0)  # the pause after failed looks is longer than 0.2 s
        await lookup.ready()
        assert lookup.revision() == revision
        assert await lookup.has(1, SUBJECT)
        assert not await lookup.has(2, SUBJECT)

    run(scenario)


def test_a_look_waits_for_the_next_leader() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        assert await schemas.look() is None
        topic.now = None
        topic.provided = -100
        looking = asyncio.ensure_future(schemas.look())
        await asyncio.sleep(0.1)
        assert not looking.done()
        topic.write(version(2))
        topic.now = Place(3, 1, FIRST)
        schemas.moved()
        assert await looking is None
        assert ids(schemas) == [1, 2]

    run(scenario)


def test_a_leader_that_was_elected_away_proves_nothing() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        assert await schemas.look() is None
        topic.elected = Place(3, 1, FIRST)
        looking = asyncio.ensure_future(schemas.look())
        await asyncio.sleep(0.1)
        assert not looking.done()
        topic.now = topic.elected
        topic.write(version(1))
        assert await looking is None
        assert ids(schemas) == [1]

    run(scenario)


@pytest.mark.parametrize("how", ["cut", "begins later", "made anew"])
def test_a_topic_that_changes_before_the_end_is_read_anew(how: str) -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1), version(2))
        topic.write(version(3))
        assert await schemas.look() is None
        topic.batches = topic.batches[1:]
        if how == "made anew":
            topic.now = Place(OTHER, 0, SECOND)
            schemas.moved()
        else:
            topic.cut = True
            topic.first = 2 if how == "begins later" else 0
        topic.written.set()
        await until(lambda: ids(schemas) != [1, 2, 3])
        assert await schemas.look() is None
        assert ids(schemas) == [3]

    run(scenario)


def test_an_end_without_records_is_reached() -> None:
    """The end may have no records after a compaction."""

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        topic.write(version(2))
        topic.batches.pop()
        assert await schemas.look() is None
        assert ids(schemas) == [1]
        topic.write(version(3))
        assert await schemas.look() is None
        assert ids(schemas) == [1, 3]

    run(scenario)


def test_one_empty_answer_does_not_prove_that_there_is_nothing() -> None:
    """The leader may have read the log before the high watermark moved that it returns."""

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        read, lies = topic.read, [0]

        async def hasty(place: Place, offset: int, last_epoch: int, wait_ms: int) -> Piece:
            lies[0] += 1
            if lies[0] % 2:
                return Piece(memoryview(b""), topic.high_watermark)
            return await read(place, offset, last_epoch, wait_ms)

        topic.read = hasty  # type: ignore[method-assign]
        for number in range(2, 12):
            assert await schemas.look() is None
            assert ids(schemas) == list(range(1, number))
            topic.write(version(number))

    run(scenario)


def test_what_cannot_be_read_is_stepped_over() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1), CoordinatorRecord(b"{", b"x"), version(2)._replace(value=b"[]"), version(3))
        topic.write(version(4), codec=1)
        topic.batches[-1] = topic.batches[-1][0], topic.batches[-1][1][:-9] + bytes(9)
        topic.write(version(5), codec=4)
        assert await schemas.look() is None
        assert ids(schemas) == [1, 3, 5]

    run(scenario)


def test_a_missing_topic_is_made() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.now = None
        assert await schemas.look() is None
        assert topic.provided == 3
        assert ids(schemas) == []

    run(scenario)


def test_a_copy_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_schemas, "IDLE_S", 0.2)
    monkeypatch.setattr(followed_schemas, "_WAIT_MS", 10)

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        assert await schemas.look() is None
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert ids(schemas) == [1]
        await until(lambda: not schemas.is_followed)
        reads = topic.reads
        await asyncio.sleep(0.05)
        assert topic.reads == reads
        assert ids(schemas) is None
        topic.write(version(2))
        assert await schemas.look() is None
        assert ids(schemas) == [1, 2]

    run(scenario)


def test_the_end_of_the_broker_ends_all_waits() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.trouble = "it is away"
        looking = [asyncio.ensure_future(schemas.look()) for _ in range(3)]
        await asyncio.sleep(0.05)
        schemas.close()
        assert await asyncio.gather(*looking) == ["this broker stops"] * 3
        assert await schemas.look() == "this broker stops"

    run(scenario)


class Registry:
    """The registry of this broker, if it leads (`Here`)."""

    def __init__(self) -> None:
        self.state: State | None = None

    async def ready(self) -> None:
        if self.state is None:
            raise Unavailable("it is being loaded")


def test_where_this_broker_leads_its_registry_answers() -> None:
    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        own = schemas.here = Registry()
        topic.write(version(1))
        assert await schemas.look() is None
        copy = schemas.state
        topic.now = Place(HERE, 1, FIRST)
        schemas.moved()
        looking = asyncio.ensure_future(schemas.look())
        await until(lambda: schemas.state is None)
        await asyncio.sleep(0.05)
        assert not looking.done()
        own.state = State()
        assert await looking is None
        assert schemas.state is own.state is not copy
        own.state = None
        topic.now = Place(OTHER, 2, FIRST)
        assert schemas.state is None
        assert await schemas.look() is None
        assert ids(schemas) == [1]

    run(scenario)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(tries(3)))
def test_nothing_acknowledged_is_ever_missing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the leader does meanwhile, a read returns everything that was acknowledged before it."""
    monkeypatch.setattr(followed_schemas, "_WAIT_MS", 20)
    chance = random.Random(seed)

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        number, alive, epoch = 0, set[int](), 0

        def disturb() -> None:
            nonlocal epoch
            what = chance.randrange(6)
            topic.trouble = "it is away" if what == 0 else None
            epoch += what in (1, 2)
            if what == 1:
                topic.now = None
                topic.provided = -1000
            else:
                topic.now = Place(chance.choice((2, 3)), epoch, FIRST)
            topic.cut = what == 3
            if chance.random() < 0.5:
                schemas.moved()

        async def settle() -> None:
            nonlocal epoch
            await asyncio.sleep(0.03)
            topic.trouble = None
            topic.now = topic.now or Place(2, epoch, FIRST)

        for _ in range(25):
            for _ in range(chance.randrange(3)):
                number += 1
                alive.add(number)
                topic.write(version(number), codec=chance.choice((0, 1, 3)))
            if alive and chance.random() < 0.2:
                gone = chance.choice(sorted(alive))
                alive.remove(gone)
                topic.write(version(gone, deleted=True))
            disturb()
            settling = asyncio.ensure_future(settle())
            acknowledged = set(alive)
            assert await schemas.look() is None
            found = ids(schemas)
            if found is not None:
                assert set(found) == acknowledged, seed
            await settling

    run(scenario)


def test_an_answer_that_is_throttled_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_schemas, "STALE_S", 0.2)
    monkeypatch.setattr(followed_schemas, "_WAIT_MS", 10)

    async def scenario(topic: Topic, schemas: FollowedSchemas) -> None:
        topic.write(version(1))
        assert await schemas.look() is None
        topic.throttled = True
        topic.write(version(2))
        await until(lambda: schemas.state is None)

    run(scenario)
