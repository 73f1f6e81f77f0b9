"""A broker inside a Python process: `with Broker() as broker: broker.bootstrap_servers`.

Owns a thread with its own event loop, so that blocking clients and asyncio clients work in the same test. Several
brokers may run in one process. Without `data_dir`, the data is in a private temporary directory, which is removed when
the broker stops. If the program does not stop a broker, the broker is stopped at exit.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kbroker.broker.node import BrokerNode
from kbroker.clock import Clock
from kbroker.config.server_config import BrokerConfig
from kbroker.embed_clients import MECHANISMS, ClientSettings
from kbroker.embed_security import Acl, Security
from kbroker.network.loop_watch import new_event_loop
from kbroker.testing.steered_clock import SteeredClock

if TYPE_CHECKING:  # imported only for TLS, or for a test's tools
    from kbroker.cluster_state import ClusterState
    from kbroker.embed_security import Certificates
    from kbroker.registry_api.server import RegistryServer
    from kbroker.testing.asking import Asking
    from kbroker.testing.faults import Faults
    from kbroker.testing.groups import Groups
    from kbroker.testing.of_cluster import ClusterSteering
    from kbroker.testing.requests import Requests
    from kbroker.testing.snapshot import Snapshot
    from kbroker.testing.steering import Steering
    from kbroker.testing.topics import Topics

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_STOP_SECONDS = 30.0

TEST_DEFAULTS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""The defaults of an embedded broker. For instance, a group must not wait for more members at its first rebalance."""


