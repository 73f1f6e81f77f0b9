"""The faults of a simulated world, and how each of them ends.

Owns the choice of faults and their length; each ends some virtual seconds after it began, or at `mend`. Faults take
down at most one broker of three at a time, but they may follow each other quickly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from kbroker.log.checkpoints import RECOVERY_POINTS, read_offsets
from tests.simulation.brokers import SESSION_S, SimBroker
from tests.simulation.loop import SimLoop
from tests.simulation.machine import machine
from tests.simulation.network import Network


class Faults:
    """Begins faults at random, and ends them."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        brokers: dict[int, SimBroker],
        random: Random,
        note: Callable[[str], None],
        in_sync: Callable[[], bool],
        kinds: list[str] | None = None,
    ) -> None:
        self._loop, self._network, self._brokers, self._random = loop, network, brokers, random
        self._note = note
        self._in_sync = in_sync
        self._calm: Callable[[], bool] | None = None
        """No other fault begins until this returns true."""
        self.kinds = kinds or list(KINDS)
        self.counts: Counter[str] = Counter()
        self._ends: dict[int, Callable[[], None]] = {}
        self._number = 0
        self.clients: list[str] = []
        """The hosts of the clients."""
        self.tasks: list[asyncio.Task[None]] = []
        """The background tasks."""
        self._busy: set[int] = set()
        """Brokers that a fault is killing, stopping or starting."""
        for each in brokers.values():
            each.on_failed = self._has_failed

    def one(self) -> None:
        """Begin a fault."""
        if self._calm is not None:
            if self._calm():
                self._calm = None
            return
        kind = self._random.choices(self.kinds, [KINDS[each] for each in self.kinds])[0]
        if getattr(self, "_" + kind)():
            self.counts[kind] += 1

    def mend(self) -> None:
        """End all current faults; dead brokers start again."""
        for end in list(self._ends.values()):
            end()
        self._ends.clear()
        self._calm = None

    # --- how a fault goes on

    def _for(self, seconds: float, end: Callable[[], None]) -> None:
        number = self._number = self._number + 1

        def over() -> None:
            if self._ends.pop(number, None) is not None:
                end()

        self._ends[number] = end
        self._loop.in_world(seconds, over)

    def _long(self) -> float:
        """Return a length: mostly shorter than a session timeout, sometimes longer."""
        return self._random.choice((0.05, 0.5, 2.0, 6.0)) * self._random.uniform(0.3, 1.5)

    def _broker(self, fits: Callable[[SimBroker], bool]) -> SimBroker | None:
        found = [each for each in self._brokers.values() if each.node_id not in self._busy and fits(each)]
        return self._random.choice(found) if found else None

    def _in_background(self, work: Any) -> None:
        self.tasks = [each for each in self.tasks if not each.done() or each.exception() is not None]
        self.tasks.append(self._loop.create_task(work, context=self._loop.world))

    # --- kinds

    def _kill(self) -> bool:
        broker = self._broker(lambda each: each.is_up)
        if broker is None:
            return False
        self._note(f"kill {broker.host}")
        self._busy.add(broker.node_id)
        self._in_background(self._killed(broker))
        return True

    async def _killed(self, broker: SimBroker, *, power: bool = False) -> None:
        await broker.kill()
        if power:
            self._note(f"{machine.lose_power(broker.directory)} files of {broker.host} lose something")
            await asyncio.sleep(SESSION_S + 2)
        self._for(self._long(), lambda: self._return(broker))

    def _return(self, broker: SimBroker) -> None:
        self._note(f"start {broker.host}")
        broker.start()
        self._busy.discard(broker.node_id)

    def _power(self) -> bool:
        """A machine loses power and its unsynced bytes while all replicas are in sync; the others stay up meanwhile.

        Nothing is synced before it is acknowledged, so records that all replicas in sync lose are lost, as with Apache
        Kafka. The broker returns some seconds after its session has ended, like a machine that boots. If a former
        controller returned earlier, the next controller would still count it as in sync, also as with Apache Kafka.
        """

        def lose() -> bool:
            if self._ends or self._busy or not self._in_sync():
                return False
            broker = self._random.choice(list(self._brokers.values()))
            if not _has_recovery_points(broker):
                return False
            self._note(f"power of {broker.host}")
            self.counts["power"] += 1
            self._busy.add(broker.node_id)
            self._in_background(self._killed(broker, power=True))
            self._calm = lambda: not self._ends and not self._busy and self._in_sync()
            return False

        self._calm = lose
        return False

    def _stop(self) -> bool:
        broker = self._broker(lambda each: each.serves and not (each.life and each.life.frozen))
        if broker is None:
            return False
        self._note(f"stop {broker.host}")
        self._busy.add(broker.node_id)
        self._in_background(self._stopped(broker))
        return True

    async def _stopped(self, broker: SimBroker) -> None:
        await broker.stop()
        self._for(self._long(), lambda: self._return(broker))

    def _has_failed(self, broker: SimBroker, why: str) -> None:
        """A broker cannot continue and ends itself; its supervisor starts it again."""
        if broker.node_id in self._busy:
            return
        self._note(f"{broker.host} ends: {why}")
        self.counts["ends by itself"] += 1
        self._busy.add(broker.node_id)

        async def ended() -> None:
            await broker.started()
            await self._stopped(broker)

        self._in_background(ended())

    def _freeze(self) -> bool:
        broker = self._broker(lambda each: each.is_up and not (each.life and each.life.frozen))
        if broker is None:
            return False
        self._note(f"freeze {broker.host}")
        broker.freeze()
        life = broker.life

        def thaw() -> None:
            if broker.life is life and life is not None and not life.dying:
                self._note(f"thaw {broker.host}")
                broker.thaw()

        self._for(self._long(), thaw)
        return True

    def _cut(self) -> bool:
        """Cut one direction between two hosts, brokers or clients; the other direction stays open."""
        hosts = [each.host for each in self._brokers.values()]
        source, target = self._random.sample(hosts, 2)
        self._note(f"cut {source} -> {target}")
        self._network.cut(source, target)

        def heal() -> None:
            self._note(f"heal {source} -> {target}")
            self._network.heal(source, target)

        self._for(self._long(), heal)
        return True

    def _client_cut(self) -> bool:
        """Cut one direction between a client and a broker."""
        broker = self._random.choice(list(self._brokers.values()))
        way = [broker.host, self._random.choice(self.clients)]
        self._random.shuffle(way)
        self._note(f"cut {way[0]} -> {way[1]}")
        self._network.cut(way[0], way[1])

        def heal() -> None:
            self._note(f"heal {way[0]} -> {way[1]}")
            self._network.heal(way[0], way[1])

        self._for(self._long(), heal)
        return True

    def _isolate(self) -> bool:
        """Cut a broker off from the other brokers, in both directions."""
        broker = self._broker(lambda _each: True)
        if broker is None:
            return False
        ways = []
        for other in self._brokers.values():
            if other is not broker:
                ways += [(broker.host, other.host), (other.host, broker.host)]
        self._note(f"isolate {broker.host}")
        for way in ways:
            self._network.cut(*way)

        def heal() -> None:
            self._note(f"join {broker.host}")
            for way in ways:
                self._network.heal(*way)

        self._for(self._long(), heal)
        return True

    def _break(self) -> bool:
        """Drop a connection, with everything in transit on it."""
        return self._network.break_one()

    def _slow(self) -> bool:
        broker = self._broker(lambda each: each.host not in self._network.slow)
        if broker is None:
            return False
        self._note(f"slow {broker.host}")
        self._network.slow[broker.host] = self._random.choice((0.01, 0.1, 0.5))
        self._for(self._long(), lambda: self._network.slow.pop(broker.host, None) and None)
        return True

    def _store_cut(self) -> bool:
        """Cut a broker off from ZooKeeper."""
        broker = self._broker(lambda each: each.is_up and each.tree is not None)
        if broker is None or broker.tree is None:
            return False
        tree = broker.tree
        self._note(f"cut {broker.host} from the store")
        tree.cut()

        def heal() -> None:
            self._note(f"heal {broker.host} to the store")
            tree.heal()

        self._for(self._long(), heal)
        return True

    def _store_break(self) -> bool:
        """Break a broker's connection to ZooKeeper: the broker does not know whether a change was made."""
        broker = self._broker(lambda each: each.is_up and each.tree is not None)
        if broker is None or broker.tree is None:
            return False
        self._note(f"break {broker.host} from the store")
        broker.tree.break_connection()
        return True

    def _expire(self) -> bool:
        """Make ZooKeeper expire a broker's session, while the broker keeps running."""
        broker = self._broker(lambda each: each.is_up and each.tree is not None)
        if broker is None or broker.tree is None:
            return False
        self._note(f"expire {broker.host}")
        broker.tree.expire()
        return True

    def _fill(self) -> bool:
        """Let a broker's disk accept some more bytes, and then none for a while."""
        broker = self._broker(lambda each: each.is_up and each.life is not None and each.life.room is None)
        if broker is None or broker.life is None:
            return False
        life = broker.life
        life.room = self._random.choice((0, 100, 3000))
        self._note(f"fill the disk of {broker.host} to {life.room}")

        def empty() -> None:
            self._note(f"room on {broker.host}")
            life.room = None

        self._for(self._long(), empty)
        return True


def _has_recovery_points(broker: SimBroker) -> bool:
    """Whether every log of several segments has one on disk: without it recovery keeps holes, which may be old."""
    stored = read_offsets(f"{broker.directory}/{RECOVERY_POINTS}")
    logs = {} if broker.node is None else broker.node.replicas._partitions
    return all(len(each.log.segments.bases) == 1 or stored.get(key, 0) > 0 for key, each in logs.items())


KINDS = {
    "kill": 4,
    "stop": 1,
    "freeze": 3,
    "cut": 3,
    "client_cut": 3,
    "isolate": 1,
    "break": 6,
    "slow": 2,
    "store_cut": 2,
    "store_break": 3,
    "expire": 2,
    "fill": 2,
    "power": 1,
}
"""The weight of each kind."""
