"""What holds in a cluster in which nothing is left to be done."""

from __future__ import annotations

from kbroker.controller.cluster.context import Partition, State
from kbroker.controller.znodes import DELETE_TOPICS, TOPICS

from .world import FakeBroker, World


def check(world: World) -> None:
    """Check that the znodes agree with each other, with the controller's memory, and with each live broker's state."""
    context = world.context
    live = set(world.nodes)
    assert set(context.brokers) == live
    registered = {number: broker.epoch for number, broker in context.brokers.items()}
    assert registered == {number: world.broker(number).epoch for number in live}
    deleted = set(children(world, DELETE_TOPICS))
    assert set(context.topics) == set(children(world, TOPICS))
    assert set(context.deletions) == deleted
    expected = {}
    for name in context.topics:
        stored = world.assignment(name)
        assert stored.topic_id == context.topics[name].topic_id
        known = {index: each.replicas for index, each in context.topics[name].partitions.items()}
        assert name in deleted or known == stored.replicas, f"of {name} is known {known}, not {stored.replicas}"
        if name in deleted:
            everybody = {each for replicas in stored.replicas.values() for each in replicas}
            moving = bool(stored.adding or stored.removing)
            assert moving or everybody - live, f"nothing holds up the deletion of {name}"
            continue
        for index in stored.replicas:
            state = check_partition(world, (name, index), live)
            if state is not None:
                expected[name, index] = state
    for number in live:
        check_broker(world, world.broker(number), expected)


def children(world: World, path: str) -> list[str]:
    found = world.ensemble.read(path)
    assert found is not None
    return found[1]


def check_partition(world: World, partition: Partition, live: set[int]) -> State | None:
    """Check that a partition has a leader if any in-sync replica could lead it."""
    context = world.context
    replicas = context.assigned(partition)
    path = f"{TOPICS}/{partition[0]}/partitions/{partition[1]}/state"
    if not world.exists(path):
        assert not live & set(replicas), f"{partition} was never begun"
        return None
    state = State(world.state(*partition), world.version(*partition))
    assert context.states[partition] == state
    value = state.value
    usable = live - context.leaving
    if usable & set(value.isr) & set(replicas):
        assert value.leader in live, f"{partition} has no leader: {value}"
    if value.leader != -1:
        assert value.leader in value.isr
        assert value.leader in live
    assert set(value.isr) <= set(replicas) or partition in context.moving
    return state


def check_broker(world: World, broker: FakeBroker, expected: dict[Partition, State]) -> None:
    """Check that a broker knows the current state, and follows the right leaders.

    It may know a topic that was deleted while the broker was not registered, or hung as the controller died: nobody
    notifies it any more, as in Apache Kafka.
    """
    told = broker.told
    assert set(told.live) == set(world.nodes)
    assert told.live == {number: node.port for number, node in world.nodes.items()}
    assert (told.controller_id, told.controller_epoch) == (world.active.number, world.controller_epoch())
    known = {
        partition: (part.leader, part.leader_epoch, tuple(part.isr), part.zk_version)
        for partition, part in told.metadata.items()
        if partition[0] in world.context.topics and not world.context.is_deleted(partition[0])
    }
    wanted = {
        partition: (state.value.leader, state.value.leader_epoch, state.value.isr, state.version)
        for partition, state in expected.items()
    }
    different = {
        each: (known.get(each), wanted.get(each))
        for each in known.keys() | wanted
        if known.get(each) != wanted.get(each)
    }
    assert not different, f"{broker.number} knows something else than what is so: {different}"
    for partition, state in expected.items():
        if broker.number in world.context.assigned(partition):
            part = told.replicas[partition]
            known_leader, led = (part.leader, part.leader_epoch), (state.value.leader, state.value.leader_epoch)
            assert known_leader == led, f"{broker.number} was told of {partition}: {part}, not {state}"
            if state.value.leader != -1:  # otherwise it learns the other replicas at the next election
                assigned = world.context.assigned(partition)
                assert tuple(part.replicas) == assigned, (
                    f"{broker.number} was told of {partition}: {part}, not {assigned}"
                )
