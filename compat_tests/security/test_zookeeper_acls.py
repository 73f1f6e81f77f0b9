"""One ZooKeeper, Apache Kafka 3.9.1 and kbroker: both apply the ACLs that either broker receives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from compat_tests.clients.common import wait_for
from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess, KBroker
from compat_tests.harness.jvm import run_java
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.security.authorizer.acls import OPERATIONS, Operation, PatternType, Permission, ResourceType

pytestmark = [pytest.mark.java, pytest.mark.long]

SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.replication.factor": "1",
}
ALL = (1, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


@pytest.fixture(scope="module")
def both(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("acls")
    with ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper:
        java = Kafka39(kafka39_libs, directory / "java", zookeeper, {**SETTINGS, "node.id": "1"})
        settings = {**SETTINGS, "node.id": "2", "zookeeper.connect": zookeeper.bootstrap}
        with java, KBroker(directory / "kbroker", settings) as ours:
            yield java, ours


def acls(broker: BrokerProcess) -> set[tuple[int | str, ...]]:
    with WireClient(broker.bootstrap) as client:
        answer = client.ask(DescribeAclsRequest(*ALL), 3)
    return {
        (r.resource_type, r.resource_name, r.pattern_type, a.principal, a.host, a.operation, a.permission_type)
        for r in answer.resources
        for a in r.acls
    }


def until_known(brokers: Iterable[BrokerProcess], expected: set[tuple[int | str, ...]]) -> None:
    for each in brokers:
        wait_for(f"that {each.name} knows the ACLs", partial(lambda broker: acls(broker) == expected, each))


def test_each_follows_what_the_other_was_told(both: tuple[BrokerProcess, BrokerProcess]) -> None:
    expected: set[tuple[int | str, ...]] = set()
    for number, broker in enumerate((*both, *both)):
        rows: list[tuple[int, str, int, str, str, int, int]] = [
            (
                kind,
                name if kind != ResourceType.CLUSTER else "kafka-cluster",
                pattern,
                f"User:CN={number},O=ü",
                "*",
                each,
                p,
            )
            for kind, operations in OPERATIONS.items()
            for each in (*operations, Operation.ALL)
            for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
            for p in (Permission.ALLOW, Permission.DENY)
            for name in (f"a name {number}",)
            if kind not in (ResourceType.USER, ResourceType.DELEGATION_TOKEN)
            and each is not Operation.TWO_PHASE_COMMIT
            and (kind, pattern) != (ResourceType.CLUSTER, PatternType.PREFIXED)
        ]
        with WireClient(broker.bootstrap) as client:
            answer = client.ask(CreateAclsRequest([AclCreation(*row) for row in rows]), 3)
        assert {each.error_code for each in answer.results} == {0}
        expected |= set(rows)
        until_known(both, expected)
    report.count("AclAuthorizer's znodes", "both")
    for number, broker in enumerate(both):
        gone = DeleteAclsFilter(1, None, PatternType.ANY, f"User:CN={number},O=ü", None, Operation.ANY, Permission.ANY)
        with WireClient(broker.bootstrap) as client:
            (result,) = client.ask(DeleteAclsRequest([gone]), 3).filter_results
        assert result.error_code == 0
        expected = {row for row in expected if row[3] != f"User:CN={number},O=ü"}
        until_known(both, expected)


def test_kafka_acls_of_3_9(both: tuple[BrokerProcess, BrokerProcess], kafka39_libs: Path) -> None:
    tool = "kafka.admin.AclCommand"

    def run(broker: BrokerProcess, *arguments: str) -> str:
        status, out, err = run_java(kafka39_libs, tool, "--bootstrap-server", broker.bootstrap, *arguments)
        assert status == 0, out + err
        return out

    java, ours = both
    run(ours, "--add", "--allow-principal", "User:tool", "--consumer", "--topic", "tools", "--group", "g")
    wait_for("Kafka knows", lambda: "User:tool" in run(java, "--list", "--topic", "tools"))
    run(java, "--remove", "--topic", "tools", "--force")
    wait_for("kbroker knows", lambda: "User:tool" not in run(ours, "--list", "--topic", "tools"))
