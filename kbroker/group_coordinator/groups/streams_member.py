"""One member of a streams group: a thread of a Kafka Streams application.

Owns a member's data and its progress towards its tasks. A member is an immutable value: a decision creates a new value,
and the replay of a record stores it in the group.

    STABLE            has the tasks of its epoch's target.
    UNREVOKED_TASKS   must first give up tasks and confirm this; keeps its epoch until then.
    UNRELEASED_TASKS  waits for tasks that other members have not given up yet; has the new epoch already.
    UNKNOWN           a state that only a later version knows: the member must join again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from kbroker.group_coordinator.topologies.tasks import NOTHING_HELD, HeldTasks


class StreamsMemberState(IntEnum):
    """The progress of a member, by the numbers of its record."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> StreamsMemberState:
        """Return the state with a number; UNKNOWN if there is no such state."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN


STABLE = StreamsMemberState.STABLE
UNREVOKED = StreamsMemberState.UNREVOKED_TASKS
UNRELEASED = StreamsMemberState.UNRELEASED_TASKS
UNKNOWN = StreamsMemberState.UNKNOWN


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member. `endpoint` is the host and port at which it answers interactive queries."""

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    state: StreamsMemberState = STABLE
    assigned: HeldTasks = NOTHING_HELD
    pending_revocation: HeldTasks = NOTHING_HELD

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all tasks of the target of `epoch`."""
        return self.state is STABLE and self.member_epoch == epoch

    def at_epoch(self, epoch: int) -> StreamsMember:
        """Return the member in another epoch. The current epoch becomes the member's previous epoch."""
        return replace(self, member_epoch=epoch, previous_epoch=self.member_epoch)

    def epoch_of(self, subtopology: str, partition: int) -> int | None:
        """Return the epoch since which the member has an active task; None if the member does not have the task."""
        found = self.assigned.active.get(subtopology, {}).get(partition)
        return self.pending_revocation.active.get(subtopology, {}).get(partition) if found is None else found
