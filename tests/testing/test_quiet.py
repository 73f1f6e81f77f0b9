"""Messages that an embedded broker does not log, because a test's author could not act on them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from kbroker import Broker, Cluster
from kbroker.network.loop_watch import LoopWatch

CLIENT = SimpleNamespace(client_host="/127.0.0.1", client_id="c")


def hold(watch: LoopWatch) -> None:
    watch.work("Metadata v9", 21, CLIENT, 0.123)
    assert watch.held >= 1


def test_a_loop_that_others_of_the_process_hold(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kbroker")
    with Broker() as broker, Cluster(brokers=1) as cluster:
        hold(broker.node.server.watch)
        hold(cluster.brokers[1].node.server.watch)
    assert "event loop" not in caplog.text


@pytest.mark.parametrize("options", [{"tls": True}, {"users": {"a": "b"}}, {"tls": True, "users": {"a": "b"}}])
def test_settings_that_are_its_own(options: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with Broker(**options):  # type: ignore[arg-type]
        pass
    assert not caplog.records


def test_a_certificate_is_asked_for_where_a_listener_without_logins_is_added() -> None:
    listeners = {"listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0"}
    with Broker(listeners, tls=True, users={"a": "b"}) as broker:
        assert broker.node.config["ssl.client.auth"] == "requested"
    with Broker(tls=True, users={"a": "b"}) as broker:
        assert broker.node.config["ssl.client.auth"] == "none"
