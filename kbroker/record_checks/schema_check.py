"""The check of one topic's records according to its `confluent.*.schema.validation` configs.

Owns the verdicts and their basis: a cache of first bytes that pass. The cache is cleared when the registry changes.
Owns the order: check whether the registry allows the schemas, then check the values, then handle a batch with bad
records. Most batches pass in one compiled call (`passes`). All others are checked record by record, in slices, and
another process reads their values (value_worker.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.log import record_walk
from kbroker.log.append_info import BatchRefused, invalid_records
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_check import MayWrite, may_write_anywhere
from kbroker.log.record_validation import MOST_ERRORS
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.records import HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader, parse_header
from kbroker.record_checks.schema_lookup import SchemaLookup, SchemaText, Unavailable
from kbroker.record_checks.schema_tokens import fields
from kbroker.record_checks.value_worker import TakesTooLong, ValueErrors, ValueWorker, WorkerEnded
from kbroker.schema_registry.formats.framing import ID_BYTES, KEY_HEADER, VALUE_HEADER, fault_of, guid_of, id_of

log = logging.getLogger(__name__)

_SMALL: Final = 64 << 10
"""The size in bytes of unpacked records up to which a batch does not wait for `room`."""
_IN_ONE_CALL: Final = 20_000
"""The number of records that one compiled call checks: this takes about 0.4 ms."""

_MOST_GOOD: Final = 1000
"""The maximum number of entries in each of the two caches, for keys and for values (see `_Side.good`)."""
_MOST_SCHEMAS: Final = 100
"""The maximum number of schemas that the values of one batch may name, if values are read."""
MOST_LETTERS: Final = 5_000
"""The maximum number of records of one batch that may be written to the dead letter topic."""
_LEAST_UNPACKED: Final = 16 << 20
_UNPACKED_TIMES: Final = 16
_MOST_UNPACKED: Final = 64 << 20
"""A batch may decompress to a multiple of the largest message. This limit has a minimum and a maximum in bytes."""
_EACH: Final = 64
"""The number of records that are checked before other tasks get a turn."""
_TRIES: Final = 3
"""The number of tries for a batch whose values end the process that reads them."""
_STRATEGIES: Final = "io.confluent.kafka.serializers.subject."


class DeadLetters(Protocol):
    """Writes records that failed the check to a dead letter topic."""

    async def write(self, topic: str, to: str, index: int, batch: memoryview, errors: Mapping[int, str]) -> str | None:
        """Write the records with an index in `errors` to the topic `to`. Return the reason of a failure, or None."""


class Checker(Protocol):
    """The parts that all checks of a broker share."""

    worker: ValueWorker
    room: asyncio.Semaphore
    letters: DeadLetters | None

    @property
    def lookup(self) -> SchemaLookup | None:
        """The registry, or None."""

    async def ready(self) -> SchemaLookup:
        """Return the registry when it accepts questions. Raises BatchRefused, Unavailable."""


class _Side:
    """The check's settings and cache for keys, or for values."""

    def __init__(self, topic: str, strategy: str, *, of_keys: bool) -> None:
        self.of_keys = of_keys
        self.name = "key" if of_keys else "value"
        self.header = KEY_HEADER if of_keys else VALUE_HEADER
        self._topic = topic
        self._strategy = strategy.removeprefix(_STRATEGIES)
        self.good: set[bytes] = set()
        """Cached results: each entry joins the distinct first bytes of one batch in which all records passed."""

    @property
    def uses_names(self) -> bool:
        return self._strategy != "TopicNameStrategy"

    def subjects(self, names: Sequence[str]) -> list[str]:
        """Return the subjects under which a schema with these names may be registered."""
        if not self.uses_names:
            return [f"{self._topic}-{self.name}"]
        if self._strategy == "RecordNameStrategy":
            return list(names)
        return [f"{self._topic}-{name}" for name in names]

    def refusal(self, token: bytes) -> str:
        """Return the error message about a field whose token does not pass."""
        fault = fault_of(token)
        if fault is not None:
            return f"The {self.name} {fault}."
        number, guid = id_of(token), guid_of(token)
        what = f"id {number}" if guid is None else f"GUID {guid.hex()}"
        if self.uses_names:
            return f"The schema with {what} is not registered under a subject of its name ({self._strategy})."
        return f"The schema with {what} is not registered under the subject {self.subjects(())[0]}."


