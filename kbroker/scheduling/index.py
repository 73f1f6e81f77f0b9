"""The pending records of one partition of a schedule topic, in a file of SQLite that can be rebuilt from the log.

Owns the replay: records and marks change the content, in the order of the log, and the result depends on nothing else.
So every replica has the same content, and a lost file is rebuilt. Also owns the file: the checks when it is opened, and
the times of the next tries on this broker. Never reads the log or a clock, and never decides which records fire. The
file is in the partition's directory; Apache Kafka ignores its name. The file is not synced to disk. SQLite's
write-ahead log survives the end of the process; after a loss of power (another boot of the machine) the file is not
trusted. A row moves from `pending` to `sent` when the intent to deliver its record is replayed. The row returns to
`pending` if the record repeats, or if the target refused the record. It does not return if a newer record with its key,
or a tombstone, has replaced the record meanwhile. The index compares keys by a hash of 64 bits with a salt of this
file. All methods belong to one thread, and this thread may wait for the disk. Rows pass between Python and SQLite as
JSON, many in one step: SQLite's module releases the interpreter at each step, and gets it back from a busy event loop
only after 0.5 ms (shared.py). Times are ms since 1970 (UTC).
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from kbroker.log.files import SCHEDULES, SCHEDULES_FILES, remove_quietly
from kbroker.schedules.marks import Done, Dues, Intent, Mark, mark_in, value_of

IN_MEMORY: Final = ":memory:"
_FORMAT: Final = 3
_CACHE_KB: Final = 8192
_CHECKPOINT_PAGES: Final = 4000
_SALT_BYTES: Final = 16
_TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lanes (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL);
CREATE TABLE pending (offset INTEGER PRIMARY KEY, lane INTEGER NOT NULL, try_ms INTEGER NOT NULL,
    due_ms INTEGER NOT NULL, key INTEGER, tries INTEGER NOT NULL, error TEXT);
CREATE INDEX by_time ON pending (lane, try_ms, offset);
CREATE UNIQUE INDEX by_key ON pending (key) WHERE key IS NOT NULL;
CREATE TABLE intents (offset INTEGER PRIMARY KEY, mark BLOB NOT NULL);
CREATE TABLE sent (intent INTEGER NOT NULL, offset INTEGER NOT NULL, lane INTEGER NOT NULL, due_ms INTEGER NOT NULL,
    key INTEGER, tries INTEGER NOT NULL, PRIMARY KEY (intent, offset)) WITHOUT ROWID;
CREATE INDEX sent_by_key ON sent (key) WHERE key IS NOT NULL;
"""
_LACKS: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_WRITE}
)
_FIELDS: Final = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(7))
_PUT: Final = f"INSERT OR REPLACE INTO pending SELECT {_FIELDS} FROM json_each(?)"
_LISTED: Final = "offset IN (SELECT value FROM json_each(?))"
_RANGE: Final = "offset BETWEEN ? AND ?"
_SEND: Final = "INSERT OR REPLACE INTO sent SELECT ?, offset, lane, due_ms, key, tries FROM pending WHERE "
_BACK: Final = (
    "INSERT OR REPLACE INTO pending SELECT offset, lane, coalesce(?, due_ms), due_ms, key, tries + ?, ? FROM sent "
    "WHERE intent = ?"
)
_AGAIN: Final = (
    "INSERT OR REPLACE INTO pending SELECT offset, lane, ?, ?, key, 0, NULL FROM sent WHERE intent = ? AND offset = ?"
)
_TAKE_KEYS: Final = "DELETE FROM pending WHERE key IN (SELECT value FROM json_each(?))"
_TRY_LATER: Final = (
    "UPDATE pending SET try_ms = later.try_ms, error = later.error, tries = tries + 1 FROM (SELECT "
    "json_extract(value, '$[0]') AS place, json_extract(value, '$[1]') AS try_ms, json_extract(value, '$[2]') AS error "
    "FROM json_each(?)) AS later WHERE offset = later.place"
)
_LANES_LISTED: Final = (
    "SELECT json_group_array(DISTINCT lane) FROM pending "
    "WHERE offset IN (SELECT json_extract(value, '$[0]') FROM json_each(?))"
)
_COUNT_DUE: Final = "SELECT COUNT(*) FROM json_each(?), pending WHERE lane = value AND try_ms <= ?"
_FIRST: Final = (
    "FROM (SELECT offset, due_ms, key, tries FROM pending WHERE lane = ? AND try_ms <= ? "
    "ORDER BY try_ms, offset LIMIT ?)"
)
_DUE: Final = f"SELECT json_group_array(offset), json_group_array(due_ms), COUNT(key), MAX(tries) {_FIRST}"
_DUE_MORE: Final = f"SELECT json_group_array(key), json_group_array(tries) {_FIRST}"


