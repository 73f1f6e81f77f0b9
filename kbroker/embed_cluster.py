"""A cluster inside a Python process: `with Cluster(brokers=3) as cluster: cluster.bootstrap_servers`.

Owns a thread with an event loop, on which all brokers of the cluster run, and the replacement for ZooKeeper: a tree of
znodes in memory. The brokers work together like separate processes: they communicate over sockets, and each has its own
logs. There is one difference: the session of a killed broker ends immediately, so the broker leaves the cluster
immediately.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kbroker.broker.cluster_node import ClusterNode
from kbroker.broker.membership import prepare
from kbroker.clock import SystemClock
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.member.entity_configs import EntityConfigs
from kbroker.controller.member.zookeeper_acls import ZooKeeperAcls
from kbroker.controller.topic_plans import RLMM
from kbroker.controller.tree.memory import MemoryEnsemble, MemoryTree
from kbroker.embed import TEST_DEFAULTS, Embedded
from kbroker.embed_clients import MECHANISMS, ClientSettings
from kbroker.embed_security import Acl, Security
from kbroker.network.loop_watch import new_event_loop
from kbroker.security.sasl.scram_credential import USERS

if TYPE_CHECKING:  # imported only for TLS, or for a test's tools
    from kbroker.embed_security import Certificates
    from kbroker.registry_api.server import RegistryServer
    from kbroker.testing.asking_cluster import ClusterAsking
    from kbroker.testing.of_cluster import ClusterSteering

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0


class ClusterBroker:
    """One broker of a `Cluster`. It can be stopped or killed, and restarted with its data on disk."""

    def __init__(self, cluster: Cluster, node_id: int, settings: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._settings = dict(settings)
        self._node: ClusterNode | None = None
        self._registry: RegistryServer | None = None
        self._registry_port = 0
        self.node_id = node_id

    def __repr__(self) -> str:
        return f"<broker {self.node_id} {self.bootstrap_servers if self.is_running else 'that does not run'}>"

    @property
    def node(self) -> ClusterNode:
        """The running broker. Only the cluster's loop may use its state."""
        if self._node is None:
            raise RuntimeError(f"broker {self.node_id} is not running")
        return self._node

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: "host:port"."""
        return self.node.bootstrap_servers

    @property
    def data_dir(self) -> str:
        return self._settings["log.dirs"]

    def start(self) -> None:
        """Start or restart at the same address.

        Returns when clients can connect. Raises the same errors as `Broker.start`.
        """
        if self._node is not None:
            raise RuntimeError(f"broker {self.node_id} is running")
        self._cluster.run(self._start())

    def stop(self) -> None:
        """Stop after a controlled shutdown, so that other brokers become leaders first."""
        self._cluster.run(self._end(ClusterNode.stop))

    def kill(self) -> None:
        """End immediately, like a killed process: no other broker is notified, and nothing is flushed."""
        self._cluster.run(self._end(ClusterNode.kill))

    def cut_from_zookeeper(self) -> None:
        """Disconnect the broker from ZooKeeper until `heal`. Its session stays valid (see `expire_session`)."""
        self._cluster.run(self._with_tree(MemoryTree.cut))

    def heal(self) -> None:
        """Reconnect the broker to ZooKeeper. If its session has expired, the broker registers again."""
        self._cluster.run(self._with_tree(MemoryTree.heal))

    def expire_session(self) -> None:
        """Expire the broker's ZooKeeper session, as after zookeeper.session.timeout.ms. Other leaders are elected.

        The broker is notified immediately, or after `heal` if it is disconnected, and registers again.
        """
        self._cluster.run(self._with_tree(MemoryTree.expire))

    async def _with_tree(self, work: Callable[[MemoryTree], None]) -> None:
        tree = self.node.tree
        assert isinstance(tree, MemoryTree)
        work(tree)

    async def _start(self) -> None:
        config = BrokerConfig(self._settings)
        self._node = await ClusterNode.start(config, tree=self._cluster.ensemble.connect())
        self._node.server.watch.level = logging.DEBUG  # as in embed.py
        # A restarted broker keeps its address, because clients know the broker by its address.
        names = [each.name for each in config.listeners.bind]
        self._settings["listeners"] = ",".join(
            f"{name}://{address}" for name, address in zip(names, self._node.addresses, strict=True)
        )
        self._cluster.follow_faults()
        if self._cluster.has_registry:
            self._serve_registry(self._node)

    def _serve_registry(self, node: ClusterNode) -> None:
        from kbroker.local_http import REGISTRY
        from kbroker.registry_api.server import of_broker

        # A restarted registry keeps its address, too.
        listening = REGISTRY.listening(self._cluster.host, self._registry_port, "registry", public=True)
        self._registry_port = listening.getsockname()[1]
        self._registry = of_broker(
            node, asyncio.get_running_loop(), listening, asks_for_login=self._cluster.registry_asks_for_login
        ).start()
        node.publish_registry(self._registry.url)

    @property
    def registry_url(self) -> str:
        """The URL of the broker's schema registry, with `Cluster(registry=True)`."""
        if self._registry is None:
            raise RuntimeError(
                f"broker {self.node_id} has no schema registry: use Cluster(registry=True), and start it first"
            )
        return self._registry.url

    async def _end(self, how: Any) -> None:
        node, self._node = self.node, None
        registry, self._registry = self._registry, None
        self._cluster.break_waiting(node)
        if registry is not None and how is ClusterNode.stop:  # in a thread, because requests may wait for this loop
            await asyncio.to_thread(registry.stop)
        await how(node)
        if registry is not None:
            await asyncio.to_thread(registry.stop)


