"""The form of a segment in a remote store: one object with all files of the segment, and a footer.

    log, offset index, time index, transaction index, producer snapshot, leader epochs: in Kafka's own file formats
    footer, 100 bytes: for each part its length (8 bytes) and CRC32C (4); the segment's id (16); the version of the form
                       (2); the number of parts (2); the CRC32C of the footer so far (4); "KBTS"

Numbers are big-endian. An absent part has length 0. The footer fits into the custom metadata that a record of
`__remote_log_metadata` may have (128 bytes), so that a reader does not fetch the footer.

Owns this form, the names of objects, and their check. Never opens a file, and never talks to a store.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kbroker.log.checkpoints import entries_in
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.wire import parse_uuid, uuid_text
from kbroker.remote.store_errors import DamagedObjectError


class Part(IntEnum):
    """The parts of an object, in their order."""

    LOG = 0
    OFFSET_INDEX = 1
    TIME_INDEX = 2
    TRANSACTION_INDEX = 3
    PRODUCER_SNAPSHOT = 4
    LEADER_EPOCHS = 5


VERSION: Final = 1
_MAGIC: Final = b"KBTS"
_PARTS: Final = struct.Struct(">" + "QI" * len(Part))
_TAIL: Final = struct.Struct(">16sHH")
_END: Final = struct.Struct(">I4s")
FOOTER_BYTES: Final = _PARTS.size + _TAIL.size + _END.size
_LONGEST: Final = 1 << 40
"""A number of bytes that no part can exceed. A greater length in a footer is wrong."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of a footer: for each part its length in bytes and its CRC32C."""

    segment_id: bytes
    lengths: tuple[int, ...]
    checksums: tuple[int, ...]

    def start(self, part: Part) -> int:
        """Return the position of a part in the object."""
        return sum(self.lengths[:part])

    @property
    def object_bytes(self) -> int:
        """The length of the object, with its footer."""
        return sum(self.lengths) + FOOTER_BYTES

    def footer(self) -> bytes:
        """Return the footer, which can also be a segment's custom metadata."""
        pairs = [each for pair in zip(self.lengths, self.checksums, strict=True) for each in pair]
        body = _PARTS.pack(*pairs) + _TAIL.pack(self.segment_id, VERSION, len(Part))
        return body + _END.pack(crc32c(body), _MAGIC)


def read_footer(footer: bytes | memoryview, object_bytes: int | None, segment_id: bytes | None = None) -> Layout:
    """Return the content of a footer. Compare it with the object's length and the segment's id, if they are given.

    Raises DamagedObjectError.
    """
    footer = bytes(footer)
    if len(footer) != FOOTER_BYTES:
        raise DamagedObjectError(f"a footer of {len(footer)} bytes, not {FOOTER_BYTES}")
    checksum, magic = _END.unpack(footer[-_END.size :])
    if magic != _MAGIC:
        raise DamagedObjectError("no segment ends here: the last bytes are not those of a footer")
    body = footer[: -_END.size]
    found_id, version, parts = _TAIL.unpack(body[-_TAIL.size :])
    if version != VERSION:
        raise DamagedObjectError(f"the segment has format version {version}, and only {VERSION} is known")
    if crc32c(body) != checksum:
        raise DamagedObjectError("the footer has another CRC32C than it says")
    pairs = _PARTS.unpack(body[: _PARTS.size])
    if parts != len(Part) or max(pairs[::2]) > _LONGEST:
        raise DamagedObjectError("the footer has impossible parts")
    layout = Layout(found_id, pairs[::2], pairs[1::2])
    if segment_id is not None and found_id != segment_id:
        raise DamagedObjectError(f"the footer is that of segment {uuid_text(found_id)}, not {uuid_text(segment_id)}")
    if object_bytes is not None and layout.object_bytes != object_bytes:
        raise DamagedObjectError(f"the object has {object_bytes} bytes, and its footer says {layout.object_bytes}")
    return layout


_NAME: Final = re.compile(r"(?:.*/)?([A-Za-z0-9_-]{22})/(\d{1,10})/(\d{20})-([A-Za-z0-9_-]{22})")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """The identity of an object's segment: topic id, partition, base offset, segment id."""

    topic_id: bytes
    partition: int
    base_offset: int
    segment_id: bytes

    def text(self, prefix: str = "") -> str:
        """Return the object's name: `<prefix>/<topic id>/<partition>/<base offset, 20 digits>-<segment id>`."""
        segment = f"{self.base_offset:020}-{uuid_text(self.segment_id)}"
        return f"{folder_of(self.topic_id, self.partition, prefix)}/{segment}"


def folder_of(topic_id: bytes, partition: int, prefix: str = "") -> str:
    """Return the folder with the objects of a partition, without a slash at its end."""
    folder = f"{uuid_text(topic_id)}/{partition}"
    return f"{prefix.strip('/')}/{folder}" if prefix.strip("/") else folder


def parse_object_name(text: str) -> ObjectName | None:
    """Return the parts of a name, or None if the name is not that of a segment's object. Any prefix is ignored."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    topic_id, partition, base, segment_id = found.groups()
    return ObjectName(parse_uuid(topic_id), int(partition), int(base), parse_uuid(segment_id))


def epochs_bytes(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Return (leader epoch, first offset) pairs in the form of Kafka's leader-epoch-checkpoint."""
    lines = [f"{epoch} {offset}\n" for epoch, offset in epochs]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_epochs_bytes(data: bytes | memoryview) -> Sequence[tuple[int, int]]:
    """Return the pairs of a leader-epoch-checkpoint. Raises DamagedObjectError."""
    try:
        pairs = [line.split(" ") for line in entries_in(bytes(data).decode())]
        return [(int(epoch), int(offset)) for epoch, offset in pairs]
    except ValueError:
        raise DamagedObjectError("the leader epochs are not in the form of a leader-epoch-checkpoint") from None
