"""ACLs in a cluster: any broker changes them, all brokers apply them, also a broker that returns."""

from __future__ import annotations

import socket
import time

import pytest

from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from kbroker import Cluster
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest
from kbroker.protocol.messages.groups import ListGroupsRequest
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType

ANY_ACL = (1, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
OWN, OTHER = "127.0.0.1", "127.0.0.2"
SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "offsets.topic.num.partitions": "1",
}


def creation(kind, name, host, operation=Operation.ALL):
    return AclCreation(kind, name, PatternType.LITERAL, "User:ANONYMOUS", host, operation, Permission.ALLOW)


def ask(address, request, version=3):
    with WireClient(address) as client:
        return client.ask(request, version)


def acls(address):
    return {
        (resource.resource_type, resource.resource_name, acl.host, acl.operation)
        for resource in ask(address, DescribeAclsRequest(*ANY_ACL)).resources
        for acl in resource.acls
    }


def until(holds):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refused_elsewhere(address):
    """Whether a client from the other address is refused the offsets of a group."""
    host, _, port = address.rpartition(":")
    with WireClient(address) as client:
        client._sock.close()
        client._sock = socket.create_connection((host, int(port)), DEADLINE_SECONDS, source_address=(OTHER, 0))
        answer = client.ask(OffsetFetchRequest(group_id="billing", topics=[]), 7)
        assert client.ask(ListGroupsRequest(), 4).error_code == 0
    return answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="loopback has other addresses on Linux")
def test_every_broker_goes_by_what_any_was_told():
    with Cluster(brokers=2, config=SETTINGS) as cluster:
        one, two = (cluster.brokers[number].bootstrap_servers for number in (1, 2))
        own = [
            creation(ResourceType.CLUSTER, "kafka-cluster", OWN),
            creation(ResourceType.GROUP, "*", OWN),
        ]
        answer = ask(one, CreateAclsRequest(own))
        assert [each.error_code for each in answer.results] == [0, 0]
        until(lambda: len(acls(two)) == 2)
        assert refused_elsewhere(one)
        assert refused_elsewhere(two)
        described = creation(ResourceType.GROUP, "billing", OTHER, Operation.DESCRIBE)
        answer = ask(two, CreateAclsRequest([described, creation(ResourceType.GROUP, "a/b", OTHER)]))
        assert [each.error_code for each in answer.results] == [0, ErrorCode.INVALID_REQUEST]
        assert not refused_elsewhere(two)
        until(lambda: not refused_elsewhere(one))
        cluster.brokers[1].kill()
        gone = DeleteAclsFilter(ResourceType.GROUP, "billing", *ANY_ACL[2:])
        answer = ask(two, DeleteAclsRequest([gone]))
        assert [len(each.matching_acls) for each in answer.filter_results] == [1]
        cluster.brokers[1].start()
        assert acls(cluster.brokers[1].bootstrap_servers) == acls(two)
        assert len(acls(two)) == 2
        assert refused_elsewhere(cluster.brokers[1].bootstrap_servers)


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="loopback has other addresses on Linux")
def test_ranges_of_hosts_need_a_feature_which_keeps_brokers_away_that_do_not_know_them():
    with Cluster(brokers=1, config=SETTINGS) as cluster:
        address = cluster.brokers[1].bootstrap_servers
        own = [creation(ResourceType.CLUSTER, "kafka-cluster", "127.0.0.0/8")]
        without = [FeatureUpdateKey(name, 0, upgrade_type=2) for name in ("streams.version", "transaction.version")]
        with_one = [FeatureUpdateKey("streams.version", 1, upgrade_type=1)]
        groups = [creation(ResourceType.GROUP, "*", "127.0.0.0/31")]
        for features, ranges, codes in (
            (without, own, [ErrorCode.UNSUPPORTED_VERSION]),
            (with_one, own + groups, [ErrorCode.NONE, ErrorCode.NONE]),
        ):
            assert ask(address, UpdateFeaturesRequest(feature_updates=features), 1).error_code == 0
            answer = ask(address, CreateAclsRequest(ranges))
            assert [each.error_code for each in answer.results] == codes
        assert {host for _, _, host, _ in acls(address)} == {"127.0.0.0/8", "127.0.0.0/31"}
        assert refused_elsewhere(address)
        wider = [creation(ResourceType.GROUP, "*", "127.0.0.0/30")]
        assert [each.error_code for each in ask(address, CreateAclsRequest(wider)).results] == [0]
        until(lambda: not refused_elsewhere(address))
