"""Brokers of a simulated world as processes: started, killed, frozen, stopped.

Owns when a broker lives, and what stays of it: its directory, and its session until ZooKeeper ends it. Never inspects a
broker: invariants.py does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import kbroker.broker.base_node as composition
from kbroker.broker.cluster_node import ClusterNode
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.embed import TEST_DEFAULTS
from kbroker.log.directories.dir_lock import LogDirError
from tests.simulation.loop import Life, SimLoop
from tests.simulation.machine import LIFE
from tests.simulation.store import SimTree

log = logging.getLogger(__name__)

PORT = 9092
SESSION_S = 3.0
_DYING_S = 5.0
_RETRY_S = 0.5
_COLLECT_EVERY = 8
SETTINGS = {
    **TEST_DEFAULTS,
    "zookeeper.connect": "in memory",
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "2",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "100",
    "controller.socket.timeout.ms": "5000",
    "controlled.shutdown.retry.backoff.ms": "200",
    "leader.imbalance.check.interval.seconds": "5",
    "log.roll.ms": "8000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.cleaner.enable": "false",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
}

_log_dirs = composition.log_dirs


def _noting_log_dirs(*args: Any) -> Any:
    """Open a broker's logs, and note its owner: a broker may be killed before it is complete."""
    logs = _log_dirs(*args)
    LIFE.get().broker.logs = logs
    return logs


class SimNode(ClusterNode):
    """A real node, which is inspected from its first moment on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        broker: SimBroker = LIFE.get().broker
        broker.node = self
        # The process that runs the broker then ends it, like `kbroker start`.
        self.failed.add_done_callback(lambda failed: broker.on_failed(broker, failed.result()))


class SimClock:
    """A broker's clock."""

    def __init__(self, loop: SimLoop, start_s: int) -> None:
        self._loop, self._start_ms = loop, start_s * 1000

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.passed * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.passed * 1000


class SimBroker:
    """One broker over all its lives. `node` is set while it serves."""

    deaths = 0

    def __init__(
        self, loop: SimLoop, ensemble: MemoryEnsemble, random: Random, clock: SimClock, node_id: int, directory: Path
    ) -> None:
        self._loop, self._ensemble, self._random, self._clock = loop, ensemble, random, clock
        self.node_id = node_id
        self.host = f"broker{node_id}"
        self.settings = {
            **SETTINGS,
            "broker.id": str(node_id),
            "broker.rack": f"rack{node_id}",
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            "log.dirs": str(directory / self.host),
        }
        self.directory = self.settings["log.dirs"]
        self.lives = 0
        self.life: Life | None = None
        self.tree: SimTree | None = None
        self.node: ClusterNode | None = None
        self.logs: Any = None
        self.refused: list[str] = []
        """Why starts failed."""
        self.on_failed: Callable[[SimBroker, str], None] = lambda _broker, _why: None
        """Called with the reason when a broker cannot continue."""
        self._starting: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self.life is not None and not self.life.dying

    @property
    def serves(self) -> bool:
        return self.is_up and self._starting is not None and self._starting.done()

    def start(self) -> None:
        """Start a process; `node` is set once it serves."""
        assert self.life is None
        self.lives += 1
        life = self.life = Life(self.host, self.lives)
        life.broker = self
        self._starting = self._loop.create_task(self._start(life), context=life.context)

    async def _start(self, life: Life) -> None:
        while True:
            tree = self.tree = SimTree(self._ensemble, self._loop, self._random, life, SESSION_S)
            try:
                config = BrokerConfig(self.settings)
                await SimNode.start(config, clock=self._clock, tree=tree)
                return
            except (ConfigError, LogDirError, OSError) as error:
                self.node = self.logs = None
                self.refused.append(str(error))
                log.warning("%s does not start: %s", self.host, error)
                await asyncio.sleep(_RETRY_S)

    async def kill(self) -> None:
        """End as by SIGKILL, at any moment: nothing more is sent, written or received."""
        life, node, tree = self.life, self.node, self.tree
        assert life is not None
        life.dying = True
        self.node = None
        self._loop.network.vanish(self.host)
        if tree is not None:
            tree.be_silent()
        if self.logs is not None:
            self.logs.close(clean=False)
        assert self._starting is not None
        if self._starting.done():
            assert node is not None
            ending = self._loop.create_task(node.kill(), context=life.context)
        else:
            self._starting.cancel()
            ending = self._starting
        if life.frozen:
            self._loop.thaw(life)
        await asyncio.wait([ending], timeout=_DYING_S)
        self._bury(life)

    async def started(self) -> None:
        """Wait until the process serves."""
        assert self._starting is not None
        await asyncio.wait([self._starting])

    async def stop(self) -> None:
        """Stop with a clean shutdown, as by SIGTERM."""
        life, node = self.life, self.node
        assert life is not None
        assert node is not None
        ending = self._loop.create_task(node.stop(), context=life.context)
        await asyncio.wait([ending], timeout=60)
        life.dying = True
        self.node = None
        self._loop.network.vanish(self.host)
        if not ending.done():
            self.logs.close(clean=False)
        self._bury(life)

    def _bury(self, life: Life) -> None:
        life.dead = True
        self._loop.network.vanish(self.host)
        self._loop.network.reuse_fds(self.host)
        self._loop.forget(life)
        self.life = self.tree = self.logs = self._starting = None
        SimBroker.deaths += 1
        if SimBroker.deaths % _COLLECT_EVERY == 0:
            # In the dead process's own context, so that nothing which its generators schedule on close ever runs.
            life.context.run(gc.collect)

    def freeze(self) -> None:
        """Run nothing, as after SIGSTOP; the kernel still accepts incoming bytes."""
        assert self.life is not None
        self.life.frozen = True
        if self.tree is not None:
            self.tree.be_silent()

    def thaw(self) -> None:
        assert self.life is not None
        if self.life.frozen:
            self._loop.thaw(self.life)
            if self.tree is not None:
                self.tree.be_heard()


def install(network: Any) -> None:
    """Make brokers listen in a simulated network, and report their logs."""
    composition.bind = network.bind  # type: ignore[attr-defined]
    composition.log_dirs = _noting_log_dirs  # type: ignore[attr-defined]
