"""Produce and InitProducerId: good batches, bad batches, idempotent producers."""

from __future__ import annotations

import struct
import time
from typing import Any

import crc32c

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.transactions import DescribeProducersRequest, InitProducerIdRequest
from kbroker.protocol.messages.transactions import TopicRequest as ProducersTopic
from kbroker.protocol.records import build_batch

STAMP = (int(time.time()) - 3600) * 1000
"""An hour ago: too old to be mistaken for the current time, and too young for retention."""


def batch(count: int = 1, *, key: bytes | None = b"k", size: int = 10, stamp: int = STAMP, **options: Any) -> bytes:
    """Return a batch of `count` records."""
    return build_batch([(stamp + i, key, bytes([65 + i % 26]) * size, ()) for i in range(count)], **options)


def sealed(raw: bytes | bytearray) -> bytes:
    """Return the batch with a CRC that fits its bytes."""
    raw = bytearray(raw)
    struct.pack_into(">I", raw, 17, crc32c.crc32c(bytes(raw[21:])))
    return bytes(raw)


def patched(raw: bytes, position: int, form: str, value: int, *, seal: bool = True) -> bytes:
    """Return the batch with one header field overwritten."""
    changed = bytearray(raw)
    struct.pack_into(form, changed, position, value)
    return sealed(changed) if seal else bytes(changed)


def request(name: str, records: Any, acks: int = -1, partition: int = 0, **fields: Any) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    topic = TopicProduceData(name=name, topic_id=fields.pop("topic_id", bytes(16)), partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic], **fields)


