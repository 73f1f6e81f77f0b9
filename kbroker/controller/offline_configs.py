"""The dynamic configs of brokers in the data directory of a stopped node.

Owns the reading of these configs, and the removal of keys. A removal repairs a config that prevents all connections.
Never sets a value, because it cannot check whether the broker would accept the value. A cluster keeps its configs in
ZooKeeper, where another broker can change them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kbroker.controller.adopt import AdoptError, directory_identity
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import JOURNAL, EmbeddedStore
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.log.directories.dir_lock import lock_directory


@contextmanager
def _opened(directory: str) -> Iterator[Controller]:
    _, cluster_id = directory_identity(directory)
    if not os.path.exists(os.path.join(directory, JOURNAL)):
        raise AdoptError(f"{directory} has no {JOURNAL}: it does not store the configs of its broker")
    lock = lock_directory(directory)
    try:
        store = EmbeddedStore(directory)
        try:
            yield Controller(store, cluster_id, TopicDefaults(1, 1, {}))
        finally:
            store.close()
    finally:
        os.close(lock)


def configs_of(directory: str, broker: str) -> dict[str, str]:
    """Return the configs of a broker, or the defaults of all brokers ("").

    Raises AdoptError, LogDirError, CorruptMetadata, OSError.
    """
    with _opened(directory) as controller:
        return dict(controller.decided.configs("brokers", broker))


def unset(directory: str, broker: str, keys: Sequence[str], *, dry_run: bool) -> None:
    """Remove keys from the configs of a broker, or of all brokers (""); raises the exceptions of `configs_of`.

    If a key is not set, this raises AdoptError and changes nothing.
    """
    with _opened(directory) as controller:
        configs = dict(controller.decided.configs("brokers", broker))
        for key in keys:
            if key not in configs:
                raise AdoptError(f"{key} is not set; these are: {', '.join(sorted(configs)) or 'nothing'}")
            del configs[key]
        if not dry_run:
            controller.set_configs("brokers", broker, configs)
