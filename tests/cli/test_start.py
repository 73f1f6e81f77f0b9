"""The process around a broker: its options, their invalid values, and a signal while it still reads logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from click.testing import CliRunner

from kbroker.broker.node import BrokerNode
from kbroker.cli import start
from kbroker.cli.start import _unless_stopped
from kbroker.config.server_config import BrokerConfig

NODE = cast("BrokerNode", object())


async def recovering() -> BrokerNode:
    """Run a start that continues until it is cancelled."""
    await asyncio.wait_for(asyncio.Event().wait(), 30)
    raise AssertionError("not reached")


async def quick() -> BrokerNode:
    return NODE


def test_a_signal_ends_a_recovery() -> None:
    async def run() -> BrokerNode | None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        return await _unless_stopped(recovering(), stop)

    assert asyncio.run(run()) is None


def test_without_a_signal_it_starts() -> None:
    async def run() -> BrokerNode | None:
        return await _unless_stopped(quick(), asyncio.Event())

    assert asyncio.run(run()) is NODE


def test_dev_serves_this_machine_alone_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[BrokerConfig] = []
    monkeypatch.setattr(start, "run", lambda config, *_rest: configs.append(config))
    for arguments in ([], ["--listen", "127.0.0.2:9192"]):
        assert CliRunner().invoke(start.command, ["--memory", "--dev", *arguments]).exit_code == 0
    assert [config.listeners.bind[0].host for config in configs] == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.parametrize(
    ("arguments", "delay"),
    [
        ([], 3000),
        (["--dev"], 0),
        (["--dev", "--set", "group.initial.rebalance.delay.ms=5"], 5),
    ],
)
def test_dev_lets_groups_form_at_once(monkeypatch: pytest.MonkeyPatch, arguments: list[str], delay: int) -> None:
    configs: list[BrokerConfig] = []
    monkeypatch.setattr(start, "run", lambda config, *_rest: configs.append(config))
    result = CliRunner().invoke(start.command, ["--memory", *arguments])
    assert result.exit_code == 0, result.output
    assert [config.get_int("group.initial.rebalance.delay.ms") for config in configs] == [delay]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "zookeeper.connect=localhost:2181"], "zookeeper.connect"),
        (["--strict", "--set", "num.partition=3"], "num.partitions"),
        (["--set", "nonsense"], "nonsense"),
        (["--listen", "nowhere"], "--listen takes HOST:PORT"),
        (["--listen", "SSL://127.0.0.1:0"], "--set listeners="),
        (
            ["--listen", "127.0.0.1:0", "--set", "listeners=PLAINTEXT://127.0.0.1:1"],
            "--listen and --set listeners=... exclude each other",
        ),
        (["--set", "log.dirs=/nowhere"], "--data-dir and --set log.dirs=... exclude each other"),
    ],
)
def test_a_bad_setting_is_one_line(refused: Callable[..., str], arguments: list[str], said: str) -> None:
    assert said in refused("start", *arguments)
