"""Replaying dead letters to their topics of origin, on any Kafka, and purging replayed dead letters.

Owns the choice of each dead letter's target, and the mark up to which a topic is replayed. Each transaction writes some
records together with the mark, so that no record is lost or written twice, however the replay ends. The mark is the
committed offsets of a group that only replays use (dead_letters.mark_of). Never prints.

A dead letter is replayed to the partition of its origin, in the order of the dead letter topic. A dead letter that
cannot be replayed stops the replay before it begins, if the caller does not skip such dead letters. If a topic refuses
a record, for example after a check of schemas, the replay stops before the transaction that contains this record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka.errors import (
    GroupAuthorizationFailedError,
    InvalidRecordError,
    KafkaError,
    UnknownError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.admin.configs import Subject, described_configs
from kbroker.admin.connection import Connection
from kbroker.admin.dead_letters import DeadLetter, Letters, Originals, is_own_header, mark_of, replayed_to, topic_view
from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.own_transaction import BATCH, PATIENCE_S, in_time, reason_of, transactional_producer
from kbroker.admin.partition_reader import TopicHidden
from kbroker.admin.records import delete_records
from kbroker.protocol.records import Headers

_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""The maximum number of dead letters in one transaction, and its approximate maximum number of bytes."""
_AFTER_A_REFUSAL: Final = 512 * 1024
"""The size of a batch in bytes after a refusal.

It is larger than before, because each refusal shows only the bad records of one batch.
"""
MOST_ROWS: Final = 10_000
"""The maximum number of rows in a preview. The dead letters beyond these rows are counted together."""
_OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The dead letters to replay, and the options of the replay.

    By default these are all dead letters that are not replayed yet.
    """

    topic: str
    to: str | None = None
    """The target topic, if it is not the topic of origin."""
    partitions: tuple[int, ...] = ()
    count: int | None = None
    """The maximum number of dead letters to replay."""
    again: bool = False
    """Whether to begin at the first dead letter, even if it was already replayed; this also resets the mark."""
    keep_headers: bool = False
    """Whether to keep the headers that describe why the record became a dead letter."""
    skip: bool = False
    """Whether to skip dead letters that cannot be replayed. Skipped dead letters count as replayed."""
    before: Mapping[int, int] | None = None
    """The ends of the partitions in a preview; later dead letters are not replayed."""
    mark: Mapping[int, int] | None = None
    """The mark in a preview; the replay is refused if the mark has moved since."""
    most_bytes: int | None = None
    """The number of bytes after which no further dead letter is replayed."""


class Step(NamedTuple):
    """A dead letter with its target; `problem` is the reason why it cannot be replayed."""

    letter: DeadLetter
    topic: str | None
    partition: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    problem: str | None = None

    @property
    def size(self) -> int:
        """The size in bytes of the record and of its dead letter: both are in memory."""
        copy = self.letter.record
        return _size(self.key, self.value, self.headers) + _size(copy.key, copy.value, copy.headers)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(each or b"") for name, each in headers)


@dataclass(slots=True)
class Row:
    """The dead letters of one partition that have the same target partition, or the same problem."""

    partition: int
    first_offset: int
    last_offset: int
    count: int
    to_topic: str | None
    to_partition: int | None
    problem: str | None


class _Refused(Exception):  # noqa: N818 - an outcome
    """Topics have refused the records of some dead letters, and the transaction is aborted."""

    def __init__(self, part: list[Step]) -> None:
        super().__init__()
        self.part = part
        """All dead letters of the transaction; each refused dead letter has a problem."""


class Replay:
    """One replay. It covers the dead letters after the mark that exist when this object is created."""

    def __init__(self, admin: Any, wanted: Wanted) -> None:
        """Raise AdminError if a topic does not exist, or for another failure."""
        if wanted.to == wanted.topic:
            raise WrongInput("dead letters cannot be replayed to their own topic")
        self._admin = admin
        self._wanted = wanted
        self._letters = Letters(admin, wanted.topic, wanted.partitions)
        if wanted.before is not None:
            self._letters.end_before(wanted.before)
        self._target = None if wanted.to is None else topic_view(admin, wanted.to)
        if self._target is not None and self._target.internal:
            raise WrongInput(f"{wanted.to} does not accept replayed records")
        self._mark: Mapping[int, int] | None = None
        self.is_cut = False
        """Whether `count` or `most_bytes` ended the last preview or replay before the last dead letter."""

    @property
    def ends(self) -> dict[int, int]:
        """The end of each partition: dead letters at or after this offset are not replayed."""
        return {index: end for index, (_, end) in self._letters.bounds.items()}

    @property
    def mark(self) -> Mapping[int, int]:
        """The offset of each partition before which everything is replayed.

        The mark is read once, and again by `execute`.
        """
        if self._mark is None:
            self._mark = replayed_to(self._admin, self._wanted.topic)
        return self._mark

    def preview(self) -> list[Row]:
        """Return the targets of the dead letters. Raises UnreadableBatch."""
        rows: dict[tuple[object, ...], Row] = {}
        for step in self._steps():
            _count(rows, step)
        return list(rows.values())

    def execute(self, connection: Connection) -> list[Row]:
        """Write the dead letters to their targets; return the replayed and the skipped dead letters.

        Ends any other replay that still runs. Raises AdminError if a dead letter cannot be replayed, or if the mark
        differs from the preview's mark. Transactions that were committed before the error stay: their records are in
        the targets, and the mark is after their dead letters.
        """
        rows: dict[tuple[object, ...], Row] = {}
        mark = mark_of(self._wanted.topic)
        with ExitStack() as opened:
            producer = opened.enter_context(transactional_producer(connection, mark))  # this fences other replays
            self._mark = None
            if self._wanted.mark is not None and self.mark != self._wanted.mark:
                raise AdminError(f"the dead letters of {self._wanted.topic} were replayed meanwhile; look again")
            if not self._wanted.skip:
                check(self.preview())
            back = {index: first for index, (first, _) in self._letters.bounds.items()} if self._wanted.again else {}
            marks = dict(self.mark)
            for part in _parts(self._steps()):
                while True:  # each repetition leaves out at least one more dead letter
                    if not self._wanted.skip:
                        check([_row(step) for step in part])
                    try:
                        marks |= self._write(producer, part, back)
                        break
                    except _Refused as refused:
                        part = refused.part
                    if self._wanted.skip:
                        opened.close()  # kafka-python uses wrong sequence numbers after a refusal
                        larger = self._batch_for(part)
                        producer = opened.enter_context(transactional_producer(connection, mark, larger))
                        self._check_mark(marks)
                back = {}
                for step in part:
                    _count(rows, step)
        return list(rows.values())

    def _batch_for(self, part: list[Step]) -> int:
        """Return a batch size in bytes that all target topics accept, even if their configs cannot be read."""
        sizes = [_AFTER_A_REFUSAL]
        try:
            for topic in {step.topic for step in part} - {None}:
                configs = described_configs(self._admin, Subject("topic", str(topic)), documentation=False)
                sizes += [int(each.value) // 2 for each in configs if each.name == "max.message.bytes" and each.value]
        except AdminError:
            return BATCH
        return max(BATCH, min(sizes))

    def _check_mark(self, marks: Mapping[int, int]) -> None:
        """Raise AdminError if another replay has moved the mark while this replay had no producer."""
        if replayed_to(self._admin, self._wanted.topic) != marks:
            raise AdminError(f"the dead letters of {self._wanted.topic} were replayed meanwhile; look again")

    def _write(self, producer: Any, part: list[Step], back: Mapping[int, int]) -> dict[int, int]:
        """Write the records of some dead letters and the mark after them in one transaction; return the new mark.

        Partitions without one of these dead letters get their mark from `back`. Raises AdminError, and _Refused if
        topics refuse the records of some dead letters.
        """
        topic = self._wanted.topic
        marks = {**back, **{step.letter.record.partition: step.letter.record.offset + 1 for step in part}}
        offsets = {TopicPartition(topic, index): OffsetAndMetadata(at, "", -1) for index, at in marks.items()}
        first = part[0].letter.record
        place = f"the dead letters from {topic}-{first.partition} {first.offset} on"
        try:
            producer.begin_transaction()
            sent, failure = _sent(producer, part)
            with suppress(UnknownError):  # kafka-python may raise this after a refusal, because a batch is not done
                producer.flush(timeout=PATIENCE_S)
            whys = [None if each is None else _why_refused(each) for each in sent]
            if any(whys):
                in_time(producer.abort_transaction)
                raise _Refused([_with_problem(*each) for each in zip(part, whys, strict=True)])
            if failure is not None:
                raise failure
            for each in sent:
                if each is not None:
                    each.get(PATIENCE_S)
            in_time(lambda: producer.send_offsets_to_transaction(offsets, mark_of(topic)))
        except (KafkaError, TimeoutError, ValueError) as error:  # ValueError: the topic has fewer partitions now
            with suppress(KafkaError, TimeoutError):
                in_time(producer.abort_transaction)
            what = f"group {mark_of(topic)}: " if isinstance(error, GroupAuthorizationFailedError) else ""
            raise AdminError(f"{place} were not replayed: {what}{reason_of(error)}") from error
        try:
            in_time(producer.commit_transaction)
        except (KafkaError, TimeoutError) as error:  # the next replay ends the transaction before it reads the mark
            raise AdminError(
                f"it is not known whether {place} were replayed: {reason_of(error)}; look again"
            ) from error
        return marks

    def _steps(self) -> Iterator[Step]:
        begin = {} if self._wanted.again else self.mark
        originals = Originals(self._admin)
        most, room = self._wanted.count, self._wanted.most_bytes
        number = size = 0
        for letter in self._letters.read(begin, strict=True):
            self.is_cut = number == most or (room is not None and size >= room)
            if self.is_cut:
                return
            step = self._step(letter, originals)
            yield step
            number, size = number + 1, size + step.size

    def _step(self, letter: DeadLetter, originals: Originals) -> Step:
        origin = letter.origin
        view = self._target
        if view is None:
            if origin.topic is None or origin.partition is None:
                return Step(letter, None, -1, problem="it does not say where it comes from")
            try:
                view = originals.topic(origin.topic)
            except TopicHidden as error:
                return Step(letter, None, -1, problem=str(error))
            if view is None:
                name = origin.topic[:249]
                name = name if name.isprintable() else ascii(name)[:249]
                return Step(letter, None, -1, problem=f"topic {name} does not exist")
            if view.internal or view.name == self._wanted.topic:
                return Step(letter, None, -1, problem=f"{view.name} does not accept replayed records")
        count, partition = len(view.partitions), origin.partition
        if partition is None or self._target is not None:
            partition = (letter.record.partition if partition is None else partition) % count
        if partition >= count:
            return Step(letter, None, -1, problem=f"topic {view.name} has no partition {partition}")
        found = originals.of(letter)
        if found is None:
            return Step(letter, None, -1, problem=f"it has no copy of the record, which is {originals.absence(origin)}")
        key, value, headers = found
        if any(each is None for _, each in headers):
            return Step(letter, None, -1, problem="it has a header without a value, which kafka-python cannot write")
        if self._wanted.keep_headers:
            headers = (*headers, *(each for each in letter.record.headers if is_own_header(each[0])))
        return Step(letter, view.name, partition, key, value, headers)


def _sent(producer: Any, part: list[Step]) -> tuple[list[Any], KafkaError | None]:
    """Send records until the client refuses one; return the sent records and the client's error.

    After a refusal the client accepts no further record.
    """
    sent: list[Any] = []
    failure = None
    for step in part:
        to = None
        if step.topic is not None and failure is None:
            try:
                to = producer.send(step.topic, (step.value,), step.key, list(step.headers), step.partition)
            except KafkaError as error:
                failure = error
        sent.append(to)
    return sent, failure


def _why_refused(sent: Any) -> str | None:
    """Return why a topic refused this record.

    Returns None if the topic refused nothing, or if it refused the whole batch because of another record or for another
    reason.
    """
    error: Any = None
    with suppress(KafkaError):
        try:
            sent.get(PATIENCE_S)
        except InvalidRecordError as refusal:
            error = refusal
    if error is None:
        return None
    # kafka-python raises the same error for a refused record and for the other records of its batch.
    *_, error_at = sent._produce_future.value  # noqa: SLF001
    return None if error_at(-1) is error else str(error.args[0]).removesuffix(".")


def _with_problem(step: Step, why: str | None) -> Step:
    """Return the step.

    If the topic has refused the step's record, the returned step has a problem instead of a target.
    """
    if why is None:
        return step
    return step._replace(topic=None, partition=-1, problem=f"topic {step.topic} refuses its record: {why}")


def check(rows: list[Row]) -> None:
    """Raise AdminError if some dead letters cannot be replayed."""
    wrong = [row for row in rows if row.problem is not None]
    if wrong:
        count = sum(row.count for row in wrong)
        first = wrong[0]
        raise AdminError(
            f"{count} dead letter{'s' if count != 1 else ''} cannot be replayed, the first at "
            f"{first.partition}:{first.first_offset}: {first.problem}"
        )


def _row(step: Step) -> Row:
    at = step.letter.record
    to = None if step.topic is None else step.partition
    return Row(at.partition, at.offset, at.offset, 1, step.topic, to, step.problem)


def _count(rows: dict[tuple[object, ...], Row], step: Step) -> None:
    new = _row(step)
    key: tuple[object, ...] = (new.partition, new.to_topic, new.to_partition, new.problem)
    if key not in rows and len(rows) >= MOST_ROWS:
        key = (new.problem is None,)
        new.to_topic, new.to_partition = (_OTHERS if new.problem is None else None), None
        new.problem = None if new.problem is None else _OTHERS
    row = rows.setdefault(key, new)
    if row is not new:
        row.last_offset = new.last_offset
        row.count += 1


def _parts(steps: Iterator[Step]) -> Iterator[list[Step]]:
    part: list[Step] = []
    size = 0
    for step in steps:
        part.append(step)
        size += step.size
        if len(part) == _AT_ONCE or size >= _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


# -- purging


@dataclass(frozen=True, slots=True)
class Purge:
    """The dead letters to purge in one partition: the offsets from `first_offset` on that are below `before_offset`."""

    partition: int
    first_offset: int
    before_offset: int

    @property
    def most(self) -> int:
        """The maximum number of dead letters to purge. There may be fewer, because offsets may have gaps."""
        return self.before_offset - self.first_offset


def purges(
    admin: Any, topic: str, before: Mapping[int, int] | int | None, partitions: tuple[int, ...] = ()
) -> list[Purge]:
    """Return the dead letters that a purge deletes in each partition: all of them, or those before an offset.

    `before` is one offset for all partitions, or a mapping with an offset for each partition (from a mark or a
    preview). Without such a mapping, every partition must begin with a dead letter. Raises AdminError, also if a
    partition begins with another record.
    """
    found = []
    letters = Letters(admin, topic, partitions)
    if not isinstance(before, Mapping):
        _check_letters(letters)
    for index, (first, end) in letters.bounds.items():
        wanted = before.get(index, first) if isinstance(before, Mapping) else before
        upto = end if wanted is None else min(wanted, end)
        if upto > first:
            found.append(Purge(index, first, upto))
    return found


def _check_letters(letters: Letters) -> None:
    """Raise AdminError if a partition begins with a record that is no dead letter: the topic may be the wrong one."""
    for letter in letters.firsts():
        if letter.origin.topic is None:
            place = f"{letters.topic}-{letter.record.partition} offset {letter.record.offset}"
            raise AdminError(f"{place} is no dead letter: it has no header that names its origin")


def purge(admin: Any, topic: str, wanted: list[Purge]) -> list[str]:
    """Delete dead letters; return the failures."""
    led = Letters(admin, topic, tuple(each.partition for each in wanted)).led
    return delete_records(admin, {(topic, each.partition): each.before_offset for each in wanted}, led)[1]
