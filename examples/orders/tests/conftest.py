"""Fixtures: a shop on the broker of `kafka`, and a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import Broker
from shop import Shop, Timepiece


@pytest.fixture
def shop(kafka: Broker) -> Iterator[Shop]:
    """Yield the service's topics on a clean broker, kbroker or another one, with one partition each."""
    made = Shop(kafka.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def wide_shop(kafka: Broker) -> Iterator[Shop]:
    """Yield the same topics with two partitions each."""
    made = Shop(kafka.bootstrap_servers, partitions=2)
    yield made
    made.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Yield an empty database."""
    made = sqlite3.connect(tmp_path / "orders.db")
    yield made
    made.close()


@pytest.fixture
def timepiece() -> Timepiece:
    """Return the service's clock."""
    return Timepiece()
