"""Three kbroker processes on a real ZooKeeper, broken in every way under clients that keep books.

    python -m tests.cluster.processes --faults 1000 --seed 7

Owns the faults, on processes, on what lies between them, and on their disks:

    kill, all      SIGKILL of one broker, or of all at once
    stop           an orderly stop of one
    freeze         SIGSTOP of one beyond the session's time-out, then SIGCONT
    ensemble       ZooKeeper is stopped and started
    cut            nothing passes from one broker to another
    deaf, mute     nothing passes from the other brokers to one, or from one to the others
    away           nothing passes between a broker and ZooKeeper, in one direction or in both
    full           the disk of one broker has no room left: it ends, and is started once there is some

What could not pass for a while arrives late, or the connections are reset; a broker may be killed meanwhile. What
clients must find is in clients.py; at the end the replicas' logs are equal byte for byte. Every wait has a deadline.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from compat_tests.harness.clusters import THREE, Cluster, KBrokerCluster
from compat_tests.harness.disks import Disk, MayNotMount
from compat_tests.harness.network import ZOOKEEPER, Link, Network
from compat_tests.harness.parts import fetch
from compat_tests.harness.zookeeper import ZooKeeper
from tests.cluster.clients import PARTITIONS, Clients

SESSION_S = 2.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "100",
    "log.segment.bytes": str(1 << 20),
}
OFTEN = ("kill", "kill", "kill", "freeze", "freeze", "stop", "ensemble", "all", "cut", "cut", "deaf", "mute", "away")
RARELY = ("full", "full")
"""Possible only if file systems can be mounted."""
_OF_ONE_CLUSTER = 250
"""The maximum number of faults for each cluster."""
_TOLD = 12
"""The number of faults that are named after a failure."""

Say = Callable[[str], None]


class Processes:
    """One run from one seed."""

    def __init__(self, seed: int, faults: int, directory: Path, kinds: tuple[str, ...] = ()) -> None:
        """`kinds` are the faults to choose from; by default, all that are possible."""
        self.random = random.Random(seed)
        self.faults = faults
        self.kinds = kinds
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        """What was done, and when, to find the cause of a failure."""
        self.zookeeper = ZooKeeper(fetch("kafka39"), directory / "zookeeper")
        self.directory = directory
        self.disks: dict[int, Disk] = {}

    def run(self, say: Say = lambda _text: None) -> str:
        with ExitStack() as parts:
            self._mount(parts, say)
            try:
                judged = self._torture(say)
                logs = self.judge_logs()
            except BaseException:
                self._keep_logs()
                raise
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"nothing lost: {counts}; {judged}, {logs} logs equal"

    def _keep_logs(self) -> None:
        """Copy the brokers' data, which are removed after this run, beside the brokers' log lines."""
        for node_id, disk in self.disks.items():
            shutil.copytree(disk.directory, self.directory / f"broker-{node_id}" / "kept", dirs_exist_ok=True)

    def _mount(self, parts: ExitStack, say: Say) -> None:
        try:
            for node_id in THREE:
                self.disks[node_id] = parts.enter_context(Disk(self.directory / f"broker-{node_id}" / "data"))
        except MayNotMount as error:
            self.disks.clear()
            say(f"no full disks: {error}")
        self.kinds = self.kinds or OFTEN + (RARELY if self.disks else ())

    def _torture(self, say: Say) -> str:
        with (
            self.zookeeper as zookeeper,
            Network(zookeeper.bootstrap) as self.network,
            KBrokerCluster(self.directory, zookeeper, settings=SETTINGS, network=self.network) as cluster,
        ):
            cluster.wait_until_in_sync()
            clients = Clients(cluster.bootstrap, self.directory / "producer.log")
            clients.begin()
            try:
                self._break(cluster, clients, say)
            except BaseException:
                say("\n".join(self.history[-_TOLD:]))
                for node_id in cluster.node_ids:
                    say(f"--- broker {node_id}, process {cluster.pid(node_id)}:\n{cluster.log_tail(node_id)}")
                raise
            finally:
                clients.end()
            assert not clients.book.failed, clients.book.failed[:5]
            cluster.wait_until_in_sync()
            judged = clients.judge()
            for reason in clients.ledger.reasons:
                say(f"another transactional producer: {reason}, around {self.around(reason)}")
            cluster.wait_until_in_sync()
            time.sleep(2 * SESSION_S)  # followers learn the last high watermark, and have long had everything
        return judged

    def _break(self, cluster: Cluster, clients: Clients, say: Say) -> None:
        for number in range(self.faults):
            what = self.random.choice(self.kinds)
            self.counts[what] += 1
            self.note(what)
            getattr(self, what)(cluster)
            if number % 10 == 9:
                cluster.mend()
                say(f"{number + 1} faults, {sum(map(len, clients.book.acked))} records")
        cluster.mend()

    def note(self, what: str) -> None:
        self.history.append(f"{time.strftime('%H:%M:%S')} {time.monotonic():.3f} {what}")

    def around(self, reason: str) -> list[str]:
        """Return the faults around a failure whose text begins with its time."""
        when = float(reason.split(maxsplit=1)[0])
        return [each for each in self.history if abs(float(each.split()[1]) - when) < 2 * SESSION_S]

    def one(self, cluster: Cluster) -> int:
        broker = self.random.choice(cluster.node_ids)
        self.note(f"  broker {broker}")
        return broker

    def pause(self) -> None:
        time.sleep(self.random.choice((0, 0.1, 0.5, SESSION_S + 1)))

    # --- processes

    def kill(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        cluster.kill(broker)
        self.pause()
        cluster.start(broker)

    def freeze(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        cluster.pause(broker)
        time.sleep(SESSION_S + self.random.random() * 3)
        cluster.resume(broker)

    def stop(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        cluster.stop(broker)
        self.pause()
        cluster.start(broker)

    def all(self, cluster: Cluster) -> None:
        for broker in cluster.node_ids:
            cluster.kill(broker)
        for broker in self.random.sample(cluster.node_ids, len(cluster.node_ids)):
            cluster.start(broker)

    def ensemble(self, _cluster: Cluster) -> None:
        self.zookeeper.stop()
        time.sleep(self.random.choice((0.1, SESSION_S + 1)))
        self.zookeeper.start()

    # --- the network

    def cut(self, cluster: Cluster) -> None:
        source, target = self.random.sample(cluster.node_ids, 2)
        self._cut(cluster, (source, target))

    def deaf(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        self._cut(cluster, *((other, broker) for other in cluster.others(broker)))

    def mute(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        self._cut(cluster, *((broker, other) for other in cluster.others(broker)))

    def away(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        there, back = (broker, ZOOKEEPER), (ZOOKEEPER, broker)
        self._cut(cluster, *self.random.choice(((there,), (back,), (there, back))))

    def _cut(self, cluster: Cluster, *links: Link) -> None:
        """Cut links for a while; kept bytes arrive late, or the connections are reset.

        Sometimes a broker is killed meanwhile.
        """
        seconds, reset = self.random.choice((0.3, 1, SESSION_S + 1, 3 * SESSION_S)), self.random.random() < 0.5
        killed = self.random.choice(cluster.node_ids) if self.random.random() < 0.3 else None
        self.note(f"  {', '.join(f'{source} to {target}' for source, target in links)} for {seconds:g} s")
        self.network.cut(*links)
        time.sleep(seconds / 2)
        if killed is not None:
            self.note(f"  {killed} is killed")
            self.counts["killed meanwhile"] += 1
            cluster.kill(killed)
        time.sleep(seconds / 2)
        self.note("  reset" if reset else "  healed")
        self.network.heal(*links, reset=reset)
        if killed is not None:
            cluster.start(killed)

    # --- the disk

    def full(self, cluster: Cluster) -> None:
        broker = self.one(cluster)
        self.disks[broker].fill()
        cluster.wait_for(f"the end of {broker}, whose disk is full", lambda: cluster.pid(broker) is None)
        self.pause()
        self.disks[broker].make_room()
        cluster.start(broker)

    # --- the end

    def judge_logs(self) -> int:
        """Compare the logs of the replicas, whose segments may begin at different offsets."""
        count = 0
        for topic in ("plain", "paired"):
            for index in range(PARTITIONS):
                first, *others = [self._log(node_id, f"{topic}-{index}") for node_id in THREE]
                assert first
                for number, other in enumerate(others, 2):
                    assert other == first, f"{topic}-{index} of broker {number} differs: {len(other)} of {len(first)}"
                count += 1
        return count

    def _log(self, node_id: int, partition: str) -> bytes:
        directory = self.directory / f"broker-{node_id}" / "data" / partition
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kinds", default="", help="the faults to choose from, with commas")
    parser.add_argument("--directory", type=Path, help="a new one, which is kept: the brokers' lines are there")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    kinds = tuple(filter(None, options.kinds.split(",")))
    done: Counter[str] = Counter()
    with ExitStack() as kept:
        temporary = tempfile.TemporaryDirectory(prefix="kbroker-cluster-")
        directory = options.directory or Path(kept.enter_context(temporary))
        for number, faults in enumerate(parts_of(options.faults)):
            seed = options.seed + number
            run = Processes(seed, faults, directory / f"seed-{seed}", kinds)
            print(f"seed {seed}: {run.run(lambda text: print(text, flush=True))}", flush=True)
            done += run.counts
    kinds_done = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"{options.faults} faults ({kinds_done}) in {time.monotonic() - began:.0f} s")


def parts_of(faults: int) -> list[int]:
    """Return the number of faults for each of several clusters, which are judged one after the other.

    So a failure is detected after a quarter of an hour, and no start has to read everything that was written since the
    first of a thousand faults.
    """
    whole, rest = divmod(faults, _OF_ONE_CLUSTER)
    return [_OF_ONE_CLUSTER] * whole + [rest] * (rest > 0)


if __name__ == "__main__":
    main()
