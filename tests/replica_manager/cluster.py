"""Several brokers' replicas in one process: the real managers over real logs, and the real handlers between them.

What is not real: the network, which is calls of each other's dispatchers and can be cut; the controller, a few lines
that elect by Kafka's rules and grant what is asked for as a controller on ZooKeeper does; the time (virtual_time.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

from kbroker import handlers
from kbroker.cluster_state import BrokerEndpoint, ClusterState, PartitionState, TopicState
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.handlers.registry import RequestContext
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.log_config import LogConfig
from kbroker.long_work import in_slices
from kbroker.network.dispatch import Dispatcher
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kbroker.protocol.messages.inter_broker import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from kbroker.protocol.records import build_batch, iter_batches, read_records
from kbroker.replica_manager.config import ReplicationConfig
from kbroker.replica_manager.manager import ReplicaManager
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replicas import Replicas
from kbroker.tiers.earlier_state import EarlierState
from tests.replica_manager.virtual_time import START_MS, VirtualClock

CONTROLLER = "controller"
CONFIG = ReplicationConfig(lag_max_ms=3000)
Key = tuple[str, int]


def batch(*values: bytes, **fields: Any) -> bytes:
    return build_batch([(START_MS, None, value, ()) for value in values], **fields)


class Network:
    """Which brokers reach each other. `cut` contains (client, server) pairs of hosts; their responses are lost too."""

    def __init__(self) -> None:
        self.served: dict[str, Callable[[Any, int, type[Any]], Any]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.delay_s: dict[tuple[str, str], float] = {}
        """How long requests take on their way."""
        self.asked: list[tuple[str, str, Any]] = []
        self.changed = asyncio.Event()

    def change(self) -> None:
        """Lose everything in transit to a broker that is gone."""
        self.changed.set()
        self.changed = asyncio.Event()

    def reaches(self, source: str, target: str) -> bool:
        return target in self.served and source in self.served and (source, target) not in self.cut

    async def ask(self, source: str, target: str, request: Any, version: int, answer: type[Any], ms: float) -> Any:
        """Carry a request and its response; raises PeerUnavailable if either is lost."""
        if not self.reaches(source, target):
            await asyncio.sleep(0.001)
            raise PeerUnavailable(f"{target} cannot be reached from {source}")
        serve = self.served[target]
        if (source, target) in self.delay_s:
            await asyncio.sleep(self.delay_s[source, target])
        self.asked.append((source, target, request))
        del self.asked[:-1000]
        work = asyncio.ensure_future(serve(request, version, answer))
        try:
            async with asyncio.timeout(ms / 1000):
                while not work.done():
                    changed = asyncio.ensure_future(self.changed.wait())
                    await asyncio.wait((work, changed), return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    if not self.reaches(source, target) or self.served[target] is not serve:
                        raise PeerUnavailable(f"{target} is gone")
        except TimeoutError:
            raise PeerUnavailable(f"no answer of {target} in time") from None
        finally:
            work.cancel()
        return work.result()


class MemoryPeer:
    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network, self._source, self._target = network, source, target
        self._closed = False

    async def ask(self, request: Any, version: int, answer: type[Any], timeout_ms: float) -> Any:
        if self._closed:
            raise PeerUnavailable("closed")
        return await self._network.ask(self._source, self._target, request, version, answer, timeout_ms)

    def close(self) -> None:
        self._closed = True


@dataclass
class MemoryPeers:
    network: Network
    source: str

    def peer(self, host: str, port: int, client_id: str) -> MemoryPeer:
        return MemoryPeer(self.network, self.source, host)


class Node:
    """One broker: logs, replicas, and their handlers."""

    def __init__(self, cluster: Cluster, node_id: int, directory: Path, config: ReplicationConfig = CONFIG) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = f"broker{node_id}"
        self.directory = directory
        self.config = config
        self.alive = False
        self.epoch = 0
        self.elsewhere: set[str] = set()
        self.fatal: BaseException | None = None

    def start(self) -> None:
        """Open the logs on disk, and become reachable."""
        cluster, clock = self.cluster, VirtualClock()
        self.epoch = cluster.next_broker_epoch()
        self.logs = LogManager([LogDirectory(str(self.directory), node_id=self.id)], str(self.directory))
        self.logs.open()
        self.logs.load(cluster.log_config, clock.now_ms(), lambda _topic, _partition, _id: True)
        self.logs.sync_by_threads = list  # type: ignore[method-assign]
        self.logs.make_ahead = lambda _new: []  # type: ignore[method-assign]
        defer = asyncio.get_running_loop().call_soon

        def settings(topic: TopicState) -> LogConfig:
            return cluster.log_config(topic.name)

        self.replicas = Replicas(
            self.id, self.logs, settings, clock, defer, lambda topic, _index: topic in self.elsewhere
        )
        self.manager = ReplicaManager(
            self.id,
            self.replicas,
            MemoryPeers(cluster.network, self.host),
            clock,
            self.config,
            self,
        )
        services: Any = SimpleNamespace(
            tiers=None,
            node_id=self.id,
            config=BrokerConfig({}),
            clock=clock,
            controller=SimpleNamespace(state=cluster.state()),
            views=SimpleNamespace(topic=lambda _name: None),
            replicas=self.replicas,
            fetch_sessions=FetchSessions(1000, seed=self.id),
            fetch_max_bytes=55 << 20,
            cluster=SimpleNamespace(
                broker_epoch=self.broker_epoch,
                replica_manager=self.manager,
                metadata=SimpleNamespace(read_configs=lambda _names: None),
            ),
        )
        self.services = services
        self.dispatcher = Dispatcher(in_cluster=True)
        cluster.network.served[self.host] = self.serve
        self.alive = True
        self.manager.begin()

    def stop(self, *, clean: bool) -> None:
        """Become unreachable; the files keep what was written, as after a kill -9."""
        self.alive = False
        self.cluster.network.served.pop(self.host, None)
        self.cluster.network.change()
        self.manager.close()
        self.replicas.close()
        self.logs.close(clean=clean, now_ms=VirtualClock().now_ms())

    def broker_epoch(self) -> int:
        return self.epoch

    def endpoint_of(self, broker_id: int) -> tuple[str, int] | None:
        return (f"broker{broker_id}", 9092) if broker_id in self.cluster.registered else None

    def controller_endpoint(self) -> tuple[str, int]:
        return CONTROLLER, 9092

    def live_brokers(self) -> Container[int]:
        return self.cluster.registered

    def skips_copied_records(self) -> bool:
        return self.cluster.skips_copied_records

    async def earlier_state(self, partition: ReplicatedPartition, epoch: int, offset: int) -> EarlierState:
        return await self.cluster.earlier_state(partition, epoch, offset)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        return self.cluster.topic_configs.get(name, {})

    def replica_changed(self, partition: ReplicatedPartition) -> None:
        pass

    def replica_stopped(self, partition: ReplicatedPartition) -> None:
        pass

    def partition(self, topic: str = "t", index: int = 0) -> ReplicatedPartition:
        found = self.replicas.get((topic, index))
        assert isinstance(found, ReplicatedPartition)
        return found

    async def serve(self, request: Any, version: int, answer: type[Any]) -> Any:
        """Answer a request through its encoded bytes, as a connection does."""
        header = RequestHeader(request.KEY, version, 1, "test")
        flexible = version in request.FLEXIBLE
        frame = bytearray(encode(header, 2 if flexible else 1) + encode(request, version))
        context = RequestContext(self.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        out, spill = bytearray(), []
        work = self.dispatcher.run(context, memoryview(frame), out, spill)
        if work is not None:
            found = await in_slices(work.steps)
            if found is None:
                return None
            out, spill = found
        raw = _joined(out, spill)
        return decode(answer, version, memoryview(raw)[9 if flexible else 8 :])


def _joined(out: bytearray, spill: list[tuple[int, Any]]) -> bytes:
    pieces, done = [], 0
    for at, piece in spill:
        pieces.append(bytes(out[done:at]))
        pieces.append(bytes(piece.view()) if hasattr(piece, "view") else bytes(piece))
        done = at
    pieces.append(bytes(out[done:]))
    return b"".join(pieces)


async def _nothing_remote(_partition: ReplicatedPartition, _epoch: int, _offset: int) -> EarlierState:
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)


@dataclass
class Assigned:
    """A partition as the controller knows it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0


