"""The table of rights on both brokers: each API without a right, with all, with one less, with one denied.

Both have StandardAuthorizer. Nobody authenticates, so everybody is User:ANONYMOUS; the address distinguishes the
clients. The administrator, who is allowed everything, connects from 127.0.0.1, as the broker itself does. The subject,
whose rights change, connects from 127.0.0.2.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import report
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import run_java
from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from compat_tests.wire.plain import Plain, differences
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import ListGroupsRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kbroker.security.authorizer.acls import OPERATIONS, Operation, PatternType, Permission, ResourceType
from tests.log.builders import batch
from tests.security.authorizer.cases import CASES, CODES, DOOMED, TOPIC, Case, Right
from tests.security.authorizer.served import codes

pytestmark = pytest.mark.java

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ANONYMOUS, OWN, OTHER = "User:ANONYMOUS", "127.0.0.1", "127.0.0.2"
ALLOW, DENY = Permission.ALLOW, Permission.DENY
REFUSALS = {int(code) for code in CODES.values()}
Transcript = dict[str, Any]
_NEEDS = re.compile(r"^(Request .*|This request )(?=needs \w+ permission)")


def _data() -> PartitionProduceData:
    return PartitionProduceData(0, batch(1))


def _wanted() -> FetchPartition:
    return FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)


class Subject(WireClient):
    """A connection from the other address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._sock.close()
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), DEADLINE_SECONDS, source_address=(OTHER, 0))


class Guarded:
    """A broker with an authorizer, its administrator and its subject."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.wire = Wire(broker.bootstrap, broker.name)
        kinds = [kind for kind in OPERATIONS if kind is not ResourceType.CLUSTER]
        own = [(kind, "*") for kind in kinds] + [(ResourceType.CLUSTER, "kafka-cluster")]
        self._create([self._creation(kind, name, OWN, Operation.ALL, ALLOW) for kind, name in own])
        self._topic(TOPIC)

    def close(self) -> None:
        self.wire.close()

    @staticmethod
    def _creation(kind: int, name: str, host: str, operation: int, permission: int) -> AclCreation:
        return AclCreation(kind, name, PatternType.LITERAL, ANONYMOUS, host, operation, permission)

    def _create(self, creations: list[AclCreation]) -> None:
        answer = self.wire.quiet(CreateAclsRequest(creations=creations), 3)
        assert codes(answer) <= {0}, answer

    def _topic(self, name: str) -> None:
        self.wire.quiet(CreateTopicsRequest([CreatableTopic(name, 1, 1)], timeout_ms=10_000), 4)
        self.wire.until(lambda: self.wire._led(name, 1), f"{name} has a leader")

    def rights(self, wanted: Mapping[Right, Permission]) -> None:
        """Give the subject exactly these rights, and wait until the broker applies them."""
        gone = DeleteAclsFilter(1, None, PatternType.ANY, None, OTHER, Operation.ANY, Permission.ANY)
        assert codes(self.wire.quiet(DeleteAclsRequest([gone]), 3)) <= {0}
        acls = [self._creation(r.kind, r.name, OTHER, r.operation, permission) for r, permission in wanted.items()]
        if acls:
            self._create(acls)
        expected = {(r.kind, r.name, r.operation, permission) for r, permission in wanted.items()}
        self.wire.until(lambda: self._known() == expected, "ACLs to be known")

    def _known(self) -> set[tuple[int, str, int, int]]:
        asked = DescribeAclsRequest(1, None, PatternType.ANY, None, OTHER, Operation.ANY, Permission.ANY)
        answer = self.wire.quiet(asked, 3)
        return {
            (each.resource_type, each.resource_name, acl.operation, acl.permission_type)
            for each in answer.resources
            for acl in each.acls
        }

    def count(self) -> int:
        """Return how many ACLs there are."""
        asked = DescribeAclsRequest(1, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
        return sum(len(each.acls) for each in self.wire.quiet(asked, 3).resources)

    def ask(self, case: Case) -> Any:
        if case.api == "DeleteTopics":
            self._topic(DOOMED)
        with Subject(self.broker.bootstrap) as subject:
            return subject.ask(case.request, case.version)


@pytest.fixture(scope="module")
def guarded(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Guarded]]:
    directory = tmp_path_factory.mktemp("guarded")
    with (
        ApacheKafka(kafka_libs, directory / "apache", SETTINGS) as apache,
        KBroker(directory / "kbroker", SETTINGS) as ours,
    ):
        both = {"apache": Guarded(apache), "kbroker": Guarded(ours)}
        yield both
        for each in both.values():
            each.close()


def _bare(value: Any) -> Any:
    """Remove Java's printed form of a request from texts."""
    if isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_bare(each) for each in value]
    return _NEEDS.sub("<request> ", value) if isinstance(value, str) else value


