"""Producer ids are given once, whatever ids the logs already contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker import Broker
from kbroker.txn.producer_ids import BLOCK, ProducerIds
from kbroker.txn.shard import Identity

from .raw import Raw


class Store:
    def __init__(self) -> None:
        self.next = 0

    def reserve(self, count: int) -> int:
        first, self.next = self.next, self.next + count
        return first

    def skip(self, least: int) -> None:
        self.next = max(self.next, least)

    def ids(self) -> ProducerIds:
        return ProducerIds(self.reserve, self.skip)


def test_t16_ids_are_given_once_over_restarts() -> None:
    store = Store()
    given = [ids.next() for ids in (store.ids() for _ in range(3)) for _ in range(BLOCK + 1)]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("used", [0, 5, BLOCK - 1, BLOCK, 10 * BLOCK + 7])
@pytest.mark.parametrize("before", [0, 1, BLOCK])
def test_t16_ids_that_a_log_has_are_not_given(used: int, before: int) -> None:
    """A data directory that Apache Kafka has written contains such ids."""
    store = Store()
    ids = store.ids()
    given = [ids.next() for _ in range(before)]
    ids.avoid(used)
    later = [ids.next() for _ in range(2 * BLOCK)]
    assert min(later) > used or min(later) > max(given, default=-1) >= used
    assert not set(later) & set(given)
    assert len(set(later)) == len(later)
    assert max(later) < store.next
    assert min(store.ids().next() for _ in range(2)) > max(later)


def test_t16_what_was_avoided_once_is_avoided_for_ever() -> None:
    """The log with the id may be in a directory that is offline at the next start."""
    store = Store()
    store.ids().avoid(5 * BLOCK)
    assert store.ids().next() == 5 * BLOCK + 1


def test_ids_that_a_client_made_up_use_none_up() -> None:
    """Produce accepts any producer id, also the largest one, after which there is no other."""
    store = Store()
    ids = store.ids()
    ids.avoid(2**63 - 1)
    assert ids.next() == 0


def test_a_start_is_not_misled_by_ids_that_a_client_made_up(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        one = Raw(broker.bootstrap_servers)
        topic = one.topic()
        given = one.init("id")
        assert one.produce(None, Identity(2**63 - 1, 0), topic, [b"x"], transactional=False) == 0
        one.close()
    with Broker(data_dir=str(tmp_path)) as broker:
        one = Raw(broker.bootstrap_servers)
        assert given.producer_id < one.init("another").producer_id < 1_000_000
        one.close()
