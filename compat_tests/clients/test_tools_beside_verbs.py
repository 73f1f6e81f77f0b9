"""Kafka's tools and our verbs show the same facts of the same broker, whether it is kbroker or Apache Kafka.

Owns how each tool's lines are parsed. What they show differently is in `compat_tests/FINDINGS.md`, and next to the
comparison.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import run_java
from tests.cli.conftest import CommandLine

pytestmark = pytest.mark.java

_TOOLS = "org.apache.kafka.tools"
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, GROUP, TRANSACTIONAL_ID = "beside", "beside-group", "beside-id"
WAIT_S = 30
_FIRST_HEADERS = ("GROUP", "TransactionalId", "CoordinatorId", "ProducerId")
_GROUPS = "consumer.group.ConsumerGroupCommand"
_CONFIGS = "ConfigCommand"


@dataclass(frozen=True)
class Side:
    """A broker with data in it, Kafka's tools and our verbs."""

    broker: BrokerProcess
    libs: Path
    verb: CommandLine
    member: Consumer

    def tool(self, name: str, *arguments: str) -> str:
        """Return what a tool prints; its exit status must be 0."""
        main = name if name.startswith("kafka.") else f"{_TOOLS}.{name}"
        status, out, err = run_java(self.libs, main, "--bootstrap-server", self.broker.bootstrap, *arguments)
        assert status == 0, out + err
        return out


@pytest.fixture(scope="module", params=["kbroker", "apache"])
def side(request: pytest.FixtureRequest, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    directory = tmp_path_factory.mktemp(request.param)
    made = KBroker(directory, _AUTHORIZER) if request.param == "kbroker" else None
    with made or ApacheKafka(kafka_libs, directory, _AUTHORIZER) as broker:
        verb = CommandLine(broker.bootstrap)
        verb.ok(
            "topic", "create", TOPIC, "-p", "2", "-c", "retention.ms=3600000", "-c", "cleanup.policy=compact,delete"
        )
        verb.ok("produce", TOPIC, "-p", "0", "-k", ":", stdin=b"".join(b"k%d:v\n" % n for n in range(7)))
        verb.ok("produce", TOPIC, "-p", "1", "-k", ":", stdin=b"k:v\n")
        verb.ok("record", "delete", TOPIC, "-p", "0", "--before-offset", "2", "--yes")
        may = ["--allow-principal", "User:alice", "--consumer", "--resource-pattern-type", "prefixed"]
        verb.ok("acl", "add", *may, "--topic", "be", "--group", GROUP)
        denied = ["--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Alter"]
        verb.ok("acl", "add", *denied, "--cluster")
        verb.ok("user", "add", "alice", "--mechanism", "SCRAM-SHA-256", "--password", "secret", "--iterations", "4096")
        verb.ok("quota", "set", "--user", "alice", "--producer-byte-rate", "1024", "--request-percentage", "12.5")
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": TRANSACTIONAL_ID,
                # The transaction stays open for all tests: the default of 60 s is too short on a busy machine.
                "transaction.timeout.ms": 900_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(TOPIC, "v", "open", partition=1)
        assert producer.flush(WAIT_S) == 0
        member = _member(broker.bootstrap)
        try:
            yield Side(broker, kafka_libs, verb, member)
        finally:
            member.close()
            producer.abort_transaction(WAIT_S)


def _member(bootstrap: str) -> Consumer:
    """Return a member that has both partitions and has committed an offset of one of them."""
    own = {"group.id": GROUP, "client.id": "reader", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    member = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **own})
    member.subscribe([TOPIC])
    deadline = time.monotonic() + WAIT_S
    while (message := member.poll(0.2)) is None or message.partition() != 0 or message.offset() < 4:
        assert time.monotonic() < deadline
    member.commit(message, asynchronous=False)
    return member


