"""Control records: the marker that ends a transaction on a partition.

Owns the marker's bytes. Never decides what a marker does.

    key: version i16 | type i16 (0 abort, 1 commit)     value: version i16 | coordinator epoch i32
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import NewRecord, build_batch, read_records

ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class EndTxnMarker(NamedTuple):
    """The content of a control batch: how a transaction ended, and under which coordinator epoch."""

    commit: bool
    coordinator_epoch: int


def read_marker(batch: bytes | bytearray | memoryview) -> EndTxnMarker | None:
    """Read a control batch; None for a control type that is not the end of a transaction, or an emptied batch."""
    for record in read_records(batch, max_bytes=4096):
        if record.key is None or len(record.key) < 4 or record.value is None:
            raise Malformed("control record without a type")
        _, kind = _MARKER_KEY.unpack_from(record.key)
        if kind not in (ABORT_MARKER, COMMIT_MARKER):
            return None
        if len(record.value) < 6:
            raise Malformed("end of transaction without a coordinator epoch")
        return EndTxnMarker(kind == COMMIT_MARKER, _MARKER_VALUE.unpack_from(record.value)[1])
    return None


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """Build the control batch that ends a transaction on a partition; timestamp in ms."""
    key = _MARKER_KEY.pack(0, COMMIT_MARKER if commit else ABORT_MARKER)
    record: NewRecord = (timestamp, key, _MARKER_VALUE.pack(0, coordinator_epoch), ())
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
