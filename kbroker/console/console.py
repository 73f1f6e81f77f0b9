"""The console itself: the state that all pages share.

Owns the settings, the cluster, the sampler's results, and the time for which a view of the cluster counts as fresh.
Never answers a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kbroker.admin.cluster_view import ClusterView, cluster_view, view_with
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError, NotThere
from kbroker.console.asking import Cluster
from kbroker.console.decoding.schemas import Schemas
from kbroker.console.login_tries import LoginTries
from kbroker.console.sampler import PERIOD_S, Sampler
from kbroker.console.sessions import Sessions

T = TypeVar("T")
_FRESH_S: Final = 2.0
_TIMES_ITS_COST: Final = 10
"""A view stays fresh for this multiple of its request's duration. With ten thousand topics these are some seconds."""
audit = logging.getLogger("kbroker.console.audit")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a console."""

    read_only: bool = False
    public: bool = False
    """Whether requests may use any host name for the console."""
    names: frozenset[str] = frozenset()
    """The console's host names, besides addresses and localhost; in lower case."""
    users: Mapping[str, str] | None = None
    """The users' password hashes (scrypt), by user name; None if no login is needed."""
    secure: bool = False
    """Whether the console is served with TLS."""
    port: int = 0
    cli: tuple[str, ...] = ()
    """The connection options for command lines to copy."""
    period_s: float = PERIOD_S
    in_flight: Callable[[str, int], Sequence[Any]] | None = None
    """Returns a share group's partitions in use, with at most this number of runs of records in flight.

    The call blocks. Only a broker in this process can return them, because Kafka's protocol has no such request.
    share_partition/in_flight defines runs.
    """


@dataclass(slots=True)
class Console:
    """The state for pages and actions."""

    connection: Connection
    settings: Settings
    schemas: Schemas
    cluster: Cluster = field(init=False)
    sampler: Sampler = field(init=False)
    sessions: Sessions = field(init=False)
    login_tries: LoginTries = field(default_factory=LoginTries)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the server stops, so that streams end."""
    listening: int = 0
    """The number of browsers that follow records."""
    _view: ClusterView | None = None
    _cost_s: float = 0.0
    _changed_at: float = 0.0
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.connection)
        self.sampler = Sampler(self.connection, self.settings.period_s)
        name = f"kbroker-console-{self.settings.port}"
        self.sessions = Sessions(self.settings.users, name=name, secure=self.settings.secure)

    async def ask(self, question: Callable[[Any], T]) -> T:
        """Run a read-only request."""
        return await self.cluster.ask(question)

    async def ask_or_fail(self, question: Callable[[Any], T]) -> tuple[T | None, str | None]:
        """Run a read-only request; return its result, or the text of the failure."""
        try:
            return await self.ask(question), None
        except AdminError as error:
            return None, str(error)

    async def view(self) -> ClusterView:
        """Return a recent view of the cluster, requested after the last change by this console."""
        found = self._recent()
        if found is None:
            async with self._looking:
                found = self._recent()
                if found is None:
                    begun = time.monotonic()
                    found = self._view = await self.ask(cluster_view)
                    self._cost_s = time.monotonic() - begun
        return found

    def _recent(self) -> ClusterView | None:
        oldest = max(self._changed_at, time.monotonic() - max(_FRESH_S, self._cost_s * _TIMES_ITS_COST))
        seen = [each for each in (self._view, self.sampler.samples.view) if each is not None and each.taken >= oldest]
        return max(seen, key=lambda each: each.taken, default=None)

    async def topic(self, name: str) -> Any:
        """Return the current state of one topic. Raises NotThere if it does not exist."""
        found = (await self.ask(lambda admin: view_with(admin, name))).topics.get(name)
        if found is None:
            raise NotThere(f"there is no topic {name}")
        return found

    def changed(self) -> None:
        """Record that something was changed, so that the next page requests a new view."""
        self._changed_at = time.monotonic()
        self.sampler.look_again()

    def end(self) -> None:
        """End streams and waiting requests; must be called in the server's event loop."""
        self.ending.set()
        self.cluster.give_up()

    def close(self) -> None:
        """Stop the sampler and close the clients."""
        self.sampler.stop()
        self.cluster.close()
