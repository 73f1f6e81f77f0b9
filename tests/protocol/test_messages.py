"""Every declared message in every version: decoding returns what was encoded, and bad input raises only Malformed."""

from __future__ import annotations

import importlib
import pkgutil
import random
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kbroker.protocol.messages as messages_package
from kbroker.long_work import whole
from kbroker.protocol.compiler import decode, divided_decoder, divided_encoder, encode, short_decoder
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.coordinator_records import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue
from kbroker.protocol.schema import MessageBase, Scalar
from tests.tries import tries
from tests.turns import turns


def all_messages():
    for info in pkgutil.iter_modules(messages_package.__path__):
        module = importlib.import_module(f"kbroker.protocol.messages.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, MessageBase) and hasattr(value, "VERSIONS"):
                yield value


MESSAGES = sorted(set(all_messages()), key=lambda c: c.__name__)
CASES = [(c, v) for c in MESSAGES for v in range(c.VERSIONS.low, c.VERSIONS.high + 1)]

RANGES = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1)}
RANGES |= {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1)}


def scalar(kind, draw):
    if kind.name in RANGES:
        return draw(st.integers(*RANGES[kind.name]))
    if kind.name == "string":
        return draw(st.text(max_size=150))
    if kind.name in ("bytes", "records"):
        return draw(st.binary(max_size=200))
    if kind.name == "uuid":
        return draw(st.binary(min_size=16, max_size=16))
    if kind.name == "bool":
        return draw(st.booleans())
    return draw(st.floats(allow_nan=False))


def build(cls, version, draw, depth=0):
    values = {}
    for spec in cls.SPECS:
        if version not in spec.versions:
            continue
        if version in spec.nullable and draw(st.integers(0, 4)) == 0:
            values[spec.name] = None
        elif spec.array:
            count = draw(st.integers(0, 3))
            values[spec.name] = [element(spec, version, draw, depth) for _ in range(count)]
        elif not isinstance(spec.kind, Scalar) and spec.tag is not None and draw(st.booleans()):
            values[spec.name] = None
        else:
            values[spec.name] = element(spec, version, draw, depth)
    return cls(**values)


def element(spec, version, draw, depth):
    return scalar(spec.kind, draw) if isinstance(spec.kind, Scalar) else build(spec.kind, version, draw, depth + 1)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda c: c.__name__)
@settings(max_examples=tries(15), suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same(cls, data):
    version = data.draw(st.integers(cls.VERSIONS.low, cls.VERSIONS.high))
    value = build(cls, version, data.draw)
    raw = encode(value, version)
    assert decode(cls, version, raw) == value
    assert encode(decode(cls, version, memoryview(raw)), version) == raw
    told = []
    assert whole(divided_decoder(cls, version)(raw, told.append)) == value
    out, spill = bytearray(), []
    whole(divided_encoder(cls, version)(value, out, spill))
    assert joined(out, spill) == raw
    assert short_decoder(cls, version)(raw) == value  # no list here is long


def joined(out, spill):
    for at, piece in reversed(spill):
        out[at:at] = piece
    return bytes(out)


@pytest.mark.parametrize(("cls", "version"), CASES, ids=lambda c: getattr(c, "__name__", str(c)))
def test_defaults_survive_the_wire(cls, version):
    assert decode(cls, version, encode(cls(), version)) is not None


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda c: c.__name__)
def test_truncated_and_random_input_raises_only_malformed(cls):
    rng = random.Random(20261121)
    for version in range(cls.VERSIONS.low, cls.VERSIONS.high + 1):
        raw = encode(cls(), version)
        inputs = [raw[:n] for n in range(len(raw))] + [rng.randbytes(rng.randrange(80)) for _ in range(30)]
        for bad in inputs:
            try:
                decode(cls, version, bad)
            except Malformed:
                with pytest.raises(Malformed):
                    whole(divided_decoder(cls, version)(bad, lambda _: None))


