"""The schema registries of a cluster: each broker with a registry publishes the registry's address in a znode.

Owns /kbroker/registries/N, an ephemeral znode of broker N, which is created again with each new session. Also owns the
addresses of other registries that this broker has read. Never connects to a registry.

    {"version":1,"url":"http://10.0.0.1:8081"}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Final

from kbroker.controller.tree.znode import (
    Change,
    Create,
    Delete,
    Denied,
    MetadataTree,
    Refused,
    Session,
    SetData,
    Unreachable,
    ensure,
)

REGISTRIES: Final = "/kbroker/registries"
_RETRY_SECONDS: Final = 0.1
log = logging.getLogger(__name__)


class Registries:
    """The addresses of registries, by the ids of their brokers."""

    def __init__(self, tree: MetadataTree, node_id: int) -> None:
        self._tree = tree
        self._node_id = node_id
        self._known: dict[int, str] = {}
        self._url: str | None = None
        self._session = 0
        self._publishing: asyncio.Task[None] | None = None
        tree.listen(self._session_changed)

    def publish(self, url: str) -> None:
        """Publish the address of this broker's registry now and in each later session."""
        self._url = url
        self._begin()

    async def url_of(self, broker: int) -> str | None:
        """Return the address of a broker's registry; None if the broker has no registry.

        Raises Unreachable and Denied.
        """
        if broker not in self._known:
            node = await self._tree.get(f"{REGISTRIES}/{broker}")
            url = None if node is None else _decoded(node.data)
            if url is None:
                return None
            self._known[broker] = url
        return self._known[broker]

    async def brokers(self) -> set[int]:
        """Return the brokers that have published a registry. Raises Unreachable and Denied."""
        try:
            names = await self._tree.children(REGISTRIES)
        except Refused:  # no broker has ever published an address
            return set()
        return {int(each) for each in names if each.isdecimal()}

    def forget(self, broker: int) -> None:
        """Forget the address of a broker's registry, which does not answer or does not lead. It will be read again."""
        self._known.pop(broker, None)

    def close(self) -> None:
        """Stop publishing. The znode is removed with the session."""
        self._url = None
        if self._publishing is not None:
            self._publishing.cancel()

    def _session_changed(self, session: Session) -> None:
        if session is not Session.LIVE:
            return
        self._known.clear()
        if self._tree.session_id != self._session:
            self._begin()

    def _begin(self) -> None:
        if self._url is not None and self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._publish(self._url))

    async def _publish(self, url: str) -> None:
        try:
            while self._session != self._tree.session_id:
                session = self._tree.session_id
                try:
                    await self._put(url)
                except (Unreachable, Refused) as error:  # Refused: an earlier session's znode was removed or created
                    log.debug("the registry's address is published later: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._session = session
        except Denied as denied:
            log.error("the registry's address cannot be published: %s", denied)
        finally:
            self._publishing = None

    async def _put(self, url: str) -> None:
        path = f"{REGISTRIES}/{self._node_id}"
        data = json.dumps({"version": 1, "url": url}, separators=(",", ":")).encode()
        for parent in (REGISTRIES.rpartition("/")[0], REGISTRIES):
            await ensure(self._tree, parent)
        node = await self._tree.get(path)
        changes: list[Change] = [Create(path, data, ephemeral=True)]
        if node is not None and node.stat.owner == self._tree.session_id:
            changes = [SetData(path, data)]
        elif node is not None:  # an earlier process or session of this broker created it
            changes.insert(0, Delete(path))
        await self._tree.commit(changes)


def _decoded(data: bytes) -> str | None:
    """Return the address in a znode; None if it cannot be read."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        url = json.loads(data)["url"]
        if isinstance(url, str):
            return url
    return None
