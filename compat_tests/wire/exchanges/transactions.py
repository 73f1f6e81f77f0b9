"""Transactions: every API in every version, in order and out of order, in both generations of the protocol."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.produce import batch, request
from compat_tests.wire.session import Wire
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TIMEOUT_MS = 60_000
SECOND = 12
"""The first version of Produce that adds partitions to the transaction implicitly."""


class Producer(NamedTuple):
    """A transactional producer; epochs are compared, ids are not."""

    name: str
    producer_id: int
    epoch: int

    def stale(self) -> Producer:
        return self._replace(epoch=self.epoch - 1)


def init(wire: Wire, name: str) -> Producer:
    """Return a new producer of `name`, without recording anything."""
    name = f"{wire.name}-{name}"
    wire.until(lambda: wire.quiet(FindCoordinatorRequest(key=name, key_type=1), 2).error_code == 0, "a coordinator")
    deadline = time.monotonic() + 30
    while True:
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
        answer = wire.quiet(asked, 4)
        if not answer.error_code:
            return Producer(name, answer.producer_id, answer.producer_epoch)
        assert time.monotonic() < deadline, ErrorCode(answer.error_code)
        time.sleep(0.02)


def add(who: Producer, topic: str, *indexes: int) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(topic, list(indexes))],
    )


def add_offsets(who: Producer, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(who.name, who.producer_id, who.epoch, group)


def end(who: Producer, commit: bool = True) -> EndTxnRequest:
    return EndTxnRequest(who.name, who.producer_id, who.epoch, commit)


def write(who: Producer, topic: str, sequence: int = 0, index: int = 0) -> ProduceRequest:
    records = batch(producer_id=who.producer_id, producer_epoch=who.epoch, base_sequence=sequence, transactional=True)
    return request(topic, records, partition=index, transactional_id=who.name)


def offsets(
    who: Producer, group: str, topic: str | bytes, offset: int = 5, index: int = 0, **fields: Any
) -> TxnOffsetCommitRequest:
    """Return a commit of one partition of a topic, by its name or by its id."""
    partition = TxnOffsetCommitRequestPartition(index, offset, committed_metadata="m")
    name, topic_id = ("", topic) if isinstance(topic, bytes) else (topic, bytes(16))
    return TxnOffsetCommitRequest(
        transactional_id=who.name,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        topics=[TxnOffsetCommitRequestTopic(name, topic_id, partitions=[partition])],
        **fields,
    )


def at_rest(wire: Wire, who: Producer) -> None:
    """Wait until the markers are written."""
    asked = DescribeTransactionsRequest([who.name])

    def complete() -> bool:
        state: str = wire.quiet(asked, 0).transaction_states[0].transaction_state
        return state.startswith(("Complete", "Empty"))

    wire.until(complete, f"the end of {who.name}")


def finish(wire: Wire, who: Producer, commit: bool = True, version: int = 3) -> Producer:
    """End a transaction, as preparation; return the producer afterwards."""
    answer = wire.quiet(end(who, commit), version)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    at_rest(wire, who)
    return who if version < 5 else Producer(who.name, answer.producer_id, answer.producer_epoch)


@sequence
def txn_init(wire: Wire) -> None:
    init(wire, "warm")
    for v in versions(InitProducerIdRequest):
        name = f"txn-init-{v}"

        def ask(label: str, timeout: int = TIMEOUT_MS, **known: Any) -> Any:
            asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout, **known)  # noqa: B023
            return wire.ask(label, asked, v)  # noqa: B023

        ask("timeout zero", 0)
        ask("timeout negative", -1)
        ask("timeout too long", 900_001)
        first = ask("first")
        ask("second")
        if v >= 3:
            pid = first.producer_id
            ask("with its epoch", producer_id=pid, producer_epoch=1)
            ask("again, the answer was lost", producer_id=pid, producer_epoch=1)
            ask("with an old epoch", producer_id=pid, producer_epoch=0)
            ask("with a high epoch", producer_id=pid, producer_epoch=9)
            ask("with another id", producer_id=pid + 77, producer_epoch=2)


@sequence
def txn_first_generation(wire: Wire) -> None:
    topic, group = wire.topic("t", 2), f"{wire.name}-g"
    wire.coordinator(group)
    for v in range(4):
        init(wire, f"p{v}")
        who = init(wire, f"p{v}")  # so that there is an epoch before
        wire.ask(f"produce before adding, {v}", write(who, topic), 11)
        wire.ask(f"produce before adding, {v}", write(who, topic), 9)
        wire.ask("end of nothing", end(who), v)
        wire.ask("add", add(who, topic, 0, 1), v)
        wire.ask("add again", add(who, topic, 0), v)
        wire.ask("add unknown", add(who, topic, 0, 7), v)
        wire.ask("add to unknown topic", add(who, "no-such-topic", 0), v)
        wire.ask("add, stale", add(who.stale(), topic, 0), v)
        wire.ask("add, stranger", add(who._replace(producer_id=who.producer_id + 9999), topic, 0), v)
        wire.ask("add, unknown id", add(who._replace(name="nobody"), topic, 0), v)
        wire.ask("add, no id", add(who._replace(name=""), topic, 0), v)
        wire.ask("offsets before adding", offsets(who, group, topic), v)
        for label, one in (("", who), (", stale", who.stale()), (", unknown id", who._replace(name="nobody"))):
            wire.ask(f"add offsets{label}", add_offsets(one, group), v)
            wire.ask(f"offsets{label}", offsets(one, group, topic), v)
        wire.ask("offsets of an unknown topic", offsets(who, group, "no-such-topic"), v)
        wire.ask("offsets without a group", offsets(who, "", topic), v)
        wire.ask("end, stale", end(who.stale()), v)
        wire.ask("end, stranger", end(who._replace(producer_id=who.producer_id + 9999)), v)
        wire.ask("end, unknown id", end(who._replace(name="nobody")), v)
        wire.ask("end, no id", end(who._replace(name="")), v)
        wire.ask("end", end(who, v % 2 == 0), v)
        at_rest(wire, who)
        wire.ask("end again", end(who, v % 2 == 0), v)
        wire.ask("end the other way", end(who, v % 2 == 1), v)
        wire.ask(f"described after {v}", DescribeTransactionsRequest([who.name, "nobody", ""]), 0)


@sequence
def txn_second_generation(wire: Wire) -> None:
    topic, group = wire.topic("t", 2), f"{wire.name}-g"
    wire.coordinator(group)
    who = init(wire, "p")
    wire.ask("commit of nothing", end(who), 5)
    answer = wire.ask("abort of nothing", end(who, commit=False), 5)
    at_rest(wire, who)
    wire.ask("abort of nothing again", end(who, commit=False), 5)
    wire.ask("commit of what was aborted", end(who), 5)
    who = Producer(who.name, answer.producer_id, answer.producer_epoch)
    for index in range(2):
        wire.ask(f"produce {index}", write(who, topic, index=index), SECOND)
        wire.ask(f"produce {index} again", write(who, topic, index=index), SECOND)
    wire.ask("produce a gap", write(who, topic, 7), SECOND)
    wire.ask("offsets", offsets(who, group, topic), 5)
    wire.ask("offsets of a member", offsets(who, group, topic, generation_id_or_member_epoch=3, member_id="m"), 5)
    wire.ask("produce, stale", write(who.stale(), topic), SECOND)
    wire.ask("offsets, stale", offsets(who.stale(), group, topic), 5)
    topic_id = wire.topic_id(topic)
    for label, asked in (("", topic_id), (" of no topic", bytes(16)), (" of an unknown topic", bytes([7] * 16))):
        wire.ask(f"offsets by id{label}", offsets(who, group, asked), 6)
    wire.ask("offsets by id of a partition that is not there", offsets(who, group, topic_id, index=7), 6)
    wire.ask("offsets by id of a member", offsets(who, group, topic_id, generation_id_or_member_epoch=3), 6)
    wire.ask("offsets by id, stale", offsets(who.stale(), group, topic_id), 6)
    wire.ask("offsets by id without a group", offsets(who, "", topic_id), 6)
    wire.ask("described, open", DescribeTransactionsRequest([who.name]), 0)
    answer = wire.ask("commit", end(who), 5)
    at_rest(wire, who)
    wire.ask("commit again", end(who), 5)
    wire.ask("abort of what was committed", end(who, commit=False), 5)
    wire.ask("produce, late", write(who, topic, 1), SECOND)
    wire.ask("produce, late, first generation", write(who, topic, 1), 11)
    who = Producer(who.name, answer.producer_id, answer.producer_epoch)
    wire.ask("commit of nothing after a commit", end(who), 5)
    wire.ask("produce, sequence not 0", write(who, wire.topic("u"), 3), SECOND)
    wire.ask("produce to an unknown topic", write(who, "no-such-topic"), SECOND)
    wire.ask("described", DescribeTransactionsRequest([who.name]), 0)


@sequence
def txn_read_committed(wire: Wire) -> None:
    topic = wire.topic("t")
    for number in range(4):
        who = init(wire, f"p{number}")
        wire.quiet(write(who, topic), SECOND)
        if number < 3:
            finish(wire, who, number != 1, 5 if number else 3)
    for v in versions(FetchRequest):
        if v > 12:
            continue  # these name topics by id; the answer is the same
        for isolation in (0, 1):
            for offset in (0, 1, 2, 3, 5, 7):
                asked = FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    isolation_level=isolation,
                    topics=[
                        FetchTopic(topic=topic, partitions=[FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)])
                    ],
                )
                answer = wire.quiet(asked, v)
                data = answer.responses[0].partitions[0]
                data.records = b"%d bytes" % len(data.records or b"")
                aborted = data.aborted_transactions
                data.aborted_transactions = None if aborted is None else []
                listed = [entry.first_offset for entry in aborted or []]
                wire.record(f"isolation {isolation} from {offset}", v, [answer, listed])


@sequence
def txn_markers(wire: Wire) -> None:
    topic = wire.topic("t")
    for v in versions(WriteTxnMarkersRequest):
        init(wire, f"p{v}")
        who = init(wire, f"p{v}")
        wire.quiet(write(who, topic), SECOND)

        def mark(label: str, one: Producer, commit: bool, epoch: int, version: int = 0, name: str = topic) -> None:
            marker = WritableTxnMarker(
                one.producer_id, one.epoch, commit, [WritableTxnMarkerTopic(name, [0, 1])], epoch, version
            )
            wire.ask(label, WriteTxnMarkersRequest([marker]), v)  # noqa: B023

        mark("without an epoch", who._replace(epoch=-1), True, 9)
        mark("stale", who.stale(), True, 9)
        mark("of version 2, epoch not raised", who, False, 9, 2)
        mark("abort", who, False, 9)
        mark("again", who, False, 9)
        mark("of an older coordinator", who, True, 8)
        mark("to an unknown topic", who, True, 9, name="no-such-topic")
        mark("of an unknown producer", who._replace(producer_id=who.producer_id + 99999), True, 1)
        wire.ask("none", WriteTxnMarkersRequest([]), v)


@sequence
def txn_listed(wire: Wire) -> None:
    topic = wire.topic("t")
    who = init(wire, "open")
    wire.quiet(write(who, topic), SECOND)
    finish(wire, init(wire, "aborted"), commit=False, version=5)
    init(wire, "empty")
    for v in versions(ListTransactionsRequest):

        def ask(label: str, **filters: Any) -> None:
            answer = wire.quiet(ListTransactionsRequest(**filters), v)  # noqa: B023
            own = [s for s in answer.transaction_states if s.transactional_id.startswith(wire.name)]
            answer.transaction_states = sorted(own, key=lambda state: state.transactional_id)
            wire.record(label, v, answer)  # noqa: B023

        ask("all")
        ask("open", state_filters=["Ongoing"])
        ask("two states", state_filters=["Ongoing", "Empty"])
        ask("unknown state", state_filters=["Ongoing", "ongoing", "Odd"])
        ask("by id", producer_id_filters=[who.producer_id])
        if v >= 1:
            ask("long", duration_filter=10_000_000)
            ask("short", duration_filter=0)
        if v >= 2:
            ask("pattern", transactional_id_pattern=".*-open")
            ask("pattern of nothing", transactional_id_pattern="open")
            ask("empty pattern", transactional_id_pattern="")
            ask("broken pattern", transactional_id_pattern="([")


@sequence
def txn_batched(wire: Wire) -> None:
    topic = wire.topic("t", 2)
    for v in (4, 5):
        one, two = init(wire, f"a{v}"), init(wire, f"b{v}")
        wire.quiet(write(one, topic), SECOND)

        def asked(who: Producer, verify: bool, *indexes: int) -> AddPartitionsToTxnTransaction:
            topics = [AddPartitionsToTxnTopic(topic, list(indexes))]
            return AddPartitionsToTxnTransaction(who.name, who.producer_id, who.epoch, verify, topics)

        def ask(label: str, *transactions: AddPartitionsToTxnTransaction) -> None:
            wire.ask(label, AddPartitionsToTxnRequest(transactions=list(transactions)), v)  # noqa: B023

        ask("verified", asked(one, True, 0))
        ask("not in it", asked(one, True, 0, 1))
        ask("stale", asked(one.stale(), True, 0))
        ask("stranger", asked(one._replace(producer_id=one.producer_id + 9999), True, 0))
        ask("unknown id", asked(one._replace(name="nobody"), True, 0))
        ask("unknown partition", asked(one, False, 0, 9))
        ask("add", asked(two, False, 1))


@sequence
def txn_features(wire: Wire) -> None:
    for v in versions(ApiVersionsRequest):
        answer = wire.quiet(ApiVersionsRequest("wire", "1"), v)
        for kept in (answer.supported_features, answer.finalized_features):
            kept[:] = [feature for feature in kept if feature.name == "transaction.version"]
        wire.record("transaction.version", v, [answer.supported_features, answer.finalized_features])


@sequence
def txn_update_features(wire: Wire) -> None:
    name = "transaction.version"
    for v in versions(UpdateFeaturesRequest):

        def ask(label: str, *updates: tuple[str, int, int]) -> None:
            keys = [FeatureUpdateKey(feature, level, upgrade_type=kind) for feature, level, kind in updates]
            request = UpdateFeaturesRequest(feature_updates=keys, validate_only=v > 0)  # noqa: B023
            wire.ask(label, request, v)  # noqa: B023

        ask("as it is", (name, 2, 1))
        ask("nothing")
        ask("down without saying so", (name, 1, 1))
        ask("too high", (name, 3, 1))
        ask("negative", (name, -1, 1))
        ask("unknown feature", ("no.such.feature", 1, 1))
        ask("unknown feature, level 0", ("no.such.feature", 0, 1))
        ask("one good, one bad", (name, 2, 1), ("no.such.feature", 1, 1))
        if v > 0:
            ask("down", (name, 1, 2))
            ask("down, unsafe", (name, 0, 3))
            ask("down to where it is", (name, 2, 2))
            ask("down to a newer one", (name, 3, 2))
            ask("unknown kind", (name, 1, 9))
