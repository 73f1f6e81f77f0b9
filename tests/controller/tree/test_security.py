"""A real ZooKeeper with TLS and SASL: which clients are accepted, and what others may do with existing znodes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from compat_tests.harness.brokers import free_port
from compat_tests.harness.certificates import Authority
from compat_tests.harness.zookeeper import ZooKeeper as Server
from kbroker.broker.membership import Membership, prepare
from kbroker.controller.member.registration import BrokerRegistration
from kbroker.controller.tree.connection import Others, Security
from kbroker.controller.tree.znode import Create, Denied, Session, SetData, Unreachable
from kbroker.controller.tree.zookeeper import ZooKeeperTree
from kbroker.controller.znodes import Endpoint, Registration

from .keepers import PATIENCE_S, SESSION_TIMEOUT_MS
from .test_tree import run, until

pytestmark = pytest.mark.java

SERVER_JAAS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="secret" user_other="else"; };
"""
SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"


class Secured:
    """A ZooKeeper with a plaintext address `plain` and a TLS address `secure`."""

    def __init__(self, libs: Path, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        jaas = directory / "server-jaas.conf"
        jaas.write_text(SERVER_JAAS)
        port = free_port()
        own = {
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(self.authority.sign("zookeeper")),
            "ssl.trustStore.location": str(self.authority.file),
            "ssl.clientAuth": "want",
            "authProvider.1": SASL,
        }
        properties = {"java.security.auth.login.config": str(jaas)}
        self.server = Server(libs, directory / "zookeeper", own, properties)
        self.secure = f"127.0.0.1:{port}"

    @property
    def plain(self) -> str:
        return self.server.bootstrap

    def context(self, trusted: Authority, own: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(trusted.file)
        if own is not None:
            context.load_cert_chain(own)
        return context


@pytest.fixture(scope="module")
def secured(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(kafka39_libs, tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


@asynccontextmanager
async def session(
    address: str, security: Security, patience_ms: int = PATIENCE_S * 1000
) -> AsyncIterator[ZooKeeperTree]:
    tree = await ZooKeeperTree.connect(address, SESSION_TIMEOUT_MS, patience_ms, security)
    try:
        yield tree
    finally:
        await tree.close()


def anybody(address: str, path: str) -> tuple[bool, bool]:
    """Whether a client without credentials may read and write a node."""
    client = KazooClient(address)
    client.start(PATIENCE_S)
    may = []
    try:
        for ask in (lambda: client.get(path), lambda: client.set(path, b"!")):
            try:
                ask()
                may.append(True)
            except NoAuthError:
                may.append(False)
    finally:
        client.stop()
        client.close()
    return may[0], may[1]


def others(path: str) -> Others:
    return {"/open": Others.CHANGE, "/secret": Others.NOTHING}.get(path, Others.READ)


@pytest.mark.parametrize("way", ["digest", "sasl", "certificate"])
def test_what_is_made_belongs_to_who_shows_the_same_credentials(secured: Secured, way: str) -> None:
    address, security = {
        "digest": (secured.plain, Security(digest="kafka:secret", others=others)),
        "sasl": (secured.plain, Security(user=("kafka", "secret"), others=others)),
        "certificate": (
            secured.secure,
            Security(secured.context(secured.authority, secured.authority.sign("broker")), others=others),
        ),
    }[way]

    async def scenario() -> None:
        below = f"{address}/{way}"
        async with session(below, security) as tree:
            await tree.commit(
                [Create("/open"), Create("/secret", b"s"), Create("/topic"), Create("/topic/q_", b"", False, True)]
            )
        may = {
            path: await asyncio.to_thread(anybody, secured.plain, f"/{way}{path}")
            for path in ("/open", "/secret", "/topic", "/topic/q_0000000000", "")
        }
        assert may == {
            "/open": (True, True),
            "/secret": (False, False),
            "/topic": (True, False),
            "/topic/q_0000000000": (True, False),
            "": (True, False),
        }
        async with session(f"{secured.plain}/{way}", Security()) as stranger:
            with pytest.raises(Denied, match="does not let this broker use /topic"):
                await stranger.commit([SetData("/topic", b"")])
        async with session(below, security) as tree:
            await tree.commit([SetData("/topic", b"later")])
            node = await tree.get("/secret")
            assert node is not None
            assert node.data == b"s"

    run(scenario())


def test_much_goes_over_tls(secured: Secured) -> None:
    async def scenario() -> None:
        async with session(f"{secured.secure}/much", Security(secured.context(secured.authority))) as tree:
            await tree.commit([Create(f"/n{number}", b"x" * 3000) for number in range(100)])
            found = await asyncio.gather(*(tree.get(f"/n{number}") for number in range(100)))
            assert {each.data for each in found if each} == {b"x" * 3000}

    run(scenario())


def test_a_certificate_of_another_authority_is_told_of(secured: Secured) -> None:
    async def scenario() -> None:
        with pytest.raises(
            Unreachable, match="its certificate is not accepted: unable to get local issuer certificate"
        ):
            async with session(secured.secure, Security(secured.context(secured.stranger)), 1000):
                pass

    run(scenario())


def test_a_name_that_is_not_in_the_certificate_is_told_of(secured: Secured) -> None:
    async def scenario() -> None:
        address = secured.secure.replace("127.0.0.1", "localhost")
        with pytest.raises(Unreachable, match="its certificate is not accepted: Hostname mismatch"):
            async with session(address, Security(secured.context(secured.authority)), 1000):
                pass
        unchecked = secured.context(secured.authority)
        unchecked.check_hostname = False
        async with session(address, Security(unchecked)) as tree:
            assert await tree.get("/zookeeper") is not None

    run(scenario())


def test_acls_without_a_name_are_refused(secured: Secured) -> None:
    async def scenario() -> None:
        async with session(secured.plain, Security(others=others)) as tree:
            with pytest.raises(Denied, match=r"this broker is not logged in to ZooKeeper, so it cannot own /x"):
                await tree.commit([Create("/x")])

    run(scenario())


def test_a_wrong_password_is_told_of_at_once(secured: Secured) -> None:
    async def scenario() -> None:
        with pytest.raises(Denied, match="does not accept the credentials of this broker"):
            async with session(secured.plain, Security(user=("kafka", "wrong"))):
                pass

    run(scenario())


def test_credentials_are_not_logged(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        for security in (Security(digest="kafka:secret"), Security(user=("kafka", "secret"))):
            async with session(secured.plain, security) as tree:
                await tree.get("/")

    with caplog.at_level(logging.DEBUG):
        run(scenario())
    assert "Sending request" in caplog.text
    assert "secret" not in caplog.text
    assert 'username="kafka"' not in caplog.text


def test_who_was_refused_meanwhile_is_let_in_again(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    """kazoo gives up permanently after a failed login, and mistakes a server that stops meanwhile for that."""

    async def scenario() -> None:
        security = Security(user=("kafka", "secret"))
        async with session(secured.plain, security) as tree:
            heard: list[Session] = []
            tree.listen(heard.append)
            gone = asyncio.Event()
            await tree.get("/absent", gone.set)
            first = tree.session_id
            options = tree._client._connection.sasl_options
            options["password"] = "wrong"
            tree._client._connection._socket.shutdown(2)
            await until(lambda: Session.EXPIRED in heard and heard[-1] is Session.LIVE and tree.session_id != first)
            assert gone.is_set()
            assert await tree.get("/zookeeper") is not None

    run(scenario())
    assert "does not accept the credentials of this broker; it tries again" in caplog.text


class Follower:
    def __init__(self) -> None:
        self.renewals = 0

    def expired(self) -> None: ...

    def renewed(self) -> None:
        self.renewals += 1


def test_a_broker_that_is_refused_again_and_again_registers_once_it_is_let_in(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo reports a connection before it logs in: a broker's request at that time must not seem forbidden."""

    async def scenario() -> None:
        security = Security(user=("kafka", "secret"))
        async with session(f"{secured.plain}/members", security) as tree:
            await prepare(tree)
            follower, failures = Follower(), list[str]()
            registration = BrokerRegistration(tree, 1, PATIENCE_S * 1000)
            membership = Membership(tree, registration, follower, failures.append)
            await membership.begin(Registration((Endpoint("PLAINTEXT", "h", 1),), {"PLAINTEXT": "PLAINTEXT"}))
            before = registration.epoch
            object.__setattr__(security, "user", ("kafka", "wrong"))  # of future clients
            tree._client._connection.sasl_options["password"] = "wrong"
            tree._client._connection._socket.shutdown(2)
            await until(lambda: caplog.text.count("this broker; it tries again") == 3)
            object.__setattr__(security, "user", ("kafka", "secret"))
            await until(lambda: follower.renewals > 0 or bool(failures))
            assert not failures
            assert registration.epoch > before
            node = await tree.get("/brokers/ids/1")
            assert node is not None
            assert node.stat.owner == tree.session_id
            membership.close()

    run(scenario())
