"""Deleted topics, until no directory on disk has their names any more.

Owns when the controller may forget the id of one. A deletion is stored first, then published, and then the directories
are renamed, those of a large topic in pieces. A crash in between leaves some, and only the id distinguishes them from
foreign directories. Never renames anything (log/directories/deleted_partitions.py).
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from itertools import islice

from kbroker.controller.controller import Controller
from kbroker.log.directories.log_manager import LogManager

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Topics that are forgotten in one go, which takes a millisecond or two."""


class DeletedTopics:
    """Forgets deleted topics; call `tick` periodically."""

    def __init__(self, controller: Controller, logs: LogManager) -> None:
        self._controller = controller
        self._logs = logs
        self._failed = False
        self._syncing: tuple[list[bytes], list[Future[None]]] | None = None

    def tick(self) -> None:
        """Forget topics whose directories are renamed, once the renames are on disk.

        After a disk error nothing is forgotten any more: the next start looks for leftovers.
        """
        try:
            self._go_on()
        except OSError as error:
            self._failed = True
            log.error("deleted topics are looked for again at the next start: %s", error)

    def _go_on(self) -> None:
        if self._failed:
            return
        if self._syncing is not None:
            ids, synced = self._syncing
            if not all(each.done() for each in synced):
                return
            self._syncing = None
            for each in synced:
                each.result()
            self._controller.forget_deleted(ids)
        ids = list(islice(self._controller.deleted_topics, _AT_ONCE))
        if ids and self._controller.is_settled and not self._logs.departing:
            self._syncing = ids, self._logs.sync_by_threads()
