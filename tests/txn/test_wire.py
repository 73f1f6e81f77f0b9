"""Transactions over the wire, in both generations: atomicity, fencing, verification, the last stable offset."""

from __future__ import annotations

import struct
import uuid

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
)
from kbroker.protocol.records import build_batch
from kbroker.txn.shard import Identity

from .raw import Raw, until

NONE = ErrorCode.NONE
BOTH = pytest.mark.parametrize("generation", [1, 2])


def fresh() -> str:
    return f"id-{uuid.uuid4().hex[:12]}"


# -- atomicity and visibility


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_t5_all_partitions_and_the_offsets_or_none(raw, generation: int, commit: bool) -> None:
    one = raw(generation)
    topic, source, name, group = one.topic(3), one.topic(), fresh(), fresh()
    producer = one.init(name)
    for index in range(3):
        one.write(name, producer, topic, [b"%d" % index], index=index)
    if generation == 1:
        assert one.add_offsets(name, producer, group) is NONE
    else:
        one.add_offsets(name, Identity(-1, -1), group)  # only to create the topic
    assert one.offsets(name, producer, group, source, 7) is NONE
    for index in range(3):
        assert one.see(topic, index=index).values == []
        assert one.see(topic, index=index, committed=False).values == [b"%d" % index]
    assert one.position(group, source) == -1
    assert one.position(group, source, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    one.end(name, producer, commit)
    for index in range(3):
        assert one.see(topic, index=index).values == ([b"%d" % index] if commit else [])
    assert one.position(group, source, stable=True) == (7 if commit else -1)


@BOTH
def test_t6_nothing_aborted_and_nothing_undecided_from_any_offset(raw, generation: int) -> None:
    one = raw(generation)
    topic, open_id = one.topic(), fresh()
    expected: list[tuple[int, bytes]] = []
    offset = 0
    for number in range(12):
        name = fresh()
        producer, values = one.init(name), [b"%d-%d" % (number, i) for i in range(3)]
        one.write(name, producer, topic, values)
        one.end(name, producer, number % 3 != 0)
        if number % 3:
            expected += [(offset + i, value) for i, value in enumerate(values)]
        offset += 4
    late = one.init(open_id)
    one.write(open_id, late, topic, [b"undecided"])
    for bytes_ in (1 << 20, 1, 300):
        for start in range(offset + 1):
            seen = one.see(topic, start, bytes_=bytes_)
            assert seen.values == [value for at, value in expected if at >= start], (start, bytes_)
            assert seen.stable == offset
    one.end(open_id, late, False)
    assert one.see(topic, offset).values == []


@BOTH
def test_t7_the_last_stable_offset_never_goes_back_and_reaches_the_end(raw, generation: int) -> None:
    one = raw(generation)
    topic = one.topic()
    names = [fresh() for _ in range(4)]
    producers = {name: one.init(name) for name in names}
    seen = [one.see(topic).stable]
    for name in names:
        one.write(name, producers[name], topic, [b"x"])
        seen.append(one.see(topic).stable)
    for name in (names[2], names[0], names[3], names[1]):
        one.end(name, producers[name], name != names[3])
        seen.append(one.see(topic).stable)
    assert seen == sorted(seen)
    end = one.see(topic, committed=False).high_watermark
    assert seen[:5] == [0] * 5
    assert seen[-1] == end == 8


# -- zombies


def zombie(raw, generation: int) -> tuple[Raw, str, str, Identity, Identity]:
    """Return a producer with an open transaction that another instance has replaced."""
    one = raw(generation)
    topic, name = one.topic(), fresh()
    old = one.init(name)
    one.write(name, old, topic, [b"zombie"])
    new = one.init(name)
    assert new.epoch > old.epoch
    return one, name, topic, old, new


@BOTH
@pytest.mark.parametrize("version", range(3, 14))
def test_t8_a_zombies_produce_is_refused(raw, generation: int, version: int) -> None:
    one, name, topic, old, _ = zombie(raw, generation)
    if version == 13:
        version = 12  # version 13 differs only in topic ids, and has no other error code
    got = one.produce(name, old, topic, [b"late"], sequence=1, version=version)
    assert got is ErrorCode.INVALID_PRODUCER_EPOCH
    elsewhere = one.topic()
    got = one.produce(name, old, elsewhere, [b"late"], version=version)
    assert got is ErrorCode.INVALID_PRODUCER_EPOCH, "where the partition knows nothing of it, the coordinator does"
    assert one.see(topic).values == one.see(elsewhere, committed=False).values == []


@BOTH
def test_t8_a_zombies_other_requests_are_refused(raw, generation: int) -> None:
    one, name, topic, old, _ = zombie(raw, generation)
    epoch, fenced = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    for version in range(4):
        assert one.add(name, old, topic, 0, version=version) is (epoch if version < 2 else fenced)
    for version in range(5):
        assert one.add_offsets(name, old, "g", version=version) is (epoch if version < 2 else fenced)
    for version in range(6):
        assert one.offsets(name, old, "g", topic, 1, version=version) is epoch
    for version in range(6):
        for commit in (True, False):
            got = one.end_once(name, old, commit, version=version)
            assert got is (epoch if version < 2 else fenced), version
    for version in (3, 4, 5):
        got = one.init_once(name, version=version, expected=old)
        assert got is (epoch if version < 4 else fenced)
    assert one.state(name) == "Empty"


@BOTH
def test_t8_one_that_was_never_there(raw, generation: int) -> None:
    one = raw(generation)
    topic, name = one.topic(), fresh()
    real = one.init(name)
    stranger = Identity(real.producer_id + 1_000_000, 0)
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    one.add_offsets(name, real, "g")
    one.end_once(name, real, False, 5 if generation == 2 else 3)
    until("the end", lambda: one.state(name).startswith("Complete"))
    for who in (name, fresh()):
        assert one.add(who, stranger, topic, 0) is mapping
        assert one.add_offsets(who, stranger, "g") is mapping
        assert one.end_once(who, stranger, version=3) is mapping
        assert one.end_once(who, stranger, version=5) is mapping
        for version in (3, 4, 5):
            assert one.offsets(who, stranger, "g", topic, 1, version=version) is mapping
        for version in (3, 10, 11, 12):
            assert one.produce(who, stranger, topic, [b"x"], version=version) is mapping
    assert one.add("", real, topic, 0) is ErrorCode.INVALID_REQUEST
    assert one.end_once("", real) is ErrorCode.INVALID_REQUEST
    assert one.init_once("") is ErrorCode.INVALID_REQUEST
    for timeout in (0, -1, 900_001):
        assert one.init_once(name, timeout_ms=timeout) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


# -- the end


def test_t9_a_delayed_end_never_ends_a_later_transaction(raw) -> None:
    """KAFKA-17754 must not occur with the second generation."""
    one = raw(2)
    topic, name = one.topic(), fresh()
    first = one.init(name)
    one.write(name, first, topic, [b"one"])
    second = one.end(name, first)
    assert one.end_once(name, first) == second, "a retry of the answer that was lost"
    one.write(name, second, topic, [b"two"])
    for commit in (True, False):
        assert one.end_once(name, first, commit) is ErrorCode.PRODUCER_FENCED
    assert one.see(topic).values == [b"one"]
    one.end(name, second)
    assert one.see(topic).values == [b"one", b"two"]


@BOTH
def test_t9_an_end_repeated(raw, generation: int) -> None:
    one = raw(generation)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"x"])
    after = one.end(name, producer)
    assert one.end_once(name, producer) == after
    assert one.end_once(name, producer, False) is ErrorCode.INVALID_TXN_STATE
    if generation == 2:
        assert one.end_once(name, after, True) is ErrorCode.INVALID_TXN_STATE
        assert one.end(name, after, False) == (after.producer_id, after.epoch + 1), "an abort of nothing"


