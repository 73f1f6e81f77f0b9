"""The cluster's published state and decided state: a change is decided, then stored, then published.

Owns the current `ClusterState`, its listeners, and the order decide, store, publish, answer. Until a change is stored,
only the next decision uses it (`decided`). So a crash or a power loss can undo only changes that were never visible.
Never decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from kbroker.cluster_state import ClusterState
from kbroker.controller.cluster_metadata import Listener
from kbroker.controller.store_interface import Change, MetadataStore
from kbroker.long_work import for_a_while

log = logging.getLogger(__name__)

Step = Callable[[ClusterState], ClusterState]
"""A change, applied to the preceding state."""


class Listeners:
    """The components that follow the state, in the order of their subscription."""

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._all.append(listener)

    def remove(self, listener: Listener) -> None:
        """Remove a listener, if it is still subscribed."""
        if listener in self._all:
            self._all.remove(listener)

    def clear(self) -> None:
        self._all.clear()

    def notify(self, old: ClusterState, new: ClusterState) -> None:
        """Notify all listeners, even if one of them fails, because the change is in effect and callers wait for it."""
        for listener in tuple(self._all):
            try:
                listener(old, new)
            except Exception:
                log.exception("a change of the cluster was not followed to its end")


class PublishedState:
    """A state, and the way in which changes are applied to it."""

    def __init__(self, store: MetadataStore, state: ClusterState) -> None:
        """Begin with the stored state."""
        self._changes = store
        self._listeners = Listeners()
        self.state = state
        """The state that is stored and published."""
        self.decided = state
        """The decided state.

        A part of it might not be stored yet, so this state serves only to make further decisions.
        """
        self._unpublished: deque[Step] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._decisions = self._published = self._publishable = 0
        self._publishing = False
        self._error: OSError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether all decisions are stored and published."""
        return self._decisions == self._published

    def published(self) -> Awaitable[None] | None:
        """Return a future that is done when all decisions so far are stored and published; None if they already are.

        The requester of a change gets its answer only then. Raises OSError, or sets it on the future.
        """
        if self._error is not None:
            raise self._error
        if self.is_settled:
            return None
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((self._decisions, future))
        return future

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.add(listener)

    def decide(self, changes: Sequence[Change], step: Step) -> None:
        """Store changes, and publish the resulting state when they are stored.

        If this raises OSError, nothing is decided.
        """
        if self._error is not None:
            raise self._error
        decided = step(self.decided)
        if changes:
            self._changes.write(changes)
        self.decided = decided
        self._decisions += 1
        self._unpublished.append(step)
        stored = self._changes.stored()
        if stored is not None:
            stored.add_done_callback(self._stored)
        elif len(self._unpublished) == 1:
            self._publish_next()
        else:
            # An earlier decision is stored but not published yet; this decision has to wait for it.
            asyncio.get_running_loop().call_soon(self._may_publish)

    def close(self) -> None:
        """Publish nothing more, and cancel waiting callers. The next start loads the stored changes."""
        self._listeners.clear()
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    def _stored(self, stored: asyncio.Future[None]) -> None:
        """Publish the next decision.

        If a decision could not be stored, this and all later decisions are not published.
        """
        error = None if stored.cancelled() else stored.exception()
        if error is None:
            self._may_publish()
            return
        self._error = error if isinstance(error, OSError) else OSError(str(error))
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(self._error)

    def _may_publish(self) -> None:
        """Publish one more decision: now, or in one of the next turns of the event loop if many decisions wait."""
        self._publishable += 1
        if not self._publishing:
            self._publish_some()

    def _publish_some(self) -> None:
        self._publishing = self._publishable > 0
        if not self._publishing:
            return
        for_a_while(self._publish_one)
        asyncio.get_running_loop().call_soon(self._publish_some)

    def _publish_one(self) -> bool:
        self._publishable -= 1
        self._publish_next()
        return self._publishable > 0

    def _publish_next(self) -> None:
        step = self._unpublished.popleft()
        old, state = self.state, step(self.state)
        if not self._unpublished:
            self.decided = state  # both states are equal now: keep only one in memory
        self.state = state
        self._published += 1
        self._listeners.notify(old, state)
        while self._waiting and self._waiting[0][0] <= self._published:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
