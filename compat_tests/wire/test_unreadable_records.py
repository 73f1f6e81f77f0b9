"""Unreadable records in the coordinators' topics: which partitions still load, on both brokers.

Each kind is in its own partition, between two good records; the broker restarts and is asked for both.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.wire.client import WireClient
from kbroker.coordination.partitioning import partition_for
from kbroker.group_coordinator.records.offsets import offset_commit
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import build_batch
from kbroker.txn.records import transaction_record
from kbroker.txn.transaction import Transaction, TxnState

pytestmark = pytest.mark.java

Ask = Callable[[WireClient, int, str], object]
Kinds = dict[str, tuple[bytes | None, bytes | None]]

DEADLINE_SECONDS = 60
_LOADING = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _transaction_kinds() -> Kinds:
    key = b"\0\0" + _string(b"bad")
    ongoing = transaction_record(Transaction("bad", 7, 5, state=TxnState.ONGOING, partitions=frozenset({("t", 0)})), 0)
    value = ongoing.value or b""
    before_list = 2 + 8 + 2 + 4 + 1  # the position of the topics' count
    state = before_list - 1
    flexible = transaction_record(Transaction("bad", 7, 5, state=TxnState.ONGOING, partitions=frozenset({("t", 0)})), 1)
    newest = flexible.value or b""
    return {
        "fine, first": (key, value),
        "empty value": (key, b""),
        "value of one byte": (key, b"\0"),
        "garbage value": (key, b"\xff" * 40),
        "truncated value": (key, value[:-5]),
        "value of a version only": (key, b"\0\0"),
        "unknown value version": (key, b"\0\7" + newest[2:]),
        "negative value version": (key, b"\xff\xfe" + value[2:]),
        "unknown state": (key, value[:state] + b"\x63" + value[state + 1 :]),
        "negative state": (key, value[:state] + b"\xff" + value[state + 1 :]),
        "count too high": (key, value[:before_list] + b"\0\0\0\x09" + value[before_list + 4 :]),
        "count of 2^31-1": (key, value[:before_list] + b"\x7f\xff\xff\xff" + value[before_list + 4 :]),
        "no partitions while ongoing": (key, value[:before_list] + b"\xff\xff\xff\xff" + value[-16:]),
        "bytes left over in the value": (key, value + b"left over"),
        "topic that is no UTF-8": (key, value.replace(_string(b"t"), _string(b"\xff"))),
        "client version of 9": (key, newest[:-1] + b"\1\2\2\0\x09"),
        "null key": (None, value),
        "empty key": (b"", value),
        "key of one byte": (b"\0", value),
        "key without an id": (b"\0\0", value),
        "truncated key": (key[:-1], value),
        "unknown key version": (b"\0\7" + key[2:], value),
        "unknown key version, empty value": (b"\0\7" + key[2:], b""),
        "id that is no UTF-8": (b"\0\0" + _string(b"\xff\xfe"), value),
        "bytes left over in the key": (key + b"left over", value),
        "tombstone of an unknown id": (key, None),
        "tombstone with an empty key": (b"", None),
        "tombstone of an unknown key version": (b"\0\7" + key[2:], None),
        "id of no bytes": (b"\0\0\0\0", value),
        "id that is null": (b"\0\0\xff\xff", value),
        "fine, last": (key, value),
    }


def _group_kinds() -> Kinds:
    record = offset_commit("bad", "t", 0, OffsetCommitValue(offset=3, metadata="m", commit_timestamp=5))
    key, value = record.key, record.value or b""
    group = b"\0\2" + _string(b"bad")
    return {
        "fine, first": (key, value),
        "empty value": (key, b""),
        "garbage value": (key, b"\xff" * 40),
        "truncated value": (key, value[:-5]),
        "unknown value version": (key, b"\0\x09" + value[2:]),
        "negative value version": (key, b"\xff\xfe" + value[2:]),
        "bytes left over in the value": (key, value + b"left over"),
        "metadata that is no UTF-8": (key, value.replace(b"\2m", b"\2\xff")),
        "null key": (None, value),
        "empty key": (b"", value),
        "key of one byte": (b"\0", value),
        "key without a group": (b"\0\1", value),
        "truncated key": (key[:-1], value),
        "unknown key type": (b"\0\x63" + key[2:], value),
        "negative key type": (b"\xff\xfe" + key[2:], value),
        "group id that is no UTF-8": (b"\0\1" + _string(b"\xff\xfe") + _string(b"t") + b"\0\0\0\0", value),
        "topic that is no UTF-8": (b"\0\1" + _string(b"bad") + _string(b"\xff") + b"\0\0\0\0", value),
        "group id that is null": (b"\0\1\xff\xff" + _string(b"t") + b"\0\0\0\0", value),
        "bytes left over in the key": (key + b"left over", value),
        "tombstone with an empty key": (b"", None),
        "tombstone of an unknown group": (group, None),
        "empty value of a group": (group, b""),
        "garbage value of a group": (group, b"\xff" * 40),
        "unknown value version of a group": (group, b"\0\x09" + b"\xff" * 40),
        "group of another kind's id": (b"\0\3" + _string(b"\xff\xfe"), b"\0\0\0\0\0\1\0"),
        "member of a group that is not there": (b"\0\5" + _string(b"bad") + _string(b"m"), None),
        "legacy offset": (b"\0\0" + key[2:], b"\0\0" + struct.pack(">q", 3) + _string(b"m") + struct.pack(">q", 5)),
        "legacy offset with an unknown version": (
            b"\0\0" + key[2:],
            b"\0\5" + struct.pack(">q", 3) + _string(b"m") + struct.pack(">q", 5),
        ),
        "fine, last": (key, value),
    }


TRANSACTIONS, GROUPS = _transaction_kinds(), _group_kinds()
PARTITIONS = 37  # enough for each kind; not 31, because Java's hash then depends on the last character only


def _id_in(partition: int, prefix: str) -> str:
    return next(
        name for name in (f"{prefix}-{i}" for i in range(100_000)) if partition_for(name, PARTITIONS) == partition
    )


@contextmanager
def _client(address: str) -> Iterator[WireClient]:
    with WireClient(address, "__admin_client") as client:  # the one client that may write to internal topics
        yield client


def _until(what: str, look: Any) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def _wait_for_loads(client: WireClient) -> None:
    """Wait until the last intact partitions are loaded: after them, every load that is missing has failed."""
    for ask, kinds in ((_epoch, TRANSACTIONS), (_offset, GROUPS)):
        fine = [partition for partition, kind in enumerate(kinds) if kind.startswith("fine")]
        for partition in fine:

            def is_served(ask: Ask = ask, partition: int = partition) -> bool | None:
                return ask(client, partition, "unused") != "NOT_COORDINATOR" or None

            _until("the loads", is_served)


def _write(client: WireClient, topic: str, partition: int, rows: list[tuple[bytes | None, bytes | None]]) -> None:
    now_ms = int(time.time() * 1000)

    def put() -> bool | None:
        for row in rows:
            batch = build_batch([(now_ms, *row, ())])
            data = PartitionProduceData(index=partition, records=batch)
            topic_data = [TopicProduceData(name=topic, partition_data=[data])]
            request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topic_data)
            answer = client.ask(request, 9).responses[0].partition_responses[0]
            if answer.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                return None
            # A compacted topic refuses a record without a key: this kind can only be in files.
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD), answer
        return True

    _until(f"{topic}-{partition} is led", put)


def _fill(address: str) -> None:
    with _client(address) as client:
        for key_type, topic in ((1, "__transaction_state"), (0, "__consumer_offsets")):
            ask = FindCoordinatorRequest(key="x", key_type=key_type)
            _until(f"{topic} is there", lambda ask=ask: client.ask(ask, 2).error_code == 0 or None)
        for partition, (key, value) in enumerate(TRANSACTIONS.values()):
            before, after = (_transaction(partition, which) for which in ("before", "after"))
            _write(client, "__transaction_state", partition, [before, (key, value), after])
        for partition, (key, value) in enumerate(GROUPS.values()):
            rows = [_commit(partition, "before"), (key, value), _commit(partition, "after")]
            _write(client, "__consumer_offsets", partition, rows)


def _transaction(partition: int, which: str) -> tuple[bytes, bytes | None]:
    name = _id_in(partition, which)
    return transaction_record(Transaction(name, 5000 + partition, 5, timeout_ms=60_000, updated_ms=1), 0)


def _commit(partition: int, which: str) -> tuple[bytes, bytes | None]:
    now_ms = int(time.time() * 1000)
    value = OffsetCommitValue(offset=77, metadata="", commit_timestamp=now_ms)
    return offset_commit(_id_in(partition, which), "t", 0, value)


def _epoch(client: WireClient, partition: int, which: str) -> object:
    """Return the epoch that a transactional id receives: 6 if its record was loaded, or the error."""
    request = InitProducerIdRequest(transactional_id=_id_in(partition, which), transaction_timeout_ms=60_000)

    def look() -> object:
        answer = client.ask(request, 4)
        if answer.error_code in _LOADING or answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return None
        return answer.producer_epoch if answer.error_code == 0 else ErrorCode(answer.error_code).name

    return _until("an id is loaded", look)


def _offset(client: WireClient, partition: int, which: str) -> object:
    """Return the offset that a group has committed: 77 if its record was loaded, or the error."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=_id_in(partition, which), topics=topics)])

    def look() -> object:
        answer = client.ask(request, 8).groups[0]
        if answer.error_code in _LOADING:
            return None
        if answer.error_code:
            return ErrorCode(answer.error_code).name
        return answer.topics[0].partitions[0].committed_offset

    return _until("a group is loaded", look)


