"""One partition in a world of queues: brokers with the real state machines, a controller, lost messages.

Each step does one thing at random: something is produced, a message arrives or is lost, time passes, a broker dies or
returns, leadership moves. After each step, the promises of replication are checked; see `check`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.following import (
    Append,
    AskOffsets,
    BackOff,
    Condition,
    Following,
    GiveUp,
    Ignore,
    Restart,
    Truncate,
)
from kbroker.replication.leadership import Granted, Leadership, Proposal

MAX_LAG_MS = 1000
NODES = (1, 2, 3)
MOST_MESSAGES = 40


class Broken(AssertionError):  # noqa: N818 - says what does not hold
    """A promise is broken; the message names it."""


class Epochs(LeaderEpochCache):
    """The real epochs, without a disk."""

    def _write(self, *, sync: bool = True) -> None:
        pass


@dataclass(eq=False)
class Node:
    """One broker's replica. Its log survives a crash; its other state does not."""

    id: int
    log: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    epochs: Epochs = field(default_factory=lambda: Epochs("/nowhere"))
    alive: bool = True
    leading: bool = False
    leadership: Leadership = field(init=False)
    following: Following | None = None
    registration: int = 0
    """The registration that the controller addresses; a request to an earlier one is refused (STALE_BROKER_EPOCH)."""
    told_epoch: int = -1
    asked: int = 0
    """The number of its fetches: it waits only for the last one, like a fetcher with one connection."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Pending acks=all requests: (required offset, value)."""

    def __post_init__(self) -> None:
        self.leadership = Leadership(self.id)

    @property
    def end(self) -> int:
        return len(self.log)

    def cut(self, offset: int) -> None:
        del self.log[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)

    def write(self, epoch: int, value: int) -> None:
        self.epochs.assign(epoch, self.end)
        self.log.append((epoch, value))


