"""What others may do with the znodes that brokers make, by path (ZkData.defaultAcls, sensitivePath).

Owns which paths may hold secrets and which anybody may write to. Whether there are rights at all
(`zookeeper.set.acl`) is `broker/zookeeper_security.py`'s; the lists that ZooKeeper is given, `tree/security.py`'s.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.tree.security import Others

_ANYBODYS: Final = "/consumers"
"""Where clients of long ago write; nobody may own it therefore."""
_SECRET: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""What only brokers may read, with all below."""


def rights_of_others(path: str) -> Others:
    """Return what others may do with a broker's znode where access is restricted."""
    if path == _ANYBODYS:
        return Others.CHANGE
    return Others.NOTHING if path.startswith(_SECRET) else Others.READ
