"""Dead letters of any Kafka: reading them with their origin, and counting them by cause.

Owns the meaning of the headers of share groups (KIP-1191: `__dlq.errors.*`, text) and of Kafka Connect
(`__connect.errors.*`), and the search for the original record. Never writes: replays.py does. Never prints.

A share group's dead letter contains the record's key and value only if the group has
`errors.deadletterqueue.copy.record.enable`, and it never contains the record's headers. So this module first reads the
original record at its offset in the topic of origin, and uses the copy only if retention has removed the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from kbroker.admin.cluster_view import TopicView
from kbroker.admin.configs import Subject, described_configs
from kbroker.admin.connection import patience
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, check_code, error_text
from kbroker.admin.fetching import MOST_KEPT, Found, PartitionRefused, Piece, UnreadableBatch
from kbroker.admin.own_request import ask_patiently
from kbroker.admin.partition_reader import PartitionReader, TopicHidden
from kbroker.admin.placement import Key
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kbroker.protocol.records import Headers

SHARE: Final = "__dlq.errors."
CONNECT: Final = "__connect.errors."
MOST_CAUSES: Final = 1_000
"""The number of causes that are counted separately; all further causes are counted together."""
_OTHERS: Final = "(other causes)"
_LONGEST: Final = 300
"""The number of characters of a name or an error's text that are compared to distinguish causes."""
_MOST_DIGITS: Final = 18
_BYTES_AT_ONCE: Final = 256 * 1024
_MOST_PIECES: Final = 16
"""The bytes that one read of an original partition fetches, and the number of partitions whose result is kept."""
_TOPIC_NAME: Final = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a dead letter, and the reason of its failure. A field is None if no readable header contains it."""

    topic: str | None
    partition: int | None
    offset: int | None
    group: str | None
    """The name of the share group, or of the connector."""
    deliveries: int | None
    message: str | None

    @property
    def place(self) -> tuple[str, int, int] | None:
        """The topic, partition and offset of the record; None if one of them is unknown."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return self.topic, self.partition, self.offset


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead letter topic, with the origin that its headers name."""

    record: Found
    origin: Origin


@dataclass(slots=True)
class Cause:
    """The dead letters of one partition, group and message."""

    topic: str | None
    partition: int | None
    group: str | None
    message: str | None
    count: int = 0
    replayed: int = 0
    """The number of these dead letters that were already replayed."""
    first_ms: int = 0
    last_ms: int = 0


def origin_of(headers: Headers) -> Origin:
    """Parse the headers of a dead letter; the last header of a name counts. Never fails."""
    texts = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
    at = CONNECT if f"{CONNECT}topic" in texts and f"{SHARE}topic" not in texts else SHARE
    group, message = ("connector.name", "exception.message") if at == CONNECT else ("group", "message")
    return Origin(
        texts.get(f"{at}topic"),
        _number(texts.get(f"{at}partition")),
        _number(texts.get(f"{at}offset")),
        texts.get(f"{at}{group}"),
        _number(texts.get(f"{at}delivery.count")),
        texts.get(f"{at}{message}"),
    )


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number and text is not None else None


def is_own_header(name: str) -> bool:
    """Whether a header describes the dead letter's origin or failure, and does not belong to the original record."""
    return name.startswith((SHARE, CONNECT))


def mark_of(topic: str) -> str:
    """Return the name of a topic's group of replays.

    The group's committed offsets are the mark: all dead letters before the mark are replayed.
    """
    return f"kbroker-deadletter-{topic}"


def replayed_to(admin: Any, topic: str) -> dict[int, int]:
    """Return the mark of each partition that has one: the offset before which all dead letters have been replayed.

    Waits for the end of a transaction that moves the mark. Raises AdminError, for example if the topic does not exist.
    """
    view, group = topic_view(admin, topic), mark_of(topic)
    # In an answer for all topics, Kafka leaves out a partition whose first committed offset is pending.
    wanted = [each.partition_index for each in view.partitions]
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(topic, wanted)],
        groups=[OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(topic, view.topic_id, wanted)])],
        require_stable=True,
    )
    answer = _mark_asked(admin, topic, group, request)
    check_code(_offset_error(answer), f"cannot read how far {topic} is replayed")
    found: list[Any] = [*answer.topics, *(each for each_group in answer.groups for each in each_group.topics)]
    return {
        each.partition_index: each.committed_offset
        for named in found
        if named.name == topic or getattr(named, "topic_id", None) == view.topic_id
        for each in named.partitions
        if each.committed_offset >= 0
    }


