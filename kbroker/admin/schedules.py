"""Schedule topics of any cluster: their pending records, the times at which they fire, and cancelling them.

Owns the reading of a topic up to its present end. The topic's records and its leaders' marks determine which records
are pending (kbroker/schedules/pending.py). Finding the pending records takes as long as reading the topic. Each pending
record takes some 250 bytes of memory. Never prints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.configs import topic_config
from kbroker.admin.connection import Connection
from kbroker.admin.dead_letters import chosen_partitions
from kbroker.admin.errors import AdminError
from kbroker.admin.fetching import Found, Piece, UnreadableBatch
from kbroker.admin.partition_reader import PartitionReader, TopicHidden
from kbroker.admin.records import write_record
from kbroker.admin.topic_details import topic_configs
from kbroker.cluster_state import VIEW_SOURCE
from kbroker.protocol.errors import Malformed, known_error
from kbroker.schedules.language import SCHEDULE, TIMEZONE, Schedule, ScheduleError, read_schedule
from kbroker.schedules.marks import Begin, Pause, mark_of
from kbroker.schedules.pending import Failure, PendingRecords

ENABLE: Final = "schedule.enable"
TARGET: Final = "schedule.target.topic"
_BYTES_OF_ONE: Final = 64 * 1024
NEXT_TIMES: Final = 5
_TIMES_MORE: Final = 10
"""If N records with an error are wanted, the search examines this number times N records."""


class NoScheduleTopic(AdminError):  # noqa: N818 - an outcome
    """A topic that does not have `schedule.enable=true`."""


class Place(NamedTuple):
    """The position of a pending record, and the time at which it is due."""

    due_ms: int
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A pending record with its schedule."""

    place: Place
    record: Found
    schedule: Schedule
    is_delivering: bool
    """Whether the record is being delivered now."""
    failure: Failure | None
    problem: str | None
    """The reason why the record's target cannot accept it now."""

    @property
    def error(self) -> str | None:
        """The reason of the last failure, with Kafka's name of the error.

        Before any failure, the reason why the next try will fail.
        """
        if self.failure is None:
            return self.problem
        name = known_error(self.failure.code).name
        message = self.failure.message or name
        return message if name in message else f"{message} ({name})"

    @property
    def repeats(self) -> str | None:
        """The expression by which the record repeats, with the time zone if the expression has one."""
        if self.schedule.repeat is None:
            return None
        texts = {name: (value or b"").decode(errors="replace") for name, value in self.record.headers}
        zone = texts.get(TIMEZONE)
        return texts[SCHEDULE] if zone is None else f"{texts[SCHEDULE]} {zone}"

    def next_times(self, number: int = NEXT_TIMES) -> list[int]:
        """Return the time at which the record fires, and the following times if it repeats."""
        return list(islice(following(self.schedule, self.place.due_ms), number))


def takes_no_records(admin: Any, topic: str) -> str | None:
    """Return the reason why a topic accepts no records; None if it accepts records, or if its configs are hidden."""
    configs = topic_configs(admin, [topic], [ENABLE, VIEW_SOURCE]).get(topic, {})
    if VIEW_SOURCE in configs and configs[VIEW_SOURCE].value:
        return "is a view, which takes no records"
    if ENABLE in configs and configs[ENABLE].value == "true":
        return "is a schedule topic itself"
    return None


def following(schedule: Schedule, due_ms: int) -> Iterator[int]:
    """Yield `due_ms`, and the times after it."""
    ms: int | None = due_ms
    while ms is not None:
        yield ms
        ms = None if schedule.repeat is None else schedule.repeat.next_after(ms)


def schedule_topics(admin: Any) -> dict[str, str]:
    """Return the schedule topics that the user may describe, with their default targets."""
    names = sorted(cluster_view(admin).topics)
    enabled = topic_config(admin, names, ENABLE) if names else {}
    found = [name for name in names if enabled.get(name) == "true"]
    targets = topic_config(admin, found, TARGET) if found else {}
    return {name: targets.get(name, "") for name in found}