class IndexDamaged(Exception):  # noqa: N818 - an outcome: the index is rebuilt
    """The file cannot be used."""


class Lane(NamedTuple):
    """A queue of rows with one target. The rows of a lane wait for each other, but not for rows of another lane."""

    topic: str
    partition: int
    """The probable partition of the target for these rows; -1 if it is unknown, or if any partition is possible."""


class NewLane(NamedTuple):
    """An event: a lane gets a number."""

    number: int
    lane: Lane


class Put(NamedTuple):
    """An event: a record is pending from now on. This record replaces another record with the same key."""

    offset: int
    lane: int
    due_ms: int
    key: int | None


class Cancel(NamedTuple):
    """An event: a tombstone removes the pending record with its key."""

    key: int


class Marked(NamedTuple):
    """An event: a mark, and its offset."""

    offset: int
    mark: Mark


class Cut(NamedTuple):
    """An event: the log begins at this offset now; a user deleted the records before it."""

    start: int


Event = NewLane | Put | Cancel | Marked | Cut


class Positions(NamedTuple):
    """The positions up to which the log has been replayed, and its state there."""

    records_to: int = 0
    """All records before this offset are replayed."""
    marks_to: int = 0
    """All marks before this offset are replayed. The offset is at least `records_to`."""
    epoch: int = -1
    """The leader epoch of the last replayed batch. The epoch shows whether this is still the same log."""
    active: bool = False
    """Whether records at `records_to` are schedules."""
    target: str = ""
    """The default target at `records_to`."""
    start: int = 0
    """The start of the log at the time of the replay."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """An intent whose outcome is not known yet."""

    offset: int
    mark: Intent
    first: int
    """The smallest offset of the intent's records, or the intent's own offset if it has no records."""
    tries: int = 0
    """The number of earlier refusals of the record, if the intent has a single record."""


class DueRow(NamedTuple):
    """A row that may fire."""

    offset: int
    due_ms: int
    key: int | None
    tries: int


class DueRows:
    """The rows of records that may be due. Stored as columns, because there may be many rows."""

    __slots__ = ("_keys", "_tries", "offsets", "times")

    def __init__(
        self, offsets: array[int], times: array[int], keys: list[int | None] | None, tries: list[int] | None
    ) -> None:
        """Create the columns. Without `keys`, no row has a key; without `tries`, no row was tried."""
        self.offsets = offsets
        self.times = times
        """The times at which the rows were due."""
        self._keys = keys
        self._tries = tries

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, place: int) -> DueRow:
        key = None if self._keys is None else self._keys[place]
        return DueRow(self.offsets[place], self.times[place], key, 0 if self._tries is None else self._tries[place])

    def __iter__(self) -> Iterator[DueRow]:
        return (self[place] for place in range(len(self)))

    def part(self, begin: int, end: int) -> DueRows:
        """Return the rows with the numbers from `begin` to `end`, without `end` itself."""
        keys = None if self._keys is None else self._keys[begin:end]
        tries = None if self._tries is None else self._tries[begin:end]
        return DueRows(self.offsets[begin:end], self.times[begin:end], keys, tries)

    def keys(self, places: Iterable[int]) -> list[int]:
        """Return the keys of those rows that have a key."""
        return [] if self._keys is None else [key for place in places if (key := self._keys[place]) is not None]


@dataclass(slots=True)
class Applied:
    """The changes that some events have made."""

    begun: list[Outstanding] = field(default_factory=list)
    ended: list[tuple[Outstanding, Done]] = field(default_factory=list)
    next_ms: dict[int, int | None] = field(default_factory=dict)
    """For each lane that changed: the earliest time at which a row may fire; None if the lane has no row."""
    floor: int | None = None
    """The first offset that the log must keep; None if nothing is pending."""


class Index:
    """The pending records of one partition. `open_index` opens the file."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self.positions = Positions()
        self.lanes: dict[int, Lane] = {}
        self.outstanding: dict[int, Outstanding] = {}
        """The intents without outcome, by the offsets of their marks, in the order of the log."""
        self.salt = b""
        self.pending = 0
        """The number of pending rows."""

    # -- opening

    def create(self, salt: bytes, boot: str) -> None:
        """Create the tables of an empty index."""
        self._db.executescript(_TABLES)
        self.salt = salt
        self._set(format=_FORMAT, salt=salt.hex(), boot=boot, positions=list(self.positions), pending=0)

    def load(self, boot: str) -> None:
        """Read the part that is kept in memory.

        Raises IndexDamaged if the file has another format, or if it was written in another boot of the machine and not
        closed cleanly.
        """
        meta: dict[str, Any] = {name: json.loads(value) for name, value in self._db.execute("SELECT * FROM meta")}
        if meta.get("format") != _FORMAT or (meta.get("boot") != boot and not meta.get("clean")):
            raise IndexDamaged("the machine was started again without a clean stop")
        self.salt = bytes.fromhex(meta["salt"])
        self.positions = Positions(*meta["positions"])
        self.pending = meta["pending"]
        self._set(boot=boot, clean=False)
        self.lanes = {number: Lane(topic, index) for number, topic, index in self._db.execute("SELECT * FROM lanes")}
        for offset, mark in self._db.execute("SELECT * FROM intents ORDER BY offset").fetchall():
            self._hold(offset, _intent_of(mark))

    def close(self, *, clean: bool = False) -> None:
        """Close the file. After a `clean` close all data is on disk, so the file is trusted even after another boot."""
        with suppress(sqlite3.Error):
            if clean:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._db.execute("PRAGMA synchronous=FULL")
                self._set(clean=True)
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _set(self, **values: object) -> None:
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    # -- the replay

    def apply(self, events: Sequence[Event], positions: Positions) -> Applied:
        """Replay events in the order of the log, up to new positions.

        After sqlite3.Error the index must be opened again.
        """
        applied = Applied()
        lanes: dict[int, None] = {}
        puts: dict[int, tuple[object, ...]] = {}
        keys: dict[int, int] = {}
        self._db.execute("BEGIN IMMEDIATE")
        for event in events:
            if isinstance(event, Put):
                offset, lane, due_ms, key = event
                if key is not None:
                    puts.pop(keys.get(key, -1), None)
                    keys[key] = offset
                    if self.outstanding:
                        self._supersede(key)
                puts[offset] = offset, lane, due_ms, due_ms, key, 0, None
                lanes[lane] = None
                continue
            if puts:
                self._put(puts, keys)
            if isinstance(event, Cancel):
                self._cancel(event.key, lanes)
            elif isinstance(event, Marked):
                self._mark(event, applied, lanes)
            elif isinstance(event, Cut):
                found = self._db.execute("SELECT DISTINCT lane FROM pending WHERE offset < ?", (event.start,))
                lanes.update(dict.fromkeys(lane for (lane,) in found))
                self._remove("offset < ?", event.start)
                # Without this, deleted records could return from `sent` to `pending`.
                self._db.execute("DELETE FROM sent WHERE offset < ?", (event.start,))
            else:
                self.lanes[event.number] = event.lane
                self._db.execute("INSERT OR REPLACE INTO lanes VALUES (?, ?, ?)", (event.number, *event.lane))
        if puts:
            self._put(puts, keys)
        self.positions = positions
        self._set(positions=list(positions), pending=self.pending)
        self._db.execute("COMMIT")
        applied.floor = self.floor()
        applied.next_ms = {lane: self.next_ms(lane) for lane in lanes}
        return applied

    def _put(self, puts: dict[int, tuple[object, ...]], keys: dict[int, int]) -> None:
        """Add rows, and remove the rows that the added rows replace."""
        if keys:
            self.pending -= self._db.execute(_TAKE_KEYS, (json.dumps(list(keys)),)).rowcount
            keys.clear()
        self._add(_PUT, json.dumps(list(puts.values())))
        puts.clear()

    def _add(self, insert: str, *values: object) -> None:
        self.pending += self._db.execute(insert, values).rowcount

    def _remove(self, where: str, *values: object) -> None:
        self.pending -= self._db.execute(f"DELETE FROM pending WHERE {where}", values).rowcount

    def _cancel(self, key: int, lanes: dict[int, None]) -> None:
        self._supersede(key)
        found = self._db.execute("SELECT lane FROM pending WHERE key = ?", (key,)).fetchone()
        if found is not None:
            lanes[found[0]] = None
            self._remove("key = ?", key)

    def _supersede(self, key: int) -> None:
        """Drop the sent row with this key, so that it does not return to `pending`."""
        self._db.execute("DELETE FROM sent WHERE key = ?", (key,))

    def _mark(self, event: Marked, applied: Applied, lanes: dict[int, None]) -> None:
        mark = event.mark
        if isinstance(mark, Intent):
            offsets = sorted(Dues.of(mark.records).offsets)
            where = _LISTED
            values: tuple[object, ...] = (json.dumps(offsets),)
            if offsets and offsets[-1] - offsets[0] + 1 == len(set(offsets)):
                where, values = _RANGE, (offsets[0], offsets[-1])
            self._db.execute(f"{_SEND}{where}", (event.offset, *values))
            self._remove(where, *values)
            lanes.update(self._lanes_of(event.offset))
            self._db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?)", (event.offset, value_of(mark)))
            applied.begun.append(self._hold(event.offset, mark))
        elif isinstance(mark, Done):
            ended = self.outstanding.pop(mark.intent, None)
            if ended is None:
                return
            lanes.update(self._lanes_of(mark.intent))
            if mark.error_code:
                try_ms = None if mark.retry_ms < 0 else mark.retry_ms
                alone = int(len(ended.mark.records) == 1)
                self._add(_BACK, try_ms, alone, mark.message or None, mark.intent)
            following = () if mark.error_code else mark.following
            named = set(Dues.of(ended.mark.records).offsets) if following else ()
            for offset, due_ms in following:
                if offset in named:
                    self._add(_AGAIN, due_ms, due_ms, mark.intent, offset)
            self._db.execute("DELETE FROM sent WHERE intent = ?", (mark.intent,))
            self._db.execute("DELETE FROM intents WHERE offset = ?", (mark.intent,))
            applied.ended.append((ended, mark))

    def _lanes_of(self, intent: int) -> dict[int, None]:
        text = "SELECT json_group_array(DISTINCT lane) FROM sent WHERE intent = ?"
        return dict.fromkeys(json.loads(self._db.execute(text, (intent,)).fetchone()[0]))

    def _hold(self, offset: int, mark: Intent) -> Outstanding:
        tries = 0
        if len(mark.records) == 1:
            found = self._db.execute("SELECT MAX(tries) FROM sent WHERE intent = ?", (offset,)).fetchone()
            tries = found[0] or 0
        intent = self.outstanding[offset] = Outstanding(
            offset, mark, min(Dues.of(mark.records).offsets, default=offset), tries
        )
        return intent

    # -- questions

    def next_ms(self, lane: int) -> int | None:
        """Return the earliest time at which a row of a lane may fire."""
        text = "SELECT try_ms FROM pending WHERE lane = ? ORDER BY try_ms, offset LIMIT 1"
        found = self._db.execute(text, (lane,)).fetchone()
        return None if found is None else found[0]

    def floor(self) -> int | None:
        """Return the first offset that the log must keep: that of a pending record, or of an intent and its records."""
        (first,) = self._db.execute("SELECT MIN(offset) FROM pending").fetchone()
        kept = [] if first is None else [first]
        return min([*kept, *(intent.first for intent in self.outstanding.values())], default=None)

    def due(self, lane: int, now_ms: int, most: int) -> DueRows:
        """Return rows of a lane that may fire; the rows that have waited longest come first."""
        offsets, times, keyed, tried = self._db.execute(_DUE, (lane, now_ms, most)).fetchone()
        keys = tries = None
        if keyed or tried:
            keys, tries = map(json.loads, self._db.execute(_DUE_MORE, (lane, now_ms, most)).fetchone())
        return DueRows(array("q", json.loads(offsets)), array("q", json.loads(times)), keys, tries)

    def due_count(self, lanes: Sequence[int], now_ms: int) -> int:
        """Return how many rows of these lanes may fire. This takes some ns for each row that may fire."""
        count: int = self._db.execute(_COUNT_DUE, (json.dumps(lanes), now_ms)).fetchone()[0]
        return count

    def try_later(self, rows: Iterable[tuple[int, int, str]]) -> dict[int, int | None]:
        """Store the time of the next try and the error of each row: (offset, ms, error).

        Return the changed lanes, in the form of `Applied.next_ms`.
        """
        listed = json.dumps(list(rows))
        self._db.execute("BEGIN IMMEDIATE")
        (lanes,) = self._db.execute(_LANES_LISTED, (listed,)).fetchone()
        self._db.execute(_TRY_LATER, (listed,))
        self._db.execute("COMMIT")
        return {lane: self.next_ms(lane) for lane in json.loads(lanes)}

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows in the order of their offsets, for tests."""
        return self._db.execute("SELECT * FROM pending ORDER BY offset").fetchall()


def key_hash(key: bytes, salt: bytes) -> int:
    """Return the hash by which an index identifies a key."""
    return int.from_bytes(blake2b(key, digest_size=8, key=salt).digest(), "big", signed=True)


def _intent_of(value: bytes) -> Intent:
    mark = mark_in(value)
    if not isinstance(mark, Intent):
        raise IndexDamaged("an intent cannot be read")
    return mark


def boot_id() -> str:
    """Return the name of this boot of the machine; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def open_index(directory: str, boot: str) -> Index:
    """Open the index in a partition's directory, or create an empty index. Raises sqlite3.Error, OSError."""
    path = directory if directory == IN_MEMORY else f"{directory}/{SCHEDULES}"
    if path != IN_MEMORY and os.path.exists(path):
        known = _load(path, boot)
        if known is not None:
            return known
        remove_index(directory)
    database = _connect(path)
    try:
        index = Index(database)
        index.create(os.urandom(_SALT_BYTES), boot)
    except sqlite3.Error:
        database.close()  # without this, the lock of the file would stay
        raise
    return index


