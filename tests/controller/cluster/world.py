"""A cluster in memory: an ensemble, and brokers with a session, a controller, and the state that they received.

A broker stores what LeaderAndIsr, UpdateMetadata and StopReplica contain as Apache Kafka's does, and refuses what
Kafka's refuses. It may hang (answer nothing for now), vanish, or die at a chosen commit of its controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from kbroker.controller.cluster.cluster_controller import ClusterController
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.cluster.term import ControllerConfig
from kbroker.controller.tree.memory import MemoryEnsemble, MemoryTree
from kbroker.controller.tree.znode import (
    Change,
    Changed,
    Create,
    Done,
    Refused,
    Session,
    SetData,
    Unreachable,
    Znode,
)
from kbroker.controller.znodes import (
    BROKER_IDS,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    PERSISTENT,
    Assignment,
    Endpoint,
    LeaderAndIsr,
    Registration,
    encode_configs,
    read,
    state_path,
    topic_path,
)
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kbroker.protocol.wire import new_uuid

PATIENCE_S = 30
QUIET_CONFIG = ControllerConfig(auto_rebalance=False)
T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE_S))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - many things may make it true
            await asyncio.sleep(0)


async def short_sleep(seconds: float) -> None:
    """Sleep a hundredth of the requested time: a backoff must let other tasks run, and no more."""
    await asyncio.sleep(seconds / 100)


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return 0.0


@dataclass
class Told:
    """What a broker knows from requests."""

    controller_epoch: int = 0
    controller_id: int = -1
    live: dict[int, int] = field(default_factory=dict)
    """Broker -> its port."""
    metadata: dict[Partition, Any] = field(default_factory=dict)
    replicas: dict[Partition, LeaderAndIsrPartitionState] = field(default_factory=dict)
    stopped: set[Partition] = field(default_factory=set)
    deleted: list[Partition] = field(default_factory=list)


class FakeBroker:
    """One process: its state is lost when it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = -1
        self.told = Told()
        self.requests: list[Any] = []
        self.failed_dirs: set[Partition] = set()
        self.is_gone = False
        self._topic_ids: dict[bytes, str] = {}
        self._answering = asyncio.Event()
        self._answering.set()

    def hang(self) -> None:
        self._answering.clear()

    def go_on(self) -> None:
        self._answering.set()

    def vanish(self) -> None:
        self.is_gone = True
        self._answering.set()

    async def receive(self, request: Any) -> Any:
        await asyncio.sleep(0)
        await self._answering.wait()
        if self.is_gone:
            raise PeerUnavailable("the broker is gone")
        self.requests.append(request)
        error = self._refusal(request)
        if error:
            return self._refused(request, error)
        if isinstance(request, LeaderAndIsrRequest):
            return self._lead(request)
        if isinstance(request, UpdateMetadataRequest):
            return self._learn(request)
        assert isinstance(request, StopReplicaRequest)
        return self._stop(request)

    def _refusal(self, request: Any) -> int:
        if request.broker_epoch != -1 and request.broker_epoch < self.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.told.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.told.controller_epoch, self.told.controller_id = request.controller_epoch, request.controller_id
        return 0

    def _refused(self, request: Any, error: int) -> Any:
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse(error_code=error)
        if isinstance(request, UpdateMetadataRequest):
            return UpdateMetadataResponse(error_code=error)
        return StopReplicaResponse(error_code=error)

    def _lead(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        answer = LeaderAndIsrResponse()
        for topic in request.topic_states:
            errors = []
            for part in topic.partition_states:
                partition = topic.topic_name, part.partition_index
                assert self.number in part.replicas, f"{self.number} was told of {partition}, but has no replica of it"
                errors.append(LeaderAndIsrPartitionError(part.partition_index, self._take(partition, part)))
            answer.topics.append(LeaderAndIsrTopicError(topic.topic_id, errors))
        return answer

    def _take(self, partition: Partition, part: LeaderAndIsrPartitionState) -> int:
        if partition in self.failed_dirs:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.told.replicas.get(partition)
        if known is not None and part.leader_epoch <= known.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if part.leader not in (-1, self.number) and part.leader not in self.told.live:
            return 0  # ignored silently, as in Kafka's broker: the controller must announce live brokers first
        self.told.replicas[partition] = part
        self.told.stopped.discard(partition)
        return 0

    def _learn(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        self.told.live = {each.id: each.endpoints[0].port for each in request.live_brokers}
        for topic in request.topic_states:
            for part in topic.partition_states:
                partition = topic.topic_name, part.partition_index
                if part.leader == -2:
                    self.told.metadata.pop(partition, None)
                else:
                    self.told.metadata[partition] = part
        return UpdateMetadataResponse()

    def _stop(self, request: StopReplicaRequest) -> StopReplicaResponse:
        answer = StopReplicaResponse()
        for topic in request.topic_states:
            for part in topic.partition_states:
                partition = topic.topic_name, part.partition_index
                error = self._stop_one(partition, part)
                answer.partition_errors.append(StopReplicaPartitionError(topic.topic_name, part.partition_index, error))
        return answer

    def _stop_one(self, partition: Partition, part: Any) -> int:
        if partition in self.failed_dirs:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.told.replicas.get(partition)
        if known is not None and 0 <= part.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.told.stopped.add(partition)
        if part.delete_partition:
            self.told.replicas.pop(partition, None)
            self.told.deleted.append(partition)
        return 0


class FakePeer:
    def __init__(self, world: World, port: int, client_id: str) -> None:
        self._world = world
        self._port = port
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world.client_ids.add(client_id)

    async def ask(self, request: Any, version: int, answer: type[Any], timeout_ms: float) -> Any:
        assert version == {4: 7, 5: 4, 6: 8}[request.KEY]
        broker = self._world.at_port(self._port)
        if broker is None or broker.is_gone:
            await asyncio.sleep(0)
            raise PeerUnavailable("nobody listens")
        asked = asyncio.ensure_future(broker.receive(request))
        try:
            await asyncio.wait({asked, self._closed}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise PeerUnavailable("closed")
            assert isinstance(asked.result(), answer)
            return asked.result()
        finally:
            asked.cancel()

    def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


class WatchedTree:
    """A tree that counts commits, and stops permanently at a chosen one: its process has died there."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self.commits = 0
        self.dies_after: int | None = None
        self.died: Callable[[], None] = lambda: None
        self.loses_answers = 0
        """The number of next commits that succeed but whose responses are lost."""
        self.log: list[Sequence[Change]] = []

    @property
    def session_id(self) -> int:
        return self.tree.session_id

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        return await self.tree.get(path, changed)

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        return await self.tree.children(path, changed)

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        if self.dies_after is not None and self.commits >= self.dies_after:
            died, self.died = self.died, lambda: None
            died()
            await asyncio.Event().wait()
        self.commits += 1
        done = await self.tree.commit(changes)
        self.log.append(changes)
        if self.loses_answers:
            self.loses_answers -= 1
            raise Unreachable("the answer was lost")
        return done

    def listen(self, listener: Callable[[Session], None]) -> None:
        self.tree.listen(listener)

    async def close(self) -> None:
        await self.tree.close()


class Node:
    """A broker's process with its session and its controller, composed like a real one."""

    def __init__(self, world: World, number: int, config: ControllerConfig) -> None:
        self.world = world
        self.number = number
        self.port = 9000 + number
        self.tree = WatchedTree(world.ensemble.connect())
        self.tree.died = self._died
        self.broker = FakeBroker(number)
        self.controller = ClusterController(number, self.tree, world, Clock(), config, short_sleep)
        self.tree.listen(self._session_changed)
        self.is_dead = False
        self.registered_by = 0
        """The session by which the broker is registered."""
        self._registering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.register()
        await self.controller.start()

    async def register(self, port: int | None = None) -> None:
        self.port = port or self.port
        path = f"{BROKER_IDS}/{self.number}"
        node = Create(path, b"", ephemeral=True)
        with suppress(Refused):  # it was created before the connection was lost
            await self.tree.tree.commit([node, SetData(path, self.registration().encode(), 0)])
        found = await self.tree.get(path)
        assert found is not None
        assert found.stat.owner == self.tree.session_id
        self.broker.epoch = found.stat.created
        self.registered_by = found.stat.owner

    def registration(self) -> Registration:
        endpoint = Endpoint("PLAINTEXT", "localhost", self.port)
        return Registration((endpoint,), {"PLAINTEXT": "PLAINTEXT"}, features=self.world.features.get(self.number, {}))

    def _session_changed(self, what: Session) -> None:
        if self.is_dead:
            return
        if what is Session.EXPIRED:
            self.controller.expired()
        elif what is Session.LIVE and (self._registering is None or self._registering.done()):
            self._registering = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        if self.registered_by == self.tree.session_id:
            return
        while self.registered_by != self.tree.session_id:
            try:
                await self.register()
            except Unreachable:
                await asyncio.sleep(0)
        self.controller.renewed()

    def _died(self) -> None:
        self.world.dying.append(asyncio.ensure_future(self.world.kill(self.number)))

    async def end(self) -> None:
        self.is_dead = True
        self.broker.vanish()
        await self.controller.close()
        if self._registering is not None:
            self._registering.cancel()
        await self.tree.tree.close()


class World:
    """The complete cluster."""

    def __init__(self, config: ControllerConfig = QUIET_CONFIG) -> None:
        self.ensemble = MemoryEnsemble()
        self.config = config
        self.nodes: dict[int, Node] = {}
        self.client_ids: set[str] = set()
        self.dying: list[asyncio.Future[None]] = []
        self.tool = self.ensemble.connect()
        self.features: dict[int, Mapping[str, Mapping[str, int]]] = {}
        """The features that each broker supports, by id; a broker without an entry is like Apache Kafka 3.9."""

    async def __aenter__(self) -> Self:
        made = set()
        for path in PERSISTENT:
            for end in range(1, len(path) + 1):
                if (end == len(path) or path[end] == "/") and path[:end] not in made:
                    made.add(path[:end])
                    await self.tool.commit([Create(path[:end])])
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in list(self.nodes.values()):
            await node.end()

    def peer(self, host: str, port: int, client_id: str) -> FakePeer:
        assert host == "localhost"
        return FakePeer(self, port, client_id)

    def at_port(self, port: int) -> FakeBroker | None:
        return next((node.broker for node in self.nodes.values() if node.port == port), None)

    async def start(self, *numbers: int, config: ControllerConfig | None = None) -> None:
        """Start brokers, one after the other: the first is elected."""
        for number in numbers:
            await self.start_unsettled(number, config)
            await self.settle()

    async def start_unsettled(self, number: int, config: ControllerConfig | None = None) -> None:
        node = self.nodes[number] = Node(self, number, config or self.config)
        await node.start()

    async def kill(self, number: int) -> None:
        node = self.nodes.pop(number)
        await node.end()

    @property
    def active(self) -> Node:
        [active] = [node for node in self.nodes.values() if node.controller.is_active]
        return active

    @property
    def context(self) -> Context:
        term = self.active.controller._term
        assert term is not None
        return term.context

    def broker(self, number: int) -> FakeBroker:
        return self.nodes[number].broker

    async def settle(self) -> None:
        """Wait until nothing is left to be done: check twice, since a watch fires one turn later."""

        def is_quiet() -> bool:
            return (
                all(each.done() for each in self.dying)
                and all(node._registering is None or node._registering.done() for node in self.nodes.values())
                and all(node.controller.is_idle for node in self.nodes.values())
                and (not self.nodes or any(node.controller.is_active for node in self.nodes.values()))
            )

        async with asyncio.timeout(PATIENCE_S):
            quiet = 0
            while quiet < 10:
                await asyncio.sleep(0)
                quiet = quiet + 1 if is_quiet() else 0

    async def turn(self) -> None:
        """Let every task run for one turn of the loop."""
        await asyncio.sleep(0)

    def forget_requests(self) -> None:
        for node in self.nodes.values():
            node.broker.requests.clear()

    async def create_topic(
        self, name: str, replicas: Mapping[int, Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> bytes:
        topic_id = new_uuid()
        assignment = Assignment({index: tuple(each) for index, each in replicas.items()}, topic_id)
        await self.tool.commit([Create(f"/config/topics/{name}", encode_configs(configs or {}))])
        await self.tool.commit([Create(topic_path(name), assignment.encode())])
        return topic_id

    async def grow_topic(self, name: str, replicas: Mapping[int, Sequence[int]]) -> None:
        known, found = self.assignment(name), self.ensemble.read(topic_path(name))
        assert found is not None
        grown = {**known.replicas, **{index: tuple(each) for index, each in replicas.items()}}
        changed = Assignment(grown, known.topic_id, known.adding, known.removing)
        await self.tool.commit([SetData(topic_path(name), changed.encode(), found[0].stat.version)])

    async def delete_topic(self, name: str) -> None:
        await self.tool.commit([Create(f"{DELETE_TOPICS}/{name}")])

    def assignment(self, name: str) -> Assignment:
        path = topic_path(name)
        return read(path, self.data(path), Assignment.decode)

    def data(self, path: str) -> bytes:
        found = self.ensemble.read(path)
        assert found is not None, f"{path} is missing"
        return found[0].data

    def exists(self, path: str) -> bool:
        return self.ensemble.read(path) is not None

    def state(self, name: str, index: int = 0) -> LeaderAndIsr:
        path = state_path(name, index)
        return read(path, self.data(path), LeaderAndIsr.decode)

    def version(self, name: str, index: int = 0) -> int:
        found = self.ensemble.read(state_path(name, index))
        assert found is not None
        return found[0].stat.version

    def controller_epoch(self) -> int:
        return int(self.data(CONTROLLER_EPOCH))

    async def alter_isr(self, topic_id: bytes, name: str, index: int, isr: Iterable[int]) -> AlterPartitionResponse:
        """Send an AlterPartition like the leader of a partition."""
        state = self.state(name, index)
        request = self.isr_request(topic_id, name, index, isr, state.leader)
        return await self.active.controller.alter_partition(request)

    def isr_request(
        self, topic_id: bytes, name: str, index: int, isr: Iterable[int], leader: int
    ) -> AlterPartitionRequest:
        state = self.state(name, index)
        data = AlterPartitionData(
            partition_index=index,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=[BrokerState(each, -1) for each in isr],
            partition_epoch=self.version(name, index),
        )
        epoch = self.nodes[leader].broker.epoch if leader in self.nodes else -1
        return AlterPartitionRequest(leader, epoch, [AlterPartitionTopic(topic_id, [data])])


def in_world(
    scenario: Callable[[World], Awaitable[None]], *brokers: int, config: ControllerConfig = QUIET_CONFIG
) -> None:
    """Run a scenario in a world with these brokers, of which the first is the controller."""

    async def whole() -> None:
        async with World(config) as world:
            await world.start(*brokers)
            await scenario(world)

    run(whole())


def kinds(requests: Iterable[Any]) -> list[str]:
    """Return the types of the requests, in order."""
    return [type(each).__name__.removesuffix("Request") for each in requests]