@BOTH
def test_t10_a_transaction_that_takes_too_long_is_aborted(raw, generation: int) -> None:
    one = raw(generation)
    topic, name = one.topic(), fresh()
    producer = one.init(name, timeout_ms=100)
    one.write(name, producer, topic, [b"slow"])
    until("the abort", lambda: one.state(name) == "CompleteAbort")
    assert one.see(topic).values == []
    assert one.see(topic).stable == 2
    refused = one.end_once(name, producer, True)
    # In the second generation, this epoch looks like a retry that requests the other outcome.
    assert refused is (ErrorCode.PRODUCER_FENCED if generation == 1 else ErrorCode.INVALID_TXN_STATE)
    assert one.produce(name, producer, topic, [b"later"], sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.init(name).epoch == producer.epoch + 2


# -- verification


@pytest.mark.parametrize("version", range(3, 12))
def test_t11_a_partition_that_was_not_added_takes_nothing(raw, version: int) -> None:
    one = raw(1)
    topic, other, name = one.topic(), one.topic(), fresh()
    producer = one.init(name)
    abortable = ErrorCode.INVALID_TXN_STATE if version < 11 else ErrorCode.TRANSACTION_ABORTABLE
    assert one.produce(name, producer, topic, [b"x"], version=version) is abortable
    assert one.message == ("Partition was not added to the transaction" if 8 <= version < 11 else None)
    assert one.add(name, producer, other, 0) is NONE
    assert one.produce(name, producer, topic, [b"x"], version=version) is abortable
    assert one.produce(name, producer, other, [b"x"], version=version) == 0
    assert one.see(topic, committed=False).values == []


@pytest.mark.parametrize("version", [3, 11])
def test_t11_a_late_batch_after_the_marker_opens_nothing(raw, version: int) -> None:
    """A late batch of an ended transaction, with its epoch and the next sequence, would open a hanging transaction."""
    one = raw(1)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"in time"])
    one.end(name, producer)
    late = one.produce(name, producer, topic, [b"late"], sequence=1, version=version)
    assert late is (ErrorCode.INVALID_TXN_STATE if version < 11 else ErrorCode.TRANSACTION_ABORTABLE)
    seen = one.see(topic)
    assert seen.values == [b"in time"]
    assert seen.stable == seen.high_watermark == 2


