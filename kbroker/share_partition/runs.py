"""Runs of offsets with the same state: the memory of a share partition.

Owns columns, which take 27 bytes per run, and the splitting and joining of runs. Does not know the meaning of a state;
it only knows the bytes of the column `what` for which it searches.

A run begins at `first[i]` and ends before the next run begins. The last run ends before `end`. So there are no holes
between runs. `what` is a state in the lowest three bits, and flags:

    HEAD      the run begins a batch: records that were acquired together the first time. Runs of two batches are
              never joined
    TRACKED   the records of its batch have had different states (Kafka keeps such a batch offset by offset)
    PENDING   the state is decided, and its write has not ended: until then the change can be undone, and no other
              change is allowed
    FIXED     the record was archived while its write was pending: this is never undone

Besides Kafka's states there is DELAYED, for a record that becomes available when its deadline has passed, and two
states for offsets that no batch contains. GAP: stored state contains nothing about the offsets, so they are acquired as
if they were new. HOLE: the log has no record there.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from itertools import compress
from typing import Final, NamedTuple

STATE: Final = 0x07
DELAYED: Final = 5
GAP: Final = 6
HOLE: Final = 7
PENDING: Final = 0x08
HEAD: Final = 0x10
TRACKED: Final = 0x20
FIXED: Final = 0x40

NO_LOCK: Final = float("inf")
_DONE: Final = (2, 4, HOLE)
_FEW_OWNERS: Final = 64


def _class_of(is_in: list[bool]) -> re.Pattern[bytes]:
    """Return a pattern that matches one byte of a set."""
    return re.compile(b"[" + b"".join(re.escape(bytes([each])) for each in range(128) if is_in[each]) + b"]", re.DOTALL)


_AVAILABLE = _class_of([each & (STATE | PENDING) in (0, GAP) for each in range(128)])
_IS_AVAILABLE = bytes(each & (STATE | PENDING) == 0 for each in range(256))
_UNSETTLED = _class_of([each & STATE not in _DONE or bool(each & PENDING) for each in range(128)])
_HEADS = _class_of([bool(each & HEAD) for each in range(128)])
_HOLES = _class_of([each & STATE == HOLE for each in range(128)])
_KNOWN = _class_of([each & STATE < GAP for each in range(128)])
_IS_HEAD = bytes(bool(each & HEAD) for each in range(256))


class Owner:
    """A member that has acquired records. A member that left and joined again is another owner (Runs.retire)."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Run(NamedTuple):
    """One run. `deadline` is the end of a lock or delay, in ms of the monotonic clock."""

    first: int
    what: int
    deliveries: int
    owner: Owner | None = None
    deadline: float = NO_LOCK