def _seen(address: str) -> dict[str, tuple[object, object]]:
    with _client(address) as client:
        _wait_for_loads(client)
        seen: dict[str, tuple[object, object]] = {}
        for partition, kind in enumerate(TRANSACTIONS):
            seen[f"transaction: {kind}"] = (_epoch(client, partition, "before"), _epoch(client, partition, "after"))
        for partition, kind in enumerate(GROUPS):
            seen[f"group: {kind}"] = (_offset(client, partition, "before"), _offset(client, partition, "after"))
        return seen


def measure(broker: BrokerProcess) -> dict[str, tuple[object, object]]:
    """Fill a broker's topics, restart it, and return what it knows of the ids before and after each kind."""
    broker.start()
    try:
        _fill(broker.bootstrap)
        broker.stop()
        broker.start()
        return _seen(broker.bootstrap)
    finally:
        broker.stop()


def _behind(seen: dict[str, tuple[object, object]]) -> dict[str, tuple[object, object]]:
    """Return the part of Kafka's result that counts: after an unreadable transaction record, it forgets all ids."""
    return {kind: (6, 6) if each == (6, 0) else each for kind, each in seen.items()}


def test_the_same_partitions_load(kafka_libs: Path, tmp_path: Path) -> None:
    settings = {
        "offsets.topic.num.partitions": str(PARTITIONS),
        "transaction.state.log.num.partitions": str(PARTITIONS),
    }
    with ThreadPoolExecutor(2) as threads:
        brokers = [ApacheKafka(kafka_libs, tmp_path / "apache", settings), KBroker(tmp_path / "kbroker", settings)]
        theirs, ours = threads.map(measure, brokers)
    assert sum(each == (6, 0) for each in theirs.values()) == 16
    assert ours == _behind(theirs)
    line = "the record at offset 1 cannot be read"
    assert line in brokers[1].log_file.read_text()
