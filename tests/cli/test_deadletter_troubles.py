"""`kbroker deadletter` while leaders move and topics are deleted, with many and with large dead letters: no loss."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError

from kbroker.admin import connection, dead_letters, partition_reader, replays
from kbroker.admin.cluster_view import ClusterView
from kbroker.admin.dead_letters import DeadLetter, Originals, origin_of
from kbroker.admin.fetching import Found, PartitionRefused, Piece
from kbroker.admin.replays import Step
from tests.cli.conftest import CommandLine
from tests.cli.test_deadletter import BEFORE, contents, died, jobs, replay, write

__all__ = ["jobs"]  # a fixture
pytestmark = pytest.mark.usefixtures("impatient")
Patch = pytest.MonkeyPatch


@pytest.fixture
def impatient() -> Any:
    with connection.patience(0.5):
        yield


@pytest.fixture
def anywhere(cli: CommandLine) -> CommandLine:
    """Only kbroker: the test causes the trouble in this process."""
    return cli


def refusing(patch: Patch, topic: str, times: int, error: type = NotLeaderForPartitionError) -> list[Any]:
    """Make a number of fetches from a topic fail; return the partitions."""
    fetch, left = partition_reader.fetch, [times]
    refused: list[Any] = []

    def refuse(admin: Any, led: Any, offsets: Any, *rest: Any, **how: Any) -> dict[Any, Piece]:
        (key,) = offsets
        if key[0] == topic and left[0]:
            left[0] -= 1
            refused.append(key)
            raise PartitionRefused(key, error)
        return fetch(admin, led, offsets, *rest, **how)

    patch.setattr(partition_reader, "fetch", refuse)
    return refused


def test_a_leader_that_moves_loses_no_record(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    refusing(monkeypatch, jobs, 2)
    assert replay(anywhere, f"dlq.{jobs}", "--skip", "--execute") == [(0, 2, jobs, 0), (0, 2, jobs, 1)]
    assert contents(anywhere, jobs) == sorted([*BEFORE, *BEFORE, "1 x gone "]), "with their headers"


def test_a_record_that_cannot_be_read_now_is_not_gone(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    """Not even --skip skips it: the next purge would delete its dead letter."""
    dead = f"dlq.{jobs}"
    with monkeypatch.context() as patch:
        refused = refusing(patch, jobs, -1)
        said = anywhere.fails("deadletter", "replay", dead, "--skip", "--execute")
        assert said.startswith(f"{jobs}-0 cannot be read: ")
        first, *_ = anywhere.ok("deadletter", "show", dead, "--json").json
        assert first["record"] is None
        assert first["problem"] == said
        refused.clear()
        anywhere.ok("deadletter", "show", dead)
        assert refused.count((jobs, 0)) > 1
        assert refused.count((jobs, 1)) == 1, "it waits for one leader, not for one after the other"
    assert anywhere.ok("deadletter", "list", dead, "--json").json[0]["replayed"] == 0
    assert contents(anywhere, jobs) == BEFORE


def test_a_record_whose_partition_has_no_leader_is_not_gone(
    anywhere: CommandLine, jobs: str, monkeypatch: Patch
) -> None:
    look, dead = partition_reader.cluster_view, f"dlq.{jobs}"

    def leaderless(admin: Any, topics: list[str]) -> ClusterView:
        view = look(admin, topics)
        for each in view.topics[jobs].partitions if jobs in view.topics else ():
            each.leader_id = -1
        return view

    with monkeypatch.context() as patch, connection.patience(0):
        patch.setattr(partition_reader, "cluster_view", leaderless)
        said = anywhere.fails("deadletter", "replay", dead, "--skip", "--execute")
    assert said.startswith(f"{jobs}-0 cannot be read: ")
    assert anywhere.ok("deadletter", "list", dead, "--json").json[0]["replayed"] == 0
    assert contents(anywhere, jobs) == BEFORE


def test_without_the_right_to_read_the_topics_of_origin(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    refusing(monkeypatch, jobs, -1, TopicAuthorizationFailedError)
    rows = anywhere("deadletter", "replay", f"dlq.{jobs}", "--json").json
    hidden = "it has no copy of the record, which is hidden from this user"
    found = [(row["count"], row["problem"]) for row in rows]
    assert found == [(2, hidden), (1, None), (1, None)], "the copies"


def test_a_topic_that_is_hidden_is_not_said_to_be_gone(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    look = partition_reader.cluster_view

    def hidden(admin: Any, topics: list[str]) -> ClusterView:
        view = look(admin, topics)
        for each in set(topics) & hides:
            del view.topics[each]
            view.refused[each] = TopicAuthorizationFailedError.errno
        return view

    hides = {jobs}
    monkeypatch.setattr(partition_reader, "cluster_view", hidden)
    told = f"topic {jobs}: {TopicAuthorizationFailedError.description} (TOPIC_AUTHORIZATION_FAILED)"
    assert {row["problem"] for row in anywhere("deadletter", "replay", f"dlq.{jobs}", "--json").json} == {told}
    hides.add(f"dlq.{jobs}")
    assert anywhere.fails("deadletter", "list", f"dlq.{jobs}").startswith(f"topic dlq.{jobs}: ")


def test_offsets_that_a_leader_does_not_tell(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    """Dead letters of such a partition do not count as "all replayed"."""
    ask, left = partition_reader.known_offsets_at, [1]

    def silent(admin: Any, led: Any, spec: int) -> dict[Any, int]:
        left[0] -= 1
        return {} if left[0] >= 0 else ask(admin, led, spec)

    monkeypatch.setattr(partition_reader, "known_offsets_at", silent)
    assert len(replay(anywhere, f"dlq.{jobs}")) == 2
    left[0] = 10**6
    for verb in ("list", "show", "replay"):
        assert anywhere.fails("deadletter", verb, f"dlq.{jobs}") == f"dlq.{jobs}-0 has no leader that answers"


def test_a_topic_of_origin_that_is_deleted_meanwhile_stays_away(
    anywhere: CommandLine, jobs: str, monkeypatch: Patch
) -> None:
    begin = KafkaProducer.begin_transaction

    def deleted(producer: KafkaProducer) -> None:
        begin(producer)
        anywhere.ok("topic", "delete", jobs)

    monkeypatch.setattr(KafkaProducer, "begin_transaction", deleted)
    said = anywhere.fails("deadletter", "replay", f"dlq.{jobs}", "--execute", "-X", "max.block.ms=1000")
    assert said.startswith(f"the dead letters from dlq.{jobs}-0 0 on were not replayed: ")
    assert jobs not in [each["name"] for each in anywhere.ok("topic", "list", "--json").json]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_dead_letter_topic_that_is_deleted_meanwhile(
    anywhere: CommandLine, jobs: str, monkeypatch: Patch, is_made_anew: bool
) -> None:
    """The dead letters of a new topic with the same name are different ones."""
    dead, write_part = f"dlq.{jobs}", replays.Replay._write

    def deleted(*arguments: Any) -> dict[int, int]:
        marks = write_part(*arguments)
        anywhere.ok("topic", "delete", dead)
        if is_made_anew:
            anywhere.ok("topic", "create", dead)
            write(anywhere, dead, *[(0, "n", "new", died(jobs, 0, 500))] * 9)
        refusing(monkeypatch, dead, 1)
        return marks

    monkeypatch.setattr(replays, "_AT_ONCE", 1)
    monkeypatch.setattr(replays.Replay, "_write", deleted)
    monkeypatch.setattr("kbroker.admin.fetching.MOST_RECORDS", 1)
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert said.startswith(f"topic {dead} was deleted meanwhile")
    assert not [line for line in contents(anywhere, jobs) if "new" in line]


def test_a_replay_again_begins_anew_in_every_partition(anywhere: CommandLine, jobs: str) -> None:
    dead = f"dlq2.{jobs}"
    anywhere.ok("topic", "create", dead, "-p", "2")
    write(anywhere, dead, *((index, "k", "v", died(jobs, 0, 500)) for index in (0, 0, 1, 1)))
    assert replay(anywhere, dead, "--execute") == [(0, 2, jobs, 0), (1, 2, jobs, 0)]
    assert replay(anywhere, dead, "--again", "-c", "1", "--execute") == [(0, 1, jobs, 0)]
    assert replay(anywhere, dead, "--execute") == [(0, 1, jobs, 0), (1, 2, jobs, 0)], "as if it had gone on"
    assert replay(anywhere, dead, "-p", "1", "--again", "-c", "1", "--execute") == [(1, 1, jobs, 0)]
    assert replay(anywhere, dead) == [(1, 1, jobs, 0)], "the other partition is as it was"


def test_an_internal_topic_is_no_target(anywhere: CommandLine, jobs: str) -> None:
    done = anywhere("deadletter", "replay", f"dlq.{jobs}", "--to", "__consumer_offsets")
    assert (done.status, "__consumer_offsets does not accept replayed records" in done.err) == (2, True)


def test_a_preview_has_few_rows(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    """A million dead letters may name a million topics."""
    dead = f"dlq2.{jobs}"
    anywhere.ok("topic", "create", dead)
    write(anywhere, dead, *((0, "k", "v", died(f"gone-{number}", 0, 0)) for number in range(20)))
    write(anywhere, dead, (0, "k", "v", died(jobs, 0, 0)), (0, "k", "v", died(jobs, 1, 0)))
    monkeypatch.setattr(replays, "MOST_ROWS", 3)
    rows = anywhere("deadletter", "replay", dead, "--json").json
    assert [(row["count"], row["to_topic"], row["problem"]) for row in rows] == [
        *((1, None, f"topic gone-{number} does not exist") for number in range(3)),
        (17, None, "(others)"),
        (2, "(others)", None),
    ]


def found(value: bytes, offset: int = 0, headers: Any = ()) -> Found:
    return Found("t", 0, offset, 1, None, value, headers, False, "none", -1, -1, False)


def test_letters_that_are_passed_over_take_memory_too() -> None:
    letter = DeadLetter(found(bytes(1 << 20)), origin_of(()))
    steps = [Step(letter, None, -1, problem="no") for _ in range(20)]
    assert [len(part) for part in replays._parts(iter(steps))] == [8, 8, 4]


def test_pieces_of_origin_take_little_memory(monkeypatch: Patch) -> None:
    class Reader:
        def topic(self, _: str) -> object:
            return object()

        def fetch(self, key: Any, offset: int, **_: object) -> Piece:
            return Piece([found(bytes(1 << 20), offset)], offset + 1)

    originals = Originals(None)
    originals._reader = Reader()  # type: ignore[assignment]
    monkeypatch.setattr(dead_letters, "MOST_KEPT", 3 << 20)
    for index in range(10):
        assert originals.of(DeadLetter(found(b""), origin_of(tuple(died("t", index, 0))))) is not None
        assert originals._size() <= 3 << 20


def test_a_replay_that_begins_ends_the_other(anywhere: CommandLine, jobs: str, monkeypatch: Patch) -> None:
    dead, begin = f"dlq.{jobs}", KafkaProducer.begin_transaction

    def overtaken(producer: KafkaProducer) -> None:
        begin(producer)
        monkeypatch.setattr(KafkaProducer, "begin_transaction", begin)
        assert len(replay(anywhere, dead, "--execute")) == 2

    monkeypatch.setattr(KafkaProducer, "begin_transaction", overtaken)
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    assert (
        said == f"the dead letters from {dead}-0 0 on were not replayed: another operation on the same topic has begun"
    )
    assert contents(anywhere, jobs) == sorted([*BEFORE, *BEFORE, "1 x gone "]), "once"
