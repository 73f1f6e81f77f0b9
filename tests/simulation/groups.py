"""Committers of offsets in a simulated cluster, which check that committed offsets never go back.

A replaced coordinator that does not know it yet answers from its old state, as Apache Kafka's does: an offset that is
too low is requested again, and must not stay too low. A coordinator that leads in the newest epoch, and knows it, never
returns one that is too low (G4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.simulation.book import PARTITIONS, TOPIC, Client, E
from tests.simulation.violation import Violation

GROUP = "readers"
SHARED = "members"
"""A group whose members share the partitions."""
_BEHIND_S = 20.0
_LATE_S = 60.0
"""Seconds after which an unanswered request can have no effect any more."""
_SESSION_MS, _REBALANCE_MS = 6000, 3000
_REJOIN = frozenset({E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS})


class Looker(Client):
    """Reads the committed offsets of a group."""

    group = GROUP
    behind_since: float | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unsure: list[tuple[float, int, int]] = []
        """Commits that nobody answered, with time, offset and partition: they may still take effect."""

    def missing(self) -> str:
        """Return a text if committed offsets are too low; empty if they are not."""
        return "" if self.behind_since is None else f"committed offsets are behind since {self.behind_since:.3f}"

    async def look(self, acked: dict[int, int]) -> dict[int, int] | None:
        """Return the committed offsets by partition.

        None if nobody answers, or if an offset is lower than in `acked`.
        """
        now = self.loop.time()
        self.unsure[:] = [each for each in self.unsure if each[0] > now - _LATE_S]
        acked = dict(acked)
        for _, index, offset in self.unsure:
            acked[index] = min(offset, acked.get(index, -1))
        asked = self.coordinator
        epoch = self.book.judge.coordinates(asked, self.group)
        topics = [OffsetFetchRequestTopic(TOPIC, list(range(PARTITIONS)))]
        answer = await self.of_coordinator(
            self.group, 0, OffsetFetchRequest(self.group, topics), 6, OffsetFetchResponse
        )
        if answer is None:
            return None
        if answer.error_code:
            self.coordinator = -1
            self.expect_again(answer.error_code, "OffsetFetch")
            return None
        found: dict[int, int] = {}
        for each in answer.topics[0].partitions if answer.topics else ():
            if each.error_code:
                self.expect_again(each.error_code, "OffsetFetch")
                return None
            found[each.partition_index] = each.committed_offset
        behind = ""
        for index, known in acked.items():
            if found.get(index, -1) < known:
                behind = f"{index} was committed at {known}, and is at {found.get(index, -1)}"
        if not behind:
            self.behind_since = None
            return found
        if epoch >= 0 and self.book.judge.coordinates(asked, self.group) == epoch:
            raise Violation(f"G4: {asked} leads in the newest epoch {epoch}: {behind}")
        self.coordinator = -1
        self.book.counts["offsets behind"] += 1
        self.behind_since = now if self.behind_since is None else self.behind_since
        if now - self.behind_since > _BEHIND_S:
            raise Violation(f"R12: {behind}")
        return None

    async def commit(self, offsets: dict[int, int], generation: int = -1, member_id: str = "") -> list[int] | None:
        """Return the error of each partition; None if nobody answered."""
        parts = [
            OffsetCommitRequestPartition(index, offset, committed_metadata="") for index, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            self.group, generation, member_id, topics=[OffsetCommitRequestTopic(TOPIC, partitions=parts)]
        )
        answer = await self.of_coordinator(self.group, 0, request, 7, OffsetCommitResponse)
        if answer is None:
            self.unsure += [(self.loop.time(), index, offset) for index, offset in offsets.items()]
            return None
        return [each.error_code for each in answer.topics[0].partitions]


class Committer(Looker):
    """Commits what was read, for a group without members."""

    async def work(self) -> None:
        acked: dict[int, int] = {}
        while not self.book.finished:
            await self.rest(0.3)
            offsets = dict(self.book.read)
            if offsets and await self._commit(offsets):
                acked = offsets
                self.book.counts["commits"] += 1
            await self.look(acked)

    async def _commit(self, offsets: dict[int, int]) -> bool:
        codes = await self.commit(offsets)
        if codes is None:
            return False
        if any(codes):
            self.coordinator = -1
            for code in filter(None, codes):
                self.expect_again(code, "OffsetCommit")
            return False
        return True


@dataclass
class Shared:
    """What the brokers answered to all members of a group."""

    owners: dict[int, dict[int, str]] = field(default_factory=dict)
    """Generation -> partition -> its owner."""
    synced: int = -1
    """The newest generation whose assignment a member has received."""
    unsure: list[tuple[float, int, int]] = field(default_factory=list)
    acked: dict[int, int] = field(default_factory=dict)
    """Partition -> the highest offset whose commit was acknowledged."""

    def own(self, generation: int, member_id: str, partitions: list[int]) -> None:
        """Note the assignment of a member."""
        owners = self.owners.setdefault(generation, {})
        for each in partitions:
            if owners.setdefault(each, member_id) != member_id:
                raise Violation(f"G1: {each} is {owners[each]}'s and {member_id}'s in generation {generation}")
        self.synced = max(self.synced, generation)

    def committed(self, asked_in: int, generation: int, offsets: dict[int, int]) -> None:
        """Note the acknowledgement of a commit in `generation`, which was sent when `asked_in` was the newest."""
        if generation < asked_in:
            raise Violation(f"G2: a commit of generation {generation} is taken after {asked_in} had begun")
        for index, offset in offsets.items():
            self.acked[index] = max(offset, self.acked.get(index, -1))


class Member(Looker):
    """Joins a group, and commits increasing offsets for its assigned partitions in its generation."""

    group = SHARED
    _VANISHES_EVERY = 25
    member_id = ""
    generation = -1

    def __init__(self, *args: Any, shared: Shared) -> None:
        super().__init__(*args)
        self._shared = shared
        self.unsure = shared.unsure

    async def work(self) -> None:
        while not self.book.finished:
            partitions = await self._join()
            if partitions is None:
                await self.rest(0.3)
                continue
            self.book.counts["generations joined"] += 1
            acked = {each: offset for each, offset in self._shared.acked.items() if each in partitions}
            positions = await self.look(acked)
            if positions is not None:
                await self._consume({each: max(positions.get(each, -1), 0) for each in partitions})

    async def _join(self) -> list[int] | None:
        """Join, and return the assignment; None if the join failed."""
        protocols = [JoinGroupRequestProtocol("range", self.name.encode())]
        request = JoinGroupRequest(self.group, _SESSION_MS, _REBALANCE_MS, self.member_id, None, "consumer", protocols)
        # The response waits for all members.
        joined = await self.of_coordinator(self.group, 0, request, 5, JoinGroupResponse)
        if joined is None:
            return None
        if joined.error_code == E.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return None
        if joined.error_code:
            self._lose(joined.error_code, "JoinGroup")
            return None
        self.member_id, self.generation = joined.member_id, joined.generation_id
        shares = []
        if joined.leader == self.member_id:
            names = sorted(each.member_id for each in joined.members)
            shares = [
                SyncGroupRequestAssignment(name, bytes(range(PARTITIONS)[number :: len(names)]))
                for number, name in enumerate(names)
            ]
        sync = SyncGroupRequest(self.group, self.generation, self.member_id, assignments=shares)
        synced = await self.of_coordinator(self.group, 0, sync, 3, SyncGroupResponse)
        if synced is None:
            return None
        if synced.error_code:
            self._lose(synced.error_code, "SyncGroup")
            return None
        partitions = list(synced.assignment)
        self._shared.own(self.generation, self.member_id, partitions)
        return partitions

    async def _consume(self, positions: dict[int, int]) -> None:
        """Consume until the generation ends."""
        while not self.book.finished:
            await self.rest(0.4)
            if not self.random.randrange(self._VANISHES_EVERY):
                await self._go()
                return
            beat = HeartbeatRequest(self.group, self.generation, self.member_id)
            answer = await self.of_coordinator(self.group, 0, beat, 3, HeartbeatResponse)
            if answer is None:
                continue
            if answer.error_code:
                self._lose(answer.error_code, "Heartbeat")
                if answer.error_code in _REJOIN:
                    return
                continue
            for index, known in positions.items():
                positions[index] = max(known, min(self.book.read.get(index, 0), known + 5))
            if positions and await self._committed(dict(positions)):
                return

    async def _committed(self, offsets: dict[int, int]) -> bool:
        """Commit; return whether the generation has ended."""
        asked_in = self._shared.synced
        codes = await self.commit(offsets, self.generation, self.member_id)
        if codes is None:
            return False
        if not any(codes):
            self._shared.committed(asked_in, self.generation, offsets)
            self.book.counts["commits"] += 1
            return False
        for code in filter(None, codes):
            self._lose(code, "OffsetCommit")
        return any(code in _REJOIN for code in codes)

    async def _go(self) -> None:
        """Leave the group, or vanish from it; rejoin as another member."""
        if self.random.randrange(2):
            request = LeaveGroupRequest(self.group, members=[MemberIdentity(self.member_id)])
            await self.of_coordinator(self.group, 0, request, 3, LeaveGroupResponse)
        self.member_id = ""
        await self.rest(2.0)

    def _lose(self, code: int, what: str) -> None:
        if code == E.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif code not in _REJOIN:
            self.coordinator = -1
            self.expect_again(code, what)
