"""A share group in a cluster whose brokers are killed and stopped: nothing that was accepted comes again.

    python -m tests.cluster.share_torture --faults 300 --seed 7

Owns the faults, the members, which send messages, and the judgement: an accepted record whose acceptance was answered
is never delivered again; within one leadership of a partition, no record is delivered to a second member before its
lock has expired, and its count increases by one with each delivery; counts never exceed the limit, or after a change of
leader by at most one; at the end every record is accepted or archived. Every wait has a deadline.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kbroker import Cluster
from kbroker.protocol.errors import ErrorCode
from tests.share_partition.conversation import Member

from .sharing import SETTINGS, Sharing
from .test_transactions import Context

PARTITIONS: Final = 3
PATIENCE_S: Final = 120
LIMIT: Final = 8
LOCK_S: Final = 15
"""The shortest allowed lock: longer than a run's pauses, so that locks expire only if members vanish."""
ACCEPT, RELEASE, REJECT = 1, 2, 3

Place = tuple[int, int]
"""Partition and offset."""


class Story:
    """The answers to all members, in an order that fits all of them, and the violations in them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments = itertools.count()
        self.accepted: dict[Place, int] = {}
        """When a member learned that its acceptance is stored."""
        self.ended: set[Place] = set()
        """Accepted or rejected, also without an answer."""
        self._held: dict[Place, tuple[int, str, float]] = {}
        """For each delivered record: the leadership, the member, and the earliest time when it was no longer locked."""
        self._counts: dict[Place, int] = {}
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def now(self) -> int:
        return next(self._moments)

    def delivered(self, place: Place, member: str, count: int, began: int, epoch: int, until_s: float) -> None:
        """Note a delivery to a member whose fetch began at a time, by the leader of an epoch, -1 if it changed."""
        with self._lock:
            self.counts["deliveries"] += 1
            accepted = self.accepted.get(place)
            if accepted is not None and accepted < began:
                self.wrong.append(f"{place} was accepted, and is delivered again to {member} in epoch {epoch}")
            if count > LIMIT + 1:
                self.wrong.append(f"{place} is delivered with count {count} of {LIMIT}")
            held = self._held.get(place)
            if held is not None and epoch >= 0 and held[0] == epoch and time.monotonic() < held[2]:
                self.wrong.append(f"{place} is held by {held[1]}, and is delivered to {member} in epoch {epoch}")
            self._held[place] = epoch, member, until_s

    def let_go(self, places: set[Place]) -> None:
        """Note that records are released: before the member sends that, as the answer may be slow or lost."""
        with self._lock:
            for place in places:
                self._held.pop(place, None)

    def answered(self, places: set[Place], kind: int, *, is_stored: bool) -> None:
        """Note the answer to an acknowledgement, or that no answer arrived."""
        with self._lock:
            self.counts["stored" if is_stored else "not stored"] += 1
            if kind == RELEASE:
                return
            self.ended |= places
            if kind == ACCEPT and is_stored:
                now = self.now()
                for place in places:
                    self.accepted.setdefault(place, now)


class Worker:
    """A member for one partition at a time; it connects to the partition's leader, wherever that is."""

    def __init__(self, sharing: Sharing, story: Story, name: str, seed: int, over: threading.Event) -> None:
        self._sharing = sharing
        self._story = story
        self._name = name
        self._random = random.Random(seed)
        self._over = over
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.failure: BaseException | None = None

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self._name} does not end"
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        try:
            for life in itertools.count():
                if self._over.is_set():
                    return
                try:
                    self._live(f"{self._name}-{life}", self._random.randrange(PARTITIONS))
                except (OSError, LookupError):  # the broker is gone
                    self._story.counts["connections lost"] += 1
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self.failure = error

    def _leadership(self, index: int) -> tuple[int, int]:
        """Return leader and leader epoch of a partition according to the leader itself; raises LookupError."""
        for broker in list(self._sharing.cluster.brokers.values()):
            node = broker._node
            replica = None if node is None else node.replicas.get((self._sharing.topic, index))
            if replica is not None and replica.leading:
                return broker.node_id, replica.leader_epoch
        raise LookupError("no leader")

    @contextmanager
    def _session(self, name: str, node_id: int) -> Iterator[Member]:
        try:
            member = self._sharing.member(node_id, name)
        except RuntimeError:  # it ends
            raise LookupError("the broker has gone") from None
        with member:
            yield member

    def _live(self, name: str, index: int) -> None:
        """Run a member with one session, for a few fetches."""
        node_id, _ = self._leadership(index)
        held: set[Place] = set()
        try:
            with self._session(name, node_id) as member:
                for _ in range(self._random.randint(2, 12)):
                    if self._over.is_set() or not self._fetch(member, name, index, held):
                        return
                    if self._random.random() < 0.05:
                        return  # the process has died
        finally:
            self._story.let_go(held)

    def _fetch(self, member: Member, name: str, index: int, held: set[Place]) -> bool:
        """Fetch once, and acknowledge; return whether the session continues."""
        place = (self._sharing.topic, index)
        began = self._story.now()
        before = self._leadership(index)
        until_s = time.monotonic() + LOCK_S
        answer = member.fetch(place, wait_ms=100, records=self._random.choice([1, 10, 50]), limit=True)
        if answer.error_code:
            return False
        after = self._leadership(index)
        epoch = after[1] if before == after and after[0] == self._node_of(member) else -1
        for topic in answer.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    self._story.counts[ErrorCode(partition.error_code).name] += 1
                    return False
                got = partition.acquired_records
                for each in got:
                    for offset in range(each.first_offset, each.last_offset + 1):
                        held.add((index, offset))
                        self._story.delivered((index, offset), name, each.delivery_count, began, epoch, until_s)
                for each in got:
                    if self._random.random() > 0.05:  # otherwise it keeps the record until its session ends
                        self._acknowledge(member, index, each.first_offset, each.last_offset, held)
        return True

    def _node_of(self, member: Member) -> int:
        address = member.served.broker
        return int(address.node_id)

    def _acknowledge(self, member: Member, index: int, first: int, last: int, held: set[Place]) -> None:
        kind = self._random.choices([ACCEPT, RELEASE, REJECT], [0.7, 0.28, 0.02])[0]
        places = {(index, offset) for offset in range(first, last + 1)}
        if kind == RELEASE:
            self._story.let_go(places)
            held -= places
        is_stored = False
        try:
            answer = member.acknowledge({(self._sharing.topic, index): [(first, last, [kind])]})
            is_stored = not answer.error_code and not answer.responses[0].partitions[0].error_code
        finally:
            self._story.answered(places, kind, is_stored=is_stored)