def test_t11_version_2_a_late_batch_is_of_an_older_epoch(raw) -> None:
    one = raw(2)
    topic, name = one.topic(), fresh()
    first = one.init(name)
    one.write(name, first, topic, [b"in time"])
    second = one.end(name, first)
    for version in (11, 12):
        got = one.produce(name, first, topic, [b"late"], sequence=1, version=version)
        assert got is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.see(topic).stable == 2
    one.write(name, second, topic, [b"next"])
    one.end(name, second)
    assert one.see(topic).values == [b"in time", b"next"]


def test_version_2_begins_with_sequence_0_where_nothing_is_known(raw) -> None:
    """KAFKA-14920 requires sequence 0 from a producer that the partition does not know."""
    one = raw(2)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    assert one.produce(name, producer, topic, [b"x"], sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.produce(name, producer, topic, [b"x"], sequence=0) == 0
    one.end(name, producer)


def test_t14_no_write_outside_of_an_open_transaction(raw) -> None:
    one = raw(1)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"x"])
    got = one.produce(name, producer, topic, [b"y"], sequence=1, transactional=False)
    assert got is ErrorCode.INVALID_TXN_STATE
    assert one.produce(None, producer, topic, [b"y"], sequence=1, transactional=False) is ErrorCode.INVALID_TXN_STATE
    authorization = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert one.produce(None, producer, topic, [b"y"], sequence=1) is authorization
    one.end(name, producer)
    assert one.see(topic).values == [b"x"]


@pytest.mark.parametrize("version", [3, 11, 12])
def test_what_is_no_batch_is_refused_as_such(raw, version: int) -> None:
    one = raw(1)
    topic = one.topic()
    whole = build_batch([(0, None, b"x", ())], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    header = struct.pack(">qiiB", 0, 40 - 12, 0, 2)
    for records, code in (
        (b"", ErrorCode.INVALID_RECORD),
        (whole[:20], ErrorCode.INVALID_RECORD),
        (header + bytes(40 - len(header)), ErrorCode.UNKNOWN_SERVER_ERROR),
        (whole + whole, ErrorCode.INVALID_RECORD),
    ):
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, records)])
        request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1000, topic_data=[data])
        (answer,) = one.ask(request, version).responses[0].partition_responses
        assert answer.error_code == code, records


