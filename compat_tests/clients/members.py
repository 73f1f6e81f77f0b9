"""Members of groups that poll in their own threads, with any client, and the wait until they have shared partitions.

Owns the thread: an exception that ends it is raised where the thread is waited for. Never uses a client.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Self

from compat_tests.clients.common import WAIT_S, wait_for


class MemberThread(threading.Thread):
    """A member of a group, which joins when it is started. A context manager.

    Each client implements `live` and `end`.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.owned: frozenset[int] = frozenset()

    def live(self) -> None:
        """Poll until `end` is called, then leave the group."""
        raise NotImplementedError

    def end(self) -> None:
        """Make `live` end."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.live()
        except BaseException as error:  # noqa: BLE001 - raised by who waits for this member
            self.error = error

    @property
    def partitions(self) -> list[int]:
        """Return the partitions that this member has now."""
        return sorted(self.owned)

    def leave(self) -> None:
        """Leave the group and end; raises the exception that ended the thread before."""
        self.end()
        self.join(WAIT_S)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError(self.doing())

    def doing(self) -> str:
        """Return where the thread is, for the failure message of a wait."""
        frame = sys._current_frames().get(self.ident or 0) if self.is_alive() else None
        return f"{self.name} is at:\n" + "".join(traceback.format_stack(frame)[-6:]) if frame else f"{self.name} ended"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def settle(members: Sequence[MemberThread], sizes: Sequence[int]) -> list[list[int]]:
    """Wait until the members have as many partitions as `sizes` says and no partition has two owners.

    Returns the shares without their owners, because member ids are random.
    """

    def settled() -> list[list[int]]:
        for member in members:
            if member.error is not None:
                raise member.error
        shares = sorted(member.partitions for member in members)
        owned = [partition for share in shares for partition in share]
        right = sorted(len(share) for share in shares) == sorted(sizes) and len(owned) == len(set(owned))
        return shares if right else []

    try:
        return wait_for(f"an assignment of {sizes}", settled)
    except AssertionError as error:
        for member in members:
            error.add_note(f"{member.partitions}, {member.doing()}")
        raise
