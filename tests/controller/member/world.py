"""A member of a cluster in memory, and a minimal controller that acts on znodes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from kbroker.broker.membership import prepare
from kbroker.controller import znodes
from kbroker.controller.member.entity_configs import EntityConfigs
from kbroker.controller.member.metadata import MemberMetadata
from kbroker.controller.topic_plans import InternalTopic, TopicDefaults
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import Create, Delete
from kbroker.long_work import in_slices
from kbroker.protocol.messages.inter_broker import UpdateMetadataRequest, UpdateMetadataTopicState
from tests.controller.member.test_metadata_cache import broker, partition

PATIENCE_S = 20
DEFAULTS = TopicDefaults(1, 1, {"__consumer_offsets": InternalTopic(2, 2, {"cleanup.policy": "compact"})})


class FixedClock:
    def __init__(self, now_ms=10**12):
        self.time_ms = now_ms

    def now_ms(self):
        return self.time_ms

    def monotonic_ms(self):
        return float(self.time_ms)


class Member:
    """A MemberMetadata over its own session."""

    def __init__(self, ensemble, cluster_id, *, controller=True):
        self.tree = ensemble.connect()
        self.configs = EntityConfigs(self.tree, FixedClock())
        self.metadata = None
        self.cluster_id = cluster_id
        self.controller = SimpleNamespace(is_active=controller)

    async def begin(self):
        await self.configs.load()
        self.metadata = MemberMetadata(self.tree, self.configs, self.cluster_id, DEFAULTS, self.controller)
        self.configs.follow(self.metadata.configs_changed)
        await self.tell(brokers=(1, 2, 3))

    async def tell(self, *topics, brokers=(1, 2, 3)):
        request = UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            topic_states=list(topics),
            live_brokers=[broker(number) for number in brokers],
        )
        await in_slices(self.metadata.learn(request))

    async def obey(self, name):
        """Act as the controller after a topic was created or has grown: announce leaders."""
        node = await self.tree.get(znodes.topic_path(name))
        assert node is not None
        known = znodes.read(name, node.data, znodes.Assignment.decode)
        states = [partition(index, leader=each[0], isr=each) for index, each in known.replicas.items()]
        for state, replicas in zip(states, known.replicas.values(), strict=True):
            state.replicas = list(replicas)
        await self.tell(UpdateMetadataTopicState(topic_name=name, topic_id=known.topic_id, partition_states=states))
        return known


@asynccontextmanager
async def members(count=1):
    """Yield members of one cluster, of which the first is the controller."""
    ensemble = MemoryEnsemble()
    first = ensemble.connect()
    cluster_id = await prepare(first)
    await first.commit([Create(znodes.CONTROLLER, znodes.ControllerNode(1, 0).encode(), ephemeral=True)])
    found = [Member(ensemble, cluster_id, controller=number == 0) for number in range(count)]
    for each in found:
        await each.begin()
    try:
        yield found
    finally:
        for each in found:
            each.metadata.close()
            each.configs.close()
            await each.tree.close()


async def until(holds):
    """Wait until a condition is true; what it waits for happens in turns of this loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what it waits for needs turns of the loop
            await asyncio.sleep(0)


def cut_once(tree, path):
    """Lose the connection just as something is read; return when that has happened."""
    done, get = asyncio.Event(), tree.get

    async def cut(asked, changed=None):
        if asked != path or done.is_set():
            return await get(asked, changed)
        tree.cut()
        try:
            return await get(asked, changed)
        finally:
            done.set()

    tree.get = cut
    return done


async def written(member, path, version=0):
    """Wait until a znode exists and has been written a number of times."""
    while True:
        node = await member.tree.get(path)
        if node is not None and node.stat.version >= version:
            return


async def gone(tree, name):
    """Act as the controller that deletes a topic, as far as ZooKeeper is concerned."""
    await tree.commit([Delete(znodes.topic_path(name)), Delete(f"{znodes.DELETE_TOPICS}/{name}")])