def transcript(broker: Guarded, case: Case) -> Transcript:
    """Return the answer if something in it is refused, else only that nothing is: other tests check the rest."""
    found: Transcript = {}
    plain = Plain()

    def note(state: str, wanted: Mapping[Right, Permission]) -> None:
        broker.rights(wanted)
        answer = broker.ask(case)
        if isinstance(answer, str):
            found[state] = answer
            return
        refused = codes(answer) & REFUSALS
        found[state] = _bare(plain.of(answer)) if refused else "nothing is refused"

    note("none", {})
    for number in range(max(len(each) for each in case.rights)):
        rights = [each[min(number, len(each) - 1)] for each in case.rights]
        note(f"exactly {number}", dict.fromkeys(rights, ALLOW))
        for right in rights:
            others = [each for each in rights if each is not right]
            named = f"{right.kind.name}:{right.operation.name}"
            note(f"without {named}", dict.fromkeys(others, ALLOW))
            note(f"{named} denied", {**dict.fromkeys(others, ALLOW), right: DENY})
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-v{case.version}")
def test_both_refuse_alike(guarded: dict[str, Guarded], case: Case) -> None:
    theirs = transcript(guarded["apache"], case)
    ours = transcript(guarded["kbroker"], case)
    report.count_exchanges("authorization", len(ours))
    assert ours["none"] != "nothing is refused"
    assert ours["exactly 0"] == "nothing is refused"
    found = [f"{state}{line}" for state in ours for line in differences(ours[state], theirs[state])]
    assert not found, "\n".join(found[:50])


ASKS: list[tuple[str, Any, int]] = [
    ("metadata of all", MetadataRequest(None), 12),
    ("metadata of all, of long ago", MetadataRequest([]), 0),
    ("metadata", MetadataRequest([MetadataRequestTopic(name=name) for name in ("seen", "hidden", "absent")]), 12),
    (
        "operations",
        MetadataRequest(
            [MetadataRequestTopic(name=name) for name in ("seen", "hidden")],
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        ),
        10,
    ),
    ("cluster", DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
    ("partitions of all", DescribeTopicPartitionsRequest(topics=[]), 0),
    (
        "partitions",
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name) for name in ("absent", "hidden", "seen")]),
        0,
    ),
    ("groups", ListGroupsRequest(), 4),
    ("delete", DeleteTopicsRequest(topic_names=["hidden", "absent", "seen", "unseen"], timeout_ms=5_000), 5),
    (
        "create",
        CreateTopicsRequest(
            [CreatableTopic(name, 1, 1) for name in ("hidden", "new", "new", "other")], validate_only=True
        ),
        7,
    ),
    (
        "grow",
        CreatePartitionsRequest([CreatePartitionsTopic(name, 5, None) for name in ("hidden", "seen", "seen")], 5_000),
        3,
    ),
]
"""Requests of a client that is allowed to describe the topics `seen` and `absent`, and to create `new`."""


def test_what_is_hidden(guarded: dict[str, Guarded]) -> None:
    found: dict[str, Transcript] = {}
    for side, broker in guarded.items():
        for name in ("seen", "hidden"):
            broker._topic(name)
        rights = [
            Right(ResourceType.TOPIC, "seen", Operation.DESCRIBE, 0),
            Right(ResourceType.TOPIC, "absent", Operation.DESCRIBE, 0),
            Right(ResourceType.TOPIC, "new", Operation.CREATE, 0),
            Right(ResourceType.CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS, 0),
        ]
        broker.rights(dict.fromkeys(rights, ALLOW))
        plain = Plain()
        found[side] = {}
        with Subject(broker.broker.bootstrap) as subject:
            for name, request, version in ASKS:
                found[side][name] = plain.of(subject.ask(request, version))
            ids = [broker.wire.topic_id(name) for name in ("seen", "hidden")]
            by_id = [MetadataRequestTopic(topic_id=each, name=None) for each in ids]
            found[side]["metadata by id"] = plain.of(subject.ask(MetadataRequest(by_id), 12))
            gone = DeleteTopicsRequest([DeleteTopicState(None, each) for each in ids], timeout_ms=5_000)
            found[side]["delete by id"] = plain.of(subject.ask(gone, 6))
    _same(found["kbroker"], found["apache"])


