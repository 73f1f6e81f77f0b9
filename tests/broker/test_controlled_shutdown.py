"""A broker's controlled shutdown: it asks the controller, and a second signal ends it faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.broker import controlled_shutdown
from kbroker.broker.controlled_shutdown import shut_down_controlled
from kbroker.config.server_config import BrokerConfig
from kbroker.protocol.messages.inter_broker import ControlledShutdownResponse, RemainingPartition
from tests.replica_manager.virtual_time import run

SETTINGS = {"zookeeper.connect": "127.0.0.1:1", "broker.id": "1", "controlled.shutdown.retry.backoff.ms": "1"}
CONFIG = BrokerConfig(SETTINGS)


class Controller:
    """Returns the given answers, and then never answers again."""

    def __init__(self, *answers: ControlledShutdownResponse) -> None:
        self.answers = list(answers)
        self.asked = self.closed = 0

    def peer(self, *_: Any, **__: Any) -> Controller:
        return self

    def close(self) -> None:
        self.closed += 1

    async def ask(self, *_: Any) -> ControlledShutdownResponse:
        self.asked += 1
        if self.answers:
            return self.answers.pop(0)
        await asyncio.Event().wait()
        raise AssertionError


async def leave(
    controller: Controller,
    second_signal: asyncio.Event,
    away: asyncio.Event | None = None,
    is_alone: Callable[[], bool] = lambda: False,
    config: BrokerConfig = CONFIG,
) -> None:
    where = ("127.0.0.1", 1)
    leaving = shut_down_controlled(
        config,
        controller,
        lambda: 5,
        lambda: where,
        second_signal,
        away or asyncio.Event(),
        is_alone,  # type: ignore[arg-type]
    )
    await asyncio.wait_for(leaving, 30)


def test_it_asks_until_the_controller_is_content() -> None:
    busy, done = ControlledShutdownResponse(error_code=41), ControlledShutdownResponse()
    controller = Controller(busy, done)
    asyncio.run(leave(controller, asyncio.Event()))
    assert (controller.asked, controller.closed) == (2, 2)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_is_in_a_hurry_waits_for_no_controller(when: str) -> None:
    async def story() -> None:
        second_signal, controller = asyncio.Event(), Controller()
        if when == "before":
            second_signal.set()
        else:
            asyncio.get_running_loop().call_later(0.05, second_signal.set)
        await leave(controller, second_signal)
        await asyncio.sleep(0)
        assert controller.asked == controller.closed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())


def test_nobody_asks_on_where_zookeeper_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_shutdown, "_AWAY_SECONDS", 0.02)

    async def story() -> None:
        away, controller = asyncio.Event(), Controller()
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, away.set)
        loop.call_later(0.02, away.clear)  # it returns
        loop.call_later(0.05, away.set)
        await leave(controller, asyncio.Event(), away)
        assert controller.asked == 1, "the question that no controller can answer"
        assert away.is_set()

    asyncio.run(story())


def test_a_controller_that_is_alone_waits_for_others_for_some_seconds_only() -> None:
    """A single controller waits for other brokers for some seconds only, with Kafka's defaults and a test clock."""
    config = BrokerConfig({**SETTINGS, "controlled.shutdown.retry.backoff.ms": "5000"})
    left = ControlledShutdownResponse(remaining_partitions=[RemainingPartition("t", 0)])

    def took(is_alone: Callable[[], bool], tries: int) -> float:
        async def story() -> float:
            controller = Controller(*[left] * 3)
            began = asyncio.get_running_loop().time()
            await leave(controller, asyncio.Event(), None, is_alone, config)
            assert controller.asked == tries
            return asyncio.get_running_loop().time() - began

        return run(story())

    assert took(lambda: False, 3) == pytest.approx(10, abs=0.1)
    assert took(lambda: True, 2) == pytest.approx(5, abs=0.1)
    came = iter([True, True, False, False, False])
    assert took(lambda: next(came), 3) == pytest.approx(10, abs=0.1)
