"""A start logs which transactions are open in the logs but unknown to all coordinators."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kbroker import Broker
from kbroker.broker import periodic_work
from kbroker.cli.main import cli
from kbroker.protocol.errors import ErrorCode
from kbroker.txn.hanging_transactions import NAMED, Hanging, find_hanging, warn_of
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import ONGOING

from .raw import Raw, until

SETTINGS = {"transaction.state.log.num.partitions": "2"}


@pytest.fixture(autouse=True)
def ticks_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_work, "_TICK_SECONDS", 0.05)


def leave_open(data: Path) -> tuple[str, list[Identity]]:
    """Leave two open transactions after a committed record in a topic; return the topic and the two producers."""
    with Broker(SETTINGS, data_dir=str(data)) as broker:
        one = Raw(broker.bootstrap_servers, 2)
        topic = one.topic()
        done = one.init("done")
        one.write("done", done, topic, [b"committed"])
        one.end("done", done)
        producers = []
        for name in ("a", "b"):
            producer = one.init(name)
            one.write(name, producer, topic, [name.encode()])
            producers.append(producer)
        one.close()
    return topic, producers


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "kbroker.txn.hanging_transactions"]


def forget(data: Path) -> None:
    """Delete the records of the transaction coordinator."""
    for path in data.glob("__transaction_state-*/*"):
        if path.name != "partition.metadata":
            path.unlink()


def test_what_no_coordinator_knows_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic, producers = leave_open(tmp_path)
    forget(tmp_path)
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        told = until("two warnings", lambda: len(found := lines(caplog)) == 2 and found)
        one = Raw(broker.bootstrap_servers, 2)
        seen = one.see(topic)
        assert (seen.values, seen.stable) == ([b"committed"], 2)
        for producer in producers:
            assert one.mark(producer, topic, commit=False) is ErrorCode.NONE
        seen = one.see(topic)
        assert (seen.values, seen.stable) == ([b"committed"], seen.high_watermark)
        one.close()
        command = f"kbroker transaction abort --bootstrap {broker.bootstrap_servers}"
    for line, producer, offset in zip(told, producers, (2, 3), strict=True):
        assert line.startswith(f"{topic}-0: no coordinator knows the transaction of producer {producer.producer_id} ")
        assert line.endswith(f"{command} {topic} 0 --start-offset {offset}")


def test_the_command_that_is_told_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic, _ = leave_open(tmp_path)
    forget(tmp_path)
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        for line in until("two warnings", lambda: len(found := lines(caplog)) == 2 and found):
            done = CliRunner().invoke(cli, shlex.split(line.partition("kbroker ")[2]))
            assert (done.exit_code, done.stderr) == (0, "")
        one = Raw(broker.bootstrap_servers, 2)
        seen = one.see(topic)
        assert (seen.values, seen.stable) == ([b"committed"], seen.high_watermark)
        one.close()


def test_what_a_coordinator_knows_is_not_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave_open(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        until("the look", lambda: broker.node.periodic_work.hanging.done)
    assert lines(caplog) == []


def test_there_may_be_thousands(caplog: pytest.LogCaptureFixture) -> None:
    warn_of([Hanging("t", n, n, 0, 0) for n in range(5_000)], "host:9092")
    assert len(lines(caplog)) == NAMED + 1
    assert "4980 more" in lines(caplog)[-1]
    assert "kbroker transaction hanging --bootstrap host:9092` lists" in lines(caplog)[-1]


def test_they_are_looked_for_in_pieces_and_told_of_as_they_are_at_the_end() -> None:
    def open_by(*producer_ids: int) -> Any:
        entries = {
            each: SimpleNamespace(producer_id=each, producer_epoch=0, current_txn_first_offset=each)
            for each in producer_ids
        }
        return SimpleNamespace(first_unstable=0, entries=entries)

    logs = [open_by(number, 1_000 + number, 2_000 + number) for number in range(20)]
    led = [(("t", number), each) for number, each in enumerate(logs)]
    known: list[Any] = []
    work = find_hanging(led, lambda: known)
    for _ in range(30):
        work.send(None)  # by now it has passed some of the partitions
    for number, each in enumerate(logs):
        each.entries[number].current_txn_first_offset = -1  # ended meanwhile
        known.append(SimpleNamespace(producer_id=1_000 + number, state=ONGOING, partitions={("t", number)}))
    steps = 0
    while True:
        steps += 1
        try:
            work.send(None)
        except StopIteration as end:
            found = end.value
            break
    assert steps > 5
    assert [(each.partition, each.producer_id) for each in found] == [(n, 2_000 + n) for n in range(20)]
