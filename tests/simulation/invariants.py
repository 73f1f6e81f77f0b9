"""What must hold after every step, on the brokers' own objects (docs/replication.md: R1-R16; S7).

Owns what was seen of each replica and of each partition. After a step only the broker that ran is looked at, and of it
only the replicas that have changed. Batches are compared by what stands in the files.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.znodes import state_path
from kbroker.protocol.records import iter_batches
from tests.simulation.brokers import SimBroker
from tests.simulation.loop import Life

Key = tuple[str, int]
_READ_BYTES = 1 << 20


class Violation(AssertionError):  # noqa: N818 - says what does not hold
    """A promise does not hold; the message names it."""


@dataclass
class Replica:
    """What was last seen of one broker's replica."""

    number: int = 0
    """Of the broker's life."""
    start: int = 0
    end: int = 0
    mark: int = 0
    epoch: int = -1
    leading: bool = False
    truncations: int = 0
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(first offset, last offset, leader epoch, checksum) of what stands in its log from `start` on."""
    judged: int = 0
    """Below which its batches have been compared with what is committed."""


@dataclass
class Committed:
    """What is known of a partition, whoever leads it."""

    end: int = 0
    """The highest high watermark that any leader had."""
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """First offset -> (last offset, leader epoch, checksum)."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> who leads in it."""