@BOTH
def test_offsets_need_a_transaction_that_knows_their_group(raw, generation: int) -> None:
    one = raw(generation)
    topic, name, group = one.topic(), fresh(), fresh()
    producer = one.init(name)
    one.add_offsets(name, Identity(-1, -1), group)
    assert one.offsets(name, producer, group, topic, 3, version=3) is ErrorCode.INVALID_TXN_STATE
    assert one.offsets(name, producer, group, topic, 3, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    if generation == 1:
        assert one.add_offsets(name, producer, group) is NONE
    assert one.offsets(name, producer, "", topic, 3) is ErrorCode.INVALID_GROUP_ID
    assert one.offsets(name, producer, group, "no-such-topic", 3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    members = {"generation_id_or_member_epoch": 4, "member_id": "m"}
    assert one.offsets(name, producer, group, topic, 3, **members) is ErrorCode.ILLEGAL_GENERATION
    by_id = one.topic_id(topic)
    if generation == 2:
        assert one.offsets(name, producer, group, by_id, 3, version=6, **members) is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.offsets(name, producer, group, topic, 3) is NONE
    assert one.offsets(name, producer, group, topic, 5) is NONE
    if generation == 2:
        assert one.offsets(name, producer, group, by_id, 6, version=6) is NONE
        assert one.offsets(name, producer, group, bytes(16), 7, version=6) is ErrorCode.UNKNOWN_TOPIC_ID
        assert one.offsets(name, producer, group, b"unknown" + by_id[7:], 7, version=6) is ErrorCode.UNKNOWN_TOPIC_ID
    one.end(name, producer)
    assert one.position(group, topic, stable=True) == (6 if generation == 2 else 5)


# -- markers from outside


def test_t13_a_marker_of_an_older_coordinator_is_refused(raw) -> None:
    one = raw(1)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"x"])
    assert one.mark(producer, topic, False, coordinator_epoch=7) is NONE
    assert one.mark(producer, topic, True, coordinator_epoch=6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert one.see(topic).values == []


def test_an_administrator_ends_what_nobody_knows_of(raw) -> None:
    """`kafka-transactions.sh abort` sends such a marker, with the producer id and epochs from DescribeProducers."""
    one = raw(1)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"hanging"])
    (partition,) = one.ask(DescribeProducersRequest([TopicRequest(topic, [0])]), 0).topics[0].partitions
    (known,) = partition.active_producers
    assert (known.producer_id, known.producer_epoch, known.current_txn_start_offset) == (*producer, 0)
    assert one.see(topic).stable == 0
    found = Identity(known.producer_id, known.producer_epoch)
    assert one.mark(found, topic, False, coordinator_epoch=max(known.coordinator_epoch, 0)) is NONE
    assert one.see(topic).stable == 2
    assert one.see(topic).values == []
    assert one.mark(found, "no-such-topic", False) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_stale_marker_of_version_2_is_refused_and_a_repeated_one_is_not(raw) -> None:
    one = raw(2)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, topic, [b"x"])
    assert one.mark(producer, topic, False, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    after = one.end(name, producer)
    assert one.mark(after, topic, True, version=2) is NONE
    assert one.mark(producer, topic, True, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.see(topic).values == [b"x"]


# -- the coordinator's other answers


def test_partitions_are_added_all_or_none(raw) -> None:
    one = raw(1)
    topic, name = one.topic(), fresh()
    producer = one.init(name)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(topic, [0, 9])],
    )
    (result,) = one.ask(request, 3).results_by_topic_v3_and_below
    codes = {p.partition_index: p.partition_error_code for p in result.results_by_partition}
    assert codes == {0: ErrorCode.OPERATION_NOT_ATTEMPTED, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert one.state(name) == "Empty"


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_for_several_transactions_at_once(raw, version: int) -> None:
    one = raw(1)
    topic, names = one.topic(2), [fresh(), fresh()]
    first, second = (one.init(name) for name in names)
    one.write(names[0], first, topic, [b"x"])
    asked = [
        AddPartitionsToTxnTransaction(names[0], *first, True, [AddPartitionsToTxnTopic(topic, [0, 1])]),
        AddPartitionsToTxnTransaction(names[1], *second, False, [AddPartitionsToTxnTopic(topic, [1])]),
    ]
    answer = one.ask(AddPartitionsToTxnRequest(transactions=asked), version)
    codes = {
        (r.transactional_id, p.partition_index): p.partition_error_code
        for r in answer.results_by_transaction
        for t in r.topic_results
        for p in t.results_by_partition
    }
    assert codes == {(names[0], 0): 0, (names[0], 1): ErrorCode.TRANSACTION_ABORTABLE, (names[1], 1): 0}
    assert one.state(names[1]) == "Ongoing"
    for name, producer in zip(names, (first, second), strict=True):
        assert isinstance(one.end_once(name, producer, False), Identity)


def test_transactions_are_described_and_listed(raw) -> None:
    one = raw(1)
    topic, name = one.topic(2), fresh()
    producer = one.init(name, timeout_ms=55_000)
    one.write(name, producer, topic, [b"x"], index=1)
    answer = one.ask(DescribeTransactionsRequest([name, "nobody", ""]), 0).transaction_states
    found, nobody, empty = answer
    assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 55_000)
    assert (found.producer_id, found.producer_epoch) == producer
    assert [(t.topic, t.partitions) for t in found.topics] == [(topic, [1])]

    def listed(version: int = 2, **filters: object) -> dict[str, str]:
        got = one.ask(ListTransactionsRequest(**filters), version)
        assert got.error_code == 0
        return {state.transactional_id: state.transaction_state for state in got.transaction_states}

    assert listed(0)[name] == "Ongoing"
    assert listed(state_filters=["Ongoing"])[name] == "Ongoing"
    assert name not in listed(state_filters=["Empty", "CompleteAbort"])
    assert list(listed(producer_id_filters=[producer.producer_id])) == [name]
    assert name not in listed(duration_filter=3_600_000)
    assert list(listed(transactional_id_pattern=name[:-1] + ".")) == [name]
    assert listed(transactional_id_pattern=name[:-2]) == {}
    bad = one.ask(ListTransactionsRequest(transactional_id_pattern="(["), 2)
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown = one.ask(ListTransactionsRequest(state_filters=["Nonsense"]), 0)
    assert unknown.unknown_state_filters == ["Nonsense"]
    assert unknown.transaction_states == []
    one.end(name, producer, False)
    assert listed()[name] == "CompleteAbort"


def test_transaction_version_2_is_finalized(raw) -> None:
    one = raw(1)
    asked = ApiVersionsRequest("test", "1")
    new, old = one.ask(asked, 4), one.ask(asked, 3)
    name = "transaction.version"
    for answer in (new, old):
        assert (name, 2) in [(f.name, f.max_version_level) for f in answer.finalized_features]
    assert (name, 0, 2) in [(f.name, f.min_version, f.max_version) for f in new.supported_features]
    assert all(f.min_version > 0 for f in old.supported_features), "older clients cannot read a lowest level of 0"
    assert new.finalized_features_epoch >= 0


def test_a_topic_that_is_deleted_does_not_hold_up_the_end(raw) -> None:
    from kbroker.protocol.messages.topics import DeleteTopicsRequest

    one = raw(1)
    gone, kept, name = one.topic(), one.topic(), fresh()
    producer = one.init(name)
    one.write(name, producer, gone, [b"x"])
    one.write(name, producer, kept, [b"y"])
    assert one.ask(DeleteTopicsRequest(topic_names=[gone], timeout_ms=20_000), 5).responses[0].error_code == 0
    one.end(name, producer)
    assert one.see(kept).values == [b"y"]