def test_an_array_that_claims_more_than_the_frame_allocates_nothing():
    from kbroker.protocol.messages.cluster import MetadataRequest

    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="elements"):
            decode(MetadataRequest, 1, b"\x7f\xff\xff\xff")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_divided_decoder_gives_way_each_eight_elements_and_tells_of_memory_before_it_is_taken():
    from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
    from kbroker.protocol.messages.groups import FindCoordinatorRequest

    raw = encode(FindCoordinatorRequest(coordinator_keys=["k"] * 1000), 4)
    told = []
    steps = divided_decoder(FindCoordinatorRequest, 4)(raw, told.append)
    assert sum(1 for _ in turns(steps)) >= 1000 / 8
    assert told == [64 * 1000]
    many = encode(OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic("t", list(range(100_000)))]), 7)
    assert 10 <= sum(1 for _ in turns(divided_decoder(OffsetFetchRequest, 7)(many, told.append))) < 100

    def refuse(_size):
        raise Malformed("too much")

    with pytest.raises(Malformed, match="too much"):
        whole(divided_decoder(FindCoordinatorRequest, 4)(raw, refuse))


def test_a_short_decoder_gives_up_at_a_long_list():
    from kbroker.protocol.messages.groups import FindCoordinatorRequest

    for count, taken in ((64, True), (65, False)):
        raw = encode(FindCoordinatorRequest(coordinator_keys=["k"] * count), 4)
        assert (short_decoder(FindCoordinatorRequest, 4)(raw) is not None) is taken


def test_a_compact_string_has_the_bound_of_a_classic_one():
    from kbroker.protocol.messages.groups import HeartbeatRequest

    longest = encode(HeartbeatRequest(group_id="g" * 32_767), 4)
    assert decode(HeartbeatRequest, 4, longest).group_id == "g" * 32_767
    with pytest.raises(Malformed, match="group_id is longer than 32767 bytes"):
        decode(HeartbeatRequest, 4, encode(HeartbeatRequest(group_id="g" * 32_768), 4))


@pytest.mark.parametrize("negative", [-1, -2, -32_768])
def test_any_negative_length_is_null(negative):
    from kbroker.protocol.messages.cluster import MetadataRequest
    from kbroker.protocol.messages.groups import HeartbeatRequest

    length = struct.pack(">h", negative)
    assert decode(HeartbeatRequest, 3, b"\0\1g\0\0\0\7\0\1m" + length).group_instance_id is None
    with pytest.raises(Malformed, match="non-nullable field group_id was serialized as null"):
        decode(HeartbeatRequest, 3, length + b"\0\0\0\7\0\1m\0\1i")
    assert decode(MetadataRequest, 1, struct.pack(">i", negative)).topics is None


def test_unknown_tags_are_skipped_and_must_ascend():
    from kbroker.protocol.messages.connections import ResponseHeader

    assert decode(ResponseHeader, 1, b"\0\0\0\7\1\5\2ab").correlation_id == 7
    with pytest.raises(Malformed, match="order"):
        decode(ResponseHeader, 1, b"\0\0\0\7\2\5\0\5\0")


def test_large_records_leave_by_reference():
    from kbroker.protocol.compiler import encoder
    from kbroker.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

    big = bytes(10_000)
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(topic="t", partitions=[PartitionData(records=big), PartitionData(records=b"x")])
        ]
    )
    out, spill = bytearray(), []
    encoder(FetchResponse, 11)(answer, out, spill)
    assert [piece for _, piece in spill] == [big]
    assert len(out) < 200
    whole = encode(answer, 11)
    assert [bytes(p.records) for p in decode(FetchResponse, 11, whole).responses[0].partitions] == [big, b"x"]


def test_a_null_struct_in_a_tag_is_written_as_kafka_writes_it():
    """Kafka's default is an empty struct: if null were left out, it would become that. These are Kafka's bytes."""
    member = ConsumerGroupMemberMetadataValue(
        client_id="c", client_host="h", instance_id="", rack_id="", subscribed_topic_regex="", server_assignor=""
    )
    plain = bytes.fromhex("0101026302680101ffffffff01")
    assert encode(member, 0) == plain + bytes.fromhex("01000100")
    member.classic_member_metadata = ClassicMemberMetadata(session_timeout_ms=7)
    assert encode(member, 0) == plain + bytes.fromhex("01000701000000070100")
    for value in (None, member.classic_member_metadata):
        member.classic_member_metadata = value
        assert decode(ConsumerGroupMemberMetadataValue, 0, encode(member, 0)) == member
