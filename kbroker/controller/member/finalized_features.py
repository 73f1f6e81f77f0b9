"""The finalized features of the cluster in ZooKeeper, kept current by a watch.

Owns the content of /feature, and the check whether this broker supports the features. With an unsupported feature the
broker does not start; a running broker stops. Never writes: the controller does. (Apache Kafka 3.9:
FinalizedFeatureChangeListener.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kbroker.config.model import ConfigError
from kbroker.controller.features import SUPPORTED_IN_CLUSTER, unsupported
from kbroker.controller.member.followed_nodes import Rereading
from kbroker.controller.tree.znode import Denied, MetadataTree, Unreachable
from kbroker.controller.znodes import FEATURE, Features, Unreadable, read

log = logging.getLogger(__name__)

NO_EPOCH = -1
Listener = Callable[[Mapping[str, int], int], None]


class FinalizedFeatures:
    """Feature levels by name, and the version of their znode, which is -1 while the znode is missing."""

    def __init__(self, tree: MetadataTree) -> None:
        self._tree = tree
        self.levels: Mapping[str, int] = {}
        self.epoch = NO_EPOCH
        self._listener: Listener = lambda _levels, _epoch: None
        self._fail: Callable[[str], None] = log.critical
        self._rereading = Rereading(tree, self._reread, FEATURE)
        self._watched = False

    async def load(self, changed: Callable[[], None] | None = None) -> None:
        """Read the finalized levels.

        Raises Unreadable, Unreachable, or ConfigError if this broker does not support the levels.
        """
        node = await self._tree.get(FEATURE, changed)
        features = Features({}) if node is None else read(FEATURE, node.data, Features.decode)
        levels = features.levels if features.enabled else {}
        lacking = unsupported(levels, SUPPORTED_IN_CLUSTER)
        if lacking is not None:
            raise ConfigError(f"{FEATURE} finalizes features that this broker does not support: {lacking}")
        self.levels = levels
        self.epoch = NO_EPOCH if node is None or not features.enabled else node.stat.version

    def follow(self, listener: Listener, fail: Callable[[str], None]) -> None:
        """Call `listener(levels, epoch)` now and after changes, or `fail(text)` if the broker has to stop."""
        self._listener, self._fail = listener, fail
        listener(self.levels, self.epoch)
        self._rereading.begin(self._changed)

    def _changed(self) -> None:
        self._watched = False
        self.reread()

    def reread(self) -> None:
        """Read again now, or after the read in progress."""
        self._rereading.reread()

    async def settled(self) -> None:
        """Wait for the end of the read in progress, if any."""
        await self._rereading.settled()

    def close(self) -> None:
        """Stop following."""
        self._rereading.close()

    async def _reread(self) -> None:
        before = self.levels, self.epoch
        watch, self._watched = None if self._watched else self._changed, True
        try:
            await self.load(watch)
        except Unreachable:
            self._watched = False
            raise
        except Unreadable as error:
            log.error("%s; the last known features are kept", error)
        except Denied as error:
            self._watched = False
            log.error("%s; the last known features are kept", error)
        except ConfigError as error:
            self._fail(str(error))
        else:
            if (self.levels, self.epoch) != before:
                self._listener(self.levels, self.epoch)
