"""Members of groups that poll in threads of their own, whatever client they use, and waiting until they have shared.

Owns the thread: what ends it is raised where it is waited for. Never touches a client.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Self

from compat_tests.clients.common import WAIT_S, wait_for


class MemberThread(threading.Thread):
    """A member of a group, which joins it when started. A context manager; `live` and `end` are the client's."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.owned: frozenset[int] = frozenset()

    def live(self) -> None:
        """Poll until told to end, then leave the group."""
        raise NotImplementedError

    def end(self) -> None:
        """Tell `live` to end."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.live()
        except BaseException as error:  # noqa: BLE001 - raised by who waits for this member
            self.error = error

    @property
    def partitions(self) -> list[int]:
        """The partitions that this member has now."""
        return sorted(self.owned)

    def leave(self) -> None:
        """Leave the group and end; raises what ended the thread before."""
        self.end()
        self.join(WAIT_S)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError(self.doing())

    def doing(self) -> str:
        """Return where the thread is, for the message of a wait that failed."""
        frame = sys._current_frames().get(self.ident or 0) if self.is_alive() else None
        return f"{self.name} is at:\n" + "".join(traceback.format_stack(frame)[-6:]) if frame else f"{self.name} ended"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def settle(members: Sequence[MemberThread], sizes: Sequence[int]) -> list[list[int]]:
    """Wait until the members have as many partitions as `sizes` says and no partition has two owners.

    Returns the shares without saying whose they are: member ids are random.
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
