"""The launcher's plan, without starting anything."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.launcher.child import LauncherError
from kbroker.launcher.plan import (
    broker_command,
    free_ports,
    make_plan,
    parse_listen,
    parse_settings,
    require_free,
    with_metrics,
    with_registries,
)


def test_brokers_take_neighbouring_ports() -> None:
    plan = make_plan(Path("/c"), 3, ("127.0.0.1", 9092), None, {})
    assert [(each.node_id, each.port, str(each.data_dir)) for each in plan.brokers] == [
        (1, 9092, "/c/broker-1/data"),
        (2, 9093, "/c/broker-2/data"),
        (3, 9094, "/c/broker-3/data"),
    ]
    assert plan.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


def test_port_0_takes_free_ones() -> None:
    plan = make_plan(Path("/c"), 3, ("127.0.0.1", 0), None, {})
    assert len({each.port for each in plan.brokers} - {0}) == 3


def test_ports_must_exist() -> None:
    with pytest.raises(LauncherError, match="65535"):
        make_plan(Path("/c"), 3, ("127.0.0.1", 65_534), None, {})


def test_a_broker_on_every_interface_is_reached_on_loopback() -> None:
    plan = make_plan(Path("/c"), 1, ("0.0.0.0", 9092), None, {})
    assert plan.bootstrap_servers == "127.0.0.1:9092"
    assert "listeners=PLAINTEXT://0.0.0.0:9092" in broker_command(["k"], plan, plan.brokers[0], "z:1")


def test_command_of_a_broker() -> None:
    plan = make_plan(Path("/c"), 2, ("::1", 9092), None, {"zookeeper.session.timeout.ms": "9000", "a": "b"})
    command = broker_command(["python", "-m", "kbroker"], plan, plan.brokers[1], "127.0.0.1:2181/x")
    assert command[:6] == ["python", "-m", "kbroker", "start", "--data-dir", "/c/broker-2/data"]
    settings = dict(text.split("=", 1) for text in command[7::2])
    assert set(command[6::2]) == {"--set"}
    assert settings == {
        "offsets.topic.replication.factor": "2",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "2",
        "share.coordinator.state.topic.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.min.isr": "2",
        "zookeeper.session.timeout.ms": "9000",
        "controlled.shutdown.retry.backoff.ms": "500",
        "inter.broker.apis.from": "brokers",
        "a": "b",
        "zookeeper.connect": "127.0.0.1:2181/x",
        "broker.id": "2",
        "listeners": "PLAINTEXT://[::1]:9093",
    }


def test_further_options_stand_before_the_settings() -> None:
    plan = replace(make_plan(Path("/c"), 1, ("127.0.0.1", 9092), None, {}), options=("--log-format", "json"))
    command = broker_command(["k"], plan, plan.brokers[0], "z:1")
    assert command[:6] == ["k", "start", "--data-dir", "/c/broker-1/data", "--log-format", "json"]
    assert command[6] == "--set"


def test_brokers_serve_metrics_on_neighbouring_ports() -> None:
    plan = with_metrics(make_plan(Path("/c"), 2, ("127.0.0.1", 9092), None, {}), ("::1", 9404))
    assert [broker.metrics for broker in plan.brokers] == ["[::1]:9404", "[::1]:9405"]
    assert broker_command(["k"], plan, plan.brokers[1], "z:1")[4:6] == ["--metrics", "[::1]:9405"]
    free = with_metrics(plan, ("127.0.0.1", 0))
    assert len({broker.metrics for broker in free.brokers}) == 2
    with pytest.raises(LauncherError, match="--metrics: 2 brokers"):
        with_metrics(plan, ("127.0.0.1", 65_535))


def test_brokers_serve_registries_on_neighbouring_ports() -> None:
    plan = with_registries(make_plan(Path("/c"), 2, ("127.0.0.1", 9092), None, {}), ("127.0.0.1", 8081))
    assert [broker.registry for broker in plan.brokers] == ["127.0.0.1:8081", "127.0.0.1:8082"]
    assert broker_command(["k"], plan, plan.brokers[1], "z:1")[4:6] == ["--registry", "127.0.0.1:8082"]
    free = with_registries(plan, ("127.0.0.1", 0))
    assert len({broker.registry for broker in free.brokers}) == 2
    with pytest.raises(LauncherError, match="--registry: 2 brokers"):
        with_registries(plan, ("127.0.0.1", 65_535))


@pytest.mark.parametrize("key", ["broker.id", "node.id", "listeners", "log.dirs", "zookeeper.connect"])
def test_what_differs_between_brokers_is_not_to_be_set(key: str) -> None:
    with pytest.raises(LauncherError, match=key):
        parse_settings([f"{key}=1"])


def test_settings() -> None:
    assert parse_settings(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}
    with pytest.raises(LauncherError, match="KEY=VALUE"):
        parse_settings(["a"])


def test_listen() -> None:
    assert parse_listen("[::1]:0") == ("::1", 0)
    for text in ("9092", "h:", "h:x", "h:65536"):
        with pytest.raises(LauncherError, match="HOST:PORT"):
            parse_listen(text)


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = make_plan(Path("/c"), 1, taken.getsockname(), None, {})
        with pytest.raises(LauncherError, match=f"127.0.0.1:{plan.brokers[0].port}.*in use"):
            require_free(plan.brokers)


def test_free_ports_differ() -> None:
    assert len(set(free_ports("127.0.0.1", 20))) == 20