def table(text: str) -> list[dict[str, str]]:
    """Read a table with a header line, whose cells contain no blanks."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    begin = next(index for index, cells in enumerate(lines) if cells[0] in _FIRST_HEADERS)
    return [dict(zip(lines[begin], cells, strict=False)) for cells in lines[begin + 1 :]]


def test_topics(side: Side) -> None:
    """The tool shows all values that are not Kafka's default, also inherited ones; the verb those of the topic."""
    head, *rows = side.tool("TopicCommand", "--describe", "--topic", TOPIC).splitlines()
    facts = dict(re.findall(r"(\w+): (\S+)", head))
    configs = dict(re.findall(r"([\w.]+)=((?:[^=,]|,(?![\w.]+=))*)", facts["Configs"]))
    (told,) = side.verb.ok("topic", "describe", TOPIC, "--json").json
    assert (facts["Topic"], facts["TopicId"], int(facts["PartitionCount"])) == (TOPIC, told["id"], 2)
    assert {**configs, **told["configs"]} == configs
    assert configs.keys() - told["configs"].keys() <= {"min.insync.replicas", "file.delete.delay.ms"}
    assert [dict(re.findall(r"(Partition|Leader|Replicas|Isr): (\S+)", row)) for row in rows] == [
        {
            "Partition": str(each["partition"]),
            "Leader": str(each["leader"]),
            "Replicas": ",".join(map(str, each["replicas"])),
            "Isr": ",".join(map(str, each["isr"])),
        }
        for each in told["partitions"]
    ]


@pytest.mark.parametrize("flag", ["at-min-isr-partitions"])
def test_partitions_that_ail(side: Side, flag: str) -> None:
    shown = re.findall(r"Topic: (\S+)\s+Partition: (\d+)", side.tool("TopicCommand", "--describe", f"--{flag}"))
    told = side.verb.ok("topic", "describe", f"--{flag}", "--json").json
    assert sorted(shown) == sorted((topic["name"], str(p["partition"])) for topic in told for p in topic["partitions"])


def test_a_group_and_its_lag(side: Side) -> None:
    rows = table(side.tool(_GROUPS, "--describe", "--group", GROUP))
    (told,) = side.verb.ok("group", "describe", GROUP, "--json").json
    keys = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
    ours = ("topic", "partition", "current_offset", "log_end_offset", "lag", "member_id", "host", "client_id")
    assert sorted([row[key] for key in keys] for row in rows) == [
        ["-" if row[key] is None else str(row[key]) for key in ours] for row in told["partitions"]
    ]
    assert [row["lag"] for row in told["partitions"]] == [2, None]


def test_a_group_and_its_members(side: Side) -> None:
    (row,) = table(side.tool(_GROUPS, "--describe", "--group", GROUP, "--members"))
    (told,) = side.verb.ok("group", "describe", GROUP, "--members", "--json").json
    (member,) = told["members"]
    assert (row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"], row["#PARTITIONS"]) == (
        member["member_id"],
        member["host"],
        member["client_id"],
        str(len(member["partitions"])),
    )


def test_groups(side: Side) -> None:
    rows = table(side.tool("GroupsCommand", "--list"))
    told = {each["group"]: each for each in side.verb.ok("group", "list", "--json").json}
    assert {row["GROUP"]: (row["TYPE"].lower(), row["PROTOCOL"]) for row in rows} == {
        name: (each["type"], each["protocol"]) for name, each in told.items()
    }
    states = table(side.tool(_GROUPS, "--list", "--state"))
    assert {row["GROUP"]: row["STATE"] for row in states} == {name: each["state"] for name, each in told.items()}


def test_configs(side: Side) -> None:
    text = side.tool(_CONFIGS, "--describe", "--all", "--topic", TOPIC)
    shown = dict(re.findall(r"^  ([\w.]+)=(.*?) sensitive=", text, re.MULTILINE))
    told = side.verb.ok("config", "describe", "--topic", TOPIC, "--all", "--json").json
    assert {each["key"]: each["value"] or "" for each in told} == {key: value or "" for key, value in shown.items()}
    assert len(shown) > 25


