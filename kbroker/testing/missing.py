"""What a test is refused: Kafka's error with its subject, or a name that does not exist, with the names that do.

Owns these errors, and which topics they name: not the broker's own. Never asks a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.testing.known import unknown


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise ApiError for an error, told as "topic orders: ..."; nothing is raised for 0."""
    if code:
        error = ErrorCode(code)
        text = message or DEFAULT_MESSAGES.get(error)
        raise ApiError(error, f"{about}: {text}" if text else about)


_TOLD: Final = 10


class MissingError(KeyError):
    """There is no topic or group of this name (yet). `Broker.wait_for` goes on waiting for it."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        super().__init__(unknown(what, str(name), known))

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would put it between quotation marks


def topic_state(name: str, state: ClusterState) -> TopicState:
    """Return what is known of a topic. Raises MissingError."""
    found = state.topics.get(name)
    if found is None:
        raise MissingError("topic", name, visible(state))
    return found


def visible(state: ClusterState) -> list[str]:
    """Return the topics that are not the broker's own, in order."""
    return [name for name in sorted(state.topics) if not name.startswith("__")]


def told(what: str, names: Iterable[str]) -> str:
    """Return "<what: names>", also where nobody can say which there are."""
    try:
        there = list(names)
    except (RuntimeError, TimeoutError, ApiError) as err:
        return f"<{what}: {err or 'no answer in time'}>"
    more = f" and {len(there) - _TOLD} more" if len(there) > _TOLD else ""
    return f"<{what}: {', '.join(there[:_TOLD]) or 'none'}{more}>"
