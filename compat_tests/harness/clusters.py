"""Several brokers on one ZooKeeper, of Apache Kafka 3.9.1 or of kbroker, with one interface for tests that break them.

Owns starting, stopping, freezing and repairing brokers, and what the brokers themselves report of leaders. Only the
main thread starts brokers: those of kbroker end with the thread that started them (kbroker/launcher/child.py).
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from compat_tests.clients.common import wait_for
from compat_tests.harness.brokers import COMMON, free_port
from compat_tests.harness.network import Network
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.launcher.plan import make_plan
from kbroker.launcher.start_and_stop import LocalCluster
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse

DEADLINE_S: Final = 120.0
"""For every wait until a session expires, on a machine that is busy."""
THREE: Final = (1, 2, 3)
_METADATA: Final = 12

SETTINGS: Final[Mapping[str, str]] = {
    **{key: value for key, value in COMMON.items() if key != "node.id" and not key.startswith("share.")},
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "zookeeper.session.timeout.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
}
"""Settings of all brokers; the rest are Kafka's defaults."""


class Cluster(ABC):
    """Brokers with the ids 1, 2, ...; `bootstrap` names all of them, whether they run or not."""

    name: ClassVar[str]
    node_ids: tuple[int, ...]
    bootstrap: str

    def __init__(self) -> None:
        self.paused: set[int] = set()

    # -- what each kind does its own way

    @abstractmethod
    def start_all(self) -> None:
        """Start all brokers."""

    @abstractmethod
    def stop_all(self) -> None:
        """Stop all brokers with a clean shutdown."""

    @abstractmethod
    def start(self, node_id: int) -> None:
        """Start a broker, at its previous address."""

    @abstractmethod
    def stop(self, node_id: int) -> None:
        """Stop a broker with a controlled shutdown."""

    @abstractmethod
    def kill(self, node_id: int) -> None:
        """End a broker by SIGKILL."""

    @abstractmethod
    def pid(self, node_id: int) -> int | None:
        """Return the process id of a broker; None if it does not run."""

    @abstractmethod
    def address(self, node_id: int) -> str:
        """Return the address of a broker."""

    @abstractmethod
    def data_dir(self, node_id: int) -> Path:
        """Return the data directory of a broker."""

    @abstractmethod
    def log_tail(self, node_id: int) -> str:
        """Return the last lines that a broker printed."""

    # -- what is the same for all

    def pause(self, node_id: int) -> None:
        """Freeze a broker by SIGSTOP."""
        self._signal(node_id, signal.SIGSTOP)
        self.paused.add(node_id)

    def resume(self, node_id: int) -> None:
        """Resume a frozen broker."""
        self._signal(node_id, signal.SIGCONT)
        self.paused.discard(node_id)

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        pid = self.pid(node_id)
        assert pid is not None, f"broker {node_id} does not run"
        os.kill(pid, number)

    @property
    def serving(self) -> list[int]:
        """Return the brokers that run and are not frozen."""
        return [each for each in self.node_ids if each not in self.paused and self.pid(each) is not None]

    def others(self, *node_ids: int) -> list[int]:
        """Return the brokers other than the given ones."""
        return [each for each in self.node_ids if each not in node_ids]

    def metadata(self, node_id: int, topics: Iterable[str] | None = ()) -> MetadataResponse | None:
        """Return a broker's Metadata response, None if it does not answer; `topics` None requests all topics."""
        wanted = None if topics is None else [MetadataRequestTopic(name=each) for each in topics]
        try:
            with WireClient(self.address(node_id)) as client:
                answer = client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), _METADATA)
        except OSError:
            return None
        return answer if isinstance(answer, MetadataResponse) else None

    def partition(self, topic: str, index: int, *, of: int | None = None) -> Any:
        """Return what a serving broker (`of`, or any) knows of a partition; None if it does not know the partition."""
        for node_id in self.serving if of is None else [of]:
            answer = self.metadata(node_id, [topic])
            for found in answer.topics[0].partitions if answer is not None else ():
                if found.partition_index == index:
                    return found
        return None

    def leader_of(self, topic: str, index: int) -> int:
        """Return a partition's leader; -1 if none is known."""
        found = self.partition(topic, index)
        return -1 if found is None else found.leader_id

    def isr_of(self, topic: str, index: int) -> set[int]:
        """Return a partition's in-sync replicas."""
        found = self.partition(topic, index)
        return set() if found is None else set(found.isr_nodes)

    def controller(self) -> int:
        """Return the controller on which all serving brokers agree; -1 as long as they disagree."""
        found = {answer.controller_id if (answer := self.metadata(each)) else -1 for each in self.serving}
        return found.pop() if len(found) == 1 else -1

    def wait_for_leader(self, topic: str, index: int, other_than: int = -1) -> int:
        """Wait until a partition has a leader other than `other_than`, and return it."""

        def led() -> int:
            leader = self.leader_of(topic, index)
            return leader if leader not in (-1, other_than) else 0

        return int(self.wait_for(f"another leader of {topic}-{index} than {other_than}", led))

    def wait_for_controller(self, other_than: int = -1) -> int:
        """Wait until there is a controller other than `other_than`, and return it."""

        def elected() -> int:
            controller = self.controller()
            return controller if controller not in (-1, other_than) else 0

        return int(self.wait_for(f"another controller than {other_than}", elected))

    def wait_for_isr(self, topic: str, index: int, isr: Iterable[int]) -> None:
        """Wait until a partition has exactly these in-sync replicas."""
        wanted = set(isr)
        self.wait_for(
            f"{topic}-{index} with the in-sync replicas {wanted}", lambda: self.isr_of(topic, index) == wanted
        )

    def wait_until_in_sync(self) -> None:
        """Wait until every broker knows all brokers, and all partitions with all their replicas in sync."""
        everybody = set(self.node_ids)

        def knows(node_id: int) -> bool:
            answer = self.metadata(node_id, None)
            return (
                answer is not None
                and {each.node_id for each in answer.brokers} == everybody
                and all(
                    each.leader_id > 0 and set(each.isr_nodes) == set(each.replica_nodes)
                    for topic in answer.topics
                    for each in topic.partitions
                )
            )

        self.wait_for("all brokers with all replicas in sync", lambda: all(map(knows, self.node_ids)))

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait for a condition; after a timeout, the failure shows what the brokers printed last."""
        try:
            return wait_for(what, condition, DEADLINE_S)
        except AssertionError as error:
            for node_id in self.node_ids:
                error.add_note(f"broker {node_id}, process {self.pid(node_id)}:\n{self.log_tail(node_id)}")
            raise

    def mend(self) -> None:
        """Start or resume every broker, and wait until all are in sync."""
        for node_id in list(self.paused):
            if self.pid(node_id) is None:
                self.paused.discard(node_id)
            else:
                self.resume(node_id)
        for node_id in self.node_ids:
            if self.pid(node_id) is None:
                self.start(node_id)
        self.wait_until_in_sync()

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node_id in list(self.paused):
            self.resume(node_id)
        self.stop_all()


class JavaCluster(Cluster):
    """Brokers of Apache Kafka 3.9.1."""

    name = "apache 3.9.1"

    def __init__(
        self,
        libs: Path,
        directory: Path,
        zookeeper: ZooKeeper,
        node_ids: Sequence[int] = THREE,
        settings: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__()
        self._zookeeper = zookeeper
        self.node_ids = tuple(node_ids)
        whole = {**SETTINGS, **(settings or {})}
        self._brokers = {
            each: Kafka39(libs, directory / f"broker-{each}", zookeeper, {**whole, "node.id": str(each)})
            for each in self.node_ids
        }
        if network is not None:
            for node_id, broker in self._brokers.items():
                broker.own = network.settings(node_id, broker.port)
        self.bootstrap = ""

    def start_all(self) -> None:
        for broker in self._brokers.values():
            broker.start()
        self.bootstrap = ",".join(broker.bootstrap for broker in self._brokers.values())

    def stop_all(self) -> None:
        controller = self.controller()
        for node_id in sorted(self.node_ids, key=lambda each: each == controller):
            self.stop(node_id)

    def start(self, node_id: int) -> None:
        # A broker that finds its own znode, of a session that has not expired yet, ends.
        with self._zookeeper.tree() as tree:
            self.wait_for(f"the end of the session of {node_id}", lambda: not tree.exists(f"/brokers/ids/{node_id}"))
        self._brokers[node_id].start()

    def stop(self, node_id: int) -> None:
        self._brokers[node_id].stop()

    def kill(self, node_id: int) -> None:
        self._brokers[node_id].kill()

    def pid(self, node_id: int) -> int | None:
        broker = self._brokers[node_id]
        return broker.pid if broker.running else None

    def address(self, node_id: int) -> str:
        return self._brokers[node_id].bootstrap

    def data_dir(self, node_id: int) -> Path:
        return self._brokers[node_id].data_dir

    def log_tail(self, node_id: int) -> str:
        return self._brokers[node_id].log_tail(15)


class KBrokerCluster(Cluster):
    """Brokers of this checkout, as `kbroker cluster up` starts them."""

    name = "kbroker"

    def __init__(
        self,
        directory: Path,
        zookeeper: ZooKeeper,
        node_ids: Sequence[int] = THREE,
        settings: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__()
        self.node_ids = tuple(node_ids)
        whole = {**SETTINGS, **(settings or {})}
        plan = make_plan(directory, len(self.node_ids), ("127.0.0.1", 0), zookeeper.bootstrap, whole)
        ports = [free_port() for _ in self.node_ids]  # the plan's could be taken by a connection before the start
        brokers = tuple(
            replace(
                each,
                node_id=node_id,
                port=port,
                directory=directory / f"broker-{node_id}",
                settings={} if network is None else network.settings(node_id, port),
            )
            for each, node_id, port in zip(plan.brokers, self.node_ids, ports, strict=True)
        )
        self._plans = {each.node_id: each for each in brokers}
        self._cluster = LocalCluster(replace(plan, brokers=brokers))
        self.bootstrap = self._cluster.bootstrap_servers

    def start_all(self) -> None:
        self._cluster.start()

    def stop_all(self) -> None:
        self._cluster.stop()

    def start(self, node_id: int) -> None:
        self._cluster.start_broker(node_id)

    def stop(self, node_id: int) -> None:
        self._cluster.stop_broker(node_id)

    def kill(self, node_id: int) -> None:
        self._cluster.kill_broker(node_id)

    def pid(self, node_id: int) -> int | None:
        return self._cluster.child(node_id).pid

    def address(self, node_id: int) -> str:
        return self._plans[node_id].address

    def data_dir(self, node_id: int) -> Path:
        return self._plans[node_id].data_dir

    def log_tail(self, node_id: int) -> str:
        return "\n".join(self._cluster.child(node_id).tail(15))


class MixedCluster(Cluster):
    """Two brokers of Apache Kafka 3.9.1, and kbroker as the third broker."""

    name = "mixed"

    def __init__(
        self,
        libs: Path,
        directory: Path,
        zookeeper: ZooKeeper,
        settings: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__()
        self.node_ids = THREE
        self._java = JavaCluster(libs, directory / "java", zookeeper, THREE[:2], settings, network)
        self._kbroker = KBrokerCluster(directory / "kbroker", zookeeper, THREE[2:], settings, network)
        self.bootstrap = ""

    def _side(self, node_id: int) -> Cluster:
        return self._kbroker if node_id in self._kbroker.node_ids else self._java

    def start_all(self) -> None:
        self._java.start_all()
        self._kbroker.start_all()
        self.bootstrap = f"{self._java.bootstrap},{self._kbroker.bootstrap}"

    def stop_all(self) -> None:
        self._kbroker.stop_all()
        self._java.stop_all()

    def start(self, node_id: int) -> None:
        self._side(node_id).start(node_id)

    def stop(self, node_id: int) -> None:
        self._side(node_id).stop(node_id)

    def kill(self, node_id: int) -> None:
        self._side(node_id).kill(node_id)

    def pid(self, node_id: int) -> int | None:
        return self._side(node_id).pid(node_id)

    def address(self, node_id: int) -> str:
        return self._side(node_id).address(node_id)

    def data_dir(self, node_id: int) -> Path:
        return self._side(node_id).data_dir(node_id)

    def log_tail(self, node_id: int) -> str:
        return self._side(node_id).log_tail(node_id)
