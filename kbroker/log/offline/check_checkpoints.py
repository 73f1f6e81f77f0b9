"""Read the small files of a data directory strictly: what a broker passes over is a finding here.

Owns the checks of checkpoints, partition.metadata, meta.properties and producer snapshots. Every parser raises
ValueError with a text that says what is wrong; a file that is absent is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from kbroker.log.directories.meta_properties import check_properties, parse_lines
from kbroker.log.files import offset_of, read_at
from kbroker.log.offline.findings import CHUNK, Finding, OpenFile, read_text
from kbroker.protocol.wire import parse_uuid

SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_LONG_MAX: Final = 2**63 - 1


def _lines(path: str) -> list[str]:
    """Return the entries of a checkpoint of version 0."""
    text = read_text(path)
    if text is None:
        return []
    lines = text.split("\n")
    if lines[0] != "0":
        raise ValueError(f"version {lines[0][:20]!r} is not 0")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or not lines[1].isascii() or not lines[1].isdigit():
        raise ValueError("the second line is no number of entries")
    if len(lines) - 2 != int(lines[1][:20]):
        raise ValueError(f"{len(lines) - 2} entries where {lines[1][:20]} are announced")
    return lines[2:]


def _number(text: str, line: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LONG_MAX):
        raise ValueError(f"broken entry {line[:300]!r}")
    return int(text)


def parse_offsets(path: str) -> dict[tuple[str, int], int]:
    """Read a checkpoint of `topic partition offset` lines."""
    found: dict[tuple[str, int], int] = {}
    for line in _lines(path):
        parts = line.split(" ")
        if len(parts) != 3 or not parts[0]:
            raise ValueError(f"broken entry {line[:300]!r}")
        key = parts[0], _number(parts[1], line)
        if key in found:
            raise ValueError(f"two entries for {key[0]}-{key[1]}")
        found[key] = _number(parts[2], line)
    return found


def parse_epochs(path: str) -> list[tuple[int, int]]:
    """Read a leader-epoch-checkpoint; epochs and offsets must rise."""
    found: list[tuple[int, int]] = []
    for line in _lines(path):
        parts = line.split(" ")
        if len(parts) != 2:
            raise ValueError(f"broken entry {line[:300]!r}")
        entry = _number(parts[0], line), _number(parts[1], line)
        if found and (entry[0] <= found[-1][0] or entry[1] <= found[-1][1]):
            raise ValueError(f"epoch {entry[0]} at offset {entry[1]} is not beyond {found[-1][0]} at {found[-1][1]}")
        found.append(entry)
    return found


def parse_topic_id(path: str) -> bytes | None:
    """Read the topic id of a partition.metadata; None where the file is absent."""
    text = read_text(path)
    if text is None:
        return None
    fields = dict(line.partition(": ")[::2] for line in text.splitlines() if line)
    if fields.get("version") != "0":
        raise ValueError(f"version {fields.get('version', '')[:20]!r} is not 0")
    topic_id = parse_uuid(fields.get("topic_id", ""))
    if not any(topic_id):
        raise ValueError("the topic id is zero")
    return topic_id


def parse_properties(path: str) -> Iterator[Finding]:
    """Check a meta.properties: version 0 (ZooKeeper) or 1 (KRaft), and the node's id."""
    try:
        text = read_text(path)
    except ValueError as error:
        yield Finding(path, None, str(error))
        return
    if text is None:
        yield Finding(path, None, "is missing")
        return
    try:
        check_properties(parse_lines(text))
    except ValueError as error:
        yield Finding(path, None, str(error))


def check_snapshot(path: str, log_end_offset: int, *, recovery: bool) -> Iterator[Finding]:
    """Check a producer snapshot: version, checksum, length, and that it knows nothing the log did not hold then."""
    offset = offset_of(path.rpartition("/")[2]) or 0
    if offset > log_end_offset:
        yield Finding(path, None, f"is of an offset behind the log's end {log_end_offset}", recovery)
        return
    with OpenFile(path) as file:
        head = read_at(file.fd, SNAPSHOT_HEAD.size, 0)
        if len(head) < SNAPSHOT_HEAD.size:
            yield Finding(path, None, "is cut off", recovery)
            return
        version, crc, count = SNAPSHOT_HEAD.unpack(head)
        if version != 1:
            yield Finding(path, 0, f"version {version} is not 1", recovery)
            return
        if _crc(file, 6) != crc:
            yield Finding(path, 2, f"the CRC is {_crc(file, 6):#010x}, the file says {crc:#010x}", recovery)
            return
        if file.size != SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
            yield Finding(path, 6, f"{file.size} bytes do not hold {count} entries", recovery)
            return
        for position, fields in file.entries(SNAPSHOT_ENTRY, SNAPSHOT_HEAD.size):
            latest = max(fields[3], fields[7])  # the last offset, and where the open transaction began
            if latest >= offset:
                what = f"producer {fields[0]} has offset {latest}, which is not below the snapshot's"
                yield Finding(path, position, what, recovery)


def _crc(file: OpenFile, position: int) -> int:
    value = 0
    while position < file.size:
        chunk = read_at(file.fd, min(CHUNK, file.size - position), position)
        if not chunk:
            break
        value = crc32c(chunk, value)
        position += len(chunk)
    return value
