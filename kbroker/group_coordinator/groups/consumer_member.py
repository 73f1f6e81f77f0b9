"""One member of a consumer group.

Owns a member's data and its progress towards its target. A member is an immutable value: a decision creates a new
value, and the replay of a record stores it in the group.

    STABLE                 has the partitions of its epoch's target.
    UNREVOKED_PARTITIONS   must first revoke partitions and confirm the revocation; keeps its epoch until then.
    UNRELEASED_PARTITIONS  waits for partitions that other members have not revoked yet; has the new epoch already.
    UNKNOWN                a state that only a later version knows: the member must join again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from kbroker.group_coordinator.assignment import Epochs

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class MemberState(IntEnum):
    """The progress of a member. The values are the numbers in the member's record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        """Return the state with a number; UNKNOWN if there is no such state."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN


STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS
UNKNOWN = MemberState.UNKNOWN


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The JoinGroup data of a member that uses the classic protocol within a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member. `classic` is None if the member uses the consumer protocol."""

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = -1
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = ""
    assignor: str | None = None
    state: MemberState = STABLE
    assigned: Epochs = field(default_factory=dict)
    pending_revocation: Epochs = field(default_factory=dict)
    classic: ClassicSide | None = None

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all partitions of the target of `epoch`."""
        return self.state is STABLE and self.member_epoch == epoch

    def at_epoch(self, epoch: int) -> ConsumerMember:
        """Return the member in another epoch. The current epoch becomes the member's previous epoch."""
        return replace(self, member_epoch=epoch, previous_epoch=self.member_epoch)

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch at which the member got a partition, even if the member must revoke the partition.

        Return None if the member does not have the partition.
        """
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.pending_revocation.get(topic_id, {}).get(partition) if epoch is None else epoch
