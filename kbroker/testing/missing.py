"""The errors that a test gets: Kafka's errors, which name the topic or group, and errors that list the existing names.

Owns these errors. Their texts do not list the broker's internal topics. Never sends a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.testing.known import unknown


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise ApiError for an error code other than 0. The message begins with `about`, like "topic orders: ..."."""
    if code:
        error = ErrorCode(code)
        text = message or DEFAULT_MESSAGES.get(error)
        raise ApiError(error, f"{about}: {text}" if text else about)


_LISTED: Final = 10


class MissingError(KeyError):
    """Raised if no topic or group has this name (yet). `Broker.wait_for` continues to wait after this error."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        super().__init__(unknown(what, str(name), known))

    def __str__(self) -> str:
        return str(self.args[0])  # the method of KeyError would quote the text


def topic_state(name: str, state: ClusterState) -> TopicState:
    """Return the state of a topic. Raises MissingError."""
    found = state.topics.get(name)
    if found is None:
        raise MissingError("topic", name, visible(state))
    return found


def visible(state: ClusterState) -> list[str]:
    """Return the topics in order, without the broker's internal topics."""
    return [name for name in sorted(state.topics) if not name.startswith("__")]


def listing(what: str, names: Iterable[str]) -> str:
    """Return "<what: names>". If the names cannot be listed, the text contains the error instead of the names."""
    try:
        there = list(names)
    except (RuntimeError, TimeoutError, ApiError) as err:
        return f"<{what}: {err or 'no answer in time'}>"
    more = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
    return f"<{what}: {', '.join(there[:_LISTED]) or 'none'}{more}>"