def test_offsets_of_topics_by_id(guarded: dict[str, Guarded]) -> None:
    """Offsets of a hidden topic, of no topic, and of one that does not exist: nothing reaches the group."""
    found: dict[str, Transcript] = {}
    for side, broker in guarded.items():
        broker._topic("hidden")
        ids = {"hidden": broker.wire.topic_id("hidden"), "none": bytes(16), "unknown": bytes([9] * 16)}
        rights = [
            Right(ResourceType.GROUP, "billing", Operation.READ, 0),
            Right(ResourceType.TRANSACTIONAL_ID, "pay", Operation.WRITE, 0),
        ]
        broker.rights(dict.fromkeys(rights, ALLOW))
        plain = Plain()
        found[side] = {}
        with Subject(broker.broker.bootstrap) as subject:
            for name, each in ids.items():
                commit = OffsetCommitRequest(
                    "billing", topics=[OffsetCommitRequestTopic("", each, [OffsetCommitRequestPartition(0, 1)])]
                )
                found[side][f"commit {name}"] = plain.of(subject.ask(commit, 10))
                parts = [TxnOffsetCommitRequestPartition(0, 1, committed_metadata=None)]
                topics = [TxnOffsetCommitRequestTopic("", each, parts)]
                found[side][f"commit in a transaction {name}"] = plain.of(
                    subject.ask(TxnOffsetCommitRequest("pay", "billing", 1, 0, topics=topics), 6)
                )
    _same(found["kbroker"], found["apache"])


def _same(ours: Transcript, theirs: Transcript) -> None:
    report.count_exchanges("authorization", len(ours))
    found = [f"{name}{line}" for name in ours for line in differences(ours[name], theirs[name])]
    assert not found, "\n".join(found[:50])