class Invariants:
    """Looks at the brokers; raises Violation."""

    def __init__(self, brokers: dict[int, SimBroker], ensemble: MemoryEnsemble) -> None:
        self._brokers = brokers
        self._ensemble = ensemble
        self.replicas: dict[tuple[int, Key], Replica] = {}
        self.partitions: dict[Key, Committed] = {}
        self._states: dict[Key, tuple[bytes, tuple[int, ...]]] = {}
        self.checks = 0

    def after(self, life: Life | None) -> None:
        """Look at the broker that has just run."""
        if life is None or life.broker is None or life.dying:
            return
        broker: SimBroker = life.broker
        node = broker.node
        if node is None:
            return
        for key, partition in node.replicas._partitions.items():
            log = partition.log
            seen = self.replicas.get((broker.node_id, key))
            if (
                seen is None
                or seen.end != log.log_end_offset
                or seen.mark != log.high_watermark
                or seen.epoch != partition.leader_epoch
                or seen.leading != partition.leading
                or seen.number != life.number
            ):
                self._changed(broker.node_id, life.number, key, partition, seen)

    # --- one replica

    def _changed(self, broker: int, number: int, key: Key, partition: Any, seen: Replica | None) -> None:
        self.checks += 1
        log = partition.log
        if seen is None:
            seen = self.replicas[broker, key] = Replica()
        name = f"{key[0]}-{key[1]}"
        start, end, mark = log.log_start_offset, log.log_end_offset, log.high_watermark
        if not start <= mark <= end:
            raise Violation(f"S7: {name} on {broker}: start {start}, high watermark {mark}, end {end}")
        anew = seen.number != number
        if not anew and mark < seen.mark:
            raise Violation(f"R14: {name} on {broker}: the high watermark goes back from {seen.mark} to {mark}")
        committed = self.partitions.setdefault(key, Committed())
        self._follow_log(name, broker, log, seen, anew=anew)
        if partition.leading:
            self._judge_leader(name, broker, key, partition, seen, committed)
        self._compare(name, broker, seen, committed, mark)
        seen.number, seen.start, seen.end, seen.mark = number, start, end, mark
        seen.epoch, seen.leading = partition.leader_epoch, partition.leading
        self._judge_in_sync(name, key, committed)

    def _follow_log(self, name: str, broker: int, log: Any, seen: Replica, *, anew: bool) -> None:
        """Take over what was appended or cut off since."""
        end = log.log_end_offset
        if anew:
            seen.batches, seen.judged = [], 0
        batches = seen.batches
        # What was cut may have been written anew in the same step: it is read again from the high watermark on.
        kept = end if log.truncations == seen.truncations else min(end, seen.mark)
        seen.truncations = log.truncations
        while batches and batches[-1][1] >= kept:
            batches.pop()
        at = batches[-1][1] + 1 if batches else log.log_start_offset
        while at < end:
            piece = log.read(at, _READ_BYTES, end, min_one=True)
            view = piece.view()
            found = at
            for position, header in iter_batches(view):
                if header.base_offset < at:
                    continue
                if header.base_offset != found:
                    raise Violation(f"R11: {name} on {broker}: after {found} comes {header.base_offset}")
                if batches and header.leader_epoch < batches[-1][2]:
                    raise Violation(f"R3: {name} on {broker}: epoch {header.leader_epoch} after {batches[-1][2]}")
                checksum = crc32(view[position : position + header.size])
                batches.append((header.base_offset, header.last_offset, header.leader_epoch, checksum))
                found = header.last_offset + 1
            if found == at:
                heads = [(head.base_offset, head.last_offset) for _, head in iter_batches(view)]
                raise Violation(
                    f"S7: {name} on {broker}: nothing can be read at {at}, and its end is {end}: "
                    f"{piece}, {heads}, segments {log.segments.bases}, {batches[-3:]}"
                )
            at = found

    def _judge_leader(
        self, name: str, broker: int, key: Key, partition: Any, seen: Replica, committed: Committed
    ) -> None:
        epoch, log = partition.leader_epoch, partition.log
        other = committed.leaders.setdefault(epoch, broker)
        if other != broker:
            raise Violation(f"R3: {other} and {broker} lead {name} in epoch {epoch}")
        if epoch != seen.epoch or not seen.leading:
            newest = self._state(key)
            # One that was frozen, or is told late, may be behind by now; who leads by the newest epoch must have all.
            if newest is not None and newest[1] == epoch and log.log_end_offset < committed.end:
                end = log.log_end_offset
                raise Violation(f"R1: {broker} leads {name} in {epoch} from {end}, committed is {committed.end}")
        if log.high_watermark > committed.end:
            committed.end = log.high_watermark

    def _compare(self, name: str, broker: int, seen: Replica, committed: Committed, mark: int) -> None:
        """Compare with what others have below their high watermarks."""
        first = bisect_left(seen.batches, (seen.judged, -1, -1, -1))
        for base, last, epoch, checksum in seen.batches[first:]:
            if last >= mark:
                break
            known = committed.batches.setdefault(base, (last, epoch, checksum))
            if known != (last, epoch, checksum):
                raise Violation(
                    f"R2: {name} on {broker}: {base}..{last} of epoch {epoch}, elsewhere ..{known[0]} of {known[1]}"
                )
            seen.judged = last + 1

    # --- the controller's word

    def _state(self, key: Key) -> tuple[tuple[int, ...], int, int] | None:
        """Return the in-sync replicas, the leader epoch and the leader as they stand in the store."""
        found = self._ensemble.look(state_path(*key))
        if found is None:
            return None
        known: Any = self._states.get(key)
        if known is None or known[0] is not found[0].data:
            value = json.loads(found[0].data)
            known = self._states[key] = (
                found[0].data,
                (tuple(value["isr"]), value["leader_epoch"], value["leader"]),  # type: ignore[assignment]
            )
        state: tuple[tuple[int, ...], int, int] = known[1]
        return state

    def _judge_in_sync(self, name: str, key: Key, committed: Committed) -> None:
        """Everybody in sync has what is committed."""
        state = self._state(key)
        if state is None:
            return
        for broker in state[0]:
            seen = self.replicas.get((broker, key))
            if seen is not None and seen.end < committed.end:
                raise Violation(f"R1: {name}: {broker} is in sync and ends at {seen.end}, committed is {committed.end}")

    # --- at the end

    def out_of_sync(self) -> str:
        """Return which partition lacks a leader or a replica in sync; empty when none does."""
        for key in self.partitions:
            state = self._state(key)
            if state is None or len(state[0]) < len(self._brokers) or state[2] < 0:
                return f"{key} is at {state}"
        return ""

    def whole(self) -> str:
        """Return what is not yet as it is to be once all is well; empty when nothing is missing."""
        if out := self.out_of_sync():
            return out
        for key in self.partitions:
            found = [self.replicas.get((each, key)) for each in self._brokers]
            ends = {None if each is None else (each.end, each.mark) for each in found}
            if len(ends) > 1 or any(end is None or end[0] != end[1] for end in ends):
                return f"{key} ends at {ends}"
        return ""

    def judge_files(self) -> int:
        """Compare the replicas batch for batch; return how many batches there are."""
        count = 0
        for key in self.partitions:
            logs = [self.replicas[each, key].batches for each in self._brokers]
            if any(each != logs[0] for each in logs[1:]):
                raise Violation(f"R13: the logs of {key} differ at the end")
            count += len(logs[0])
        return count