class ScheduleTopic:
    """The content of a schedule topic at the time when this object was created."""

    def __init__(
        self,
        admin: Any,
        topic: str,
        partitions: Sequence[int] = (),
        target: str | None = None,
        most_s: float = math.inf,
    ) -> None:
        """Read the topic, for at most `most_s` seconds.

        `target` is its default target, if known. Raises AdminError, and NoScheduleTopic for another kind of topic.
        """
        self.topic = topic
        self._until = time.monotonic() + most_s
        self._reader = PartitionReader(admin)
        chosen = chosen_partitions(admin, topic, partitions, self._reader)
        if target is None:
            if topic_config(admin, [topic], ENABLE).get(topic) != "true":
                raise NoScheduleTopic(f"topic {topic} is no schedule topic: its config {ENABLE} is not true")
            target = topic_config(admin, [topic], TARGET).get(topic, "")
        self._admin = admin
        self._unfit: dict[str, str | None] = {}
        self.unreadable = 0
        """The number of batches that were skipped because they cannot be read."""
        self.is_cut = False
        """Whether the time was over before the end of the topic was reached.

        The unread records may cancel or deliver records that were read.
        """
        self.partitions = {index: PendingRecords(target) for index in chosen}
        self._pieces: dict[int, Piece] = {}
        for index, (begin, end) in self._reader.bounds(topic, chosen).items():
            self._read(index, begin, end)

    def _read(self, index: int, begin: int, end: int) -> None:
        """Replay the records up to the last stable offset, and the leaders' marks up to the end of the topic."""
        pending = self.partitions[index]
        at = begin
        for committed in (True, False):
            while at < end:
                if time.monotonic() >= self._until:
                    self.is_cut = True
                    return
                try:
                    piece = self._reader.fetch((self.topic, index), at, committed=committed)
                except UnreadableBatch as error:
                    self.unreadable += 1
                    at = max(error.next_offset, at + 1)
                    continue
                _replay(pending, piece, at, end, records=committed)
                if piece.next_offset <= at:
                    break  # an open transaction follows
                at = piece.next_offset

    def places(self) -> Iterator[Place]:
        """Yield the pending records, in no particular order."""
        for index, pending in self.partitions.items():
            for dues in (pending.due, pending.delivering):
                for offset, due_ms in dues.items():
                    yield Place(due_ms, self.topic, index, offset)

    @property
    def count(self) -> int:
        """The number of pending records."""
        return sum(len(each.due) + len(each.delivering) for each in self.partitions.values())

    @property
    def failed(self) -> int:
        """The number of pending records whose target refused them at the last try."""
        return sum(len(each.failures) for each in self.partitions.values())

    def late(self, now_ms: int) -> int:
        """Return the number of pending records that should have fired before a time."""
        return sum(due_ms < now_ms for each in self.partitions.values() for due_ms in each.due.values())

    def is_failed(self, place: Place) -> bool:
        """Whether the target refused a record at the last try."""
        return place.offset in self.partitions[place.partition].failures

    def find(self, key: bytes) -> list[Place]:
        """Return the places of the pending records with a key: at most one in each partition."""
        return [
            Place(pending.due_of(offset), self.topic, index, offset)
            for index, pending in self.partitions.items()
            if (offset := pending.find(key)) is not None
        ]

    def at(self, partition: int, offset: int) -> Place | None:
        """Return the place of a record if it is pending."""
        pending = self.partitions.get(partition)
        if pending is None or (offset not in pending.due and offset not in pending.delivering):
            return None
        return Place(pending.due_of(offset), self.topic, partition, offset)

    def load(self, place: Place) -> Scheduled | None:
        """Return a pending record with its schedule; None if it is gone. Raises AdminError."""
        record = self._record(place)
        pending = self.partitions[place.partition]
        if record is None:
            return None
        try:
            target = pending.target_of(place.offset)
            schedule = read_schedule(record.key, record.headers, record.timestamp, target)
        except ScheduleError:
            return None
        if schedule is None:
            return None
        failure = pending.failures.get(place.offset)
        is_delivering = place.offset in pending.delivering
        return Scheduled(place, record, schedule, is_delivering, failure, self._problem(schedule))

    def _problem(self, schedule: Schedule) -> str | None:
        try:
            target = self._reader.topic(schedule.topic)
        except TopicHidden:
            return None
        if target is None:
            return f"the target {schedule.topic} does not exist"
        if schedule.partition is not None and schedule.partition >= len(target.partitions):
            return f"the target {schedule.topic} has no partition {schedule.partition}"
        if schedule.topic not in self._unfit:
            self._unfit[schedule.topic] = takes_no_records(self._admin, schedule.topic)
        unfit = self._unfit[schedule.topic]
        return None if unfit is None else f"the target {schedule.topic} {unfit}"

    def _record(self, place: Place) -> Found | None:
        piece = self._pieces.get(place.partition)
        for _ in range(2):
            if piece is not None:
                for record in piece.records:
                    if record.offset == place.offset:
                        return record
            piece = self._pieces[place.partition] = self._reader.fetch(
                (self.topic, place.partition), place.offset, committed=True, most_bytes=_BYTES_OF_ONE
            )
        return None