def put(wire: Wire, name: str, records: bytes, partition: int = 0) -> Any:
    """Produce, as preparation."""
    answer = wire.quiet(request(name, records, partition=partition), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return answer


@sequence
def produce_versions(wire: Wire) -> None:
    name = wire.topic("t", 2)
    topic_id = wire.topic_id(name)
    for v in versions(ProduceRequest):

        def ask(label: str, records: Any, named: str = name, **fields: Any) -> None:
            if v >= 13:  # noqa: B023
                fields.setdefault("topic_id", topic_id if named == name else bytes(range(16)))
            wire.ask(label, request(named, records, **fields), v)  # noqa: B023

        ask("one record", batch())
        ask("many records", batch(100))
        ask("acks 1", batch(), acks=1)
        ask("acks 2", batch(), acks=2)
        ask("acks -2", batch(), acks=-2)
        ask("null key and value", build_batch([(STAMP, None, None, ())]))
        ask("headers", build_batch([(STAMP, b"k", b"v", (("h", b"1"), ("n", None)))]))
        ask("unknown topic", batch(), named="no-such-topic")
        if v >= 13:
            ask("topic id zero", batch(), topic_id=bytes(16))
        ask("unknown partition", batch(), partition=9)
        ask("negative partition", batch(), partition=-1)
        ask("no records", b"")
        ask("short", batch()[:40])
        ask("cut off", batch(3)[:-5])
        ask("two batches", batch() + batch())
        ask("bad crc", patched(batch(), 17, ">I", 1, seal=False))
        ask("magic 1", patched(batch(), 16, ">b", 1, seal=False))
        ask("magic 3", patched(batch(), 16, ">b", 3, seal=False))
        for codec, label in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
            ask(f"codec {label}", batch(10, codec=codec))
    wire.ask("no topics", ProduceRequest(acks=-1, timeout_ms=1, topic_data=[]), 9)


@sequence
def produce_acks_0(wire: Wire) -> None:
    name = wire.topic("t")
    good, bad = wire.client(), wire.client()
    good.start(request(name, batch(), acks=0), 9)
    wire.record("good", None, good.receive(timeout=0.5))
    good.start(request(name, batch(), acks=-1), 9)
    wire.finish("after it", good, 9)
    bad.start(request("no-such-topic", batch(), acks=0), 9)
    got = bad.receive(timeout=5)
    wire.record("bad", None, got if isinstance(got, str) else got.hex())


@sequence
def produce_bad_batches(wire: Wire) -> None:
    """The answers to invalid batches whose header, sequence or CRC shows the fault."""
    name = wire.topic("t")
    good = batch(3)
    for v in (7, 8, 9, 12):

        def ask(label: str, records: bytes) -> None:
            wire.ask(label, request(name, records), v)  # noqa: B023

        ask("base offset 5", patched(good, 0, ">q", 5))
        ask("base offset negative", patched(good, 0, ">q", -1))
        ask("batch length 20", patched(good, 8, ">i", 20, seal=False))
        ask("batch length huge", patched(good, 8, ">i", 2**30, seal=False))
        ask("batch length negative", patched(good, 8, ">i", -1, seal=False))
        ask("count 0", patched(good, 57, ">i", 0))
        ask("count 2 of 3", patched(good, 57, ">i", 2))
        ask("count negative", patched(good, 57, ">i", -1))
        ask("last delta 5", patched(good, 23, ">i", 5))
        ask("last delta negative", patched(good, 23, ">i", -1))
        ask("control bit", patched(good, 21, ">h", 0x20))
        ask("codec 7", patched(good, 21, ">h", 7))
        ask("log append time bit", patched(good, 21, ">h", 8))
        ask("producer without sequence", patched(patched(good, 43, ">q", 77), 51, ">h", 0))
        ask("transactional without id", patched(good, 21, ">h", 0x10))
        ask("leader epoch 9", patched(good, 12, ">i", 9))


@sequence
def produce_limits(wire: Wire) -> None:
    small = wire.topic("small", max_message_bytes="500")
    wire.ask("fits", request(small, batch(size=300)), 9)
    wire.ask("too large", request(small, batch(size=600)), 9)
    wire.ask("compressed fits", request(small, batch(size=5000, codec=1)), 9)
    timed = wire.topic("timed", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    for v in (3, 8, 9):
        wire.ask("too old", request(timed, batch(3)), v)
        wire.ask("from the future", request(timed, batch(2, stamp=4_000_000_000_000)), v)
    stamped = wire.topic("stamped", message_timestamp_type="LogAppendTime")
    wire.ask("log append time", request(stamped, batch(3)), 9)
    compacted = wire.topic("compacted", cleanup_policy="compact")
    for v in (7, 8, 9):
        wire.ask("no key", request(compacted, batch(3, key=None)), v)
        wire.ask(
            "some without key", request(compacted, build_batch([(STAMP, b"k", b"v", ()), (STAMP, None, b"v", ())])), v
        )
        wire.ask("key", request(compacted, batch(3)), v)
        wire.ask("no key, compressed", request(compacted, batch(3, key=None, codec=1)), v)
    for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        topic = wire.topic(codec, compression_type=codec)
        for i in range(5):
            wire.ask(f"to {codec} from {i}", request(topic, batch(10, codec=i)), 9)
    wire.coordinator("any")
    wire.ask("internal topic", request("__consumer_offsets", batch()), 9)


def producer_id(wire: Wire) -> int:
    """Return a new producer id; Kafka's first blocks of ids take a moment."""
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    wire.until(lambda: wire.quiet(asked, 4).error_code == 0, "a producer id")
    found: int = wire.quiet(asked, 4).producer_id
    return found


@sequence
def idempotent_producer(wire: Wire) -> None:
    name = wire.topic("t")
    pid = producer_id(wire)

    def ask(label: str, sequence_number: int, count: int = 1, epoch: int = 0) -> None:
        records = batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence_number)
        wire.ask(label, request(name, records), 9)

    ask("first", 0)
    ask("second", 1)
    ask("second again", 1)
    ask("first again", 0)
    ask("a gap", 5)
    for i in range(2, 8):
        ask(f"number {i}", i)
    ask("an old one, still known", 4)
    ask("too old", 1)
    ask("overlapping", 6, 3)
    ask("ten at once", 8, 10)
    ask("ten at once again", 8, 10)
    ask("part of the ten", 8, 5)
    ask("new epoch, not from 0", 5, 1, 1)
    ask("new epoch", 0, 1, 1)
    ask("old epoch", 18, 1, 0)
    ask("new epoch again", 0, 1, 1)
    ask("next", 1, 1, 1)
    for v in versions(DescribeProducersRequest):
        for label, topic, partition in [
            ("producers", name, 0),
            ("unknown partition", name, 5),
            ("unknown topic", "no-such-topic", 0),
            ("bad name", "a b", 0),
        ]:
            wire.ask(label, DescribeProducersRequest(topics=[ProducersTopic(topic, [partition])]), v)


@sequence
def sequence_wraps(wire: Wire) -> None:
    name = wire.topic("t")
    pid = producer_id(wire)
    last = 2**31 - 1
    for label, first, count in [("near the end", last - 2, 3), ("wrapped", 0, 2), ("again", 0, 2), ("on", 2, 1)]:
        records = batch(count, producer_id=pid, producer_epoch=0, base_sequence=first)
        wire.ask(label, request(name, records), 9)
    other = producer_id(wire)
    records = batch(4, producer_id=other, producer_epoch=0, base_sequence=last - 1)
    wire.ask("a batch over the edge", request(name, records), 9)
    records = batch(1, producer_id=other, producer_epoch=0, base_sequence=2)
    wire.ask("behind it", request(name, records), 9)
    records = batch(1, producer_id=987654, producer_epoch=3, base_sequence=50)
    wire.ask("a stranger begins anywhere", request(name, records), 9)


@sequence
def init_producer_id(wire: Wire) -> None:
    producer_id(wire)
    for v in versions(InitProducerIdRequest):
        wire.ask("fresh", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), v)
        wire.ask("timeout zero", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), v)
        wire.ask("empty id", InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000), v)
        if v >= 3:
            half = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=5)
            wire.ask("id without epoch", half, v)
            half = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_epoch=5)
            wire.ask("epoch without id", half, v)
            both = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=1, producer_id=4, producer_epoch=5
            )
            wire.ask("id and epoch", both, v)


