"""How a broker leaves: it asks the controller, and somebody may be in a hurry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbroker.broker.controlled_shutdown import shut_down_controlled
from kbroker.config.server_config import BrokerConfig
from kbroker.protocol.messages.controlled_shutdown import ControlledShutdownResponse

SETTINGS = {"zookeeper.connect": "127.0.0.1:1", "broker.id": "1", "controlled.shutdown.retry.backoff.ms": "1"}
CONFIG = BrokerConfig(SETTINGS)


class Controller:
    """Answers what it is given, and then never again."""

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


async def leave(controller: Controller, hurried: asyncio.Event) -> None:
    where = ("127.0.0.1", 1)
    leaving = shut_down_controlled(CONFIG, controller, lambda: 5, lambda: where, hurried)  # type: ignore[arg-type]
    await asyncio.wait_for(leaving, 30)


def test_it_asks_until_the_controller_is_content() -> None:
    busy, done = ControlledShutdownResponse(error_code=41), ControlledShutdownResponse()
    controller = Controller(busy, done)
    asyncio.run(leave(controller, asyncio.Event()))
    assert (controller.asked, controller.closed) == (2, 2)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_is_in_a_hurry_waits_for_no_controller(when: str) -> None:
    async def story() -> None:
        hurried, controller = asyncio.Event(), Controller()
        if when == "before":
            hurried.set()
        else:
            asyncio.get_running_loop().call_later(0.05, hurried.set)
        await leave(controller, hurried)
        await asyncio.sleep(0)
        assert controller.asked == controller.closed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())