class _Errors:
    """The bad records of a batch: all of them or only the first, and the number of all of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.texts: dict[int, str] = {}
        self.count = 0

    def add(self, index: int, text: str) -> None:
        if index in self.texts:
            return
        self.count += 1
        if len(self.texts) < self.most:
            self.texts[index] = text

    def first(self) -> list[tuple[int, str | None]]:
        return [(index, self.texts[index]) for index in sorted(self.texts)[:MOST_ERRORS]]


class _Found(NamedTuple):
    """The result of looking up the tokens of a batch."""

    allowed: Mapping[bytes, int]
    """The schema ids of the tokens that pass."""
    refused: frozenset[bytes]


class SchemaCheck:
    """The check of one topic under one config (`RecordCheck`)."""

    def __init__(self, topic: str, config: LogConfig, checker: Checker) -> None:
        self._topic = topic
        self._checker = checker
        self._parses = config.kbroker_schema_validation_level == "parse"
        self._letters_to = config.kbroker_schema_validation_deadletter_topic
        self._sides: list[_Side] = []
        if config.confluent_value_schema_validation:
            self._sides.append(_Side(topic, config.confluent_value_subject_name_strategy, of_keys=False))
        if config.confluent_key_schema_validation:
            self._sides.append(_Side(topic, config.confluent_key_subject_name_strategy, of_keys=True))
        self.is_quick = not self._parses
        self._revision: Hashable = None
        self._texts: dict[int, SchemaText] = {}

    def _is_current(self, lookup: SchemaLookup) -> bool:
        """Whether the registry accepts questions; clears the caches if the registry has changed."""
        revision = lookup.revision()
        if revision != self._revision:
            self._revision = revision
            self._texts.clear()
            for side in self._sides:
                side.good.clear()
        return revision is not None

    def passes(self, data: bytes | memoryview, start: int, count: int) -> bool:
        lookup, prefixes = self._checker.lookup, record_walk.prefixes
        if lookup is None or prefixes is None or not self._is_current(lookup):
            return False
        for side in self._sides:
            found = prefixes(data, start, count, side.of_keys, side.header)
            if found is None or (found and found not in side.good):
                return False
        return True

    async def judge(
        self, batch: memoryview, rules: BatchRules, _may_write: MayWrite = may_write_anywhere
    ) -> memoryview:
        header = parse_header(batch)
        try:
            for _ in range(_TRIES):
                errors = await self._errors_of(batch, header, rules)
                if errors is not None:
                    break
            else:
                raise BatchRefused(
                    ErrorCode.REQUEST_TIMED_OUT, "The values could not be read; a later try may succeed."
                )
        except Unavailable as error:
            raise BatchRefused(error.code, error.message) from None
        except OSError as error:
            log.error("the process that reads values cannot be started: %s", error)
            raise BatchRefused(ErrorCode.REQUEST_TIMED_OUT, "The values cannot be read now.") from None
        except TakesTooLong:
            text = "The values of this batch take too long to be read."
            raise BatchRefused(ErrorCode.INVALID_RECORD, text) from None
        if not errors.count:
            return batch
        if not self._letters_to or self._checker.letters is None:
            raise invalid_records(errors.first(), errors.count)
        return await self._without(batch, header, rules, errors)

    async def _errors_of(self, batch: memoryview, header: BatchHeader, rules: BatchRules) -> _Errors | None:
        """Return the result of `_errors`.

        Only large batches wait for `room`, so that they do not delay small batches.
        """
        lookup = await self._checker.ready()
        data = await _unpacked(batch, header, rules, None if header.codec == NONE and not self._parses else _SMALL)
        if data is not None:
            return await self._errors(lookup, data, header.record_count)
        async with self._checker.room:
            data = await _unpacked(batch, header, rules, None)
            assert data is not None
            return await self._errors(lookup, data, header.record_count)

    async def _errors(self, lookup: SchemaLookup, data: memoryview, count: int) -> _Errors | None:
        """Return the bad records, or None if the process that reads values ended for an unknown reason."""
        errors = _Errors(MOST_LETTERS + 1 if self._letters_to else MOST_ERRORS)
        for side in self._sides:
            self._is_current(lookup)
            revision = self._revision
            joined = await _joined(data, count, side)
            tokens: Iterable[bytes]
            if joined is None:
                tokens = {each: None async for _, each in _tokens(data, count, side)}
            else:
                tokens = _parted(joined)
            found = await self._look_up(lookup, side, tokens)
            if found.refused:
                before = errors.count
                async for index, token in _tokens(data, count, side):
                    if token in found.refused:
                        errors.add(index, side.refusal(token))
                if errors.count == before and not errors.texts:
                    raise BatchRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "A record with an error was not found again.")
            elif joined and not self._parses and self._is_current(lookup) and self._revision == revision:
                if len(side.good) >= _MOST_GOOD:
                    side.good.clear()
                side.good.add(joined)
            if self._parses and found.allowed and not await self._read(lookup, side, data, count, found, errors):
                return None
        return errors

    async def _look_up(self, lookup: SchemaLookup, side: _Side, tokens: Iterable[bytes]) -> _Found:
        """Return which tokens are allowed. Check a failing token again after `lookup.look` has updated the schemas."""
        allowed: dict[bytes, int] = {}
        refused: set[bytes] = set()
        unknown: list[bytes] = []
        for token in tokens:
            if fault_of(token) is not None:
                refused.add(token)
            elif not await self._is_allowed(lookup, side, token, allowed):
                unknown.append(token)
            await turn
        if unknown:
            await lookup.look()
        for token in unknown:
            if not await self._is_allowed(lookup, side, token, allowed):
                refused.add(token)
            await turn
        return _Found(allowed, frozenset(refused))

    async def _is_allowed(self, lookup: SchemaLookup, side: _Side, token: bytes, allowed: dict[bytes, int]) -> bool:
        """Return whether a token names a registered schema; if so, add its id to `allowed`."""
        guid = guid_of(token)
        number = id_of(token) if guid is None else await lookup.id_of(guid)
        if number is None or not await self._is_registered(lookup, side, number):
            return False
        allowed[token] = number
        return True

    async def _is_registered(self, lookup: SchemaLookup, side: _Side, number: int) -> bool:
        names: Sequence[str] = ()
        if side.uses_names:
            text = await self._text(lookup, number)
            names = () if text is None else await self._checker.worker.names(text)
        for subject in side.subjects(names):
            if await lookup.has(number, subject):
                return True
            await turn
        return False

    async def _text(self, lookup: SchemaLookup, number: int) -> SchemaText | None:
        text = self._texts.get(number)
        if text is None:
            revision = self._revision
            text = await lookup.schema(number)
            if text is not None and self._revision == revision:
                if len(self._texts) >= _MOST_SCHEMAS:
                    self._texts.clear()
                self._texts[number] = text
        return text

    # -- values

    async def _read(
        self, lookup: SchemaLookup, side: _Side, data: memoryview, count: int, found: _Found, errors: _Errors
    ) -> bool:
        """Add the records whose values do not match their schema; return False if the values could not be checked."""
        schemas: dict[bytes, SchemaText] = {}
        unread: dict[bytes, str] = {}
        for token, number in found.allowed.items():
            text = await self._text(lookup, number)
            if text is None or self._checker.worker.is_deadly(text):
                unread[token] = f"The {side.name} names a schema that cannot be used."
            elif len(schemas) >= _MOST_SCHEMAS:
                unread[token] = f"The {side.name}s of one batch may name {_MOST_SCHEMAS} schemas."
            else:
                schemas[token] = text
        try:
            read = await self._checker.worker.check(
                data, count, schemas, of_keys=side.of_keys, skipped=errors.texts.keys(), most=errors.most
            )
        except WorkerEnded as ended:
            if ended.record < 0:
                return False
            read = await self._read_without(side, data, count, schemas, errors, ended.record)
        for index, why in read.errors:
            errors.add(index, f"The {side.name} {why}.")
        errors.count += read.number - len(read.errors)
        if unread:
            async for index, token in _tokens(data, count, side):
                if token in unread:
                    errors.add(index, unread[token])
        return True

    async def _read_without(
        self,
        side: _Side,
        data: memoryview,
        count: int,
        schemas: Mapping[bytes, SchemaText],
        errors: _Errors,
        record: int,
    ) -> ValueErrors:
        """After a value has ended the process, read the remaining values if all bad records must be known."""
        text = f"The {side.name} takes too long, or too much memory, to be read."
        errors.add(record, text)
        if not self._letters_to:
            return ValueErrors([], 0)
        for _ in range(_TRIES):
            try:
                return await self._checker.worker.check(
                    data, count, schemas, of_keys=side.of_keys, skipped=errors.texts.keys(), most=errors.most
                )
            except WorkerEnded as again:
                if again.record >= 0:
                    errors.add(again.record, text)
        raise invalid_records(errors.first(), errors.count)

    # -- dead letters

    async def _without(self, batch: memoryview, header: BatchHeader, rules: BatchRules, errors: _Errors) -> memoryview:
        """Write the bad records to the dead letter topic; return the batch without them."""
        letters = self._checker.letters
        assert letters is not None
        if header.attributes & TRANSACTIONAL_BIT or errors.count > MOST_LETTERS:
            raise invalid_records(errors.first(), errors.count)
        why = await letters.write(self._topic, self._letters_to, _index_of(rules), batch, errors.texts)
        if why is not None:
            text = f"Records with errors cannot be written to the topic {self._letters_to}: {why}"
            log.warning("%s: %s", rules.name, text)
            raise BatchRefused(ErrorCode.INVALID_RECORD, text)
        try:
            rest = await self._checker.worker.without(batch, sorted(errors.texts), rules.max_size)
        except WorkerEnded:
            text = "The batch could not be divided; a later try may succeed."
            raise BatchRefused(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return memoryview(bytearray(rest))


async def _joined(data: memoryview, count: int, side: _Side) -> bytes | None:
    """Return the distinct first bytes of all fields, in order of appearance; None if they cannot be determined."""
    scan, prefixes = record_walk.scan, record_walk.prefixes
    if scan is None or prefixes is None:
        return None
    if count <= _IN_ONE_CALL:
        return prefixes(data, 0, count, side.of_keys, side.header)
    position, left = 0, count
    distinct: dict[bytes, None] = {}
    while left:
        number, end, *_ = scan(data, position, min(left, _IN_ONE_CALL), 0)
        found = prefixes(data[position:end], 0, number, side.of_keys, side.header) if number else None
        if found is None:
            return None
        distinct.update(dict.fromkeys(_parted(found)))
        if len(distinct) > _MOST_GOOD:
            return None
        position, left = end, left - number
        await turn
    return b"".join(distinct)


def _parted(joined: bytes) -> list[bytes]:
    return [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]


async def _tokens(data: memoryview, count: int, side: _Side) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the index and the token of each record whose key or value is not null."""
    index = 0
    for field in fields(data, count, of_keys=side.of_keys):
        if field is not None:
            if field.token is not None:
                yield index, field.token
            index += 1
        if field is None or not index % _EACH:
            await turn


async def _unpacked(batch: memoryview, header: BatchHeader, rules: BatchRules, small: int | None) -> memoryview | None:
    """Return the uncompressed records of a well-formed batch; None if they have more than `small` bytes.

    Raises AppendError for records beyond the limit that applies to all batches.
    """
    body = batch[HEADER_SIZE:]
    if header.codec == NONE:
        return body if small is None or len(body) <= small else None
    wanted = min(max(_LEAST_UNPACKED, _UNPACKED_TIMES * rules.max_size), _MOST_UNPACKED)
    most = max(min(rules.max_decompressed, wanted), rules.max_size)
    data = bytearray()
    try:
        for piece in unpack(header.codec, body, most):
            data += piece
            if small is not None and len(data) > small:
                return None
            await turn
    except Malformed as error:
        raise BatchRefused(ErrorCode.INVALID_RECORD, f"The records cannot be checked: {error}") from None
    return memoryview(data)


def _index_of(rules: BatchRules) -> int:
    """Return the partition's number: the end of its name."""
    return int(rules.name.rpartition("-")[2])
