"""A share group in a cluster, for the tests of its parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Cluster

from .sharing import GROUP, SETTINGS, STATES, Sharing
from .test_transactions import Context


@pytest.fixture
def sharing() -> Iterator[Sharing]:
    with Cluster(brokers=3, config=SETTINGS) as cluster:
        context = Context(cluster)
        yield Sharing(context, GROUP, STATES)
        context.close()
