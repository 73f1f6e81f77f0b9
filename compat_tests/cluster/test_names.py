"""Names from clients that become znodes: none leads out of its folder, and all brokers survive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from compat_tests.harness.clusters import JavaCluster, KBrokerCluster
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.access import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.clients import AlterClientQuotasRequest, AlteredEntity, AlteredEntry, OpData
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from tests.log.directories.test_names_as_paths import NAMES
from tests.tries import FORM

pytestmark = pytest.mark.java

_AUTHORIZED = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
_TOPIC, _BROKER, _SET = 2, 4, 0
alone = pytest.mark.skipif(FORM != "long", reason="asks Apache Kafka alone, which does not change: in make torture")


def asked(name: str) -> Iterator[tuple[Any, int]]:
    """Yield every request of a client in which a name may become a znode, with the request's version."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    yield CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5
    yield DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000), 6
    for kind in (_TOPIC, _BROKER):
        resource = IncrementalResource(kind, name, [IncrementalConfig("retention.ms", _SET, "1000")])
        yield IncrementalAlterConfigsRequest(resources=[resource]), 1
        yield DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)]), 4
    for entity in ("user", "client-id", "ip"):
        entry = AlteredEntry([AlteredEntity(entity, name)], [OpData("producer_byte_rate", 1e6)])
        yield AlterClientQuotasRequest([entry]), 1
    upsertion = ScramCredentialUpsertion(name, 1, 4096, b"salt", b"x" * 32)
    creation = AclCreation(_TOPIC, name, 3, "User:a", "*", 3, 3)
    yield CreateAclsRequest([creation]), 2
    yield AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), 0


def codes(answer: Any) -> list[int]:
    rows = getattr(answer, "topics", None) or getattr(answer, "responses", None) or getattr(answer, "results", None)
    return [row.error_code for row in rows or answer.entries]


def expected(name: str, side: Any) -> list[int]:
    """Return 3.9.1's answer; for a topic's configs kbroker answers as it does to every other request for it."""
    alter, quota, acl = 17, 0, 0
    if not name:
        return [17, 3, 42, 17, 0, 0, 42, 42, 42, 42, 93]  # of brokers it is the default of all
    if name in (".", ".."):
        quota = acl = -1  # ZooKeeper takes no such path, and nothing escapes a dot
    elif "/" in name:
        acl = 42
    elif not name.isprintable():
        acl = -1
    if side is JavaCluster:
        is_path = not re.search(r"^/|(^|/)\.\.?(/|$)|//|[\x00-\x1f]", name)
        alter = 3 if is_path else 40
    return [17, 3, alter, 17, 42, 42, quota, quota, 42, acl, quota]


@pytest.mark.parametrize("side", [KBrokerCluster, pytest.param(JavaCluster, marks=alone)])
def test_a_name_leads_nowhere(side: Any, kafka39_libs: Path, tmp_path: Path) -> None:
    zookeeper = ZooKeeper(kafka39_libs, tmp_path / "zookeeper")
    parts = (kafka39_libs,) if side is JavaCluster else ()
    with (
        zookeeper,
        side(*parts, tmp_path / "cluster", zookeeper, settings=_AUTHORIZED) as cluster,
        zookeeper.tree() as tree,
    ):
        cluster.wait_until_in_sync()
        before = {folder: set(tree.get_children(folder)) for folder in ("/", "/brokers", "/config", "/config/topics")}
        for name in NAMES:
            with WireClient(cluster.address(cluster.controller())) as client:
                told = [code for request, version in asked(name) for code in codes(client.ask(request, version))]
            assert told == expected(name, side), name
        assert {folder: set(tree.get_children(folder)) for folder in before} == before
        kept = [quote(name, safe="") for name in NAMES if name.strip(".")]
        for folder in ("/config/users", "/config/clients"):
            assert sorted(tree.get_children(folder)) == sorted(kept)
        assert side is JavaCluster or not any("Traceback" in cluster.log_tail(each) for each in cluster.node_ids)
