"""Share sessions: the partitions that a share group's member fetches, so that requests name only changes (KIP-932).

Owns the sessions and their epochs (ShareSessionCache, SharePartitionManager.newContext of Apache Kafka). Never releases
records: the caller that ends a session does. A session belongs to the connection that opened it, and ends with this
connection, so that no session outlives its client. Unlike in Apache Kafka, all sessions that were opened on a
connection end with that connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from kbroker.partition import Waiter
from kbroker.protocol.errors import ApiError, ErrorCode

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 0x7FFFFFFF
MOST_PARTITIONS: Final = 500_000
"""The maximum number of partitions in all sessions together: they take about 100 MB.

A request may even name partitions that do not exist.
"""

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition index."""
SessionKey: TypeAlias = tuple[str, str]
"""Group and member."""


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next request (ShareRequestMetadata.nextEpoch)."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class ShareSession:
    """One member's session.

    A partition in `partitions` is True if the next response has to contain it, even without records.
    """

    __slots__ = ("connection", "epoch", "group", "has_ended", "member", "partitions", "waiting")

    def __init__(self, group: str, member: str, connection: object) -> None:
        self.group = group
        self.member = member
        self.connection = connection
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.partitions: dict[PartitionKey, bool] = {}
        self.has_ended = False
        self.waiting: Waiter | None = None
        """The fetch of this session that waits for records."""

    @property
    def key(self) -> SessionKey:
        return self.group, self.member

    def must_tell(self, key: PartitionKey, *, has_records: bool, has_error: bool) -> bool:
        """Whether a response has to contain a partition. Partitions with records move to the end of the session."""
        needs = self.partitions.get(key)
        if needs is None:
            return True  # the partition was removed meanwhile
        if has_records:
            del self.partitions[key]
        self.partitions[key] = has_error
        return needs or has_records or has_error


class ShareSessions:
    """All share sessions of a broker, at most `limit` (group.share.max.share.sessions)."""

    def __init__(self, limit: int, most_partitions: int = MOST_PARTITIONS) -> None:
        self.limit = limit
        self._most_partitions = most_partitions
        self._partitions = 0
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connection: dict[object, dict[SessionKey, ShareSession]] = {}
        self._of_group: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, group: str, member: str) -> ShareSession | None:
        """Return a member's session."""
        return self._sessions.get((group, member))

    def get(self, group: str, member: str) -> ShareSession:
        """Return a member's session. Raises ApiError."""
        session = self._sessions.get((group, member))
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def proceed(self, group: str, member: str, epoch: int) -> ShareSession:
        """Return the session of a request with the expected epoch, and expect the next epoch. Raises ApiError."""
        session = self.get(group, member)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = next_epoch(epoch)
        return session

    def open(self, group: str, member: str, connection: object) -> ShareSession:
        """Begin a session that replaces the member's earlier session. Raises ApiError if there are too many sessions.

        The member keeps the records that it acquired before.
        """
        earlier = self._sessions.get((group, member))
        if earlier is not None:
            self.end(earlier)
        if len(self._sessions) >= self.limit:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(group, member, connection)
        self._sessions[session.key] = session
        self._of_connection.setdefault(connection, {})[session.key] = session
        self._of_group[group] = self._of_group.get(group, 0) + 1
        return session

    def take(self, session: ShareSession, key: PartitionKey, *, is_told: bool) -> None:
        """Add a partition.

        Without `is_told`, the next response has to contain the partition, even without records. Raises ApiError
        if the session has ended, or if all sessions together have too many partitions.
        """
        if session.has_ended:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if key in session.partitions:
            return
        if self._partitions >= self._most_partitions:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session.partitions[key] = not is_told
        self._partitions += 1

    def leave_out(self, session: ShareSession, key: PartitionKey) -> None:
        """Remove a partition from a session."""
        if not session.has_ended and session.partitions.pop(key, None) is not None:
            self._partitions -= 1

    def end(self, session: ShareSession) -> None:
        """Forget a session. Does nothing if the session has ended."""
        if session.has_ended:
            return
        session.has_ended = True
        self._partitions -= len(session.partitions)
        del self._sessions[session.key]
        of_connection = self._of_connection[session.connection]
        del of_connection[session.key]
        if not of_connection:
            del self._of_connection[session.connection]
        left = self._of_group[session.group] - 1
        if left:
            self._of_group[session.group] = left
        else:
            del self._of_group[session.group]

    def of_connection(self, connection: object) -> Iterable[ShareSession]:
        """Return the sessions that were opened on a connection."""
        return list(self._of_connection.get(connection, {}).values())

    def of_group(self, group: str) -> Iterable[ShareSession]:
        """Return the sessions of a group."""
        return [session for session in self._sessions.values() if session.group == group]

    def has_any(self, group: str) -> bool:
        """Whether a group has a session."""
        return group in self._of_group