class Embedded(ABC):
    """The common interface of an embedded broker and an embedded cluster: `start`, `stop`, `with`, and test tools."""

    @abstractmethod
    def start(self) -> Self:
        """Start to serve. Returns when clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop. A second call does nothing."""

    @abstractmethod
    def _asking(self) -> Asking: ...

    @abstractmethod
    def _steering(self) -> Steering | ClusterSteering: ...

    @property
    def faults(self) -> Faults:
        """The faults: `with broker.faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER): ...`.

        The faults of a cluster apply to requests to all its brokers. The filter `broker=2` selects the requests to one
        broker. `times` and `hits` count the requests to all brokers together. A broker that starts later has the same
        faults.
        """
        return self._steering().faults

    @property
    def requests(self) -> Requests:
        """The clients' requests and their answers: at most the last 10,000, and at most 16 MB.

        A cluster records the requests to all its brokers. It starts to record at the first access.
        """
        return self._steering().record()

    @property
    def topics(self) -> Topics:
        """The topics by name: `broker.topics["orders"].records()`. A partition is read from its current leader."""
        from kbroker.testing.topics import Topics

        return Topics(self._asking())

    @property
    def groups(self) -> Groups:
        """The groups by id: `broker.groups["billing"].lag()`. A group is read from its coordinator."""
        from kbroker.testing.groups import Groups

        return Groups(self._asking())

    def wait_for(self, holds: Callable[[Self], Result], timeout: float = 10.0) -> Result:
        """Wait until a condition of the broker or cluster holds, and return the result of `holds`.

        Raises AssertionError after `timeout` seconds. If `holds` raises AssertionError, or accesses a missing topic or
        group, it is called again; the message contains its last error.
        """
        from kbroker.testing.waiting import hold

        return hold(lambda: holds(self), timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Broker(Embedded):
    """An embedded broker.

    `config` has Kafka's keys. `port=0` selects a free port. `start` raises ConfigError, LogDirError or OSError for the
    same errors that the command line reports. An unknown key causes a warning, or with `strict` a ConfigError. A broker
    can be started only once. The data is in `data_dir`, or in the directories of `log.dirs`. A test can move the time
    with `clock`, if it has passed no clock of its own.

    With `tls`, the broker listens with SSL and generates its own `certificates`. With `users` (passwords by name), it
    listens with SASL and accepts only these users. With `acls`, it permits only the operations that the ACLs allow; the
    config's `super.users` may do everything. Invalid values raise ValueError. `client_settings` returns the settings
    for a client.

    The broker records requests from its start on (see `requests`). With `requests=False`, it starts to record at the
    first access to `requests`.

    With `registry`, the broker has a schema registry, on a free port of 127.0.0.1 or at "host:port" (see
    `registry_url`). With `registry_auth`, the registry requires the name and password of one of `users`.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        strict: bool = False,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Sequence[Acl] | None = None,
        requests: bool = True,
        registry: bool | str = False,
        registry_auth: bool = False,
    ) -> None:
        self._security = Security(host, tls=tls, users=users, acls=acls)
        self._settings = {**TEST_DEFAULTS, **{k: str(v) for k, v in (config or {}).items()}}
        self._settings.setdefault("listeners", f"{self._security.protocol}://{host}:{port}")
        self._own_dirs = data_dir is None and not self._settings.keys().isdisjoint(("log.dirs", "log.dir"))
        self._private = data_dir is None and not self._own_dirs
        self._data_dir = None if data_dir is None else os.fspath(data_dir)
        self._clock = SteeredClock() if clock is None else clock
        self._strict = strict
        self._records = requests
        self._registry_at = "127.0.0.1:0" if registry is True else registry or None
        self._registry_auth = registry_auth
        self._registry: RegistryServer | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: BrokerNode | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._steered: Steering | None = None
        self._making = threading.Lock()
        self._first: ClusterState | None = None

    def __repr__(self) -> str:
        runs = self._thread is not None and self._thread.is_alive() and self._node is not None
        return f"<{type(self).__name__} {self.bootstrap_servers if runs else 'that does not run'}>"

    @property
    def clock(self) -> SteeredClock:
        """The broker's clock, which a test can move: `broker.clock.advance(hours=25)`.

        Raises RuntimeError if the test passed a clock of its own to the broker.
        """
        if not isinstance(self._clock, SteeredClock):
            raise RuntimeError("the broker has a clock of the test's own")
        return self._clock

    def reset(self) -> None:
        """Return the broker to its state at the start.

        Removes topics, groups, transactions, faults and requests, and undoes changes of settings. Clients stay
        connected, and producer ids are not reused. The clock shows the machine's time again.
        """
        assert self._first is not None
        self._steering().reset(self._first)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the broker's content. `restore` may use it any number of times.

        The snapshot contains topics with their records, groups with their offsets, transactional ids, configs, ACLs,
        users, quotas, tokens, and the clock's difference from the machine's time. It contains no group members and no
        faults. It is deleted when the broker stops, or when it is no longer referenced. Raises OSError if the files
        cannot be linked or copied.
        """
        return self._steering().snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Return the broker to the state of a snapshot, and remove all faults and recorded requests.

        Clients stay connected. Aborts the transactions that were open at the time of the snapshot, and those that are
        open now. Raises RuntimeError for a removed snapshot, ValueError for a snapshot of another broker, OSError if
        there is no space for the files.
        """
        self._steering().restore(snapshot)

    def _asking(self) -> Asking:
        from kbroker.testing.asking import Asking

        node = self.node
        return Asking(self._steering(), node.services, node.config.listeners.bind[0].name)

    def _clock_was_moved(self, ms: float) -> None:
        self._steering().moved(ms)

    def _steering(self) -> Steering:
        if self._steered is None:
            from kbroker.testing.steering import Steering

            node, loop, thread = self.node, self._loop, self._thread
            assert loop is not None
            assert thread is not None
            with self._making:
                if self._steered is None:
                    self._steered = Steering(node, loop, thread)
        return self._steered

    @property
    def node(self) -> BrokerNode:
        """The running broker. Only its own loop may use its state."""
        if self._node is None:
            raise RuntimeError("the broker is not running: use it inside `with broker:`, or call broker.start()")
        return self._node

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: "host:port"."""
        return self.node.bootstrap_servers

    @property
    def registry_url(self) -> str:
        """The URL of the schema registry of `Broker(registry=True)`, for clients of Confluent's registry."""
        if self._registry is None:
            raise RuntimeError("the broker has no schema registry: use Broker(registry=True), and start it first")
        return self._registry.url

    @property
    def certificates(self) -> Certificates:
        """The certificates of the broker and its clients, with `tls`. They are deleted when the broker stops."""
        if self._security.certificates is None:
            raise RuntimeError("the broker has no certificates of its own: use Broker(tls=True), and start it first")
        return self._security.certificates

    def client_settings(
        self, user: str | None = None, *, mechanism: str = MECHANISMS[0], certificate: str | None = None
    ) -> ClientSettings:
        """Return the settings for a client: one of `users`, or a client with a new certificate with this common name.

        `.confluent_kafka`, `.kafka_python`, `.aiokafka` and `.java` return the settings with the names that each client
        library uses. Raises ValueError for a client that the broker would not accept.
        """
        listeners = self.node.config.listeners
        addresses = [
            str(address)
            for each, address in zip(listeners.bind, self.node.addresses, strict=True)
            if listeners.protocols[each.name] == self._security.protocol
        ]
        if not addresses:
            raise ValueError(f"the config has its own listeners, but none with the protocol {self._security.protocol}")
        return self._security.client(",".join(addresses), user, mechanism, certificate)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, a text of 22 characters."""
        return self.node.cluster_id

    @property
    def data_dir(self) -> str:
        """The data directory; of several directories, the directory with the metadata."""
        return self.node.logs.directory

    def start(self) -> Self:
        """Start to serve. Returns when clients can connect."""
        if self._thread is not None:
            raise RuntimeError("a broker can be started only once")
        if self._private:
            self._data_dir = tempfile.mkdtemp(prefix="kbroker-")
        if self._data_dir is not None:
            self._settings["log.dirs"] = self._data_dir
        try:
            self._settings = self._security.settings(self._settings)
            config = BrokerConfig(self._settings, strict=self._strict)
            for warning in config.warnings:
                warnings.warn(warning, stacklevel=3)
        except BaseException:
            self._remove_private()
            raise
        self._thread = threading.Thread(target=self._run, args=(config,), name="kbroker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            self._remove_private()
            raise self._error
        atexit.register(self._stop_at_exit)
        if isinstance(self._clock, SteeredClock):
            self._clock.moved = self._clock_was_moved
        self._first = self.node.controller.state
        if self._registry_at is not None:
            try:
                self._registry = self._serve_registry(self._registry_at)
            except BaseException:
                self.stop()
                raise
        return self

    def _serve_registry(self, at: str) -> RegistryServer:
        from kbroker.local_http import REGISTRY, parse
        from kbroker.registry_api.server import of_broker

        host, port = parse(at, "registry", REGISTRY.default)
        REGISTRY.require("registry=True")
        listening = REGISTRY.listening(host, port, "registry", public=True)
        loop = self._loop
        assert loop is not None

        async def opened() -> RegistryServer:
            return of_broker(self.node, loop, listening, asks_for_login=self._registry_auth)

        return asyncio.run_coroutine_threadsafe(opened(), loop).result(_STOP_SECONDS).start()

    def stop(self) -> None:
        """Stop cleanly. Does nothing if the broker does not run. Raises the error that made the stop fail, if any."""
        atexit.unregister(self._stop_at_exit)
        if self._registry is not None:
            self._registry.stop()
            self._registry = None
        if self._steered is not None:
            self._steered.close()
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            self._remove_private()  # even if the broker has stopped by itself
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, because another thread has stopped the broker
            loop.call_soon_threadsafe(self._stop.set)
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {_STOP_SECONDS:.0f} s")
        self._remove_private()
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self, config: BrokerConfig) -> None:
        try:
            loop = self._loop = new_event_loop()
            try:
                loop.run_until_complete(self._serve(config))
            finally:
                loop.close()
                if self._steered is not None:
                    self._steered.ended()
        except BaseException as err:  # noqa: BLE001 - handed to the thread that waits in start()
            self._error = err
        finally:
            self._ready.set()

    async def _serve(self, config: BrokerConfig) -> None:
        self._stop = asyncio.Event()
        node = self._node = await BrokerNode.start(
            config, self._clock, users=self._security.scram_users, acls=self._security.acls
        )
        node.server.watch.level = logging.DEBUG  # in a test's process, other code normally blocks the loop
        if self._records:
            self._steering().record()
        self._ready.set()
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({stopping, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._steered is not None:
            await self._steered.end()
        await node.stop()

    def _stop_at_exit(self) -> None:
        """Stop a broker that its program did not stop. Its data is kept or removed, as after any other stop."""
        try:
            self.stop()
        except Exception as err:  # noqa: BLE001 - at exit no caller is left to catch it
            log.warning("the embedded broker did not stop cleanly: %s", err)
            self._remove_private()

    def _remove_private(self) -> None:
        self._security.remove()
        if self._private and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
