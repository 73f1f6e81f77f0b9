"""ACLs through CreateAcls, DescribeAcls and DeleteAcls, and their state after a restart."""

from __future__ import annotations

import pytest

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller import embedded_store
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType
from tests.security.authorizer.served import ADMIN, CLOSED, STANDARD, asynchronous, serving

T, G, C = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED, ANY, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.ANY, PatternType.MATCH
INVALID = ErrorCode.INVALID_REQUEST


def creation(**changed):
    values = {
        "resource_type": T, "resource_name": "orders", "resource_pattern_type": LITERAL, "principal": "User:alice",
        "host": "*", "operation": Operation.READ, "permission_type": Permission.ALLOW, **changed,
    }  # fmt: skip
    return AclCreation(**values)


def wanted(cls, **changed):
    values = {
        "resource_type_filter": ResourceType.ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
        "principal_filter": None, "host_filter": None, "operation": Operation.ANY, "permission_type": Permission.ANY,
        **changed,
    }  # fmt: skip
    return cls(**values)


async def described(served, version=3, **changed):
    answer = await served.ask(wanted(DescribeAclsRequest, **changed), version, ADMIN)
    assert answer.error_code == 0
    return {
        (each.resource_type, each.resource_name, each.pattern_type, acl.principal, acl.operation)
        for each in answer.resources
        for acl in each.acls
    }


NAMES = ["orders", "odd/../na%me", ".", "ünï", "a b*"]


@pytest.mark.parametrize("version", [1, 2, 3])
@asynchronous
async def test_acls_are_there_after_a_restart(tmp_path, monkeypatch, version):
    """Also if the journal has become a snapshot."""
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 1_000)
    created = [
        creation(resource_name=name, resource_type=kind, resource_pattern_type=pattern)
        for name in NAMES
        for kind in (T, G)
        for pattern in (LITERAL, PREFIXED)
    ]
    async with serving(tmp_path) as served:
        for _ in range(2):  # what exists is no error, and stays one
            answer = await served.ask(CreateAclsRequest(created), version, ADMIN)
            assert [each.error_code for each in answer.results] == [0] * len(created)
        before = await described(served, version)
        assert len(before) == len(created)
    async with serving(tmp_path) as served:
        assert await described(served) == before
        filters = [wanted(DeleteAclsFilter, resource_name_filter="orders", pattern_type_filter=LITERAL)]
        answer = await served.ask(DeleteAclsRequest(filters), version, ADMIN)
        (result,) = answer.filter_results
        assert {(acl.resource_type, acl.resource_name) for acl in result.matching_acls} == {
            (T, "orders"),
            (G, "orders"),
        }
        left = await described(served)
        assert len(left) == len(created) - 2
    async with serving(tmp_path) as served:
        assert await described(served) == left


