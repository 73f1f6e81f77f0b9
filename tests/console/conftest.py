"""A console of an embedded broker with something of everything, visitors, and a browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker import Broker
from kbroker.admin.connection import Connection
from kbroker.console.console import Settings
from kbroker.console.records import search as searching
from kbroker.console.server import ConsoleServer
from kbroker.local_http import CONSOLE
from tests.console import world
from tests.console.browser import Browser, browser, missing
from tests.console.visitor import Visitor

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of a broker that knows ACLs, and allows everybody everything."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a browser if there is none, except in CI."""
    lacking = missing()
    if lacking is None or os.environ.get("CI") == "true":
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=f"needs {lacking}"))


@contextmanager
def served(bootstrap: str, **settings: Any) -> Iterator[ConsoleServer]:
    """Serve a console of a cluster, on a free port of this machine."""
    own = {key: settings.pop(key) for key in ("schemas", "registry", "tls", "connection") if key in settings}
    connection = Connection(bootstrap, own.pop("connection", {}))
    made = CONSOLE.listening("127.0.0.1", 0, "--listen", public=False)
    told = Settings(**{"cli": ("--bootstrap", bootstrap), "period_s": 0.5, **settings})
    with ConsoleServer(connection, made, told, **own) as server:
        assert server.console.sampler.wait_for_rounds(1, 30)
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Broker]:
    """A broker with users' rights, and records of many kinds."""
    with Broker(SETTINGS) as broker:
        world.make(broker.bootstrap_servers)
        world.commit(broker.bootstrap_servers, "billing", "orders")
        world.schedule(broker.bootstrap_servers)
        with world.open_transaction(broker.bootstrap_servers, "checkout-1", "payments"):
            yield broker


@pytest.fixture(scope="session")
def console(cluster: Broker) -> Iterator[ConsoleServer]:
    with served(cluster.bootstrap_servers) as server:
        yield server


@pytest.fixture
def web(console: ConsoleServer, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """Return a visitor of the console. One step of a search is long enough for a busy machine."""
    monkeypatch.setattr(searching, "STEP_S", 60.0)
    return Visitor(console.url)


@pytest.fixture
def start() -> Iterator[Callable[..., Visitor]]:
    """Start consoles that end with the test; returns a visitor of each."""
    with ExitStack() as stack:
        yield lambda bootstrap, **settings: Visitor(stack.enter_context(served(bootstrap, **settings)).url)


@pytest.fixture(scope="session")
def window(console: ConsoleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    lacking = missing()
    if lacking is not None:
        pytest.fail(f"needs {lacking}")
    with browser(console.url, str(tmp_path_factory.mktemp("browser"))) as made:
        yield made


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    """Yield a browser, whose log must have no complaint at the end."""
    window.size(1280)
    window.dark(False)
    window.driver.delete_all_cookies()
    window.driver.get("about:blank")  # the previous page sends requests to a console that has ended
    window.complaints()
    yield window
    assert window.complaints() == []


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's script."""
    import axe_core_python

    return (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