def _replay(pending: PendingRecords, piece: Piece, begin: int, end: int, *, records: bool) -> None:
    """Replay the result of a fetch in the order of offsets; without `records`, replay only the marks of deliveries."""
    controls = iter([each for each in piece.controls if begin <= each.offset < end])
    control = next(controls, None)
    for record in piece.records if records else ():
        if not begin <= record.offset < end:
            continue
        while control is not None and control.offset < record.offset:
            _mark(pending, control.offset, control, toggles=True)
            control = next(controls, None)
        pending.take(record.offset, record.timestamp, record.key, record.value, record.headers)
    while control is not None:
        _mark(pending, control.offset, control, toggles=records)
        control = next(controls, None)


def _mark(pending: PendingRecords, offset: int, record: Any, *, toggles: bool) -> None:
    try:
        mark = mark_of(record)
    except Malformed:
        return
    if mark is not None and (toggles or not isinstance(mark, Begin | Pause)):
        pending.mark(offset, mark)


def first_due(topics: Iterable[ScheduleTopic], most: int, before_ms: int | None, *, failed: bool) -> list[Scheduled]:
    """Return the first pending records of topics in the order in which they are due.

    With `failed`, return only records that are late because of an error, and records that their target refused.
    """
    by_name = {each.topic: each for each in topics}
    now_ms = int(time.time() * 1000)
    places = (
        place
        for topic in by_name.values()
        for place in topic.places()
        if (before_ms is None or place.due_ms < before_ms)
        and (not failed or place.due_ms < now_ms or topic.is_failed(place))
    )
    loaded = (by_name[place.topic].load(place) for place in nsmallest(_TIMES_MORE * most if failed else most, places))
    wanted = (each for each in loaded if each is not None and not (failed and each.error is None))
    return list(islice(wanted, most))


def cancel_at(admin: Any, connection: Connection, place: Place, most_s: float) -> None:
    """Cancel the record at a place by its key.

    Raises AdminError if the record is not pending, or if reading its partition takes too long.
    """
    state = ScheduleTopic(admin, place.topic, (place.partition,), most_s=most_s)
    if state.is_cut:
        raise AdminError(
            f"{place.topic}-{place.partition} cannot be read in {most_s:.0f} s: use kbroker schedule cancel"
        )
    found = state.at(place.partition, place.offset)
    loaded = None if found is None else state.load(found)
    if loaded is None:
        raise AdminError(
            f"the record at offset {place.offset} of {place.topic}-{place.partition} is not pending any more"
        )
    if loaded.record.key is None:
        raise AdminError("a record without key cannot be cancelled")
    write_record(connection, place.topic, loaded.record.key, None, partition=place.partition)


def cancel(admin: Any, connection: Connection, topic: str, keys: Sequence[bytes]) -> list[Place]:
    """Cancel the pending records with these keys, by writing records without value; return the places of these records.

    A record whose delivery has begun is still delivered, but does not repeat. If one of the keys has no pending record,
    this function raises AdminError and cancels nothing.
    """
    state = ScheduleTopic(admin, topic)
    found = {key: state.find(key) for key in keys}
    for key, places in found.items():
        if not places:
            others = ", so none of the keys was cancelled" if len(found) > 1 else ""
            text = key.decode(errors="backslashreplace")
            raise AdminError(f"nothing is pending in {topic} with the key {text!r}{others}")
    for key, places in found.items():
        for place in places:
            write_record(connection, topic, key, None, partition=place.partition)
    return [place for places in found.values() for place in places]