@asynchronous
async def test_filters(tmp_path):
    async with serving(tmp_path) as served:
        some = [
            creation(resource_name="foo"),
            creation(resource_name="fo", resource_pattern_type=PREFIXED),
            creation(resource_name="*"),
            creation(resource_name="food", principal="User:bob", operation=Operation.WRITE),
        ]
        await served.ask(CreateAclsRequest(some), 3, ADMIN)

        async def names(**changed):
            return sorted(name for _, name, _, _, _ in await described(served, **changed))

        assert await names() == ["*", "fo", "foo", "food"]
        assert await names(resource_name_filter="foo", pattern_type_filter=MATCH) == ["*", "fo", "foo"]
        assert await names(resource_name_filter="foo", pattern_type_filter=LITERAL) == ["foo"]
        assert await names(resource_name_filter="fo") == ["fo"]
        assert await names(resource_name_filter="fo", pattern_type_filter=LITERAL) == []
        assert await names(pattern_type_filter=PREFIXED) == ["fo"]
        assert await names(principal_filter="User:bob") == ["food"]
        assert await names(operation=Operation.WRITE) == ["food"]
        assert await names(permission_type=Permission.DENY) == []
        assert await names(host_filter="192.0.2.1") == []
        assert await names(resource_type_filter=G) == []
        assert await names(resource_type_filter=99) == []
        two = [wanted(DeleteAclsFilter), wanted(DeleteAclsFilter, principal_filter="User:bob")]
        answer = await served.ask(DeleteAclsRequest(two), 3, ADMIN)
        assert [len(each.matching_acls) for each in answer.filter_results] == [4, 1]
        assert await names() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"resource_pattern_type": ANY}, "Invalid patternType ANY"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"operation": 77}, "Invalid operation UNKNOWN"),
        ({"permission_type": Permission.ANY}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": C}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, "no colon is present"),
    ],
)
@asynchronous
async def test_what_is_no_acl(tmp_path, changed, said):
    """The other ACLs of the request are created all the same."""
    async with serving(tmp_path) as served:
        answer = await served.ask(CreateAclsRequest([creation(**changed), creation()]), 3, ADMIN)
        assert [each.error_code for each in answer.results] == [INVALID, 0]
        assert said in answer.results[0].error_message
        assert len(await described(served)) == 1


@asynchronous
async def test_codes_that_stand_for_nothing_close_the_connection(tmp_path):
    async with serving(tmp_path) as served:
        assert await served.ask(CreateAclsRequest([creation(operation=0)]), 3, ADMIN) == CLOSED
        assert await served.ask(wanted(DescribeAclsRequest, permission_type=0), 3, ADMIN) == CLOSED
        filters = [wanted(DeleteAclsFilter, pattern_type_filter=0)]
        assert await served.ask(DeleteAclsRequest(filters), 3, ADMIN) == CLOSED
        filters = [wanted(DeleteAclsFilter, pattern_type_filter=9), wanted(DeleteAclsFilter, operation=99)]
        answer = await served.ask(DeleteAclsRequest(filters), 3, ADMIN)
        assert [each.error_code for each in answer.filter_results] == [INVALID, INVALID]


@asynchronous
async def test_without_an_authorizer_there_are_no_acls(tmp_path):
    async with serving(tmp_path, authorizer_class_name="", super_users="") as served:
        disabled = ErrorCode.SECURITY_DISABLED
        answer = await served.ask(CreateAclsRequest([creation(), creation()]), 3)
        assert [each.error_code for each in answer.results] == [disabled, disabled]
        answer = await served.ask(DeleteAclsRequest([wanted(DeleteAclsFilter)]), 3)
        assert [each.error_code for each in answer.filter_results] == [disabled]
        answer = await served.ask(wanted(DescribeAclsRequest), 3)
        assert (answer.error_code, answer.error_message) == (disabled, "No Authorizer is configured on the broker")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"authorizer.class.name": "com.example.Mine"}, "is not known"),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "is not known"),
        ({"super.users": "User:a"}, "set it, too"),
        ({"allow.everyone.if.no.acl.found": "true"}, "set it, too"),
        ({"authorizer.class.name": STANDARD, "super.users": "alice"}, "not a principal"),
        ({"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "perhaps"}, "neither true nor false"),
        ({"authorizer.class.name": STANDARD, "early.start.listeners": "X"}, "early.start.listeners"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(ConfigError, match=said):
        BrokerConfig(settings)


def test_settings_of_a_cluster():
    of_zookeeper = "kafka.security.authorizer.AclAuthorizer"
    settings = {"zookeeper.connect": "x:1", "broker.id": "1", "super.users": "User:CN=a,O=b; User:c "}
    config = BrokerConfig({**settings, "authorizer.class.name": of_zookeeper}, strict=True)
    assert config.authorization == (("User:CN=a,O=b", "User:c"), False)
    with pytest.raises(ConfigError, match="is not known"):
        BrokerConfig({**settings, "authorizer.class.name": STANDARD})