@dataclass
class World:
    """`unclean` allows any live leader; then records may be lost, and only agreement is checked."""

    seed: int
    min_isr: int = 2
    unclean: bool = False
    now_ms: int = 0
    messages: list[tuple[str, int, tuple[Any, ...]]] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Offset -> value."""
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.nodes = {each: Node(each) for each in NODES}
        self.leader, self.leader_epoch, self.partition_epoch = 1, 0, 0
        self.isr = frozenset(NODES)
        self.registered = set(NODES)
        self.values = 0
        self.lost_since_unclean = False
        self._announce()

    # --- the controller: one register, changed by compare and set

    def _announce(self) -> None:
        granted = Granted(self.leader_epoch, self.partition_epoch, self.isr)
        for node in self.nodes.values():
            self._send("leader and isr", node.id, node.registration, self.leader, granted)

    def _elect(self, preferred: int | None = None) -> None:
        candidates = [each for each in NODES if each in self.isr and each in self.registered]
        if preferred in candidates:
            candidates = [preferred]
        isr = self.isr & self.registered or self.isr
        if not candidates and self.unclean:
            candidates = [each for each in NODES if each in self.registered][:1]
            isr = frozenset(candidates) or isr
            if candidates:
                self.told["unclean election"] += 1
                self.lost_since_unclean = True
        self.leader = candidates[0] if candidates else -1
        self.isr = isr
        self.leader_epoch += 1
        self.partition_epoch += 1
        if self.leader >= 0 and not self.lost_since_unclean:
            log = self.nodes[self.leader].log
            for offset, value in self.acknowledged.items():
                if offset >= len(log) or log[offset][1] != value:
                    raise Broken(f"R1: {value} at {offset} was acknowledged, and leader {self.leader} has it not")
        self._announce()

    def _alter(self, sender: int, proposal: Proposal) -> None:
        """Answer an AlterPartition as a controller on ZooKeeper does."""
        if proposal.leader_epoch < self.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif proposal.isr == self.isr:
            error = ErrorCode.NONE
        elif proposal.partition_epoch < self.partition_epoch:
            error = ErrorCode.INVALID_UPDATE_VERSION
        elif not proposal.isr <= self.registered:
            error = ErrorCode.INELIGIBLE_REPLICA
        else:
            error = ErrorCode.NONE
            self.told["grew" if proposal.isr > self.isr else "shrank"] += 1
            self.isr = proposal.isr
            self.partition_epoch += 1
        granted = Granted(self.leader_epoch, self.partition_epoch, self.isr)
        self._send("altered", sender, proposal, error, granted)

    # --- steps

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.55 and self.messages:
            self._deliver()
        elif choice < 0.7:
            self._produce()
        elif choice < 0.85:
            self._fetch()
        elif choice < 0.95:
            self._pass_time()
        elif choice < 0.97:
            self._crash()
        elif choice < 0.99:
            self._return()
        else:
            self._elect(self.random.choice(NODES))
        self.check()

    def _send(self, kind: str, to: int, *what: Any) -> None:
        if len(self.messages) >= MOST_MESSAGES:
            self.messages.pop(self.random.randrange(len(self.messages)))
            self.told["lost"] += 1
        self.messages.append((kind, to, what))

    def _deliver(self) -> None:
        kind, to, what = self.messages.pop(self.random.randrange(len(self.messages)))
        node = self.nodes[to] if to else None
        if self.random.random() < 0.1 or (node is not None and not node.alive):
            self.told["lost"] += 1
            if kind == "leader and isr" and node is not None and node.alive:
                self.messages.append((kind, to, what))  # a controller repeats it until it is answered
            return
        self.told[kind] += 1
        getattr(self, "_on_" + kind.replace(" ", "_"))(node, *what)

    def _on_leader_and_isr(self, node: Node, registration: int, leader: int, granted: Granted) -> None:
        if registration != node.registration or granted.leader_epoch <= node.told_epoch:
            return
        node.told_epoch = granted.leader_epoch
        if leader == node.id:
            is_new_leader = not node.leading
            if node.leadership.lead(granted, NODES, node.end, self.now_ms, is_new_leader=is_new_leader):
                node.epochs.assign(granted.leader_epoch, node.end)
            node.leading, node.following = True, None
            self._advance(node)
        elif node.leadership.follow(granted, NODES):
            node.leading = False
            node.waiting.clear()
            last = node.epochs.latest
            start = node.end if last >= 0 else node.high_watermark
            node.following = Following(leader, granted.leader_epoch, start, last) if leader >= 0 else None

    def _on_alter(self, _: None, sender: int, proposal: Proposal) -> None:
        self._alter(sender, proposal)

    def _on_altered(self, node: Node, proposal: Proposal, error: ErrorCode, granted: Granted) -> None:
        if error is ErrorCode.NONE:
            if node.leadership.granted(proposal, granted):
                self._advance(node)
        elif node.leadership.refused(proposal, error):
            self._send("alter", 0, node.id, proposal)

    def _produce(self) -> None:
        leading = [node for node in self.nodes.values() if node.alive and node.leading]
        if not leading:
            return
        node = self.random.choice(leading)
        if not node.leadership.enough(self.min_isr):
            return
        self.values += 1
        node.write(node.leadership.leader_epoch, self.values)
        node.waiting.append((node.end, self.values))
        self._advance(node)

    def _fetch(self) -> None:
        node = self.nodes[self.random.choice(NODES)]
        way = node.following
        if node.alive and way is not None and way.condition is Condition.FETCHING:
            node.asked += 1
            where = way.fetch_offset, way.last_fetched_epoch, way.leader_epoch
            self._send("fetch", way.leader, node.id, node.asked, *where)

    def _on_fetch(self, node: Node, replica: int, asked: int, offset: int, last_epoch: int, epoch: int) -> None:
        error, diverging, records = ErrorCode.NONE, None, []
        own = node.leadership
        if not node.leading:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif epoch != own.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH if epoch < own.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        else:
            if last_epoch >= 0:
                known, end = node.epochs.end_offset_for(last_epoch, node.end)
                if known < 0 or end < 0:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                elif known < last_epoch or end < offset:
                    diverging = known, end
                    self.told["diverging"] += 1
            if diverging is None and offset > node.end:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error is ErrorCode.NONE and diverging is None:
            records = node.log[offset : offset + self.random.randint(1, 5)]
            moved = own.fetched(replica, offset, 0, node.end, self.now_ms)
            self._propose(node, own.to_expand(replica, node.high_watermark, self.registered))
            if moved:
                self._advance(node)
        answer = (asked, offset, epoch, error, diverging, records, node.high_watermark, node.end)
        self._send("fetched", replica, node.id, *answer)

    def _on_fetched(
        self,
        node: Node,
        leader: int,
        asked: int,
        offset: int,
        epoch: int,
        error: ErrorCode,
        diverging: tuple[int, int] | None,
        records: list[tuple[int, int]],
        high_watermark: int,
        leader_end: int,
    ) -> None:
        way = node.following
        if way is None or way.leader != leader or way.leader_epoch != epoch or asked != node.asked:
            return  # a fetcher drops what comes for a partition that it was given anew, and has one request under way
        step = way.answered(
            offset, epoch, error, diverging, node.end, lambda e: node.epochs.end_offset_for(e, node.end)
        )
        if isinstance(step, AskOffsets):
            step = way.offsets_received(ErrorCode.NONE, 0, leader_end, node.end)
        self.told[type(step).__name__] += 1
        if isinstance(step, Append):
            for each in records:
                node.write(*each)
            way.appended(node.end, node.epochs.latest)
            node.high_watermark = max(node.high_watermark, min(high_watermark, node.end))
        elif isinstance(step, Truncate):
            if step.offset < node.high_watermark and not self.lost_since_unclean:
                raise Broken(f"R14: {node.id} cuts its log at {step.offset}, below {node.high_watermark}")
            node.cut(step.offset)
            way.truncated(node.end, node.epochs.latest)
        else:
            assert isinstance(step, (BackOff, GiveUp, Ignore, Restart))

    def _pass_time(self) -> None:
        self.now_ms += self.random.randint(1, MAX_LAG_MS // 2)
        for node in self.nodes.values():
            if node.alive and node.leading:
                self._propose(node, node.leadership.to_shrink(node.end, self.now_ms, MAX_LAG_MS))
        if self.random.random() < 0.3:
            self._repeat()

    def _repeat(self) -> None:
        """Repeat requests that were not answered in time."""
        for node in self.nodes.values():
            if node.alive and node.leading:
                self._propose(node, node.leadership.proposed)

    def _propose(self, node: Node, proposal: Proposal | None) -> None:
        if proposal is not None:
            self._send("alter", 0, node.id, proposal)

    def _crash(self) -> None:
        """Kill a broker; the controller learns of it now, or considers a live, frozen broker dead."""
        node = self.nodes[self.random.choice(NODES)]
        if node.id not in self.registered:
            return
        self.registered.discard(node.id)
        if self.random.random() < 0.7:
            node.alive = node.leading = False
            node.following = None
            node.told_epoch = -1
            node.waiting.clear()
            node.leadership = Leadership(node.id)
            node.high_watermark = self.random.randint(0, node.high_watermark)  # as it was last written down
            self.told["crash"] += 1
        else:
            self.told["cut off"] += 1
        if self.leader == node.id or node.id in self.isr:
            self._elect(self.leader)

    def _return(self) -> None:
        node = self.nodes[self.random.choice(NODES)]
        if node.id in self.registered:
            return
        self._register(node)
        self.told["return"] += 1
        self._elect(self.leader if self.leader >= 0 else None)

    def _register(self, node: Node) -> None:
        node.alive = True
        node.registration += 1
        self.registered.add(node.id)

    def _advance(self, node: Node) -> None:
        found = node.leadership.high_watermark(node.end, self.now_ms, MAX_LAG_MS, self.min_isr, self.registered)
        if found is not None and found > node.high_watermark:
            node.high_watermark = found
        left = []
        for required, value in node.waiting:
            verdict = node.leadership.verdict(required, node.high_watermark, self.min_isr)
            if verdict is None:
                left.append((required, value))
            elif verdict is ErrorCode.NONE:
                self._acknowledge(required - 1, value)
        node.waiting = left

    def _acknowledge(self, offset: int, value: int) -> None:
        self.told["acknowledged"] += 1
        self.acknowledged[offset] = value
        if self.lost_since_unclean:
            return
        for each in self.isr:
            log = self.nodes[each].log
            if offset >= len(log) or log[offset][1] != value:
                raise Broken(f"R1: {value} at {offset} is acknowledged, and {each}, which is in sync, has it not")

    # --- what must hold

    def check(self) -> None:
        leaders: dict[int, int] = {}
        for node in self.nodes.values():
            epochs = [epoch for epoch, _ in node.log]
            if epochs != sorted(epochs):
                raise Broken(f"R3: epochs in the log of {node.id} are {epochs}")
            if not 0 <= node.high_watermark <= node.end:
                raise Broken(f"S7: {node.id} has its high watermark at {node.high_watermark} of {node.end}")
            if node.leading:
                other = leaders.setdefault(node.leadership.leader_epoch, node.id)
                if other != node.id:
                    raise Broken(f"R3: {other} and {node.id} lead in epoch {node.leadership.leader_epoch}")
        if self.lost_since_unclean:
            return
        nodes = list(self.nodes.values())
        for one in nodes:
            for other in nodes:
                common = min(one.high_watermark, other.high_watermark)
                if one.log[:common] != other.log[:common]:
                    raise Broken(f"R2: {one.id} and {other.id} differ below {common}")

    def settle(self) -> None:
        """Let all brokers return and all messages arrive; then all logs must be equal."""
        for node in self.nodes.values():
            if node.id not in self.registered:
                self._register(node)
        self._elect(self.leader if self.leader >= 0 else None)
        for _ in range(4000):
            choice = self.random.random()
            if choice < 0.7 and self.messages:
                self._deliver()
            elif choice < 0.95:
                self._fetch()
            else:
                self._repeat()
            self.check()
            logs = [node.log for node in self.nodes.values()]
            if logs[0] == logs[1] == logs[2] and self.isr == frozenset(NODES) and self.leader >= 0:
                return
        raise Broken(f"R13: logs differ at the end, or {set(self.isr)} alone are in sync")
