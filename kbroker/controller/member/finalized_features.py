"""The finalized features of the cluster, as ZooKeeper has them, followed by a watch.

Owns what was read of /feature, and the judgement whether this broker supports it: with what it does not support it
neither starts nor goes on. Never writes: the controller does. (Apache Kafka 3.9: FinalizedFeatureChangeListener.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kbroker.config.model import ConfigError
from kbroker.controller.features import SUPPORTED_IN_CLUSTER, unsupported
from kbroker.controller.tree.znode import Denied, MetadataTree, Session, Unreachable
from kbroker.controller.znodes import FEATURE, Features, Unreadable, read

log = logging.getLogger(__name__)

NO_EPOCH = -1
Listener = Callable[[Mapping[str, int], int], None]


class FinalizedFeatures:
    """Feature levels by name, and the version of the znode that has them: -1 while there is none."""

    def __init__(self, tree: MetadataTree) -> None:
        self._tree = tree
        self.levels: Mapping[str, int] = {}
        self.epoch = NO_EPOCH
        self._listener: Listener = lambda _levels, _epoch: None
        self._fail: Callable[[str], None] = log.critical
        self._following: asyncio.Task[None] | None = None
        self._again = self._watched = self._closed = False

    async def load(self, changed: Callable[[], None] | None = None) -> None:
        """Read what is finalized. Raises ConfigError for what this broker does not support, Unreadable, Unreachable."""
        node = await self._tree.get(FEATURE, changed)
        features = Features({}) if node is None else read(FEATURE, node.data, Features.decode)
        levels = features.levels if features.enabled else {}
        lacking = unsupported(levels, SUPPORTED_IN_CLUSTER)
        if lacking is not None:
            raise ConfigError(f"{FEATURE} finalizes what this broker does not support: {lacking}")
        self.levels = levels
        self.epoch = NO_EPOCH if node is None or not features.enabled else node.stat.version

    def follow(self, listener: Listener, fail: Callable[[str], None]) -> None:
        """Call `listener(levels, epoch)` with what was read, now and after changes; `fail(text)` if it cannot go on."""
        self._listener, self._fail = listener, fail
        self._tree.listen(self._session_changed)
        listener(self.levels, self.epoch)
        self.look()

    def _session_changed(self, what: Session) -> None:
        # A watch goes with its connection, whoever's session it is.
        if what is Session.LIVE:
            self._changed()

    def _changed(self) -> None:
        self._watched = False
        self.look()

    def look(self) -> None:
        """Read again, now or once that is done which is under way."""
        if self._closed:
            return
        if self._following is not None:
            self._again = True
            return
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def settled(self) -> None:
        """Wait until what is being read has been, if anything is."""
        if self._following is not None:
            await asyncio.shield(self._following)

    def close(self) -> None:
        """Follow no more."""
        self._closed = True
        if self._following is not None:
            self._following.cancel()

    async def _follow(self) -> None:
        try:
            while True:
                self._again = False
                before = self.levels, self.epoch
                watch, self._watched = None if self._watched else self._changed, True
                await self.load(watch)
                if (self.levels, self.epoch) != before:
                    self._listener(self.levels, self.epoch)
                if not self._again:
                    break
        except Unreachable:
            self._watched = False  # it is looked again when ZooKeeper is back
        except Unreadable as error:
            log.error("%s; what was known of it stays", error)
        except Denied as error:
            self._watched = False
            log.error("%s; what was known of it stays", error)
        except ConfigError as error:
            self._fail(str(error))
        finally:
            self._following = None
