"""Batches with a valid header and CRC whose records lie, each kind in each codec, on topics with several settings.

A good batch follows each of them. At the end, all stored records of a topic are read back, one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from compat_tests.wire.exchanges import sequence
from compat_tests.wire.exchanges.produce import STAMP, batch, producer_id, request, sealed, zigzag
from compat_tests.wire.session import Wire
from kbroker.protocol.compression import CODEC_NAMES, compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from kbroker.protocol.records import HEADER_SIZE, LOG_OVERHEAD, iter_batches, read_records

_MOST: Final = 2**31 - 1
_DAY_MS: Final = 24 * 3_600_000
_FETCH, _PRODUCE = 4, 9


def record(delta: int = 0, **lies: Any) -> bytes:
    """Return one record; `length`, `stamp`, `key`, `value`, `headers` (count and bytes) and `tail` may be lies."""
    body: bytes = b"\0" + zigzag(lies.get("stamp", 0)) + zigzag(delta)
    body += lies.get("key", zigzag(1) + b"k") + lies.get("value", zigzag(2) + b"vv")
    body += lies.get("headers", zigzag(0)) + lies.get("tail", b"")
    return zigzag(lies.get("length", len(body))) + body


def header(count: int, content: bytes = b"") -> bytes:
    return zigzag(count) + content


GOOD: Final = record() + record(1) + record(2)
KINDS: Final[dict[str, tuple[int, bytes]]] = {
    "good": (3, GOOD),
    "count too high": (4, GOOD),
    "count far too high": (1000, GOOD),
    "count too low": (2, GOOD),
    "count 2^31-1": (_MOST, GOOD),
    "no records at all": (1, b""),
    "length -1": (2, record() + record(1, length=-1)),
    "length 0": (2, record() + record(1, length=0)),
    "length beyond": (2, record() + record(1, length=1000)),
    "length 2^31-1": (2, record() + record(1, length=_MOST)),
    "length -2^31": (2, record() + record(1, length=-(2**31))),
    "header count -1": (2, record() + record(1, headers=header(-1))),
    "header count 2^31-1": (2, record() + record(1, headers=header(_MOST))),
    "header count 3, none there": (2, record() + record(1, headers=header(3))),
    "null header key": (2, record() + record(1, headers=header(1, zigzag(-1) + zigzag(1) + b"x"))),
    "header key beyond": (2, record() + record(1, headers=header(1, zigzag(900) + b"x"))),
    "header value beyond": (2, record() + record(1, headers=header(1, zigzag(1) + b"x" + zigzag(900)))),
    "null header value": (2, record() + record(1, headers=header(1, zigzag(1) + b"x" + zigzag(-1)))),
    "bytes left over in a record": (2, record() + record(1, tail=b"xyz")),
    "bytes left over behind the last": (2, record() + record(1) + b"xyz"),
    "a record too many": (2, GOOD),
    "key beyond": (2, record() + record(1, key=zigzag(900) + b"k")),
    "key 2^31-1": (2, record() + record(1, key=zigzag(_MOST) + b"k")),
    "key null": (2, record() + record(1, key=zigzag(-1))),
    "value beyond": (2, record() + record(1, value=zigzag(900) + b"v")),
    "value null": (2, record() + record(1, value=zigzag(-1))),
    "offsets repeat": (3, record() + record() + record(1)),
    "offsets run back": (3, record(2) + record(1) + record()),
    "offsets with gaps": (3, record() + record(5) + record(9)),
    "offsets begin at 1": (2, record(1) + record(2)),
    "an offset below 0": (2, record(-1) + record()),
    "a timestamp hidden ahead": (2, record() + record(1, stamp=2 * _DAY_MS)),
    "a timestamp below 0": (2, record() + record(1, stamp=-STAMP - 5)),
    "a timestamp that overflows": (2, record() + record(1, stamp=2**63 - 1)),
    "a number without end": (2, record() + b"\xff" * 12),
    "a number cut off": (2, record() + b"\xff\xff"),
    "cut off in a record": (3, GOOD[:-3]),
    "garbage": (2, b"these are no records at all, they are words"),
}
SETTINGS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "to-lz4": {"compression_type": "lz4"},
    "to-none": {"compression_type": "uncompressed"},
}


def lying(count: int, body: bytes, codec: int, *, packed: bool = False, **fields: Any) -> bytes:
    """Return a batch that claims `count` records and contains `body`, compressed unless it is already `packed`."""
    head = bytearray(batch(1, codec=codec, **fields)[:HEADER_SIZE])
    data = body if packed else compress(codec, body)
    struct.pack_into(">i", head, 8, HEADER_SIZE - LOG_OVERHEAD + len(data))
    struct.pack_into(">i", head, 23, count - 1)
    struct.pack_into(">i", head, 57, count)
    return sealed(bytes(head) + data)


def cases(**fields: Any) -> Iterator[tuple[str, bytes]]:
    for codec, name in enumerate(CODEC_NAMES):
        for kind, (count, body) in KINDS.items():
            if codec and kind.startswith("length"):
                continue  # in its own sequence
            yield f"{kind}, {name}", lying(count, body, codec, **fields)
        if codec:
            whole = compress(codec, GOOD)
            yield f"packed garbage, {name}", lying(3, b"no compressed data, only words", codec, packed=True, **fields)
            yield f"packed nothing, {name}", lying(3, b"", codec, packed=True, **fields)
            yield f"packed and cut off, {name}", lying(3, whole[:-6], codec, packed=True, **fields)
            yield f"packed with more behind, {name}", lying(3, whole + b"xyz", codec, packed=True, **fields)


def stored(wire: Wire, name: str) -> list[Any]:
    """Return what a consumer reads of a topic, from its start to its end."""
    found: list[Any] = []
    offset = 0
    while True:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20,
            topics=[FetchTopic(topic=name, partitions=[partition])],
        )  # fmt: skip
        answer = wire.quiet(asked, _FETCH).responses[0].partitions[0]
        raw = bytes(answer.records or b"")
        whole = [(place, head) for place, head in iter_batches(raw)]
        if not whole:
            return found
        for place, head in whole:
            one = raw[place : place + head.size]
            records = [(r.offset, r.key, r.value, r.headers) for r in read_records(one, max_bytes=1 << 20)]
            found.append((head.base_offset, head.last_offset, head.codec, str(records)))
            offset = head.last_offset + 1


def send(wire: Wire, label: str, asked: Any) -> None:
    """Send and record; the timestamp limits, which move with the clock, are left out of the answer."""
    answer = wire.quiet(asked, _PRODUCE)
    if not isinstance(answer, str):
        for error in answer.responses[0].partition_responses[0].record_errors:
            error.batch_index_error_message = (error.batch_index_error_message or "").split(" within [")[0]
    wire.record(label, _PRODUCE, answer)


def ask_all(wire: Wire, label: str, settings: dict[str, str], **fields: Any) -> None:
    name = wire.topic(label, 1, **settings)
    for case, records in cases(**fields):
        send(wire, f"{label}: {case}", request(name, records))
    send(wire, f"{label}: good behind them", request(name, batch(3)))
    wire.record(f"{label}: what is stored", None, stored(wire, name))


@sequence
def produce_lying_records(wire: Wire) -> None:
    for label, settings in SETTINGS.items():
        ask_all(wire, label, settings)


@sequence
def produce_lying_records_of_a_producer(wire: Wire) -> None:
    """With an idempotent producer, a refused batch does not count: the batch after it has the same sequence."""
    name = wire.topic("t")
    for codec in range(len(CODEC_NAMES)):
        for kind in ("count too high", "offsets repeat", "bytes left over in a record", "a timestamp hidden ahead"):
            pid = producer_id(wire)
            fields: dict[str, Any] = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0}
            count, body = KINDS[kind]
            label = f"{kind}, {CODEC_NAMES[codec]}"
            send(wire, label, request(name, lying(count, body, codec, **fields)))
            send(wire, f"{label}: good behind it", request(name, batch(1, codec=codec, **fields)))


@sequence
def produce_lying_records_in_a_transaction(wire: Wire) -> None:
    name = wire.topic("t")
    wire.until(
        lambda: wire.quiet(FindCoordinatorRequest(key="tx", key_type=1), 2).error_code == ErrorCode.NONE,
        "a coordinator",
    )
    begun = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    wire.until(lambda: wire.quiet(begun, 2).error_code == ErrorCode.NONE, "a producer id")
    answer = wire.quiet(begun, 2)
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=answer.producer_id,
        v3_and_below_producer_epoch=answer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0])],
    )
    wire.until(lambda: not wire.quiet(added, 3).results_by_topic_v3_and_below[0].results_by_partition[0]
               .partition_error_code, "the partition in the transaction")  # fmt: skip
    fields: dict[str, Any] = {
        "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch, "base_sequence": 0,
        "transactional": True,
    }  # fmt: skip
    for case, records in cases(**fields):
        if case.split(", ")[0] not in ("good", "null header value", "value null", "key null"):
            send(wire, case, request(name, records, transactional_id="tx"))
    send(wire, "good behind them", request(name, batch(1, **fields), transactional_id="tx"))


@sequence
def produce_lying_lengths(wire: Wire) -> None:
    """Wrong lengths of compressed records, which Kafka does not check (declared.py)."""
    name = wire.topic("t")
    for codec, codec_name in enumerate(CODEC_NAMES):
        for kind, (count, body) in KINDS.items():
            if codec and kind.startswith("length"):
                send(wire, f"{kind}, {codec_name}", request(name, lying(count, body, codec)))


for _each in (
    produce_lying_lengths,
    produce_lying_records,
    produce_lying_records_of_a_producer,
    produce_lying_records_in_a_transaction,
):
    _each.__dict__["needs_walk"] = True
