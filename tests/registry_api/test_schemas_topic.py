"""A topic `_schemas` that exists before a broker's own registry is used."""

from __future__ import annotations

import pytest

from kbroker import Broker
from tests.registry_api.conftest import Http
from tests.registry_api.test_api import ONE, text


@pytest.mark.parametrize(
    ("partitions", "config", "told"),
    [
        (1, {}, "would lose schemas"),
        (1, {"cleanup.policy": "compact,delete"}, "would lose schemas"),
        (2, {"cleanup.policy": "compact"}, "has 2 partitions"),
    ],
)
def test_a_topic_that_would_lose_schemas_is_not_used(
    broker: Broker, registry: Http, partitions: int, config: dict[str, str], told: str
) -> None:
    """A client that reads `_schemas` before the registry is used has created it with the broker's defaults."""
    broker.topics.create("_schemas", partitions, config)
    for method, path in (("GET", "/subjects"), ("POST", "/subjects/a/versions")):
        code, message = registry.refused(method, path, {"schema": text(ONE)} if method == "POST" else None)
        assert code == 50001
        assert told in message


def test_a_topic_that_keeps_schemas_is_used(broker: Broker, registry: Http) -> None:
    broker.topics.create("_schemas", 1, {"cleanup.policy": "compact", "segment.ms": "1000"})
    assert registry.register("a", ONE)["id"] == 1