def _mark_asked(admin: Any, topic: str, group: str, request: OffsetFetchRequest) -> OffsetFetchResponse:
    from kafka.errors import GroupAuthorizationFailedError

    try:
        return ask_patiently(admin, group, request, OffsetFetchResponse, _offset_error)
    except GroupAuthorizationFailedError as error:  # the caller named a topic, and cannot know the group
        text = f"cannot read from group {group} how far {topic} is replayed: {error_text(error)}"
        raise AdminError(text) from error


def _offset_error(answer: OffsetFetchResponse) -> int:
    """Return the first error code, or 0; a missing group is not an error."""
    topics: list[Any] = [*answer.topics, *(each for group in answer.groups for each in group.topics)]
    codes = [answer.error_code, *(group.error_code for group in answer.groups)]
    codes += [each.error_code for topic in topics for each in topic.partitions]
    return next((code for code in codes if code and code != ErrorCode.GROUP_ID_NOT_FOUND), 0)


def topic_of_group(admin: Any, group: str) -> str:
    """Return a group's dead letter topic. Raises AdminError if the group has none."""
    configs = described_configs(admin, Subject("group", group), documentation=False)
    name = next((each.value for each in configs if each.name == _TOPIC_NAME), None)
    name = (name or "").strip()
    if not name:
        raise AdminError(f"group {group} has no dead letter topic: its config {_TOPIC_NAME} is not set")
    return name


class Letters:
    """The dead letters that a topic contained when this object was created."""

    def __init__(self, admin: Any, topic: str, partitions: tuple[int, ...] = ()) -> None:
        """Find the partitions' bounds. Raises AdminError if the topic or a partition is missing or has no leader."""
        self.topic = topic
        self._reader = PartitionReader(admin)
        chosen = chosen_partitions(admin, topic, partitions, self._reader)
        self.bounds = self._reader.bounds(topic, chosen)
        """The first offset of each partition, and the offset after the last record."""
        leaders = self._reader.leaders(topic)
        self.led = {(topic, index): leaders[index] for index in chosen}
        self.unreadable = 0
        """The number of batches that were skipped so far because they cannot be read."""

    def end_before(self, ends: Mapping[int, int]) -> None:
        """Leave out dead letters at or after these end offsets, and partitions without an end offset."""
        self.bounds = {i: (first, min(end, ends[i])) for i, (first, end) in self.bounds.items() if i in ends}

    def read(self, begin: Mapping[int, int] | None = None, *, strict: bool = False) -> Iterator[DeadLetter]:
        """Yield the committed dead letters of each partition in order, beginning at the given offsets.

        A batch that cannot be read raises UnreadableBatch if `strict`; otherwise it is counted and skipped.
        """
        for index, (first, _) in self.bounds.items():
            yield from self._read(index, max(first, (begin or {}).get(index, first)), strict=strict)

    def firsts(self) -> Iterator[DeadLetter]:
        """Yield the first committed dead letter of each partition; skip partitions without dead letters."""
        for index, (first, _) in self.bounds.items():
            yield from islice(self._read(index, first, strict=False), 1)

    def _read(self, index: int, at: int, *, strict: bool) -> Iterator[DeadLetter]:
        end = self.bounds[index][1]
        while at < end:
            try:
                piece = self._reader.fetch((self.topic, index), at, committed=True)
            except UnreadableBatch as error:
                if strict:
                    raise
                self.unreadable += 1
                at = max(error.next_offset, at + 1)
                continue
            for each in piece.records:
                if at <= each.offset < end:
                    yield DeadLetter(each, origin_of(each.headers))
            if piece.next_offset <= at:
                break  # the remaining records belong to an open transaction
            at = piece.next_offset


def topic_view(admin: Any, topic: str, reader: PartitionReader | None = None) -> TopicView:
    """Return a topic. Raises AdminError if it does not exist."""
    view = (reader or PartitionReader(admin)).topic(topic)
    if view is None:
        raise AdminError(no_such_topic(admin, topic))
    return view


def chosen_partitions(admin: Any, topic: str, wanted: Iterable[int], reader: PartitionReader) -> tuple[int, ...]:
    """Return the wanted partitions of a topic, or all of them. Raises AdminError if one is missing."""
    there = sorted(each.partition_index for each in topic_view(admin, topic, reader).partitions)
    chosen = tuple(dict.fromkeys(wanted)) or tuple(there)
    for index in chosen:
        if index not in there:
            raise AdminError(f"topic {topic} has no partition {index}")
    return chosen


