"""What a tree of znodes promises, tested on both implementations, which are also compared over random changes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from compat_tests.harness.zookeeper import ZooKeeper as Server
from kbroker.controller.tree.connection import Security
from kbroker.controller.tree.znode import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    MetadataTree,
    Reason,
    Refused,
    Session,
    SessionExpired,
    SetData,
    Unreachable,
)
from kbroker.controller.tree.zookeeper import ZooKeeperTree
from kbroker.protocol.errors import ApiError

from .keepers import PATIENCE_S, Keeper, Memory, ZooKeeper


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE_S))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what it waits for comes from kazoo's threads
            await asyncio.sleep(0.01)


async def refused(change: Awaitable[Any]) -> tuple[int, str, Reason]:
    with pytest.raises(Refused) as caught:
        await change
    return caught.value.index, caught.value.path, caught.value.reason


def test_a_node_is_made_read_written_and_removed(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            assert await tree.get("/a") is None
            assert [each.path for each in await tree.commit([Create("/a", b"1"), Create("/a/b")])] == ["/a", "/a/b"]
            node = await tree.get("/a")
            assert node is not None
            assert (node.data, node.stat.version, node.stat.owner) == (b"1", 0, 0)
            [written] = await tree.commit([SetData("/a", b"2", 0)])
            assert written.stat is not None
            assert (written.stat.version, written.stat.created) == (1, node.stat.created)
            assert await tree.children("/a") == ["b"]
            assert await refused(tree.commit([Delete("/a")])) == (0, "/a", Reason.NOT_EMPTY)
            await tree.commit([Delete("/a/b"), Delete("/a", 1)])
            assert await tree.get("/a") is None
            assert await refused(tree.children("/a")) == (0, "/a", Reason.NO_NODE)

    run(scenario())


def test_a_batch_is_done_whole_or_not_at_all(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            await tree.commit([Create("/epoch", b"1"), Create("/a", b"x")])
            batch: list[Change] = [SetData("/a", b"y"), Create("/b"), Delete("/a"), Check("/epoch", 7), Create("/c")]
            assert await refused(tree.commit(batch)) == (3, "/epoch", Reason.BAD_VERSION)
            node = await tree.get("/a")
            assert node is not None
            assert (node.data, node.stat.version) == (b"x", 0)
            assert await tree.children("/") == ["a", "epoch"]
            await tree.commit([Check("/epoch", 0), SetData("/a", b"y", 0)])
            assert await refused(tree.commit([Create("/d"), Create("/d")])) == (1, "/d", Reason.NODE_EXISTS)

    run(scenario())


def test_watches_go_off_once_and_for_what_they_are_set_on(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree, keeper.session() as other:
            heard: list[str] = []
            await tree.commit([Create("/a")])
            await tree.get("/a", lambda: heard.append("data"))
            await tree.get("/absent", lambda: heard.append("made"))
            await tree.children("/a", lambda: heard.append("children"))
            await other.commit([Create("/a/b")])
            await until(lambda: heard == ["children"])
            await other.commit([Create("/a/c"), SetData("/a", b"1"), SetData("/a", b"2")])
            await until(lambda: heard == ["children", "data"])
            await other.commit([Create("/absent")])
            await until(lambda: heard == ["children", "data", "made"])
            await tree.get("/absent", lambda: heard.append("gone"))
            await other.commit([Delete("/absent")])
            await until(lambda: heard[3:] == ["gone"])

    run(scenario())


def test_ephemerals_go_with_their_session(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            gone = asyncio.Event()
            async with keeper.session() as other:
                await other.commit([Create("/live"), Create("/live/1", b"", ephemeral=True)])
                node = await tree.get("/live/1", gone.set)
                assert node is not None
                assert node.stat.owner == other.session_id
                below = other.commit([Create("/live/1/x")])
                assert await refused(below) == (0, "/live/1/x", Reason.NO_CHILDREN_FOR_EPHEMERALS)
            await asyncio.wait_for(gone.wait(), PATIENCE_S)
            assert await tree.get("/live/1") is None
            assert await tree.children("/live") == []

    run(scenario())


def test_an_expired_session_is_told_of_and_followed_by_a_new_one(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            heard: list[Session] = []
            tree.listen(heard.append)
            look_again = asyncio.Event()
            await tree.commit([Create("/live"), Create("/live/1", b"", ephemeral=True)])
            await tree.children("/live", look_again.set)
            first = tree.session_id
            await keeper.expire(tree)  # type: ignore[arg-type]
            await asyncio.wait_for(look_again.wait(), PATIENCE_S)
            await until(lambda: Session.EXPIRED in heard and heard[-1] is Session.LIVE)
            assert tree.session_id != first
            assert await tree.get("/live/1") is None
            await tree.commit([Create("/live/1", b"", ephemeral=True)])

    run(scenario())


def test_sequence_numbers_count_what_was_made(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            await tree.commit([Create("/q")])
            [first] = await tree.commit([Create("/q/n_", b"", sequential=True)])
            await tree.commit([Delete(first.path)])
            both = await tree.commit([Create("/q/n_", b"", sequential=True), Create("/q/m_", b"", sequential=True)])
            assert [first.path, *(each.path for each in both)] == [
                "/q/n_0000000000",
                "/q/n_0000000001",
                "/q/m_0000000002",
            ]

    run(scenario())


def test_what_is_asked_when_all_is_over_says_so(keeper: Keeper) -> None:
    async def scenario() -> None:
        async with keeper.session() as tree:
            await tree.close()
            with pytest.raises(SessionExpired):
                await tree.get("/a")

    run(scenario())


def test_a_tree_that_is_cut_off_looks_again_when_it_is_back() -> None:
    async def scenario() -> None:
        keeper = Memory()
        async with keeper.session() as tree, keeper.session() as other:
            heard: list[Session] = []
            tree.listen(heard.append)
            look_again = asyncio.Event()
            await tree.commit([Create("/mine", b"", ephemeral=True)])
            await tree.children("/", look_again.set)
            tree.cut()
            assert look_again.is_set()
            with pytest.raises(Unreachable):
                await tree.get("/mine")
            assert await other.get("/mine") is not None
            tree.heal()
            assert await tree.children("/") == ["mine"]
            assert heard == [Session.UNREACHABLE, Session.LIVE]

    run(scenario())


NAMES = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z")


def some_change(source: random.Random) -> Change:
    path, data = source.choice(NAMES), bytes([source.randrange(256)])
    version = source.choice((ANY_VERSION, ANY_VERSION, 0, 1))
    kind = source.randrange(8)
    if kind < 4:
        return Create(path, data, ephemeral=source.random() < 0.2, sequential=source.random() < 0.2)
    if kind < 6:
        return SetData(path, data, version)
    return Delete(path, version) if kind == 6 else Check(path, max(version, 0))


async def outcome(tree: MetadataTree, batch: list[Change]) -> Any:
    try:
        return [(each.path, each.stat and each.stat.version) for each in await tree.commit(batch)]
    except Refused as error:
        return (error.index, error.path, error.reason)


async def whole(tree: MetadataTree, path: str = "") -> dict[str, tuple[bytes, int, bool]]:
    """Return all nodes below `path`: data, version, whether they are ephemeral."""
    found = {}
    for name in await tree.children(path or "/"):
        node = await tree.get(f"{path}/{name}")
        assert node is not None
        found[f"{path}/{name}"] = (node.data, node.stat.version, node.stat.owner == tree.session_id)
        found |= await whole(tree, f"{path}/{name}")
    return found


@pytest.mark.java
def test_both_keepers_do_the_same(zookeeper_address: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)

    async def scenario() -> None:
        async with Memory().session() as memory, ZooKeeper(zookeeper_address).session() as real:
            for _ in range(400):
                batch = [some_change(source) for _ in range(source.choice((1, 1, 2, 5)))]
                assert await outcome(memory, batch) == await outcome(real, batch), (seed, batch)
            assert await whole(memory) == await whole(real), seed

    run(scenario())


def test_who_is_cut_off_does_not_hear_that_its_session_is_gone() -> None:
    """So a controller still believes that it is one: only the epoch in its writes prevents harm."""

    async def scenario() -> None:
        keeper = Memory()
        async with keeper.session() as tree, keeper.session() as other:
            heard: list[Session] = []
            tree.listen(heard.append)
            await tree.commit([Create("/mine", b"", ephemeral=True)])
            first = tree.session_id
            tree.cut()
            tree.expire()
            assert await other.get("/mine") is None
            assert heard == [Session.UNREACHABLE]
            with pytest.raises(Unreachable):
                await tree.get("/mine")
            tree.heal()
            assert heard == [Session.UNREACHABLE, Session.EXPIRED, Session.LIVE]
            assert tree.session_id != first
            await tree.commit([Create("/mine", b"", ephemeral=True)])

    run(scenario())


def test_a_tree_without_a_connection_says_so_and_does_not_hold_the_loop() -> None:
    """kazoo alone queues requests until there is a connection, and its 279th call blocks for that."""

    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0)
            client = KazooClient(f"127.0.0.1:{taken.getsockname()[1]}", 6, connection_retry=retry)
            client.start_async()
            await until(lambda: client.client_state == KeeperState.CONNECTING)
            tree = ZooKeeperTree(lambda _ended: client, asyncio.get_running_loop(), "nowhere", Security().acl)
            try:
                for ask in (tree.get("/a"), tree.children("/a"), tree.commit([Create("/a")])):
                    with pytest.raises(Unreachable):
                        await asyncio.wait_for(ask, 5)
            finally:
                await tree.close()

    run(scenario())


def test_much_that_is_asked_at_once_does_not_hold_the_loop() -> None:
    """kazoo's 279th call waits for its thread, which waits while ZooKeeper is frozen."""

    async def scenario() -> None:
        asked: list[Any] = []

        class Frozen:
            client_state = KeeperState.CONNECTED

            def add_listener(self, _listener: Any) -> None: ...

            def get_async(self, path: str, _watch: Any) -> Any:
                asked.append(path)
                return self

            def rawlink(self, _arrived: Any) -> None: ...

        tree = ZooKeeperTree(lambda _ended: Frozen(), asyncio.get_running_loop(), "nowhere", Security().acl)
        waiting = [asyncio.ensure_future(tree.get(f"/{number}")) for number in range(1000)]
        await asyncio.sleep(0)
        assert len(asked) == 200
        for number in range(200):
            tree._settle(asyncio.get_running_loop().create_future(), SimpleNamespace(exception=None, value=number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked == [f"/{number}" for number in range(400)]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario())


async def asked_for_ever(tree: ZooKeeperTree) -> None:
    """Send requests repeatedly: a frozen server answers until all its threads have stopped."""
    while True:
        await tree.get("/zookeeper")


@pytest.mark.java
def test_nothing_waits_for_ever_for_a_frozen_zookeeper(kafka39_libs: Path, tmp_path: Path) -> None:
    with Server(kafka39_libs, tmp_path) as server:

        async def scenario() -> None:
            tree = await ZooKeeperTree.connect(server.bootstrap, 2000, PATIENCE_S * 1000)
            other = await ZooKeeperTree.connect(server.bootstrap, 2000, PATIENCE_S * 1000)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unreachable):
                    await asyncio.wait_for(asked_for_ever(tree), PATIENCE_S)
                with pytest.raises(Unreachable, match="does not answer"):
                    await asyncio.wait_for(ZooKeeperTree.connect(server.bootstrap, 2000, 1000), PATIENCE_S)
                await asyncio.wait_for(tree.close(), PATIENCE_S)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await until(lambda: other._client.connected)
            assert await other.get("/zookeeper") is not None
            await other.close()

        run(scenario())


@pytest.mark.java
@pytest.mark.parametrize("name", ["..", "line\n", "\x85", "\ue000", "\ufff9", "\U0001f4a5", "\U000e0041"])
def test_a_path_that_zookeeper_does_not_take_is_the_callers_fault(zookeeper_address: str, name: str) -> None:
    """Java's characters have 16 bits: larger ones are two surrogates each, which PathUtils refuses."""

    async def scenario() -> None:
        async with ZooKeeper(zookeeper_address).session() as tree:
            with pytest.raises(ApiError, match="does not accept the path"):
                await tree.commit([Create(f"/{name}")])

    run(scenario())
