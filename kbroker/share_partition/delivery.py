"""All share partitions in use on a broker, and the members' sessions (SharePartitionManager of Apache Kafka).

Owns the table of share partitions, their timers, and the notifications when a session, a group or a topic ends. Never
answers a request: handlers answer.

A share partition is in use from its first fetch until the last session of its group has ended and its state is stored
completely. A share partition is also forgotten in three other cases: its group is deleted, its partition is deleted or
gets another leader, or an error requires that its state is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.coordination.timers import Timers
from kbroker.long_work import in_slices, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_coordinator.persister import Persister
from kbroker.share_partition.dead_letters import DeadLetters
from kbroker.share_partition.hosted import Hosted, Key, RemoteOffsetAt
from kbroker.share_partition.persister import GroupSettings
from kbroker.share_partition.sessions import PartitionKey, ShareSession, ShareSessions

log = logging.getLogger(__name__)


class ShareDelivery:
    """The share partitions and sessions of one broker."""

    def __init__(
        self,
        led: Callable[[str, int], Partition],
        persister: Persister,
        dead_letters: DeadLetters,
        settings: GroupSettings,
        clock: Clock,
        most_sessions: int,
        is_view: Callable[[bytes], bool] = lambda _topic_id: False,
        remote_offset_at: RemoteOffsetAt | None = None,
    ) -> None:
        """`led` returns a partition that this broker leads, and raises ApiError for other partitions.

        `is_view` returns whether the topic with an id is a view. A view has the partitions of another topic. Without
        remote storage, `remote_offset_at` is None.
        """
        self._is_view = is_view
        self.persister = persister
        self.dead_letters = dead_letters
        self.settings = settings
        self.clock = clock
        self.remote_offset_at = remote_offset_at
        self.sessions = ShareSessions(most_sessions)
        self._led = led
        self._hosted: dict[str, dict[PartitionKey, Hosted]] = {}
        self._by_number: dict[int, Hosted] = {}
        self._numbers: dict[Hosted, int] = {}
        self._next_number = 0
        self._timers = Timers(clock, self._on_timer, "share partition")
        self._releasing: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[asyncio.Future[None], None] = {}
        self._is_closed = False

    # -- share partitions

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, group: str, topic_id: bytes, index: int) -> Hosted | None:
        """Return a share partition that is in use."""
        hosted = self._hosted.get(group, {}).get((topic_id, index))
        if hosted is not None and not hosted.is_led():
            hosted.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return None
        return hosted

    def use(self, group: str, topic_id: bytes, topic: str, index: int) -> Hosted:
        """Return a share partition, which might not be loaded yet. Raises ApiError if another broker leads it."""
        hosted = self.get(group, topic_id, index)
        if hosted is None:
            partition = self._led(topic, index)
            if partition.topic_id != topic_id and not self._is_view(topic_id):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            hosted = Hosted(Key(group, topic_id, index), partition, self)
            self._hosted.setdefault(group, {})[topic_id, index] = hosted
            number = self._numbers[hosted] = self._next_number
            self._by_number[number] = hosted
            self._next_number += 1
        return hosted

    def is_led(self, partition: Partition, topic_id: bytes) -> bool:
        """Whether this broker leads `partition`, and the topic with this id still has its records.

        Meanwhile the partition may have been deleted and created again, or a view may have been deleted.
        """
        if topic_id != partition.topic_id and not self._is_view(topic_id):
            return False
        try:
            return partition.leading and self._led(*partition.key) is partition
        except ApiError:
            return False

    def drop(self, hosted: Hosted) -> None:
        """Forget a share partition that has failed."""
        number = self._numbers.pop(hosted, None)
        if number is None:
            return
        del self._by_number[number]
        self._timers.cancel((number, None))
        group, topic_id, partition = hosted.key
        of_group = self._hosted[group]
        del of_group[topic_id, partition]
        if not of_group:
            del self._hosted[group]

    def forget(self, group: str) -> None:
        """Forget everything about a group that was deleted."""
        for session in self.sessions.of_group(group):
            self._end(session)
        for hosted in self.of_group(group):
            hosted.fail(ErrorCode.GROUP_ID_NOT_FOUND)

    def forget_all(self) -> None:
        """Forget everything about all groups."""
        for group in list(self._hosted):
            self.forget(group)

    def all(self) -> list[Hosted]:
        """Return all share partitions that are in use."""
        return list(self._numbers)

    def of_group(self, group: str) -> list[Hosted]:
        """Return the share partitions of a group that are in use."""
        return list(self._hosted.get(group, {}).values())

    # -- sessions

    def open_session(self, group: str, member: str, connection: Any) -> ShareSession:
        """Begin a session, which ends with its connection. Raises ApiError if there are too many."""
        earlier = self.sessions.find(group, member)
        if earlier is not None:
            self._end(earlier)
        session = self.sessions.open(group, member, connection)
        connection.when_closed(self, partial(self._connection_closed, connection))
        return session

    async def pause(self, ms: float) -> None:
        """Wait `ms` milliseconds, or until the broker stops."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        timer = loop.call_later(ms / 1000, _resolve, ended)
        self._pauses[ended] = None
        try:
            await ended
        finally:
            timer.cancel()
            del self._pauses[ended]

    def end_session(self, session: ShareSession) -> None:
        """End a session, and release all records that its member has acquired."""
        if not session.has_ended:
            self._end(session)
            self.spawn(self._release(session))

    def give_back(self, session: ShareSession, hosted: Hosted) -> None:
        """Release the records that a member acquired while its session ended, if the member has not joined again."""
        if self.sessions.find(*session.key) is None:
            self.spawn(hosted.release(session.member))

    def _end(self, session: ShareSession) -> None:
        self.sessions.end(session)
        if session.waiting is not None:
            session.waiting.poke()

    def _connection_closed(self, connection: object) -> None:
        for session in self.sessions.of_connection(connection):
            self.end_session(session)

    async def _release(self, session: ShareSession) -> None:
        """Release the records of a member whose session has ended.

        Forget the share partitions of a group without members.
        """
        group, member = session.key
        self._releasing[group] = self._releasing.get(group, 0) + 1
        try:
            for hosted in self.of_group(group):
                if self.sessions.find(group, member) is None:  # the member has not joined again meanwhile
                    await hosted.release(member)
                await turn
        finally:
            self._releasing[group] -= 1
            if not self._releasing[group]:
                del self._releasing[group]
        for hosted in self.of_group(group):
            if hosted.is_idle:
                self.all_stored(hosted)
            await turn

    def all_stored(self, hosted: Hosted) -> None:
        """Forget a share partition whose state is stored completely, if its group has no members any more."""
        if not self.sessions.has_any(hosted.key.group) and hosted.key.group not in self._releasing:
            hosted.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- work in the background

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, in slices. After `close`, drop the work."""
        if self._is_closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(in_slices(work))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work))

    def _ended(self, work: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        work.close()  # the work never began if the task was cancelled immediately
        if not task.cancelled() and task.exception() is not None:
            log.error("work of share partitions has failed", exc_info=task.exception())

    def schedule(self, hosted: Hosted, delay_ms: float) -> None:
        """After a pause, check a share partition for ended locks and delays."""
        number = self._numbers.get(hosted)
        if number is not None:
            self._timers.schedule((number, None), delay_ms)

    def _on_timer(self, key: tuple[int, Any]) -> None:
        hosted = self._by_number.get(key[0])
        if hosted is not None:
            hosted.expire()

    def tick(self) -> None:
        """Run the timers that are due. Only needed if a caller advances the clock."""
        self._timers.run()

    async def close(self) -> None:
        """End all work, and lead no partition from now on.

        After a restart, changes that were not stored are decided again.
        """
        self._led = _led_nowhere
        self._is_closed = True
        self._timers.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.forget_all()
        for ended in self._pauses:
            _resolve(ended)


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _led_nowhere(_topic: str, _index: int) -> Partition:
    raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
