"""Requests of the embedder's own, without a connection: handled as any other, by nobody's rights and unseen by faults.

Owns the way of such a request to its handler and to its answer. Never knows what one means.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import GeneratorType
from typing import Any, TypeVar

from kbroker.divided import in_slices
from kbroker.handlers.registry import APIS, RequestContext
from kbroker.handlers.services import Services
from kbroker.testing.steering import Steering

Answer = TypeVar("Answer")
_CLIENT_ID = "kbroker-embedder"


class Asking:
    """One broker's."""

    def __init__(self, steering: Steering, services: Services, listener: str) -> None:
        self._steering = steering
        self._services = services
        self._listener = listener

    def ask(self, request: Any, kind: type[Answer]) -> Answer:
        """Have a request handled in the newest version; return its answer. Raises what the handler raises."""
        answer: Answer = self._steering.wait_for(self.handled(request))
        assert isinstance(answer, kind)
        return answer

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""
        return self._services.clock.now_ms()

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id."""
        return self._services.controller.state.topic_names.get(topic_id)

    def partitions_of(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 where there is none of this name."""
        found = self._services.controller.state.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    async def handled(self, request: Any) -> Any:
        """Have a request handled, where the broker's own loop asks."""
        api = APIS[type(request).KEY]
        context = RequestContext(self._services, "/127.0.0.1", self._listener, ("", 0))
        context.client_id = _CLIENT_ID
        context.version = api.versions.high
        answer = api.handler(context, request)
        while not isinstance(answer, api.response):
            if isinstance(answer, GeneratorType):
                answer = await in_slices(answer)
            else:
                assert isinstance(answer, Awaitable)
                answer = await answer
        return answer