class Runs:
    """The runs from `start` to `end`, the offset after the last run."""

    __slots__ = ("_owners", "count", "cut", "deadline", "end", "first", "owner", "start", "what")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.first = array("q")
        self.what = bytearray()
        self.count = array("h")
        self.owner: list[Owner | None] = []
        self.deadline = array("d")
        self.cut = 0
        """The number of offsets of the first batch that are below `start`."""
        self._owners: dict[str, Owner] = {}

    def __len__(self) -> int:
        return len(self.first)

    def index(self, offset: int) -> int:
        """Return the run that contains an offset between `start` and `end`."""
        return bisect_right(self.first, offset) - 1

    def last(self, index: int) -> int:
        """Return the last offset of a run."""
        return (self.first[index + 1] if index + 1 < len(self.first) else self.end) - 1

    def at(self, index: int) -> Run:
        return Run(self.first[index], self.what[index], self.count[index], self.owner[index], self.deadline[index])

    # -- searches, at the speed of C

    def next_available(self, index: int = 0) -> int:
        """Return the first run at or after `index` that may be acquired; -1 if there is none."""
        found = _AVAILABLE.search(self.what, index)
        return -1 if found is None else found.start()

    def highest_count(self, begin: int, end: int) -> int:
        """Return the highest delivery count of the available runs from `begin` to before `end`.

        Return -1 if there are none.
        """
        chosen = self.what[begin:end].translate(_IS_AVAILABLE)
        return max(compress(self.count[begin:end], chosen), default=-1)

    def first_unsettled(self) -> int:
        """Return the first run that is not done, or whose write is pending; -1 if there is none."""
        found = _UNSETTLED.search(self.what)
        return -1 if found is None else found.start()

    def first_known(self) -> int:
        """Return the first run that belongs to a batch; -1 if there is none."""
        found = _KNOWN.search(self.what)
        return -1 if found is None else found.start()

    def head(self, index: int) -> int:
        """Return the first run of the batch that contains a run."""
        return self.what.translate(_IS_HEAD).rfind(1, 0, index + 1)

    def next_head(self, index: int) -> int:
        """Return the first run of the next batch, or the number of runs."""
        found = _HEADS.search(self.what, index + 1)
        return len(self.what) if found is None else found.start()

    def holes_below(self, offset: int) -> int:
        """Return the number of offsets that are below `offset` and in holes."""
        count = 0
        for found in _HOLES.finditer(self.what):
            first = self.first[found.start()]
            if first >= offset:
                break
            count += min(self.last(found.start()) + 1, offset) - first
        return count

    # -- owners

    def owner_of(self, member: str) -> Owner:
        """Return a member as an owner.

        The owner must get a run immediately, because owners without runs may be forgotten.
        """
        owner = self._owners.get(member)
        if owner is None:
            if len(self._owners) >= _FEW_OWNERS:
                self._forget_owners()
            owner = self._owners[member] = Owner(member)
        return owner

    def known_owner(self, member: str) -> Owner | None:
        """Return a member as an owner; None if the member owns no runs."""
        return self._owners.get(member)

    def retire(self, member: str) -> Owner | None:
        """Forget a member that leaves, and return its owner object.

        If the member joins again, it gets a new owner object, which does not own the earlier runs.
        """
        return self._owners.pop(member, None)

    def _forget_owners(self) -> None:
        """Forget the members that own no runs, if there may be many such members."""
        in_use = set(self.owner)
        if len(self._owners) > 2 * len(in_use):
            self._owners = {name: owner for name, owner in self._owners.items() if owner in in_use}

    # -- changes

    def append(self, last: int, run: Run) -> None:
        """Add a run at the end."""
        self.first.append(run.first)
        self.what.append(run.what)
        self.count.append(run.deliveries)
        self.owner.append(run.owner)
        self.deadline.append(run.deadline)
        self.end = last + 1

    def set(self, index: int, what: int, count: int, owner: Owner | None = None, deadline: float = NO_LOCK) -> None:
        """Change a complete run."""
        self.what[index] = what
        self.count[index] = count
        self.owner[index] = owner
        self.deadline[index] = deadline

    def split(self, offset: int) -> None:
        """Split the run at an offset between `start` and `end`, so that a run begins there."""
        index = self.index(offset)
        run = self.at(index)
        if run.first < offset:
            what = run.what | TRACKED
            self.replace(index, index + 1, [run._replace(what=what), run._replace(first=offset, what=what & ~HEAD)])

    def replace(self, begin: int, end: int, new: list[Run]) -> None:
        """Replace runs with others that cover the same offsets."""
        self.first[begin:end] = array("q", [run.first for run in new])
        self.what[begin:end] = bytes([run.what for run in new])
        self.count[begin:end] = array("h", [run.deliveries for run in new])
        self.owner[begin:end] = [run.owner for run in new]
        self.deadline[begin:end] = array("d", [run.deadline for run in new])

    def join_into(self, begin: int, end: int, new: list[Run]) -> None:
        """Replace runs like `replace`; join neighbouring runs that are equal, also with the runs before and after."""
        if begin > 0:
            begin -= 1
            new.insert(0, self.at(begin))
        if end < len(self.first):
            new.append(self.at(end))
            end += 1
        joined = [new[0]]
        for run in new[1:]:
            before = joined[-1]
            if run[2:] != before[2:] or run.what != before.what & ~HEAD:
                joined.append(run)
        self.replace(begin, end, joined)

    def drop_below(self, offset: int) -> None:
        """Forget the runs before an offset. The offset may be after all runs."""
        self.start = offset
        if offset >= self.end:
            self.end = offset
            kept, self.cut = len(self.first), 0
        else:
            kept = self.index(offset)
            head = self.head(kept)
            self.cut = offset - self.first[head] + (self.cut if head == 0 else 0)
        del self.first[:kept]
        del self.what[:kept]
        del self.count[:kept]
        del self.owner[:kept]
        del self.deadline[:kept]
        if self.first and self.first[0] < offset:
            self.first[0] = offset
        if self.first:
            self.what[0] |= HEAD
