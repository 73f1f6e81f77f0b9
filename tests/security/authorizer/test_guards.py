"""Every API by the table: without a right, with all of them, with one less, with one denied."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker import handlers
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.controller.features import SHARE_VERSION
from kbroker.handlers.authorized.required_rights import RULES
from kbroker.handlers.registry import APIS
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.security.authorizer.acls import CLUSTER_NAME, Entry, Operation, Pattern, Permission, ResourceType
from kbroker.security.authorizer.authorizer import Authorizer
from tests.security.authorizer.cases import CASES, CODES, DOOMED, OF_CLUSTERS, OPEN, SHARE_GROUP, TOPIC
from tests.security.authorizer.served import ADMIN, ALICE, codes, serving

handlers.load_all(in_cluster=True)
REFUSALS = {int(code) for code in CODES.values()}


def test_every_served_api_is_in_the_table():
    assert {api.name for api in APIS.values()} <= RULES.keys()


def test_every_rule_has_its_cases():
    tried = {case.api for case in CASES}
    assert tried | OPEN | OF_CLUSTERS.keys() == RULES.keys()


def test_the_docs_have_the_table():
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    for name, rule in RULES.items():
        assert f"| {name} | {rule.rights} |" in page


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def broker(loop, tmp_path_factory):
    manager = serving(tmp_path_factory.mktemp("guarded"))
    served = loop.run(manager.__aenter__())
    created = CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1)])
    answer = loop.run(served.ask(created, 7, ADMIN))
    assert codes(answer) == {0}
    loop.run(with_share_group(served))
    yield served
    loop.run(manager.__aexit__(None, None, None))


async def with_share_group(served):
    """Enable share groups, and make one."""
    controller = served.node.controller
    controller.replace_features({**controller.state.features, SHARE_VERSION: 1})
    controller.auto_create(OFFSETS_TOPIC)
    await served.settled()
    await served.node.replicas.hosted_of(OFFSETS_TOPIC)
    topic = AlterShareGroupOffsetsRequestTopic(TOPIC, [AlterShareGroupOffsetsRequestPartition(0, 0)])
    request = AlterShareGroupOffsetsRequest(group_id=SHARE_GROUP, topics=[topic])
    assert codes(await served.ask(request, 0, ADMIN)) == {0}


def refusals(answer):
    assert answer is not None
    return codes(answer) & REFUSALS


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-v{case.version}")
def test_an_api_by_the_table(loop, broker, case):
    loop.run(_by_the_table(broker, case))


async def _by_the_table(broker, case):
    async def ask():
        await broker.ask(CreateTopicsRequest([CreatableTopic(DOOMED, 1, 1)]), 7, ADMIN)
        return await broker.ask(case.request, case.version)

    await broker.forbid_all()
    assert refusals(await ask()) == {case.rights[0][0].code}
    for chosen in range(max(len(each) for each in case.rights)):
        wanted = [each[min(chosen, len(each) - 1)] for each in case.rights]
        await broker.forbid_all()
        for right in wanted:
            await broker.allow(right.kind, right.name, right.operation)
        assert refusals(await ask()) == set(), "with exactly what is needed"
        for right in wanted:
            await broker.allow(right.kind, right.name, right.operation, Permission.DENY)
            assert right.code in refusals(await ask()), f"{right} is denied"
            await broker.forbid_all()
            for other in wanted:
                if other is not right:
                    await broker.allow(other.kind, other.name, other.operation)
            assert refusals(await ask()) == {right.code}, f"without {right}"
            await broker.allow(right.kind, right.name, right.operation)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-v{case.version}")
def test_super_users_need_nothing(loop, broker, case):
    async def ask():
        await broker.forbid_all()
        return await broker.ask(case.request, case.version, ADMIN)

    assert refusals(loop.run(ask())) == set()


@pytest.mark.parametrize(("name", "operation"), OF_CLUSTERS.items())
def test_what_only_clusters_serve(name, operation):
    """Brokers ask by a right on the cluster; what is behind it is another test's."""
    api = next(each for each in APIS.values() if each.name == name)
    heard = []
    guarded = RULES[name].guard(lambda _ctx, request: heard.append(request), api.response)
    authorizer = Authorizer()
    ctx = SimpleNamespace(
        rights=None, principal=ALICE, client_host="/192.0.2.1", services=SimpleNamespace(authorizer=authorizer)
    )
    with pytest.raises(ApiError) as refused:
        guarded(ctx, "request")
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    pattern = Pattern(ResourceType.CLUSTER, CLUSTER_NAME)
    entries = {each: Entry(str(ALICE), "*", each, Permission.ALLOW) for each in Operation if each > Operation.ALL}
    authorizer.replace({pattern: frozenset(entry for each, entry in entries.items() if each is not operation)})
    if operation is not Operation.DESCRIBE:  # which others imply
        with pytest.raises(ApiError):
            guarded(ctx, "request")
    assert heard == []
    authorizer.replace({pattern: frozenset([entries[operation]])})
    guarded(ctx, "request")
    assert heard == ["request"]
