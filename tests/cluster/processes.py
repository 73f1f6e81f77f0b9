"""Three kbroker processes on a real ZooKeeper, killed, frozen, stopped and cut off, under clients that keep books.

    python -m tests.cluster.processes --faults 100 --seed 7

Owns the faults on processes: SIGKILL, SIGSTOP beyond the session's time-out and SIGCONT, an orderly stop, all brokers
at once, and ZooKeeper stopped and started. What clients must find is in clients.py; at the end the replicas' files are
equal byte for byte. Every wait has a deadline.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from compat_tests.harness.clusters import KBrokerCluster
from compat_tests.harness.parts import fetch
from compat_tests.harness.zookeeper import ZooKeeper
from tests.cluster.clients import Clients

SESSION_S = 2.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "100",
    "log.segment.bytes": str(1 << 20),
}
FAULTS = ("kill", "kill", "kill", "freeze", "freeze", "stop", "ensemble", "all")


class Processes:
    """One run from one seed."""

    def __init__(self, seed: int, faults: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.zookeeper = ZooKeeper(fetch("kafka39"), directory / "zookeeper")
        self.directory = directory

    def run(self, say=lambda _text: None) -> str:
        with self.zookeeper as zookeeper, KBrokerCluster(self.directory, zookeeper, settings=SETTINGS) as cluster:
            cluster.wait_until_in_sync()
            clients = Clients(cluster.bootstrap)
            clients.begin()
            try:
                for number in range(self.faults):
                    what = self.random.choice(FAULTS)
                    self.counts[what] += 1
                    getattr(self, what)(cluster)
                    if number % 10 == 9:
                        cluster.mend()
                        say(f"{number + 1} faults, {sum(map(len, clients.book.acked))} records")
                cluster.mend()
            except BaseException:
                for node_id in cluster.node_ids:
                    say(f"--- broker {node_id}, process {cluster.pid(node_id)}:\n{cluster.log_tail(node_id)}")
                raise
            finally:
                clients.end()
            assert not clients.book.failed, clients.book.failed[:5]
            cluster.wait_until_in_sync()
            judged = clients.judge()
            cluster.wait_until_in_sync()
            time.sleep(2 * SESSION_S)  # followers hear of the last high watermark, and have long had all
        files = self.judge_files()
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"nothing lost: {counts}; {judged}, {files} files equal"

    def pause(self) -> None:
        time.sleep(self.random.choice((0, 0.1, 0.5, SESSION_S + 1)))

    def kill(self, cluster) -> None:
        broker = self.random.choice(cluster.node_ids)
        cluster.kill(broker)
        self.pause()
        cluster.start(broker)

    def freeze(self, cluster) -> None:
        broker = self.random.choice(cluster.node_ids)
        cluster.pause(broker)
        time.sleep(SESSION_S + self.random.random() * 3)
        cluster.resume(broker)

    def stop(self, cluster) -> None:
        broker = self.random.choice(cluster.node_ids)
        cluster.stop(broker)
        self.pause()
        cluster.start(broker)

    def all(self, cluster) -> None:
        for broker in cluster.node_ids:
            cluster.kill(broker)
        for broker in self.random.sample(cluster.node_ids, len(cluster.node_ids)):
            cluster.start(broker)

    def ensemble(self, _cluster) -> None:
        self.zookeeper.stop()
        time.sleep(self.random.choice((0.1, SESSION_S + 1)))
        self.zookeeper.start()

    def judge_files(self) -> int:
        first, *others = sorted(self.directory.glob("broker-*/data"))
        count = 0
        for path in sorted(first.glob("p*-*/*.log")):
            for other in others:
                assert (other / path.relative_to(first)).read_bytes() == path.read_bytes(), f"{path} differs"
            count += 1
        assert count >= 6
        return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kbroker-cluster-") as directory:
        run = Processes(options.seed, options.faults, Path(directory))
        print(run.run(lambda text: print(text, flush=True)), f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