class NoSuchBroker(KeyError):  # noqa: N818 - an outcome
    """Raised if a cluster has no broker with this number."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote the text


class _Brokers(dict[int, ClusterBroker]):
    """The brokers by node id. This is not a list, because the indexes of a list would start at 0."""

    def __missing__(self, number: object) -> ClusterBroker:
        raise NoSuchBroker(f"there is no broker {number!r}; the cluster has {', '.join(map(str, self))}")


class Cluster(Embedded):
    """Several embedded brokers, numbered from 1. `config` has Kafka's keys, for all brokers.

    Without `data_dir`, the data is in a private temporary directory, which is deleted when the cluster stops. `tls`,
    `users` and `acls` have the same meaning as in `Broker`. They also apply between the brokers, which log in as a user
    of their own. With `registry`, each broker serves the cluster's schema registry: `cluster.brokers[1].registry_url`.
    With `registry_auth`, the registry requires the name and password of a SCRAM user.
    """

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, Any] | None = None,
        *,
        host: str = "127.0.0.1",
        data_dir: str | os.PathLike[str] | None = None,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Sequence[Acl] | None = None,
        registry: bool = False,
        registry_auth: bool = False,
    ) -> None:
        if brokers < 1:
            raise ValueError("a cluster needs at least one broker")
        if registry:
            from kbroker.local_http import REGISTRY

            REGISTRY.require("registry=True")
        self.has_registry = registry
        self.registry_asks_for_login = registry_auth
        self.host = host
        self._security = Security(host, tls=tls, users=users, acls=acls, in_cluster=True)
        self._private = data_dir is None
        self._data_dir = Path(tempfile.mkdtemp(prefix="kbroker-") if data_dir is None else data_dir)
        copies = str(min(brokers, 3))
        settings = {
            **TEST_DEFAULTS,
            "offsets.topic.replication.factor": copies,
            f"{RLMM}remote.log.metadata.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": str(min(brokers, 2)),
            "share.coordinator.state.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            "default.replication.factor": copies,
            **{key: str(value) for key, value in (config or {}).items()},
            "zookeeper.connect": "in memory",
        }
        settings.setdefault("listeners", f"{self._security.protocol}://{host}:0")
        settings = self._security.settings(settings)
        self.ensemble = MemoryEnsemble()
        """The replacement for ZooKeeper."""
        self.brokers: dict[int, ClusterBroker] = _Brokers(
            (number, ClusterBroker(self, number, {**settings, "broker.id": str(number), "log.dirs": directory}))
            for number in range(1, brokers + 1)
            for directory in [str(self._data_dir / f"broker-{number}")]
        )
        """The brokers by node id, starting at 1."""
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kbroker cluster", daemon=True)
        self._stopped = False
        self._steered: ClusterSteering | None = None
        self._making = threading.Lock()

    def _asking(self) -> ClusterAsking:
        from kbroker.testing.asking_cluster import ClusterAsking
        from kbroker.testing.calling import Calling

        return ClusterAsking(Calling(self._loop, self._thread), self._running)

    def _running(self) -> dict[int, ClusterNode]:
        """Return the running brokers. Brokers that are disconnected from ZooKeeper come last."""
        nodes = [each.node for each in self.brokers.values() if each.is_running]
        return {each.node_id: each for each in sorted(nodes, key=_is_cut)}

    def _steering(self) -> ClusterSteering:
        from kbroker.testing.of_cluster import ClusterSteering

        with self._making:
            if self._steered is None:
                self._steered = ClusterSteering(
                    lambda: [each.node for each in self.brokers.values() if each.is_running],
                    self._call,
                    SystemClock().monotonic_ms,
                    self.brokers,
                )
                if self._stopped:
                    self._steered.ended()
        return self._steered

    def _call(self, work: Callable[[], None]) -> None:
        async def done() -> None:
            work()

        if threading.current_thread() is self._thread:
            work()
        elif self._thread.is_alive():
            self.run(done())

    def follow_faults(self) -> None:
        """Apply the faults to a broker that has just started. Call this on the cluster's loop."""
        if self._steered is not None:
            self._steered.follow()

    def break_waiting(self, node: ClusterNode) -> None:
        """Close connections of requests that a fault delays at a stopping broker. Call this on the cluster's loop."""
        if self._steered is not None:
            self._steered.break_waiting(node)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the running brokers for clients: "host:port,host:port,..."."""
        return ",".join(each.bootstrap_servers for each in self.brokers.values() if each.is_running)

    @property
    def certificates(self) -> Certificates:
        """The certificates of the brokers and their clients, with `tls`. They are deleted when the cluster stops."""
        if self._security.certificates is None:
            raise RuntimeError("the cluster has no certificates of its own: Cluster(tls=True)")
        return self._security.certificates

    def client_settings(
        self, user: str | None = None, *, mechanism: str = MECHANISMS[0], certificate: str | None = None
    ) -> ClientSettings:
        """Return the settings for a client, as `Broker.client_settings` does, if the config has no listeners."""
        return self._security.client(self.bootstrap_servers, user, mechanism, certificate)

    def start(self) -> Self:
        """Start all brokers. Returns when clients can connect and each broker knows all other brokers."""
        self._thread.start()
        atexit.register(self.stop)
        try:
            for warning in self._warnings():
                warnings.warn(warning, stacklevel=3)
            self.run(self._start_all())
        except BaseException:
            self.stop()
            raise
        return self

    def _warnings(self) -> list[str]:
        """Return the warnings about the config that all brokers share."""
        return BrokerConfig(self.brokers[1]._settings).warnings  # noqa: SLF001 - its other half

    async def _begin_security(self) -> None:
        """Store users and ACLs before the first broker starts."""
        users, acls = self._security.scram_users, self._security.acls
        if not users and not acls:
            return
        tree = self.ensemble.connect()
        await prepare(tree)
        configs, stored = EntityConfigs(tree, SystemClock()), ZooKeeperAcls(tree, SystemClock())
        for user in users:
            await configs.change(USERS, user.entity, user.revise)
        await stored.load()
        for pattern, entries in acls.items():
            refused = await stored.add(pattern, entries)
            if refused is not None:
                raise ValueError(f"{pattern} can have no ACL in ZooKeeper")
        await tree.close()

    async def _start_all(self) -> None:
        await self._begin_security()
        for each in self.brokers.values():
            await each._start()  # noqa: SLF001 - its other half
        for each in self.brokers.values():
            await each.node.knows_live(self.brokers, _PATIENCE_SECONDS)
        # Create these topics now. After a test has killed a broker, there would be too few brokers for the topics'
        # replicas, and no group could form.
        metadata = self.brokers[1].node.member
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            metadata.auto_create(topic)
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            created = metadata.auto_created(topic)
            if created is not None:
                await created

    def stop(self) -> None:
        """Stop all running brokers. A second call does nothing."""
        atexit.unregister(self.stop)
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._thread.is_alive():
                self.run(self._stop_all())
        finally:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_PATIENCE_SECONDS)
            self._loop.close()
            if self._steered is not None:
                self._steered.ended()
            self._security.remove()
            if self._private:
                shutil.rmtree(self._data_dir, ignore_errors=True)

    async def _stop_all(self) -> None:
        for each in self.brokers.values():
            if each.is_running:
                await each._end(ClusterNode.kill if self._private else ClusterNode.stop)  # noqa: SLF001
        # Let cancelled tasks end before the loop stops.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop; return its result. Raises RuntimeError if the loop has stopped."""
        if not self._thread.is_alive():
            work.close()  # otherwise Python warns that the coroutine was never awaited
            raise RuntimeError("the cluster is not running")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_PATIENCE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(Exception):
                future.cancel()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self.brokers.values()))}>"


def _is_cut(node: ClusterNode) -> bool:
    return not (isinstance(node.tree, MemoryTree) and node.tree.is_reachable)
