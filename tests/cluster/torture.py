"""A cluster in one process whose brokers are killed, stopped, cut off and expired, under clients that keep books.

    python -m tests.cluster.torture --faults 1000 --seed 7

Owns the faults, and the check that the replicas' files are equal byte for byte at the end; clients.py defines what
clients must find. Every wait has a deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path

from kbroker import Cluster
from tests.cluster.clients import PATIENCE_S, Clients

CONFIG = {
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 1500,
    "replica.fetch.backoff.ms": 50,
    "controlled.shutdown.retry.backoff.ms": 100,
    "transaction.state.log.min.isr": 2,
    "log.segment.bytes": 1 << 20,
}


class Torture:
    """One run from one seed."""

    def __init__(self, seed: int, faults: int, brokers: int = 3) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        """What was done, and when, to find the cause of a failure."""
        self.cluster = Cluster(brokers, CONFIG)

    def run(self) -> str:
        with self.cluster as cluster:
            clients = Clients(cluster.bootstrap_servers)
            clients.begin()
            try:
                for _ in range(self.faults):
                    self.fault()
                self.mend()
            finally:
                clients.end()
            self.wait_in_sync()
            failed = clients.book.failed
            assert not failed, (failed[:5], self.around(failed[0]))
            judged = clients.judge()
            for reason in clients.ledger.reasons:
                print("another transactional producer:", reason, self.around(reason))
            self.wait_in_sync()
            files = self.judge_files()
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"nothing lost: {counts}; {judged}, {files} files equal"

    # --- faults

    def around(self, failure: str) -> list[str]:
        """Return the faults around a failure whose text begins with its time."""
        when = float(failure.split(maxsplit=1)[0])
        return [each for each in self.history if abs(float(each.split()[0]) - when) < 3]

    def running(self):
        return [each for each in self.cluster.brokers.values() if each.is_running]

    def fault(self) -> None:
        """One fault, or the end of one."""
        down = [each for each in self.cluster.brokers.values() if not each.is_running]
        if down and (len(down) > 1 or self.random.random() < 0.6):
            broker = self.random.choice(down)
            self.history.append(f"{time.monotonic():.3f} start {broker.node_id}")
            broker.start()
        else:
            what = self.random.choice(("kill", "kill", "stop", "expire", "cut"))
            broker = self.random.choice(self.running())
            self.counts[what] += 1
            self.history.append(f"{time.monotonic():.3f} {what} {broker.node_id}")
            if what == "kill":
                broker.kill()
            elif what == "stop":
                broker.stop()
            else:
                self.cluster.run(self.session(broker, what))
        time.sleep(self.random.choice((0, 0.01, 0.05, 0.2, 0.5)))

    async def session(self, broker, what: str) -> None:
        tree = broker.node.tree
        if what == "expire":
            tree.expire()
            return
        tree.cut()
        expires, seconds = self.random.random() < 0.5, self.random.random() * 0.5

        def back() -> None:
            tree.heal()

        if expires:
            tree.expire()
        asyncio.get_running_loop().call_later(seconds, back)

    def mend(self) -> None:
        for each in self.cluster.brokers.values():
            if not each.is_running:
                each.start()

    def wait_in_sync(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            states = [each.node.member.state for each in self.running()]
            bad = [
                (topic.name, index, part)
                for state in states
                for topic in state.topics.values()
                for index, part in enumerate(topic.partitions)
                if part.leader < 0 or len(part.isr) < len(part.replicas)
            ]
            ends = Counter(
                (each.topic, each.index, each.log.log_end_offset, each.log.high_watermark)
                for broker in self.running()
                for each in list(broker.node.replicas)
            )
            if not bad and len(states) == 3 and all(count == 3 for count in ends.values()):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"not in sync: {bad[:5]} {[e for e in ends.items() if e[1] != 3][:8]}")
            time.sleep(0.05)

    def judge_files(self) -> int:
        for each in self.running():
            self.cluster.run(self.flush(each))
        first, *others = [Path(each.data_dir) for each in self.running()]
        count = 0
        for path in sorted(first.glob("p*-*/*.log")):
            for other in others:
                assert (other / path.relative_to(first)).read_bytes() == path.read_bytes(), f"{path.name} differs"
            count += 1
        return count

    async def flush(self, broker) -> None:
        for each in list(broker.node.replicas):
            each.log.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    print(Torture(options.seed, options.faults).run(), f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
