"""What happens to a client whose thread has ended, without a ZooKeeper: when it is replaced, and when not."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, SessionClosedRequireSaslError
from kazoo.protocol.states import KeeperState

from kbroker.controller.tree import zookeeper
from kbroker.controller.tree.connection import Security, Threads
from kbroker.controller.tree.znode import Denied, Unreachable
from kbroker.controller.tree.zookeeper import ZooKeeperTree

from .test_tree import run, until

PATIENCE_S = 30


class Client:
    """A client that does nothing; its state stays that of kazoo before its thread has resolved the hosts."""

    client_state = KeeperState.CLOSED
    client_id = None

    def __init__(self, ended: Callable[[], None], troubles: Iterator[BaseException | None]) -> None:
        self.ended = ended
        self.troubles = troubles
        self.did: list[str] = []
        self.may_start = threading.Event()
        self.may_start.set()

    def add_listener(self, _listener: Any) -> None: ...

    def start_async(self) -> None:
        self.did.append("begins to start")
        assert self.may_start.wait(PATIENCE_S)
        self._do("starts")

    def stop(self) -> None:
        self._do("stops")

    def close(self) -> None:
        self._do("closes")

    def _do(self, what: str) -> None:
        self.did.append(what)
        trouble = next(self.troubles, None)
        if trouble is not None:
            raise trouble


class Made:
    """A tree, and the clients that it has had; their calls raise the `troubles` in turn."""

    def __init__(self, *troubles: BaseException | None) -> None:
        self.clients: list[Client] = []
        self.may_start = True
        self._troubles = iter(troubles)
        self.tree = ZooKeeperTree(self._make, asyncio.get_running_loop(), "nowhere", Security().acl)  # type: ignore[arg-type]
        self.tree._is_kept = True

    def _make(self, ended: Callable[[], None]) -> Client:
        made = Client(ended, self._troubles)
        if not self.may_start:
            made.may_start.clear()
        self.clients.append(made)
        return made

    async def end(self, client: Client) -> None:
        """End a client's thread, and wait for the reaction."""
        await asyncio.to_thread(client.ended)
        await asyncio.sleep(0)
        if self.tree._reviving is not None:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait([self.tree._reviving])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "_REVIVAL_DELAY_S", 0.001)


def test_a_client_that_has_just_begun_is_not_replaced() -> None:
    """Otherwise it would be ended in the middle of its work a second later, and so would the next client."""

    async def scenario() -> None:
        made = Made()
        first = made.clients[0]
        first.client_state = KeeperState.AUTH_FAILED
        await made.end(first)
        assert [each.did for each in made.clients] == [["stops", "closes"], ["begins to start", "starts"]]
        assert made.tree._reviving is None
        await made.end(first)
        assert len(made.clients) == 2
        await made.end(made.clients[1])
        assert len(made.clients) == 3
        await made.tree.close()

    run(scenario())


def test_where_no_client_can_be_begun_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        full = OSError(errno.EMFILE, "Too many open files")
        made = Made(RuntimeError("stuck"), None, full, AttributeError("no socket"), None, None)
        await made.end(made.clients[0])
        assert [each.did for each in made.clients] == [
            ["stops", "closes"],
            ["begins to start", "starts", "stops", "closes"],
            ["begins to start", "starts"],
        ]
        await made.tree.close()

    run(scenario())
    assert "there is no client of ZooKeeper at nowhere yet; it tries again" in caplog.text
    assert "Too many open files" in caplog.text


def test_a_client_that_begins_while_its_tree_is_closed_is_ended() -> None:
    async def scenario() -> None:
        made = Made()
        made.may_start = False
        await asyncio.to_thread(made.clients[0].ended)
        await until(lambda: len(made.clients) == 2 and made.clients[1].did == ["begins to start"])
        closing = asyncio.ensure_future(made.tree.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        made.clients[1].may_start.set()
        async with asyncio.timeout(PATIENCE_S):
            await closing
        assert made.clients[1].did == ["begins to start", "starts", "stops", "closes"]
        assert len(made.clients) == 2

    run(scenario())


@pytest.mark.parametrize("refusal", [AuthFailedError, SessionClosedRequireSaslError])
def test_what_is_asked_while_credentials_are_refused_is_not_forbidden(refusal: type[KazooException]) -> None:
    """The client may be accepted a second later: a caller that gets "forbidden" gives up."""
    assert isinstance(zookeeper._meaning(refusal(), "/brokers/ids", 0), Unreachable)
    assert isinstance(zookeeper._meaning(NoAuthError(), "/brokers/ids", 0), Denied)


def test_threads_that_were_begun_end_where_another_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Threads(None, lambda: None)
    begun: list[threading.Thread] = []
    spawn = handler.spawn

    def first_only(func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(spawn(func, *args, **kwargs))
        return begun[0]

    monkeypatch.setattr(handler, "spawn", first_only)
    with pytest.raises(RuntimeError, match="can't start"):
        handler.start()
    begun[0].join(PATIENCE_S)
    assert not begun[0].is_alive()
