"""Four clients see of each fault what docs/faults-and-clients.md says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.faults import with_aiokafka
from compat_tests.faults.catalogue import SCENARIOS, Scenario
from compat_tests.faults.client import Client
from compat_tests.faults.seeing import see
from compat_tests.faults.table import expected
from compat_tests.faults.with_aiokafka import WithAiokafka
from compat_tests.faults.with_confluent import WithConfluent
from compat_tests.faults.with_java import java_clients
from compat_tests.faults.with_kafka_python import WithKafkaPython
from tests.tries import FORM

# Clients that a fault has ended halfway leave open sockets.
pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
_NOT_NOW = pytest.mark.skip(reason="waits for seconds: only with KBROKER_TESTS=long")


@pytest.fixture(scope="module")
def clients(kafka_libs: Path) -> Iterator[list[Client]]:
    with java_clients(kafka_libs) as java:
        yield [WithConfluent(), WithAiokafka(), WithKafkaPython(), java]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=_NOT_NOW if each.slow and FORM != "long" else ()) for each in SCENARIOS],
    ids=lambda each: f"{each.does}: {each.text}",
)
def test_what_clients_see(scenario: Scenario, clients: list[Client]) -> None:
    wanted, found = expected()[scenario.does, scenario.text], see(scenario, clients)
    # On a loaded machine anything may be late; what the page calls late must be late.
    wrong = {
        name: (said, found[name])
        for name, said in wanted.items()
        if found[name] not in said and found[name].replace(", late", "") not in said
    }
    assert not wrong, f"(what the page says, what was seen): {wrong}"


def test_the_page_has_every_scenario() -> None:
    assert list(expected()) == [(each.does, each.text) for each in SCENARIOS]


def test_a_client_of_asyncio_that_does_not_end_is_left() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def with_a_client() -> str:
        try:
            return "done"
        finally:
            await with_aiokafka._soon(stubborn())

    begun = time.monotonic()
    assert with_aiokafka._run(with_a_client()) == "done"
    assert time.monotonic() - begun < 30
