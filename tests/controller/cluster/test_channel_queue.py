"""The queue of requests to a broker: in order, and no longer than the number of partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.cluster.channel_queue import Leaderships, Metadata, OutgoingQueue, Stops
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrPartitionState,
    StopReplicaPartitionState,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
)

Item = Leaderships | Metadata | Stops
P, Q = ("t", 0), ("t", 1)


def lead(epoch: int, *partitions: tuple[str, int], is_new: bool = False) -> Leaderships:
    return Leaderships(
        {
            each: LeaderAndIsrPartitionState(partition_index=each[1], leader_epoch=epoch, is_new=is_new)
            for each in partitions
        }
    )


def stop(epoch: int, *partitions: tuple[str, int], delete: bool = False) -> Stops:
    return Stops(
        {
            each: StopReplicaPartitionState(partition_index=each[1], leader_epoch=epoch, delete_partition=delete)
            for each in partitions
        }
    )


def metadata(epoch: int, *partitions: tuple[str, int]) -> Metadata:
    parts = {each: UpdateMetadataPartitionState(partition_index=each[1], leader_epoch=epoch) for each in partitions}
    return Metadata(parts, [UpdateMetadataBroker(epoch)])


def drained(queue: OutgoingQueue) -> list[Item]:
    items = []
    while (item := queue.take()) is not None:
        items.append(item)
    return items


def test_few_are_sent_as_they_came() -> None:
    queue = OutgoingQueue()
    items: list[Item] = [lead(1, P), metadata(1, P), stop(1, P), lead(2, P)]
    for item in items:
        queue.put(item)
    assert len(queue) == 4
    assert drained(queue) == items
    assert len(queue) == 0


def test_many_come_together_and_the_newest_counts() -> None:
    queue = OutgoingQueue(most_waiting=3)
    for epoch in range(1, 100):
        queue.put(lead(epoch, P, is_new=epoch == 1))
        queue.put(metadata(epoch, P, Q))
    items = drained(queue)
    assert len(items) <= 5
    together = next(item for item in items if isinstance(item, Leaderships))
    assert together.parts[P].is_new
    assert isinstance(items[0], Metadata)
    assert [item for item in items if isinstance(item, Leaderships)][-1].parts[P].leader_epoch == 99
    assert [item for item in items if isinstance(item, Metadata)][-1].live == [UpdateMetadataBroker(99)]


def test_a_replica_that_is_deleted_and_comes_again_is_told_both_in_this_order() -> None:
    queue = OutgoingQueue(most_waiting=0)
    for item in (lead(1, P), stop(2, P, delete=True), lead(3, P, is_new=True), stop(4, Q)):
        queue.put(item)
    before, again, other = drained(queue)
    assert before == stop(2, P, delete=True)
    assert again == lead(3, P, is_new=True)
    assert other == stop(4, Q)


def applied(
    items: list[Item],
) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]], dict[tuple[str, int], int]]:
    """Return what a broker knows after these items: replicas, stopped replicas, metadata."""
    followed: dict[tuple[str, int], int] = {}
    stopped: set[tuple[str, int]] = set()
    known: dict[tuple[str, int], int] = {}
    for item in items:
        if isinstance(item, Metadata):
            known.update({each: part.leader_epoch for each, part in item.parts.items()})
        elif isinstance(item, Leaderships):
            for each, part in item.parts.items():
                followed[each] = part.leader_epoch
                stopped.discard(each)
        else:
            for each, end in item.parts.items():
                stopped.add(each)
                if end.delete_partition:
                    followed.pop(each, None)
    return followed, stopped, known


ITEMS = st.lists(
    st.tuples(st.sampled_from(["lead", "stop", "delete", "metadata"]), st.sets(st.sampled_from([P, Q]), min_size=1))
)


@given(ITEMS, st.integers(0, 5))
def test_a_broker_ends_up_the_same_however_much_came_together(
    steps: list[tuple[str, set[tuple[str, int]]]], most: int
) -> None:
    items: list[Item] = []
    for epoch, (kind, partitions) in enumerate(steps):
        chosen = sorted(partitions)
        if kind == "lead":
            items.append(lead(epoch, *chosen))
        elif kind == "metadata":
            items.append(metadata(epoch, *chosen))
        else:
            items.append(stop(epoch, *chosen, delete=kind == "delete"))
    queue = OutgoingQueue(most)
    for item in items:
        queue.put(item)
    assert applied(drained(queue)) == applied(items)
    assert len(drained(queue)) == 0
