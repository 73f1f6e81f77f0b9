"""ApiVersions: a client names the broker that it wants to reach (KIP-1242)."""

from __future__ import annotations

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import DescribeClusterRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest

E = ErrorCode


@pytest.mark.parametrize(
    ("cluster", "node", "code"),
    [
        ("this", 1, E.NONE),
        (None, -1, E.NONE),
        ("this", 2, E.REBOOTSTRAP_REQUIRED),
        ("another", 1, E.REBOOTSTRAP_REQUIRED),
        ("", 1, E.REBOOTSTRAP_REQUIRED),
        ("this", -1, E.INVALID_REQUEST),
        (None, 1, E.INVALID_REQUEST),
    ],
)
def test_a_client_learns_whom_it_has_reached(broker: Broker, cluster: str | None, node: int, code: E) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        if cluster == "this":
            cluster = client.ask(DescribeClusterRequest(), 1).cluster_id
        answer = client.ask(ApiVersionsRequest("name", "1", cluster, node), 5)
        assert (answer.error_code, bool(answer.api_keys)) == (code, code is E.NONE)
        assert client.ask(ApiVersionsRequest("name", "1", "another", 7), 4).error_code == E.NONE, "it cannot be told"


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        yield broker