def _odd_acls() -> Iterator[tuple[str, Any]]:
    fine = {
        "resource_type": 2, "resource_name": "odd", "resource_pattern_type": 3, "principal": "User:odd", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    # Without the codes of ANY and MATCH: with them Kafka 4.4.0 fails the complete request (UNKNOWN_SERVER_ERROR).
    odd: dict[str, list[int | str]] = {
        "resource_type": [0, 4, 6, 7, 8, 99],
        "resource_name": ["", "*", "a/b", "x" * 300],
        "resource_pattern_type": [0, 4, 9],
        "principal": ["", "odd", ":odd", "User:", "User:a:b", "Group:x"],
        "host": [
            "",
            "not-an-address",
            "192.0.2.1",
            "192.0.2.0/24",
            "192.0.2.7/24",
            "0.0.0.0/0",
            "192.0.2.0/33",
            "192.0.2/24",
            "192.0.2.0/",
            "/24",
            "*/24",
            "192.0.2.300/24",
            "2001:db8::/32",
            "2001:db8::/129",
            "2001:db8::/x",
            "::/0",
            "2001:db8::",
            "::ffff:192.0.2.1/96",
            "2001:db8::/+32",
            "192.0.2.0/024",
            "192.0.2.0/8/8",
            ":::/64",
        ],
        "operation": [0, 2, 12, 13, 15, 16, 99],
        "permission_type": [0, 2, 9],
    }
    for field, values in odd.items():
        for value in values:
            creation = AclCreation(**{**fine, field: value})  # type: ignore[arg-type]
            yield f"create {field} {value!r:.40}", CreateAclsRequest([creation])
    everything: dict[str, Any] = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": "User:odd", "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    wanted: dict[str, list[Any]] = {
        "resource_type_filter": [0, 1, 2, 3, 99],
        "resource_name_filter": [None, "", "*", "odd", "oddly"],
        "pattern_type_filter": [0, 1, 2, 3, 4, 9],
        "principal_filter": [None, "", "odd", "User:odd"],
        "host_filter": [None, "*", "x"],
        "operation": [0, 1, 2, 3, 99],
        "permission_type": [0, 1, 2, 3, 9],
    }
    for field, values in wanted.items():
        for value in values:
            changed = {**everything, field: value}
            yield f"describe {field} {value!r}", DescribeAclsRequest(**changed)
    for field, values in wanted.items():
        for value in values:
            changed = {**everything, field: value, "host_filter": value if field == "host_filter" else "192.0.2.1"}
            yield f"delete {field} {value!r}", DeleteAclsRequest([DeleteAclsFilter(**changed)])
    for principal in ("User:odd", *odd["principal"]):
        wanted_all = DeleteAclsFilter(**{**everything, "principal_filter": principal})
        yield f"delete all of {principal}", DeleteAclsRequest([wanted_all, wanted_all])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_requests_about_acls(guarded: dict[str, Guarded], version: int) -> None:
    found: dict[str, Transcript] = {}
    for side, broker in guarded.items():
        broker.rights({})
        before, created, is_known = broker.count(), 0, False
        found[side] = {}
        for name, request in _odd_acls():
            if not isinstance(request, CreateAclsRequest) and not is_known:
                broker.wire.until(partial(_has, broker, before + created), "ACLs to be known")
                is_known = True
            with WireClient(broker.broker.bootstrap) as client:
                answer = client.ask(request, version)
            found[side][name] = _in_order(Plain().of(answer))
            if isinstance(request, CreateAclsRequest) and not isinstance(answer, str):
                created += sum(not each.error_code for each in answer.results)
    _same(found["kbroker"], found["apache"])


def _has(broker: Guarded, count: int) -> bool:
    return broker.count() == count


def _in_order(value: Any) -> Any:
    """Sort lists, because ACLs have no order."""
    if isinstance(value, dict):
        return {name: _in_order(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((_in_order(each) for each in value), key=repr)
    return value


@pytest.fixture
def kafka_acls(kafka_libs: Path) -> Callable[..., list[str]]:
    def run(broker: Guarded, *arguments: str) -> list[str]:
        main = "org.apache.kafka.tools.AclCommand"
        for name in (main, "kafka.admin.AclCommand"):
            status, out, err = run_java(
                kafka_libs, name, "--bootstrap-server", broker.broker.bootstrap, *arguments, "--force"
            )
            if "ClassNotFoundException" not in err:
                break
        lines = [line.strip() for line in out.splitlines() if line.strip()]
        return [str(status), *sorted(lines)]

    return run


def test_kafka_acls(guarded: dict[str, Guarded], kafka_acls: Callable[..., list[str]]) -> None:
    def life(broker: Guarded) -> list[list[str]]:
        broker.rights({})
        return [
            kafka_acls(broker, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "tool"),
            kafka_acls(broker, "--add", "--deny-principal", "User:bob", "--deny-host", "192.0.2.1", "--group", "tool",
                       "--operation", "Read", "--resource-pattern-type", "prefixed"),
            kafka_acls(broker, "--list", "--topic", "tool"),
            kafka_acls(broker, "--list", "--group", "tools", "--resource-pattern-type", "match"),
            kafka_acls(broker, "--remove", "--allow-principal", "User:alice", "--producer", "--topic", "tool"),
            kafka_acls(broker, "--remove", "--group", "tool", "--resource-pattern-type", "prefixed"),
            kafka_acls(broker, "--list", "--topic", "tool"),
        ]  # fmt: skip

    theirs, ours = life(guarded["apache"]), life(guarded["kbroker"])
    report.count("kafka-acls", "both")
    assert ours == theirs
    assert any("alice" in line for line in ours[2])


NOBODY, ZERO = bytes(range(16)), bytes(16)
NAMELESS = {
    "produce": (ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="", partition_data=[_data()])]), 9),
    **{
        f"produce {topic_id[:2].hex()}": (
            ProduceRequest(acks=-1, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[_data()])]),
            13,
        )
        for topic_id in (ZERO, NOBODY)
    },
    **{
        f"fetch v{version}": (
            FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(partitions=[_wanted()])]),
            version,
        )
        for version in (4, 12, 13)
    },
    "fetch by id": (
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic_id=NOBODY, partitions=[_wanted()])]),
        13,
    ),
}


@pytest.mark.parametrize(("request_", "version"), NAMELESS.values(), ids=NAMELESS)
@pytest.mark.parametrize("may", [False, True])
def test_a_topic_without_a_name_is_refused_alike(
    guarded: dict[str, Guarded], request_: Any, version: int, may: bool
) -> None:
    told = {}
    for side, each in guarded.items():
        rights = [Right(ResourceType.TOPIC, "*", operation, 0) for operation in (Operation.WRITE, Operation.READ)]
        each.rights(dict.fromkeys(rights if may else [], ALLOW))
        with Subject(each.broker.bootstrap) as subject:
            told[side] = codes(subject.ask(request_, version))
    assert told["kbroker"] == told["apache"]