def raw_batch(count: int, body: bytes, codec: int = 0) -> bytes:
    """Return a batch whose records are `body`, valid or not, with a matching header."""
    from kbroker.protocol.compression import compress

    header = bytearray(batch(count)[:61])
    data = compress(codec, body) if codec else body
    struct.pack_into(">i", header, 8, 61 - 12 + len(data))
    struct.pack_into(">h", header, 21, codec)
    return sealed(bytes(header) + data)


def record(
    *, offset: int = 0, stamp: int = 0, attributes: int = 0, length: int | None = None, tail: bytes = b""
) -> bytes:
    """Return one record: key "k", value "v", no headers; every part can be falsified (values below 64)."""
    body = bytes([attributes]) + zigzag(stamp) + zigzag(offset) + zigzag(1) + b"k" + zigzag(1) + b"v" + zigzag(0) + tail
    return zigzag(len(body) if length is None else length) + body


def zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@sequence
def produce_bad_records(wire: Wire) -> None:
    """The answers of a broker that walks the records of a batch, to invalid records."""
    bodies = {
        "good": (2, record() + record(offset=1)),
        "offset gap": (2, record() + record(offset=5)),
        "offsets swapped": (2, record(offset=1) + record(offset=0)),
        "one record missing": (2, record()),
        "one record too many": (1, record() + record(offset=1)),
        "bytes left over": (1, record() + b"abc"),
        "length too short": (1, record(length=3)),
        "length too long": (1, record(length=60)),
        "length negative": (1, record(length=-1)),
        "body longer than its fields": (1, record(tail=b"xx")),
        "nothing": (1, b""),
        "negative stamp delta": (1, record(stamp=-1)),
        "key length beyond": (1, zigzag(8) + b"\0" + zigzag(0) + zigzag(0) + zigzag(50) + b"abcd"),
        "header count negative": (1, zigzag(6) + b"\0\0\0\1\1\1"),
        "unending varint": (1, b"\xff" * 12),
    }
    for v in (7, 9):
        for label, (count, body) in bodies.items():
            name = wire.topic(f"{label.replace(' ', '-')}-{v}")
            wire.ask(label, request(name, raw_batch(count, body)), v)
            for codec, codec_name in [(1, "gzip"), (4, "zstd")]:
                wire.ask(f"{label}, {codec_name}", request(name, raw_batch(count, body, codec), partition=0), v)
        name = wire.topic(f"garbage-{v}")
        for codec, codec_name in [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")]:
            garbage = bytearray(raw_batch(1, b"no compressed data at all"))
            struct.pack_into(">h", garbage, 21, codec)
            wire.ask(f"garbage as {codec_name}", request(name, sealed(garbage)), v)


produce_bad_records.__dict__["needs_walk"] = True


@sequence
def produce_large_records(wire: Wire) -> None:
    """The effect of max.decompressed.message.bytes on records in batches of each codec."""
    sizes = {"at the limit": (10, 999), "beyond": (1_000,), "only the last beyond": (5, 5, 100_000)}
    for v in (7, 9, 12):
        limited = wire.topic(f"limited-{v}", max_decompressed_message_bytes="1006")
        rewritten = wire.topic(f"rewritten-{v}", max_decompressed_message_bytes="1006", compression_type="lz4")
        for label, each in sizes.items():
            records = [(STAMP, None, bytes(size), ()) for size in each]
            for codec in range(5):
                raw = build_batch(records, codec=codec)
                wire.ask(f"{label}, codec {codec}", request(limited, raw), v)
                wire.ask(f"{label}, codec {codec}, rewritten", request(rewritten, raw), v)


produce_large_records.__dict__["needs_walk"] = True


@sequence
def produce_refused_whole(wire: Wire) -> None:
    """Requests to three partitions, of which one refuses everything, or only itself: what the others append."""
    name = wire.topic("t", 3)
    transactional = batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    bad = {
        "transactional": transactional,
        "magic": patched(batch(), 16, ">b", 7),
        "length": patched(batch(), 8, ">i", 3),
        "crc": patched(batch(), 17, ">I", 1, seal=False),
    }
    for label, records in bad.items():
        data = [PartitionProduceData(index=i, records=each) for i, each in enumerate((batch(), records, batch()))]
        asked = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=name, partition_data=data)])
        wire.ask(label, asked, 9)
        for index in (0, 2):
            wire.ask(f"behind it, {label}, {index}", request(name, batch(), partition=index), 9)