class ShareTorture:
    """One run from one seed."""

    def __init__(self, seed: int, faults: int, workers: int = 4) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.workers = workers
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.produced = [0] * PARTITIONS

    def run(self) -> str:
        with Cluster(3, SETTINGS) as cluster:
            context = Context(cluster)
            self.cluster = cluster
            self.sharing = Sharing(context, 2, 3)
            self.sharing.set_config("share.delivery.count.limit", str(LIMIT))
            self.sharing.set_config("share.record.lock.duration.ms", str(LOCK_S * 1000))
            self.sharing.join()
            story, over = Story(), threading.Event()
            workers = [
                Worker(self.sharing, story, f"w{each}", self.random.getrandbits(32), over)
                for each in range(self.workers)
            ]
            for each in workers:
                each.begin()
            try:
                due = 0
                for number in range(self.faults):
                    if number >= due and all(each.is_running for each in cluster.brokers.values()):
                        self._produce(10)  # with one broker down, the only in-sync replica may be that one
                        due += 5
                    self._fault()
                    if story.wrong:
                        break
                for broker in cluster.brokers.values():
                    if not broker.is_running:
                        broker.start()
                self._produce(10)
                self._drain(story, workers)
            finally:
                over.set()
            for each in workers:
                each.end()
            context.close()
        assert not story.wrong, (story.wrong[:5], self.history[-20:])
        total = sum(self.produced)
        assert story.counts["stored"], "nothing was ever stored"
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        seen = ", ".join(f"{count} {what}" for what, count in sorted(story.counts.items()))
        return f"{faults}; {total} records, {len(story.accepted)} accepted; {seen}"

    def _produce(self, count: int) -> None:
        for index in range(PARTITIONS):
            self.sharing.produce(count, index)
            self.produced[index] += count  # at least: a request may have been retried

    def _fault(self) -> None:
        """Kill or stop a broker, or start one; at most one is down, so that writes are possible."""
        down = [each for each in self.cluster.brokers.values() if not each.is_running]
        if down:
            what, broker = "start", down[0]
            broker.start()
        else:
            what = self.random.choice(["kill", "kill", "stop", "expire", "move", "move there and back"])
            broker = self.random.choice(list(self.cluster.brokers.values()))
            if what.startswith("move"):
                index, replicas = self.random.randrange(PARTITIONS), self.random.sample([1, 2, 3], 3)
                before = self.sharing.leader(index)
                self.sharing.move(self.sharing.topic, index, replicas)
                if what != "move":
                    time.sleep(self.random.choice([0, 0.2, 0.5]))
                    others = [each for each in replicas if each != before]
                    self.sharing.move(self.sharing.topic, index, [before, *others])
            elif what == "expire":
                broker.expire_session()
            else:
                getattr(broker, what)()
        self.counts[what] += 1
        self.history.append(f"{time.monotonic():.3f} {what} {broker.node_id}")
        time.sleep(self.random.choice([0, 0.01, 0.05, 0.2]))

    def _drain(self, story: Story, workers: list[Worker]) -> None:
        """Wait until every record is accepted or archived."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lags: Any = None
            with suppress(OSError):
                lags = [self.sharing.lag(index) for index in range(PARTITIONS)]
            if lags == [0] * PARTITIONS or story.wrong or any(each.failure for each in workers):
                return
            assert time.monotonic() < deadline, (lags, story.counts, self.history[-10:])
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    print(ShareTorture(options.seed, options.faults).run(), f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