def causes_of(letters: Iterable[DeadLetter], replayed: Mapping[int, int]) -> list[Cause]:
    """Count dead letters by cause; the most frequent cause comes first."""
    found: dict[tuple[object, ...], Cause] = {}
    for letter in letters:
        origin, record = letter.origin, letter.record
        topic, group, message = (
            None if text is None else text[:_LONGEST] for text in (origin.topic, origin.group, origin.message)
        )
        key: tuple[object, ...] = (topic, origin.partition, group, message)
        cause = found.get(key)
        if cause is None and len(found) >= MOST_CAUSES:
            cause = found.setdefault((), Cause(None, None, None, _OTHERS))
        if cause is None:
            cause = found[key] = Cause(topic, origin.partition, group, message)
        cause.count += 1
        cause.replayed += record.offset < replayed.get(record.partition, 0)
        cause.first_ms = min(cause.first_ms or record.timestamp, record.timestamp)
        cause.last_ms = max(cause.last_ms, record.timestamp)
    return sorted(found.values(), key=lambda cause: (-cause.count, str(cause.topic), cause.partition or 0))


def strangers_of(causes: list[Cause]) -> int:
    """Count the records without an origin. They are no dead letters, or their connector writes no headers."""
    return sum(each.count for each in causes if each.topic is None and each.message != _OTHERS)


class Originals:
    """Reads the original records of dead letters from their topics of origin."""

    def __init__(self, admin: Any) -> None:
        self._reader = PartitionReader(admin)
        self._pieces: dict[Key, tuple[int, Piece]] = {}
        self._closed: set[Key] = set()
        self._failed: dict[Key, AdminError] = {}

    def topic(self, name: str) -> TopicView | None:
        """Return a topic of origin; None if it does not exist, or if the name is invalid. Raises TopicHidden."""
        return self._reader.topic(name)

    def of(self, letter: DeadLetter) -> tuple[bytes | None, bytes | None, Headers] | None:
        """Return the original record's key, value and headers, or those of its copy; None if both are gone.

        If the record at the place of origin differs from the copy, it is not the original: the topic was created anew.
        Raises AdminError if the record cannot be read now.
        """
        copy, record = letter.record, self._record(letter.origin)
        has_copy = copy.key is not None or copy.value is not None
        if record is not None and (not has_copy or (record.key, record.value) == (copy.key, copy.value)):
            return record.key, record.value, record.headers
        if not has_copy:
            return None
        return copy.key, copy.value, tuple(each for each in copy.headers if not is_own_header(each[0]))

    def told(self, letter: DeadLetter) -> tuple[tuple[bytes | None, bytes | None, Headers] | None, str | None]:
        """Return the record that `of` returns, and None; if there is no record, return None and the reason."""
        try:
            found = self.of(letter)
        except AdminError as error:
            return None, str(error)
        return found, f"{self.absence(letter.origin)}, and not copied" if found is None else None

    def absence(self, origin: Origin) -> str:
        """Return the reason why a record was not found."""
        hidden, gone = "hidden from this user", "gone from its topic"
        try:
            if origin.place is None or self.topic(origin.place[0]) is None:
                return gone
        except TopicHidden:
            return hidden
        return hidden if origin.place[:2] in self._closed else gone

    def _record(self, origin: Origin) -> Found | None:
        if origin.place is None:
            return None
        key, offset = origin.place[:2], origin.place[2]
        begin, piece = self._pieces.get(key, (-1, Piece()))
        if not begin <= offset < piece.next_offset:
            if (found := self._fetched(key, offset)) is None:
                return None
            piece = found
        return next((each for each in piece.records if each.offset == offset), None)

    def _fetched(self, key: Key, offset: int) -> Piece | None:
        """Return records from an offset on; None if they are permanently unreadable.

        Raises AdminError if they cannot be read now.
        """
        if key in self._closed:
            return None
        if key in self._failed:
            raise self._failed[key]
        try:
            if self.topic(key[0]) is None:
                return None
            with patience(0 if self._failed else None):  # wait for a leader only once, not once per partition
                piece = self._reader.fetch(key, offset, most_bytes=_BYTES_AT_ONCE)
        except UnreadableBatch:
            return None
        except TopicHidden:
            return None
        except PartitionRefused:  # the user lacks a right: the reader has already retried all other errors
            self._closed.add(key)
            return None
        except AdminError as error:
            self._failed[key] = error
            raise
        self._pieces.pop(key, None)
        self._pieces[key] = offset, piece
        while len(self._pieces) > 1 and (len(self._pieces) > _MOST_PIECES or self._size() > MOST_KEPT):
            del self._pieces[next(iter(self._pieces))]
        return piece

    def _size(self) -> int:
        return sum(record.size for _, piece in self._pieces.values() for record in piece.records)
