"""Dead letters of any Kafka: reading them with their origin, and counting them by cause.

Owns the meaning of the headers of share groups (KIP-1191: `__dlq.errors.*`, text) and of Kafka Connect
(`__connect.errors.*`), and the search for the original record. Never writes: replays.py does. Never prints.

A share group's dead letter has the record's key and value only if the group has
`errors.deadletterqueue.copy.record.enable`, and never its headers. So the record itself is looked for first, at its
offset in the topic of origin; the copy stands for it once retention has removed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from kbroker.admin.cluster_view import TopicView, cluster_view
from kbroker.admin.configs import Subject, described_configs
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, WrongInput, check_code, error_text
from kbroker.admin.fetching import Found, Piece, UnreadableBatch, fetch
from kbroker.admin.own_request import ask_patiently
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.admin.placement import Key
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kbroker.protocol.records import Headers
from kbroker.topic_names import topic_name_fault

SHARE: Final = "__dlq.errors."
CONNECT: Final = "__connect.errors."
MOST_CAUSES: Final = 1_000
"""How many causes are told apart; further ones are counted together."""
_OTHERS: Final = "(other causes)"
_LONGEST: Final = 300
"""The characters of a name and of an error's text by which causes are told apart."""
_MOST_DIGITS: Final = 18
_MOST_TOPICS: Final = 1_000
_BYTES_AT_ONCE: Final = 256 * 1024
_MOST_PIECES: Final = 16
"""The bytes that one look at a partition of origin fetches, and how many partitions' pieces are kept."""
_LATEST, _EARLIEST = -1, -2
_TOPIC_NAME: Final = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter comes from, and why: fields without a readable header are None."""

    topic: str | None
    partition: int | None
    offset: int | None
    group: str | None
    """The share group, or the connector."""
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
    """A record of a dead letter topic, with its origin."""

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
    """How many of them were replayed already."""
    first_ms: int = 0
    last_ms: int = 0


def origin_of(headers: Headers) -> Origin:
    """Read the headers of a dead letter; the last header of a name counts. Never fails."""
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
    """Return whether a header tells of a record's death; it is no header of the record itself."""
    return name.startswith((SHARE, CONNECT))


def mark_of(topic: str) -> str:
    """Return the name of the group whose committed offsets say how far a topic is replayed."""
    return f"kbroker-deadletter-{topic}"


def replayed_to(admin: Any, topic: str) -> dict[int, int]:
    """Return the offset of each partition before which all is replayed, of those where something is.

    Waits for the end of a transaction that moves it. Raises AdminError, also if the topic does not exist.
    """
    view, group = topic_view(admin, topic), mark_of(topic)
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group, topics=None)], require_stable=True
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
        text = f"cannot read how far {topic} is replayed, which group {group} says: {error_text(error)}"
        raise AdminError(text) from error


def _offset_error(answer: OffsetFetchResponse) -> int:
    """Return the first error; that there is no such group is none."""
    topics: list[Any] = [*answer.topics, *(each for group in answer.groups for each in group.topics)]
    codes = [answer.error_code, *(group.error_code for group in answer.groups)]
    codes += [each.error_code for topic in topics for each in topic.partitions]
    return next((code for code in codes if code and code != ErrorCode.GROUP_ID_NOT_FOUND), 0)


def topic_of_group(admin: Any, group: str) -> str:
    """Return a group's dead letter topic; raises AdminError if it has none."""
    configs = described_configs(admin, Subject("group", group), documentation=False)
    name = next((each.value for each in configs if each.name == _TOPIC_NAME), None)
    if not name:
        raise AdminError(f"group {group} has no dead letter topic: its config {_TOPIC_NAME} is not set")
    return name


