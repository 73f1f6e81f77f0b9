"""Share groups and transactions: the records that a group gets with read_committed and with read_uncommitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Broker
from tests.txn.raw import Raw

from .conversation import GROUP, Member, Served, acquired

T = ("t", 0)


@pytest.fixture
def served() -> Iterator[Served]:
    with Broker() as broker:
        made = Served(broker)
        made.topic("t")
        yield made


def write(served: Served, *, commits: bool, records: int = 3) -> None:
    """Write a batch in a transaction, and end it."""
    raw = Raw(served.broker.bootstrap_servers)
    producer = raw.init("tx")
    raw.write("tx", producer, "t", [b"v"] * records)
    raw.end("tx", producer, commit=commits)
    raw.close()


def test_aborted_records_are_not_delivered(served: Served) -> None:
    """Aborted records are archived, and do not count as in flight; markers are acquired, and acknowledged as gaps."""
    served.settings.committed = True
    served.produce("t", 2)
    write(served, commits=False)
    write(served, commits=True)
    with Member(served) as member:
        got = member.fetch(T, wait_ms=10_000)
        assert acquired(got) == [(0, 1, 1), (5, 9, 1)], "2 to 4 are aborted, 5 and 9 are markers"
        assert member.acknowledge({T: [(0, 1, [1]), (5, 9, [0, 1, 1, 1, 0])]}).error_code == 0
        assert served.in_flight("t") == 0


def test_aborted_records_alone_do_not_fill_the_limit(served: Served) -> None:
    served.settings.committed = True
    served.settings.now = served.settings.now._replace(record_locks=3)
    for _ in range(3):
        write(served, commits=False)
    served.produce("t", 1)
    with Member(served) as member:
        got: list[int] = []
        for _ in range(20):
            for first, last, _ in acquired(member.fetch(T, wait_ms=200)):
                got += range(first, last + 1)
                assert member.acknowledge({T: [(first, last, [1])]}).responses[0].partitions[0].error_code == 0
            if 12 in got:
                break
        assert got == [3, 7, 11, 12], "three markers and the record"


def test_an_uncommitted_group_gets_everything(served: Served) -> None:
    write(served, commits=False)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=10_000)) == [(0, 3, 1)]


def test_an_open_transaction_is_waited_for(served: Served) -> None:
    served.settings.committed = True
    raw = Raw(served.broker.bootstrap_servers)
    producer = raw.init("tx")
    raw.write("tx", producer, "t", [b"v"])
    with Member(served) as member:
        member.start(T, wait_ms=20_000)
        served.until(lambda: served.share.get(GROUP, served.topics["t"], 0) is not None)
        raw.end("tx", producer, commit=True)
        assert acquired(member.finish()) == [(0, 1, 1)]
    raw.close()