def test_offsets(side: Side) -> None:
    for when in ("latest", "earliest"):
        shown = side.tool("GetOffsetShell", "--topic", TOPIC, "--time", when).split()
        told = side.verb.ok("topic", "offsets", TOPIC, "--time", when, "--json").json
        assert shown == [f"{each['topic']}:{each['partition']}:{each['offset']}" for each in told], when


def test_log_dirs(side: Side) -> None:
    text = side.tool("LogDirsCommand", "--describe", "--topic-list", TOPIC)
    (broker,) = json.loads(text.splitlines()[-1])["brokers"]
    shown = [
        [
            each["partition"],
            broker["broker"],
            directory["logDir"],
            each["size"],
            each["offsetLag"],
            each["isFuture"],
        ]
        for directory in broker["logDirs"]
        for each in directory["partitions"]
    ]
    told = side.verb.ok("broker", "log-dirs", "--topic", TOPIC, "--json").json
    keys = ("broker", "path", "bytes", "offset_lag", "is_future")
    ours = [[f"{each['topic']}-{each['partition']}", *(each[key] for key in keys)] for each in told]
    assert sorted(shown) == ours


def test_acls(side: Side) -> None:
    text = side.tool("AclCommand", "--list")
    shown = set()
    for section in text.split("Current ACLs for resource ")[1:]:
        found = re.search(r"resourceType=(\w+), name=([^,]+), patternType=(\w+)", section)
        assert found is not None, section
        for entry in re.findall(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", section):
            shown.add((*found.groups(), *entry))
    told = side.verb.ok("acl", "list", "--json").json
    keys = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    plain: Callable[[str], str] = lambda text: text.upper().replace("_", "")  # noqa: E731 - both write it in their way
    assert {tuple(map(plain, each)) for each in shown} == {tuple(plain(each[key]) for key in keys) for each in told}
    assert len(shown) == 4


def test_transactions(side: Side) -> None:
    names = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
    keys = ("transactional_id", "coordinator", "producer_id", "state")
    rows = table(side.tool("TransactionsCommand", "list"))
    told = side.verb.ok("transaction", "list", "--json").json
    assert [[row[name] for name in names] for row in rows] == [[str(each[key]) for key in keys] for each in told]
    (row,) = table(side.tool("TransactionsCommand", "describe", "--transactional-id", TRANSACTIONAL_ID))
    told = side.verb.ok("transaction", "describe", TRANSACTIONAL_ID, "--json").json
    shown = (row["CoordinatorId"], row["ProducerEpoch"], row["TransactionState"], row["TransactionTimeoutMs"])
    assert shown == (str(told["coordinator"]), str(told["producer_epoch"]), told["state"], str(told["timeout_ms"]))
    assert told["partitions"] == [{"topic": TOPIC, "partition": 1}]


def test_producers(side: Side) -> None:
    names = ("ProducerId", "ProducerEpoch", "LastSequence", "CurrentTransactionStartOffset")
    keys = ("producer_id", "producer_epoch", "last_sequence", "start_offset")
    rows = table(side.tool("TransactionsCommand", "describe-producers", "--topic", TOPIC, "--partition", "1"))
    told = side.verb.ok("transaction", "producers", TOPIC, "1", "--json").json
    assert sorted([row[name] for name in names] for row in rows) == sorted(
        [str(each[key]) for key in keys] for each in told
    )
    assert [each["start_offset"] for each in told if each["start_offset"] is not None] == [1]


def test_features(side: Side) -> None:
    pattern = r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)"
    shown = {each[0]: each[1:] for each in re.findall(pattern, side.tool("FeatureCommand", "describe"))}
    told = side.verb.ok("feature", "list", "--json").json
    assert shown.keys() == {each["feature"] for each in told}
    for each in told:
        if each["feature"] != "metadata.version":  # whose levels the tool calls by releases
            assert shown[each["feature"]] == tuple(str(each[key]) for key in ("lowest", "highest", "level"))


