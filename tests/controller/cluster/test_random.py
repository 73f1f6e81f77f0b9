"""Random deaths, expiries, hangs, topics and requests: in the end all brokers agree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kbroker.controller.tree.znode import Refused
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.inter_broker import AllocateProducerIdsRequest, ControlledShutdownRequest
from tests.tries import tries

from .agreement import check
from .world import World, run

BROKERS = range(1, 6)
STEPS = 60


class Chaos:
    """One run of random steps."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.asked: list[asyncio.Task[None]] = []
        self.topics = 0
        self.cut: set[int] = set()
        self.blocks: list[int] = []

    async def step(self) -> None:
        steps = (
            [self.create] * 3
            + [self.kill, self.start, self.start, self.expire, self.hang, self.go_on, self.cut_off, self.heal]
            + [
                self.delete,
                self.grow,
                self.reassign,
                self.cancel,
                self.prefer,
                self.stop,
                self.unclean,
                self.ids,
                self.lose,
                self.lose,
            ]
            + [self.alter_isr] * 8
        )
        step: Callable[[], Awaitable[None]] = self.random.choice(steps)
        await step()
        for _ in range(self.random.choice((0, 1, 3, 10, 50))):
            await self.world.turn()

    def some_broker(self) -> int:
        return self.random.choice(BROKERS)

    def some_replicas(self) -> list[int]:
        return self.random.sample(BROKERS, self.random.randint(1, 3))

    def known_topics(self) -> list[str]:
        found = self.world.ensemble.read("/brokers/topics")
        assert found is not None
        return found[1]

    def some_partition(self) -> tuple[str, int] | None:
        topics = self.known_topics()
        if not topics:
            return None
        topic = self.random.choice(topics)
        return topic, self.random.choice(sorted(self.world.assignment(topic).replicas))

    async def create(self) -> None:
        self.topics += 1
        replicas = {index: self.some_replicas() for index in range(self.random.randint(1, 4))}
        await self.world.create_topic(f"t{self.topics}", replicas)

    async def delete(self) -> None:
        topics = self.known_topics()
        if topics:
            try:
                await self.world.delete_topic(self.random.choice(topics))
            except Refused:
                return

    async def grow(self) -> None:
        topics = self.known_topics()
        if topics:
            topic = self.random.choice(topics)
            if self.world.exists(f"/admin/delete_topics/{topic}"):
                return
            try:
                await self.world.grow_topic(topic, {len(self.world.assignment(topic).replicas): self.some_replicas()})
            except (Refused, AssertionError):  # gone meanwhile
                return

    async def kill(self) -> None:
        number = self.some_broker()
        if number in self.world.nodes and len(self.world.nodes) > 2:
            self.cut.discard(number)
            await self.world.kill(number)

    async def start(self) -> None:
        number = self.some_broker()
        if number not in self.world.nodes:
            await self.world.start_unsettled(number)

    async def expire(self) -> None:
        number = self.some_broker()
        if number in self.world.nodes:
            self.world.nodes[number].tree.tree.expire()

    async def cut_off(self) -> None:
        number = self.some_broker()
        if number in self.world.nodes:
            self.world.nodes[number].tree.tree.cut()
            self.cut.add(number)

    async def lose(self) -> None:
        """Let a controller's next commits succeed, but lose their responses."""
        controller = self.controller()
        if controller is not None:
            self.world.nodes[controller].tree.loses_answers = self.random.randint(1, 4)

    async def heal(self) -> None:
        for number in list(self.cut):
            self.cut.discard(number)
            self.world.nodes[number].tree.tree.heal()

    async def hang(self) -> None:
        number = self.some_broker()
        if number in self.world.nodes:
            self.world.broker(number).hang()

    async def go_on(self) -> None:
        for node in self.world.nodes.values():
            node.broker.go_on()

    def ask(self, wish: Awaitable[object]) -> None:
        async def asking() -> None:
            try:
                await wish
            except (ApiError, AssertionError):
                return

        self.asked.append(asyncio.ensure_future(asking()))

    def controller(self) -> int | None:
        active = [number for number, node in self.world.nodes.items() if node.controller.is_active]
        return self.random.choice(active) if active else None

    async def alter_isr(self) -> None:
        partition, controller = self.some_partition(), self.controller()
        if partition is None or controller is None:
            return
        world = self.world
        if not world.exists(f"/brokers/topics/{partition[0]}/partitions/{partition[1]}/state"):
            return
        leader = world.state(*partition).leader
        if leader not in world.nodes:
            return
        assignment = world.assignment(partition[0])
        replicas = assignment.replicas[partition[1]]
        isr = [each for each in replicas if each == leader or self.random.random() < 0.8]
        assert assignment.topic_id is not None
        request = world.isr_request(assignment.topic_id, *partition, isr, leader)
        self.ask(world.nodes[controller].controller.alter_partition(request))

    async def reassign(self) -> None:
        partition, controller = self.some_partition(), self.controller()
        if partition is not None and controller is not None:
            target = self.some_replicas()
            self.ask(self.world.nodes[controller].controller.alter_reassignments({partition: target}))

    async def cancel(self) -> None:
        partition, controller = self.some_partition(), self.controller()
        if partition is not None and controller is not None:
            self.ask(self.world.nodes[controller].controller.alter_reassignments({partition: None}))

    async def prefer(self) -> None:
        partition, controller = self.some_partition(), self.controller()
        if partition is not None and controller is not None:
            self.ask(self.world.nodes[controller].controller.elect_leaders(0, [partition]))

    async def unclean(self) -> None:
        partition, controller = self.some_partition(), self.controller()
        if partition is not None and controller is not None:
            self.ask(self.world.nodes[controller].controller.elect_leaders(1, [partition]))

    async def stop(self) -> None:
        """Stop with a controlled shutdown: request it, then end, whatever the response."""
        number, controller = self.some_broker(), self.controller()
        if number not in self.world.nodes or controller is None or len(self.world.nodes) <= 2:
            return
        request = ControlledShutdownRequest(number, self.world.broker(number).epoch)
        self.ask(self.world.nodes[controller].controller.controlled_shutdown(request))
        for _ in range(self.random.choice((0, 5, 40))):
            await self.world.turn()
        if number in self.world.nodes:
            self.cut.discard(number)
            await self.world.kill(number)

    async def ids(self) -> None:
        number, controller = self.some_broker(), self.controller()
        if number not in self.world.nodes or controller is None:
            return
        request = AllocateProducerIdsRequest(number, self.world.broker(number).epoch)
        asked = self.world.nodes[controller].controller

        async def take() -> None:
            response = await asked.allocate_producer_ids(request)
            self.blocks.append(response.producer_id_start)

        self.ask(take())

    async def end(self) -> None:
        """End all faults, and check the result."""
        await self.heal()
        await self.go_on()
        await self.world.settle()
        async with asyncio.timeout(30):
            await asyncio.gather(*self.asked)
        await self.world.settle()
        check(self.world)
        assert len(set(self.blocks)) == len(self.blocks)
        for number in BROKERS:
            if number not in self.world.nodes:
                await self.world.start_unsettled(number)
        await self.world.settle()
        check(self.world)


@pytest.mark.parametrize("seed", range(tries(60)))
def test_in_the_end_everybody_agrees(seed: int) -> None:
    async def scenario() -> None:
        async with World() as world:
            await world.start(*BROKERS)
            chaos = Chaos(world, seed)
            for _ in range(STEPS):
                await chaos.step()
            await chaos.end()

    run(scenario())