class Letters:
    """The dead letters of a topic, as they were at one moment."""

    def __init__(self, admin: Any, topic: str, partitions: tuple[int, ...] = ()) -> None:
        """Raises AdminError if the topic, or one of the partitions, does not exist or has no leader."""
        self.topic = topic
        self._admin = admin
        view = topic_view(admin, topic)
        there = {each.partition_index: each.leader_id for each in view.partitions}
        chosen = partitions or tuple(sorted(there))
        for index in chosen:
            if there.get(index, -1) < 0:
                raise AdminError(f"topic {topic} has no partition {index}, or it has no leader")
        self._ids = {topic: view.topic_id}
        self.led = {(topic, index): there[index] for index in chosen}
        begins, ends = known_offsets_at(admin, self.led, _EARLIEST), known_offsets_at(admin, self.led, _LATEST)
        self.bounds = {index: (begins[topic, index], ends[topic, index]) for index in chosen if (topic, index) in ends}
        """The first offset of each partition, and the one behind the last."""
        self.unreadable = 0
        """How many batches were passed over so far because they cannot be read."""

    def end_before(self, ends: Mapping[int, int]) -> None:
        """Leave out letters from these offsets on, and partitions without one."""
        self.bounds = {i: (first, min(end, ends[i])) for i, (first, end) in self.bounds.items() if i in ends}

    def read(self, begin: Mapping[int, int] | None = None, *, strict: bool = False) -> Iterator[DeadLetter]:
        """Yield the committed letters of each partition in order, from offsets on.

        If `strict`, a batch that cannot be read raises UnreadableBatch; else it is counted and passed over.
        """
        for index, (first, _) in self.bounds.items():
            yield from self._read(index, max(first, (begin or {}).get(index, first)), strict=strict)

    def firsts(self) -> Iterator[DeadLetter]:
        """Yield the first committed letter of each partition that has one."""
        for index, (first, _) in self.bounds.items():
            yield from islice(self._read(index, first, strict=False), 1)

    def _read(self, index: int, at: int, *, strict: bool) -> Iterator[DeadLetter]:
        end = self.bounds[index][1]
        while at < end:
            try:
                piece = self._fetched(index, at)
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
                break  # the rest belongs to a transaction that is open
            at = piece.next_offset

    def _fetched(self, index: int, at: int) -> Piece:
        key = (self.topic, index)
        return fetch(self._admin, self.led, {key: at}, self._ids, committed=True)[key]


def topic_view(admin: Any, topic: str) -> TopicView:
    """Return a topic; raises AdminError if it does not exist."""
    view = cluster_view(admin, [topic]).topics.get(topic)
    if view is None:
        raise AdminError(no_such_topic(admin, topic))
    return view


def causes_of(letters: Letters, replayed: Mapping[int, int], most: int | None = None) -> list[Cause]:
    """Count a topic's dead letters by cause, or only the first `most`; the most frequent cause comes first."""
    found: dict[tuple[object, ...], Cause] = {}
    for letter in islice(letters.read(), most):
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
    """Count the records without an origin: those of another topic, or of a connector that writes no headers."""
    return sum(each.count for each in causes if each.topic is None and each.message != _OTHERS)


class Originals:
    """Looks up the records that dead letters tell of, in the topics of origin."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._topics: dict[str, TopicView | None] = {}
        self._pieces: dict[Key, tuple[int, Piece]] = {}

    def topic(self, name: str) -> TopicView | None:
        """Return a topic of origin; None if it does not exist (any more), or no topic can have this name."""
        if name not in self._topics:
            if len(self._topics) >= _MOST_TOPICS:
                self._topics.clear()
            is_legal = topic_name_fault(name) is None
            self._topics[name] = cluster_view(self._admin, [name]).topics.get(name) if is_legal else None
        return self._topics[name]

    def of(self, letter: DeadLetter) -> tuple[bytes | None, bytes | None, Headers] | None:
        """Return key, value and headers of the dead record: of itself, or of its copy. None if both are gone.

        A record at the place of origin that differs from the copy is another one: the topic was made anew.
        """
        copy, record = letter.record, self._record(letter.origin)
        has_copy = copy.key is not None or copy.value is not None
        if record is not None and (not has_copy or (record.key, record.value) == (copy.key, copy.value)):
            return record.key, record.value, record.headers
        if not has_copy:
            return None
        return copy.key, copy.value, tuple(each for each in copy.headers if not is_own_header(each[0]))

    def _record(self, origin: Origin) -> Found | None:
        place = origin.place
        view = None if place is None else self.topic(place[0])
        if place is None or view is None:
            return None
        key, offset = place[:2], place[2]
        leader = next((each.leader_id for each in view.partitions if each.partition_index == key[1]), -1)
        if leader < 0:
            return None
        begin, piece = self._pieces.get(key, (-1, Piece()))
        if not begin <= offset < piece.next_offset:
            try:
                ids = {view.name: view.topic_id}
                piece = fetch(self._admin, {key: leader}, {key: offset}, ids, most_bytes=_BYTES_AT_ONCE)[key]
            except AdminError:  # the offset is gone, or its batch cannot be read
                return None
            self._pieces.pop(key, None)
            if len(self._pieces) >= _MOST_PIECES:
                del self._pieces[next(iter(self._pieces))]
            self._pieces[key] = offset, piece
        return next((each for each in piece.records if each.offset == offset), None)


def letter_at(admin: Any, topic: str, partition: int, offset: int) -> DeadLetter:
    """Return the letter at an offset; raises WrongInput if there is none."""
    letters = Letters(admin, topic, (partition,))
    found = next(letters.read({partition: offset}), None)
    if found is None or found.record.offset != offset:
        raise WrongInput(f"{topic}-{partition} has no record at offset {offset}")
    return found
