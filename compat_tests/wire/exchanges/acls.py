"""ACLs if no authorizer is configured: every request is answered with SECURITY_DISABLED."""

from __future__ import annotations

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)


@sequence
def acls_without_an_authorizer(wire: Wire) -> None:
    creation = AclCreation(2, "a topic", 3, "User:alice", "*", 3, 3)
    wrong = AclCreation(4, "no cluster", 3, "nobody", "", 3, 3)
    for version in versions(CreateAclsRequest):
        wire.ask("create", CreateAclsRequest([creation, wrong]), version)
        wire.ask("create nothing", CreateAclsRequest([]), version)
        wire.ask("create unknown", CreateAclsRequest([AclCreation(0, "x", 3, "User:a", "*", 3, 3)]), version)
    for version in versions(DescribeAclsRequest):
        wire.ask("describe", DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
        wire.ask("describe unknown", DescribeAclsRequest(1, None, 1, None, None, 0, 1), version)
    for version in versions(DeleteAclsRequest):
        wanted = DeleteAclsFilter(1, None, 1, None, None, 1, 1)
        wire.ask("delete", DeleteAclsRequest([wanted, wanted]), version)
        wire.ask("delete nothing", DeleteAclsRequest([]), version)