@dataclass
class Cluster:
    """Brokers 1 to n and their controller."""

    directory: Path
    size: int = 3
    config: ReplicationConfig = CONFIG
    min_isr: int = 1
    unclean: bool = False
    log: dict[str, Any] = field(default_factory=dict)
    """Settings of all topics, besides min.insync.replicas."""

    def __post_init__(self) -> None:
        handlers.load_all(in_cluster=True)
        self.network = Network()
        self.network.served[CONTROLLER] = self._serve_controller
        self.controller_epoch = 1
        self.topic_ids: dict[str, bytes] = {}
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.partitions: dict[Key, Assigned] = {}
        self.registered: set[int] = set()
        self.refuse: list[ErrorCode] = []
        """The top-level error code of the next AlterPartition responses, or NONE."""
        self.not_let_in: dict[int, ErrorCode] = {}
        """Brokers that may not join the ISR, and the error code of a change that includes them."""
        self.skips_copied_records = False
        self.earlier_state: Callable[[ReplicatedPartition, int, int], Awaitable[EarlierState]] = _nothing_remote
        """What remote storage has of a partition."""
        self.granted: list[tuple[Key, tuple[int, ...]]] = []
        self._epochs = 0
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._queues: dict[int, asyncio.Queue[LeaderAndIsrRequest]] = {}
        self.nodes = {each: Node(self, each, self.directory / str(each), self.config) for each in self._ids}

    @property
    def _ids(self) -> range:
        return range(1, self.size + 1)

    async def __aenter__(self) -> Self:
        for each in self._ids:
            await self.start(each)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._sending.values():
            task.cancel()
        for node in self.nodes.values():
            if node.alive:
                node.stop(clean=False)
        await asyncio.sleep(0)

    def log_config(self, _topic: str) -> LogConfig:
        return LogConfig(min_insync_replicas=self.min_isr, **self.log)

    def next_broker_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def state(self) -> ClusterState:
        topics = {}
        for name, topic_id in self.topic_ids.items():
            mine = [self.partitions[key] for key in sorted(self.partitions) if key[0] == name]
            parts = tuple(PartitionState(p.replicas, p.isr, p.leader, p.leader_epoch, p.partition_epoch) for p in mine)
            topics[name] = TopicState(name, topic_id, parts)
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        brokers = {each: BrokerEndpoint(each, f"broker{each}", 9092, f"rack{each}") for each in self.registered}
        return ClusterState("cluster", brokers=brokers, topics=topics, topic_names=names)

    # --- brokers

    async def start(self, node_id: int) -> None:
        """Start or restart a broker: it follows and leads its partitions, and offline partitions get a leader."""
        self.nodes[node_id].start()
        await self.register(node_id)

    async def register(self, node_id: int) -> None:
        """Register a running broker at the controller."""
        self.registered.add(node_id)
        self._publish()
        mine = [key for key, assigned in self.partitions.items() if node_id in assigned.replicas]
        self.tell(mine, only=node_id)
        for key in mine:
            if self.partitions[key].leader < 0:
                self.elect(key)
        await asyncio.sleep(0)

    def kill(self, node_id: int, *, clean: bool = False) -> None:
        """Kill a broker, and let the controller notice."""
        self.nodes[node_id].stop(clean=clean)
        self.unregister(node_id)

    def unregister(self, node_id: int) -> None:
        """Let a broker's session expire, whether it is alive or not."""
        self.registered.discard(node_id)
        for key, assigned in self.partitions.items():
            if node_id in assigned.isr or assigned.leader == node_id:
                self.elect(key, keep=True)
        self._publish()

    def _publish(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                node.services.controller.state = self.state()
                node.manager.brokers_changed()

    # --- the controller's decisions

    async def create(self, topic: str = "t", replicas: tuple[int, ...] = (1, 2, 3), partitions: int = 1) -> None:
        """Create a topic, and wait until all its replicas know it."""
        self.topic_ids[topic] = uuid4().bytes
        keys = [(topic, index) for index in range(partitions)]
        for key in keys:
            self.partitions[key] = Assigned(replicas, replicas, replicas[0])
        self._publish()
        self.tell(keys, is_new=True)
        await self.told()

    def elect(self, key: Key, leader: int | None = None, *, keep: bool = False) -> None:
        """Elect a live in-sync replica; if there is none, and that is allowed, any live replica."""
        assigned = self.partitions[key]
        isr = tuple(each for each in assigned.isr if each in self.registered)
        if leader is None:
            alive = [each for each in assigned.replicas if each in isr]
            leader = assigned.leader if keep and assigned.leader in alive else next(iter(alive), -1)
        if leader < 0 and self.unclean:
            leader = next((each for each in assigned.replicas if each in self.registered), -1)
            isr = (leader,) if leader >= 0 else ()
        assigned.leader, assigned.isr = leader, isr or assigned.isr[:1]
        assigned.leader_epoch += 1
        assigned.partition_epoch += 1
        self._publish()
        self.tell([key])

    def tell(self, keys: list[Key], *, is_new: bool = False, only: int | None = None) -> None:
        """Send LeaderAndIsr for partitions to the live brokers that have a replica."""
        for broker in sorted(self.registered):
            mine = [key for key in keys if broker in self.partitions[key].replicas]
            if mine and (only is None or broker == only):
                self._send(broker, self.leader_and_isr(mine, is_new=is_new))

    def leader_and_isr(self, keys: list[Key], *, is_new: bool = False, **other: Any) -> LeaderAndIsrRequest:
        topics: dict[str, LeaderAndIsrTopicState] = {}
        leaders = set()
        for name, index in keys:
            assigned = self.partitions[name, index]
            topic = topics.setdefault(name, LeaderAndIsrTopicState(name, self.topic_ids[name], []))
            topic.partition_states.append(
                LeaderAndIsrPartitionState(
                    index,
                    self.controller_epoch,
                    assigned.leader,
                    assigned.leader_epoch,
                    list(assigned.isr),
                    assigned.partition_epoch,
                    list(assigned.replicas),
                    is_new=is_new,
                )
            )
            leaders.add(assigned.leader)
        live = [LeaderAndIsrLiveLeader(each, f"broker{each}", 9092) for each in leaders & self.registered]
        return LeaderAndIsrRequest(
            **{
                "controller_id": 0,
                "controller_epoch": self.controller_epoch,
                "type": 0,
                "topic_states": list(topics.values()),
                "live_leaders": live,
                **other,
            }
        )

    def _send(self, broker: int, request: LeaderAndIsrRequest) -> None:
        queue = self._queues.setdefault(broker, asyncio.Queue())
        queue.put_nowait(request)
        if broker not in self._sending:
            self._sending[broker] = asyncio.get_running_loop().create_task(self._send_all(broker, queue))

    async def _send_all(self, broker: int, queue: asyncio.Queue[LeaderAndIsrRequest]) -> None:
        """Send a broker its requests one after the other; repeat each until it is answered or the broker is gone."""
        while True:
            request = await queue.get()
            while broker in self.registered:
                request.broker_epoch = self.nodes[broker].epoch
                try:
                    await self.network.ask(CONTROLLER, f"broker{broker}", request, 7, LeaderAndIsrResponse, 1000)
                    break
                except PeerUnavailable:
                    await asyncio.sleep(0.1)
            queue.task_done()

    async def told(self) -> None:
        """Wait until every live broker has processed its requests."""
        for queue in self._queues.values():
            await queue.join()

    async def _serve_controller(self, request: AlterPartitionRequest, _version: int, _answer: type[Any]) -> Any:
        if self.refuse and (code := self.refuse.pop(0)):
            return AlterPartitionResponse(error_code=code)
        if self.nodes[request.broker_id].epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        topics = []
        for topic in request.topics:
            name = names.get(topic.topic_id)
            parts = [self._alter(name, each) for each in topic.partitions]
            topics.append(AlteredTopic(topic.topic_id, parts))
        self._publish()
        return AlterPartitionResponse(topics=topics)

    def _alter(self, name: str | None, asked: Any) -> AlteredPartition:
        assigned = self.partitions.get((name or "", asked.partition_index))
        isr = tuple(each.broker_id for each in asked.new_isr_with_epochs)
        if name is None or assigned is None:
            return AlteredPartition(asked.partition_index, ErrorCode.UNKNOWN_TOPIC_ID)
        if asked.leader_epoch > assigned.leader_epoch or asked.partition_epoch > assigned.partition_epoch:
            return AlteredPartition(asked.partition_index, ErrorCode.NOT_CONTROLLER)
        if asked.leader_epoch < assigned.leader_epoch:
            return AlteredPartition(asked.partition_index, ErrorCode.FENCED_LEADER_EPOCH)
        if set(isr) != set(assigned.isr):
            if asked.partition_epoch < assigned.partition_epoch:
                return AlteredPartition(asked.partition_index, ErrorCode.INVALID_UPDATE_VERSION)
            if refusal := next((code for each, code in self.not_let_in.items() if each in isr), 0):
                return AlteredPartition(asked.partition_index, refusal)
            if not set(isr) <= self.registered:
                return AlteredPartition(asked.partition_index, ErrorCode.INELIGIBLE_REPLICA)
            assigned.isr = isr
            assigned.partition_epoch += 1
            self.granted.append(((name, asked.partition_index), isr))
        epochs = assigned.leader, assigned.leader_epoch
        return AlteredPartition(asked.partition_index, 0, *epochs, list(assigned.isr), 0, assigned.partition_epoch)

    # --- clients

    async def produce(
        self,
        *values: bytes,
        topic: str = "t",
        index: int = 0,
        acks: int = -1,
        timeout_ms: int = 10_000,
        to: int | None = None,
        records: bytes | None = None,
    ) -> PartitionProduceResponse:
        """Send a batch to the leader, or to a given broker."""
        node = self.nodes[self.partitions[topic, index].leader if to is None else to]
        data = PartitionProduceData(index, batch(*values) if records is None else records)
        request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData(topic, partition_data=[data])])
        answer = await node.serve(request, 9, ProduceResponse)
        found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return found

    async def fetch(
        self,
        offset: int = 0,
        *,
        topic: str = "t",
        to: int | None = None,
        wait_ms: int = 0,
        version: int = 15,
        **other: Any,
    ) -> PartitionData:
        """Read as a consumer does."""
        node = self.nodes[self.partitions[topic, 0].leader if to is None else to]
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        wanted.current_leader_epoch = other.pop("epoch", -1)
        request = FetchRequest(
            **{
                "max_wait_ms": wait_ms,
                "min_bytes": 1,
                "session_epoch": -1,
                "topics": [FetchTopic(topic=topic, topic_id=self.topic_ids[topic], partitions=[wanted])],
                **other,
            }
        )
        answer = await node.serve(request, version, FetchResponse)
        found: PartitionData = answer.responses[0].partitions[0]
        return found

    async def delete_records(self, offset: int, *, timeout_ms: int = 10_000) -> Any:
        node = self.nodes[self.partitions["t", 0].leader]
        topics = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])]
        answer = await node.serve(DeleteRecordsRequest(topics, timeout_ms), 2, DeleteRecordsResponse)
        return answer.topics[0].partitions[0]

    async def stop_replica(self, broker: int, epoch: int = -1, *, delete: bool, **other: Any) -> StopReplicaResponse:
        states = [StopReplicaTopicState("t", [StopReplicaPartitionState(0, epoch, delete)])]
        fields = {"controller_id": 0, "controller_epoch": self.controller_epoch, "topic_states": states, **other}
        answer = await self.nodes[broker].serve(StopReplicaRequest(**fields), 4, StopReplicaResponse)
        assert isinstance(answer, StopReplicaResponse)
        return answer

    # --- what is there

    def in_sync(self, key: Key = ("t", 0)) -> set[int]:
        return set(self.partitions[key].isr)

    def contents(self, broker: int, key: Key = ("t", 0)) -> bytes:
        """Return the contents of a partition's files."""
        names = sorted((self.directory / str(broker) / f"{key[0]}-{key[1]}").glob("*.log"))
        return b"".join(name.read_bytes() for name in names)

    def are_equal(self, key: Key = ("t", 0)) -> bool:
        """Whether all replicas have the same bytes, and have committed them."""
        logs = [self.nodes[each].partition(*key).log for each in self.partitions[key].replicas]
        ends = {(log.log_end_offset, log.high_watermark) for log in logs}
        if len(ends) > 1 or any(end != mark for end, mark in ends):
            return False
        return len({self.contents(each, key) for each in self.partitions[key].replicas}) == 1

    async def until(self, what: Callable[[], bool], within_s: float = 60) -> None:
        """Wait until a condition is true."""
        end = asyncio.get_running_loop().time() + within_s
        while not what():
            if asyncio.get_running_loop().time() > end:
                raise AssertionError("it does not come to hold")
            await asyncio.sleep(0.01)


def as_of(config: ReplicationConfig, **changes: Any) -> ReplicationConfig:
    return replace(config, **changes)


def values(data: bytes) -> list[bytes | None]:
    """Return the values of a log's records."""
    found = []
    for position, header in iter_batches(data):
        found += [record.value for record in read_records(data[position : position + header.size], max_bytes=1 << 20)]
    return found