def test_apis(side: Side) -> None:
    shown = re.findall(r"(\w+)\((\d+)\): (?:(\d+) to )?(\d+) \[", side.tool("BrokerApiVersionsCommand"))
    told = side.verb.ok("broker", "api-versions", "1", "--json").json
    assert {(int(key), int(low or high), int(high)) for _, key, low, high in shown} == {
        (each["key"], each["min_version"], each["max_version"]) for each in told
    }


def test_users_and_their_limits(side: Side) -> None:
    text = side.tool(_CONFIGS, "--describe", "--entity-type", "users", "--entity-name", "alice")
    ((user,),) = [side.verb.ok("user", "list", "alice", "--json").json]
    assert f"{user['mechanism']}=iterations={user['iterations']}" in text
    ((limits,),) = [side.verb.ok("quota", "list", "--user", "alice", "--json").json]
    for key, value in limits["limits"].items():
        assert f"{key}={value}" in text
    assert len(limits["limits"]) == 2


def test_subscriptions_to_metrics_of_clients(side: Side) -> None:
    """The tool and the verb each show, change and remove a subscription that the other one creates."""
    tool, name = partial(side.tool, "ClientMetricsCommand"), "beside-metrics"
    what = ["--metrics", "org.apache.kafka.producer.", "--match", "client_id=a.*,client_software_name=b.*"]
    side.verb.ok("client-metrics", "create", name, *what, "--interval", "30000")
    assert tool("--list").split() == [each["name"] for each in side.verb.ok("client-metrics", "list", "--json").json]
    for interval in ("30000", "60000"):
        tool("--alter", "--name", name, "--interval", interval)
        shown = dict(re.findall(r"^ *(interval\.ms|metrics|match)=(.*?)$", tool("--describe", "--name", name), re.M))
        (told,) = side.verb.ok("client-metrics", "describe", name, "--json").json
        assert shown == {"interval.ms": told["interval_ms"], "metrics": told["metrics"], "match": told["match"]}
        assert told["interval_ms"] == interval
    tool("--delete", "--name", name)
    assert side.verb.ok("client-metrics", "list", "--json").json == []


def test_the_cluster(side: Side) -> None:
    (told,) = side.verb.ok("broker", "cluster-id").lines
    status, out, err = run_java(
        side.libs, f"{_TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", side.broker.bootstrap
    )
    assert (status, out.split()) == (0, ["Cluster", "ID:", told]), err
    status, out, err = run_java(
        side.libs, f"{_TOOLS}.ClusterTool", "list-endpoints", "--bootstrap-server", side.broker.bootstrap
    )
    assert status == 0, err
    (broker,) = side.verb.ok("broker", "list", "--json").json
    assert out.splitlines()[1].split()[:3] == [str(broker["id"]), *broker["address"].split(":")]


def test_a_share_group(side: Side) -> None:
    name = "beside-share"
    side.verb.ok("topic", "create", name, "-p", "2")
    side.verb.ok("config", "set", "share.auto.offset.reset=earliest", "--group", name)
    side.verb.ok("produce", name, "-p", "0", stdin=b"a\nb\nc\n")
    side.verb.ok("consume", name, "--share", name, "-c", "2", "--timeout", "20000")
    shown = side.tool("consumer.group.ShareGroupCommand", "--describe", "--group", name)
    (told,) = side.verb.ok("group", "describe", name, "--json").json
    assert [told["state"], told["type"]] == ["Empty", "share"]
    assert sorted([row["TOPIC"], row["PARTITION"], row["START-OFFSET"], row["LAG"]] for row in table(shown)) == [
        [row["topic"], str(row["partition"]), *("-" if each is None else str(each) for each in place)]
        for row in told["partitions"]
        for place in [(row["start_offset"], row["lag"])]
    ]
    assert told["partitions"][0]["lag"] == 1
    side.verb.ok("group", "delete", name)