def _load(path: str, boot: str) -> Index | None:
    """Open an existing index. Return None if the index cannot be used."""
    database = None
    try:
        database = _connect(path)
        index = Index(database)
        if not boot:
            raise IndexDamaged("the system does not report whether it was restarted")
        index.load(boot)
    except (sqlite3.Error, IndexDamaged, struct.error, IndexError, ValueError, TypeError, KeyError) as error:
        if database is not None:
            database.close()
        if isinstance(error, sqlite3.Error) and lacks_resources(error):
            raise
        return None
    return index


def lacks_resources(error: sqlite3.Error) -> bool:
    """Whether an error is about disk space, file descriptors or memory. If so, the file itself is not damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code in _LACKS or code & 0xFF in _LACKS)


def remove_index(directory: str) -> None:
    """Remove the files of an index. Raises OSError."""
    for name in SCHEDULES_FILES:
        remove_quietly(f"{directory}/{name}")


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    settings = ["synchronous=OFF", f"cache_size=-{_CACHE_KB}", "temp_store=MEMORY"]
    if path != IN_MEMORY:
        settings[:0] = ["locking_mode=EXCLUSIVE", "journal_mode=WAL", f"wal_autocheckpoint={_CHECKPOINT_PAGES}"]
    try:
        for each in settings:
            database.execute(f"PRAGMA {each}")
    except sqlite3.Error:
        database.close()
        raise
    return database
