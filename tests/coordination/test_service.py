"""What coordinators have in common: which partition a key has, however the topic changes."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordination import partitioning
from kbroker.coordination.partitioning import java_hash, partition_for
from kbroker.coordination.service import CoordinatorService
from kbroker.group_coordinator.records import offsets
from kbroker.group_coordinator.records.offsets import offset_key
from kbroker.txn import records

from .world import FakeWriter, Journal, ManualClock

KEYS = [f"key-{n}" for n in range(100)]


def service(writer: FakeWriter) -> CoordinatorService[Journal]:
    return CoordinatorService("journal", 7, lambda _partition: Journal(), writer, ManualClock(), 5_000)


def partitions(count: int) -> list[int]:
    return [partition_for(key, count) for key in KEYS]


def test_keys_stay_where_they_are_when_the_topic_grows(caplog: pytest.LogCaptureFixture) -> None:
    writer = FakeWriter()
    coordinator = service(writer)
    for partition in range(4):
        coordinator.on_leadership(partition, 1)
    writer.count = 6
    coordinator.on_leadership(4, 1)
    coordinator.on_leadership(5, 1)
    assert [coordinator.partition_for(key) for key in KEYS] == partitions(4)
    assert caplog.text.count("journal has grown") == 1
    coordinator.close()
    again = service(writer)
    assert [again.partition_for(key) for key in KEYS] == partitions(6)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_topic_that_is_yet_to_be_created(asked_before: bool) -> None:
    """First its expected partition count, and then the real one, which differs if somebody else created it."""
    writer = FakeWriter()
    writer.count = 0
    coordinator = service(writer)
    assert [coordinator.partition_for(key) for key in KEYS] == partitions(7)
    writer.count = 3
    if asked_before:
        assert coordinator.partition_for(KEYS[0]) == partitions(3)[0]
    coordinator.on_leadership(0, 1)
    writer.count = 5
    assert [coordinator.partition_for(key) for key in KEYS] == partitions(3)
    coordinator.close()


def test_leadership_that_is_known_before_the_topic(caplog: pytest.LogCaptureFixture) -> None:
    """In a cluster, a replica learns of its leadership first, and of the topic's state afterwards."""
    writer = FakeWriter()
    writer.count = 0
    coordinator = service(writer)
    for partition in (2, 0):
        coordinator.on_leadership(partition, 1)
    writer.count = 3
    assert [coordinator.partition_for(key) for key in KEYS] == partitions(3)
    coordinator.on_leadership(1, 1)
    assert "has grown" not in caplog.text
    coordinator.close()


def test_a_topic_that_is_deleted_and_created_anew_has_its_own_number() -> None:
    writer = FakeWriter()
    coordinator = service(writer)
    for partition in range(4):
        coordinator.on_leadership(partition, 1)
    coordinator.on_topic_deleted()
    assert list(coordinator._runtime.shards()) == []
    writer.count = 2
    coordinator.on_leadership(0, 1)
    assert [coordinator.partition_for(key) for key in KEYS] == partitions(2)
    coordinator.close()


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 511, 512, 513, 32_767])
def test_the_hash_of_a_long_id_is_javas(length: int) -> None:
    text = ("a\u1234\U0001f600z" * length)[:length]
    units = text.encode("utf-16-be")
    expected = 0
    for at in range(0, len(units), 2):
        expected = (31 * expected + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    assert java_hash(text) & 0xFFFFFFFF == expected


@pytest.mark.parametrize(
    ("remember", "cache"),
    [
        (lambda name: partition_for(name, 50), partitioning._partition_for),
        (lambda name: offset_key(name, "t", 0), offsets._short_key),
        (records._key, records._short_key),
    ],
)
def test_long_ids_are_not_kept(remember: Any, cache: Any) -> None:
    sizes = []
    for _ in range(10):  # brokers of other tests can use the cache meanwhile
        cache.cache_clear()
        for length in (1, partitioning.SHORT_ID, partitioning.SHORT_ID + 1, 32_000):
            assert remember("x" * length) == remember("x" * length)
        sizes.append(cache.cache_info().currsize)
    assert min(sizes) == 2
