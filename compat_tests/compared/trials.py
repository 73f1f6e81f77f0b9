"""The trials of each broker for tests, through confluent-kafka and the broker's own interface.

Owns the trials: each returns nothing if the broker passes, and otherwise raises AssertionError with what happened
instead, or Lacking. Never knows which broker it tries.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from compat_tests.compared import raw
from compat_tests.compared.target import Target

_S: Final = 8.0
PRODUCE, FETCH, END_TXN = 0, 1, 26
NOT_LEADER = 6


@dataclass(frozen=True, slots=True)
class Trial:
    """One feature. `started` are the settings with which the broker starts, as far as it has them."""

    what: str
    run: Callable[[Target], None]
    started: dict[str, Any] = field(default_factory=dict)


def _producer(target: Target, **settings: Any) -> Producer:
    own = {f"{key.replace('_', '.')}": value for key, value in settings.items()}
    return Producer({**target.settings(), "message.timeout.ms": 6000, "linger.ms": 0, "log_level": 0, **own})


def _put(target: Target, topic: str, *values: str, **settings: Any) -> None:
    told: list[str] = []
    producer = _producer(target, **settings)
    for value in values:
        producer.produce(topic, value, key=value[:1], on_delivery=lambda error, _: told.append(str(error or "")))
        producer.flush(_S)
    assert told == [""] * len(values), f"not delivered: {' '.join(told)}"


def _get(target: Target, topic: str, count: int, seconds: float = _S, **settings: Any) -> list[bytes]:
    own = {f"{key.replace('_', '.')}": value for key, value in settings.items()}
    consumer = Consumer({**target.settings(), "group.id": uuid.uuid4().hex, "log_level": 0, **own})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def _transactional(target: Target, name: str = "tx") -> Producer:
    producer = _producer(target, transactional_id=name)
    producer.init_transactions(_S)
    return producer


def _admin(target: Target) -> AdminClient:
    return AdminClient({**target.settings(), "log_level": 0})


# --- what clients see


def _records(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one", "two")
    assert _get(target, "t", 2) == [b"one", b"two"]


def _commit(target: Target) -> None:
    target.create("t")
    producer = _transactional(target)
    producer.begin_transaction()
    producer.produce("t", "paid")
    producer.commit_transaction(_S)
    assert _get(target, "t", 1, isolation_level="read_committed") == [b"paid"]


def _open_hidden(target: Target) -> None:
    target.create("t")
    producer = _transactional(target)
    producer.begin_transaction()
    producer.produce("t", "open")
    assert producer.flush(_S) == 0
    seen = _get(target, "t", 1, 1.5, isolation_level="read_committed")
    assert not seen, "read_committed gets what is not committed"


def _aborted_hidden(target: Target) -> None:
    target.create("t")
    producer = _transactional(target)
    producer.begin_transaction()
    producer.produce("t", "void")
    assert producer.flush(_S) == 0
    producer.abort_transaction(_S)
    _put(target, "t", "after")
    seen = _get(target, "t", 1, isolation_level="read_committed")
    assert seen == [b"after"], "read_committed gets what was aborted"


def _fenced(target: Target) -> None:
    target.create("t")
    old = _transactional(target)
    _transactional(target)
    old.begin_transaction()
    old.produce("t", "late")
    try:
        old.commit_transaction(_S)
    except KafkaException:
        return
    raise AssertionError("the older producer commits")


def _offsets_in_transaction(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    consumer = Consumer({**target.settings(), "group.id": "g", "log_level": 0, "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    _polled(consumer)
    producer = _transactional(target)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], consumer.consumer_group_metadata(), _S)
    producer.abort_transaction(_S)
    (found,) = consumer.committed([TopicPartition("t", 0)], _S)
    consumer.close()
    assert found.offset != 1, "offsets of an aborted transaction are committed"


def _duplicate(target: Target) -> None:
    target.create("t")
    with raw.Connection(target.bootstrap, "t") as connection:
        producer_id = connection.producer_id()
        first = connection.append(producer_id, sequence=0)
        assert first == (0, 0), f"answered {first}"
        again = connection.append(producer_id, sequence=0)
        assert again == (0, 0), f"a repeated batch is answered with (error, offset) {again}"


def _gap(target: Target) -> None:
    target.create("t")
    with raw.Connection(target.bootstrap, "t") as connection:
        producer_id = connection.producer_id()
        assert connection.append(producer_id, sequence=0)[0] == 0
        code, _ = connection.append(producer_id, sequence=7)
        assert code == raw.OUT_OF_ORDER, f"a batch out of order is answered with {code}"


def _polled(consumer: Consumer) -> Any:
    deadline = time.monotonic() + _S
    while time.monotonic() < deadline:
        found = consumer.poll(0.1)
        if found is not None and found.error() is None:
            return found
    raise AssertionError("no record for the member of a group")


def _group(target: Target, protocol: str) -> None:
    target.create("t", 2)
    settings = {
        **target.settings(), "group.id": "g", "log_level": 0, "auto.offset.reset": "earliest",
        "group.protocol": protocol, "enable.auto.commit": False,
    }  # fmt: skip
    members = [Consumer(settings), Consumer(settings)]
    for each in members:
        each.subscribe(["t"])
    deadline = time.monotonic() + 2 * _S
    while [len(each.assignment()) for each in members] != [1, 1]:
        for each in members:
            each.poll(0.05)
        assert time.monotonic() < deadline, f"they have {[len(each.assignment()) for each in members]} partitions"
    members[1].close()
    while len(members[0].assignment()) != 2:
        members[0].poll(0.05)
        assert time.monotonic() < deadline, "who stays does not get what was left"
    members[0].commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    (found,) = members[0].committed([TopicPartition("t", 0)], _S)
    members[0].close()
    assert found.offset == 5, f"committed is {found.offset}"


def _classic(target: Target) -> None:
    _group(target, "classic")


def _consumer_protocol(target: Target) -> None:
    _group(target, "consumer")


def _share(target: Target) -> None:
    keys = raw.advertised(target.bootstrap)
    assert {76, 78, 79} <= keys, "the APIs are not advertised"


def _topics_by_admin(target: Target) -> None:
    admin = _admin(target)
    admin.create_topics([NewTopic("made", 2, 1)])["made"].result(_S)
    admin.create_partitions([NewPartitions("made", 4)])["made"].result(_S)
    assert len(admin.list_topics("made", _S).topics["made"].partitions) == 4
    admin.delete_topics(["made"])["made"].result(_S)


def _configs_by_admin(target: Target) -> None:
    target.create("t")
    admin = _admin(target)
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(_S)
    asked = ConfigResource(ResourceType.TOPIC, "t")
    assert admin.describe_configs([asked])[asked].result(_S)["retention.ms"].value == "5000"


def _groups_by_admin(target: Target) -> None:
    target.create("t")
    consumer = Consumer({**target.settings(), "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    consumer.close()
    admin = _admin(target)
    listed = admin.list_consumer_groups().result(_S).valid
    assert [each.group_id for each in listed] == ["g"], f"listed are {[each.group_id for each in listed]}"
    admin.delete_consumer_groups(["g"])["g"].result(_S)


def _delete_records(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one", "two")
    place = TopicPartition("t", 0, 1)
    admin = _admin(target)
    (done,) = admin.delete_records([place]).values()
    assert done.result(_S).low_watermark == 1


def _acls(target: Target) -> None:
    admin = _admin(target)
    acl = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([acl])[acl].result(_S)
    any_of = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert acl in admin.describe_acls(any_of).result(_S)


def _sasl(target: Target) -> None:
    admin = _admin(target)
    admin.list_topics(timeout=_S)
    wrong = AdminClient({**target.settings(), "sasl.password": "wrong", "log_level": 0})
    try:
        wrong.list_topics(timeout=2)
    except KafkaException:
        return
    raise AssertionError("a wrong password is let in")


def _tls(target: Target) -> None:
    _admin(target).list_topics(timeout=_S)


def _quota(target: Target) -> None:
    raw.set_quota(target.bootstrap, 100)
    target.create("t")
    with raw.Connection(target.bootstrap, "t") as connection:
        producer_id = connection.producer_id()
        for sequence in range(20):
            connection.append(producer_id, sequence=sequence)
        assert connection.throttled_ms > 0, "nobody is throttled"


# --- what a test does to the broker


def _error(target: Target) -> None:
    target.create("t")
    target.fail(PRODUCE, NOT_LEADER, 2)
    _put(target, "t", "one")
    assert _get(target, "t", 1) == [b"one"]


def _error_of_one_topic(target: Target) -> None:
    target.create("t")
    target.create("u")
    target.fail_of("t", PRODUCE, 10, 1)
    _put(target, "u", "one")
    try:
        _put(target, "t", "one")
    except AssertionError:
        return
    raise AssertionError("the topic's record is delivered")


def _delay(target: Target) -> None:
    target.create("t")
    target.delay(PRODUCE, 700)
    began = time.monotonic()
    _put(target, "t", "one")
    assert time.monotonic() - began >= 0.7, "it is not late"


def _lost_answer(target: Target) -> None:
    target.create("t")
    target.lose_answer(PRODUCE)
    _put(target, "t", "one", enable_idempotence=False)
    found = _get(target, "t", 2)
    assert found == [b"one", b"one"], f"what was done before the answer was lost: {found}"


def _broken_connection(target: Target) -> None:
    target.create("t")
    target.disconnect(PRODUCE)
    _put(target, "t", "one", enable_idempotence=False)
    assert _get(target, "t", 2, 1.0) == [b"one"]


def _retention(target: Target) -> None:
    target.advance(0)
    admin = _admin(target)
    admin.create_topics([NewTopic("aged", 1, 1, config={"retention.ms": "3600000"})])["aged"].result(_S)
    _put(target, "aged", "old")
    target.advance(2)
    assert not _get(target, "aged", 1, 1.0), "what is older than retention.ms is read"


def _compaction(target: Target) -> None:
    target.advance(0)
    admin = _admin(target)
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "60000",
        "min.cleanable.dirty.ratio": "0.01",
        "message.timestamp.type": "LogAppendTime",
    }
    admin.create_topics([NewTopic("c", 1, 1, config=config)])["c"].result(_S)
    _put(target, "c", "k1", "k2", "k3")
    target.advance(25)
    _put(target, "c", "k4")
    target.advance(25)
    found = _get(target, "c", 4, 2.0)
    assert b"k1" not in found, f"of one key there are {found}"


def _retention_at_once(target: Target) -> None:
    target.work()
    admin = _admin(target)
    admin.create_topics([NewTopic("aged", 1, 1, config={"retention.ms": "1"})])["aged"].result(_S)
    _put(target, "aged", "old")
    time.sleep(0.05)
    target.work()
    assert not _get(target, "aged", 1, 1.0), "what is older than retention.ms is read"


def _session_expires(target: Target) -> None:
    target.create("t")
    with raw.Connection(target.bootstrap, "t") as connection:
        member = connection.join("g")
        target.advance(1)
        code = connection.heartbeat("g", member)
        assert code == raw.UNKNOWN_MEMBER, f"a heartbeat after an hour is answered with {code}"


def _requests(target: Target) -> None:
    target.create("t")
    target.apis_asked()
    _put(target, "t", "one")
    assert PRODUCE in target.apis_asked()


def _decoded_requests(target: Target) -> None:
    target.create("t")
    target.acks_asked()
    _put(target, "t", "one", acks="all")
    assert target.acks_asked() == [-1]


def _without_client(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    assert target.records("t") == [b"one"]


def _reset(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    target.reset()
    target.create("t")
    assert not _get(target, "t", 1, 1.0)


def _snapshot(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    target.snapshot_and_restore(lambda: _put(target, "t", "two"))
    assert _get(target, "t", 2, 1.0) == [b"one"]


def _moved_leader(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    target.move_leader("t")
    _put(target, "t", "two")
    assert _get(target, "t", 2) == [b"one", b"two"]


def _killed_leader(target: Target) -> None:
    target.create("r")
    _put(target, "r", "one")
    target.kill_leader("r")
    _put(target, "r", "two")
    assert _get(target, "r", 2) == [b"one", b"two"], "what was acknowledged is lost"


def _restart(target: Target) -> None:
    target.create("t")
    _put(target, "t", "one")
    target.restart()
    assert _get(target, "t", 1) == [b"one"]


TRIALS: Final = (
    Trial("records are written and read", _records),
    Trial("a transaction is committed", _commit),
    Trial("`read_committed` does not get what is open", _open_hidden),
    Trial("`read_committed` does not get what was aborted", _aborted_hidden),
    Trial("an older producer of a transactional id is fenced", _fenced),
    Trial("offsets of an aborted transaction are not committed", _offsets_in_transaction),
    Trial("a batch that comes twice is written once", _duplicate),
    Trial("a batch out of order is refused", _gap),
    Trial("groups, classic protocol", _classic),
    Trial("groups, consumer protocol (KIP-848)", _consumer_protocol),
    Trial("share groups (KIP-932) are advertised", _share),
    Trial("topics are created, grown and deleted by an admin", _topics_by_admin),
    Trial("configs are changed by an admin", _configs_by_admin),
    Trial("groups are listed and deleted by an admin", _groups_by_admin),
    Trial("records are deleted by an admin", _delete_records),
    Trial("rights (ACLs)", _acls, {"acls": True}),
    Trial("SASL, and a wrong password is refused", _sasl, {"users": True}),
    Trial("TLS", _tls, {"tls": True}),
    Trial("quotas", _quota),
    Trial("an error for the next requests", _error),
    Trial("an error for one topic alone", _error_of_one_topic),
    Trial("a delay", _delay),
    Trial("a lost answer: the work is done", _lost_answer),
    Trial("a broken connection: the work is not done", _broken_connection),
    Trial("retention, with time moved", _retention),
    Trial("compaction, with time moved", _compaction),
    Trial("retention, when the test says so", _retention_at_once),
    Trial("a member's session runs out, with time moved", _session_expires),
    Trial("which requests came", _requests),
    Trial("what they asked, decoded", _decoded_requests),
    Trial("records are looked at without a client", _without_client),
    Trial("clean for the next test, at the same address", _reset),
    Trial("a snapshot is put back", _snapshot),
    Trial("the leader of a partition changes", _moved_leader, {"brokers": 3}),
    Trial("the leader is killed, and nothing acknowledged is lost", _killed_leader, {"brokers": 3}),
    Trial("data outlive a restart", _restart, {"keeps": True}),
)
