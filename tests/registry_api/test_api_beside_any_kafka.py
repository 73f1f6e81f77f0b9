"""The API of a registry beside any Kafka: what test_api.py says of a broker's own registry holds for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Broker
from tests.registry_api.beside import Beside
from tests.registry_api.conftest import Http
from tests.registry_api.test_api import *  # noqa: F403 - the same tests, with the fixtures of this module


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(kafka: Broker) -> Broker:
    kafka.reset()
    return kafka


@pytest.fixture
def registry(broker: Broker) -> Iterator[Http]:
    with Beside(broker.bootstrap_servers) as beside:
        yield beside.http
