"""A ZooKeeper that requires authentication: kbroker and Apache Kafka 3.9.1 authenticate and own znodes alike."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from compat_tests.clients.common import wait_for
from compat_tests.clients.confluent.tools import metadata
from compat_tests.cluster.tools import QUIET
from compat_tests.harness.brokers import BrokerProcess, KBroker, free_port
from compat_tests.harness.certificates import Authority
from compat_tests.harness.clusters import DEADLINE_S
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.long]

_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule required"
_LOGIN: Final = "java.security.auth.login.config"
_CHROOTS: Final = {"apache": "/java", "kbroker": "/kbroker"}
_COMMON: Final = {"zookeeper.set.acl": "true", "offsets.topic.replication.factor": "1"}


class Secured:
    """A ZooKeeper with SASL at `plain`, and at `secure` with TLS, which requires certificates."""

    def __init__(self, libs: Path, directory: Path) -> None:
        self.libs, self.directory = libs, directory
        self.authority = Authority(directory, "authority")
        self.certificate = self.authority.sign("broker")
        self.client_jaas = directory / "client.conf"
        self.client_jaas.write_text(f'Client {{ {_MODULE} username="kafka" password="secret"; }};')
        server_jaas = directory / "server.conf"
        server_jaas.write_text(f'Server {{ {_MODULE} user_kafka="secret"; }};')
        port = free_port()
        own = {
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(self.authority.sign("zookeeper")),
            "ssl.trustStore.location": str(self.authority.file),
            "ssl.clientAuth": "need",
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        self.server = ZooKeeper(libs, directory / "zookeeper", own, {_LOGIN: str(server_jaas)})
        self.secure = f"127.0.0.1:{port}"

    @property
    def plain(self) -> str:
        return self.server.bootstrap

    def tls(self, authority: Authority | None = None) -> dict[str, str]:
        """Return the settings with which either kind of broker connects over TLS."""
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(self.certificate),
            "zookeeper.ssl.truststore.location": str((authority or self.authority).file),
        }

    def broker(
        self, side: str, connect: str, node_id: int, own: Mapping[str, str], login: Path | None
    ) -> BrokerProcess:
        """Return a broker of a side, which is not started."""
        directory = self.directory / f"{side}-{node_id}-{connect.rpartition('/')[2]}"
        settings = {**_COMMON, **own, "node.id": str(node_id), "zookeeper.connect": connect}
        if side == "kbroker":
            return KBroker(directory, settings if login is None else {**settings, _LOGIN: str(login)})
        java = Kafka39(self.libs, directory, self.server, settings)
        java.own = {"zookeeper.connect": connect}
        java.properties = {} if login is None else {_LOGIN: str(login)}
        return java


@pytest.fixture(scope="module")
def secured(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(kafka39_libs, tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


@pytest.fixture
def owner(secured: Secured) -> Iterator[KazooClient]:
    """Yield a ZooKeeper client with the brokers' credentials."""
    sasl = {"mechanism": "DIGEST-MD5", "username": "kafka", "password": "secret"}
    client = KazooClient(secured.plain, sasl_options=sasl)
    client.start(DEADLINE_S)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def stranger(secured: Secured) -> Iterator[KazooClient]:
    client = KazooClient(secured.plain)
    client.start(DEADLINE_S)
    yield client
    client.stop()
    client.close()


def create(bootstrap: str, topic: str, factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    # A Java broker that has just started knows no controller for a moment, and librdkafka would wait for one in vain.
    wait_for("the controller", lambda: (found := metadata(admin)) and found.controller_id >= 0, DEADLINE_S)
    admin.create_topics([NewTopic(topic, 1, factor)], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)


def access(client: KazooClient, path: str) -> dict[str, list[tuple[int, Any]]]:
    """Return who is allowed to do what, for each path below `top`."""
    found = {path: sorted((each.perms, each.id) for each in client.get_acls(path)[0])}
    for name in client.get_children(path):
        found |= access(client, f"{path}/{name}")
    return found


def test_both_let_others_do_the_same(secured: Secured, owner: KazooClient, stranger: KazooClient) -> None:
    found = {}
    for side, chroot in _CHROOTS.items():
        with secured.broker(side, secured.plain + chroot, 1, {}, secured.client_jaas) as broker:
            create(broker.bootstrap, "orders", 1)
            wait_for("the controller", partial(owner.exists, f"{chroot}/controller"), DEADLINE_S)
            found[side] = {path.removeprefix(chroot): who for path, who in access(owner, chroot).items()}
            for path, may_read in {
                "/brokers/topics/orders": True,
                "/controller_epoch": True,
                "/config/users": False,
            }.items():
                with pytest.raises(NoAuthError):
                    stranger.set(chroot + path, b"1000")
                if may_read:
                    stranger.get(chroot + path)
                else:
                    with pytest.raises(NoAuthError):
                        stranger.get(chroot + path)
    both = found["apache"].keys() & found["kbroker"].keys()
    expected = {
        "",
        "/brokers/ids/1",
        "/brokers/topics/orders/partitions/0/state",
        "/config/topics/orders",
        "/controller",
    }
    assert both >= expected | {"/cluster/id", "/config/brokers", "/config/users", "/consumers", "/feature"}
    assert {path: found["kbroker"][path] for path in both} == {path: found["apache"][path] for path in both}


def test_both_in_one_cluster_over_tls_with_certificates(secured: Secured, stranger: KazooClient) -> None:
    connect = f"{secured.secure}/both"
    with (
        secured.broker("apache", connect, 1, secured.tls(), None) as java,
        secured.broker("kbroker", connect, 2, secured.tls(), None) as kbroker,
    ):
        wait_for("both brokers", lambda: len(stranger.get_children("/both/brokers/ids")) == 2, DEADLINE_S)
        for topic, bootstrap in (("by-java", java.bootstrap), ("by-kbroker", kbroker.bootstrap)):
            create(bootstrap, topic, 2)
        state = "/both/brokers/topics/by-kbroker/partitions/0/state"
        wait_for("a leader", lambda: stranger.exists(state), DEADLINE_S)
        java.kill()  # without a way out: whoever is left takes what it owned
        wait_for("another controller", lambda: b'"brokerid":2' in read(stranger, "/both/controller"), DEADLINE_S)
        wait_for("it to lead", lambda: b'"leader":2' in read(stranger, state), DEADLINE_S)
        with pytest.raises(NoAuthError):
            stranger.set(state, b"")


def read(client: KazooClient, path: str) -> bytes:
    """Return a znode's data; nothing if the znode is missing, or is deleted just now, as a controller's znode is."""
    with contextlib.suppress(NoNodeError):
        data: bytes = client.get(path)[0]
        return data
    return b""


def refused(settings: Mapping[str, str], directory: Path) -> str:
    """Return the line with which a refused start ends."""
    command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
    for key, value in {"broker.id": "1", "zookeeper.connection.timeout.ms": "3000", **settings}.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_who_is_not_let_in_ends_with_one_line(secured: Secured, tmp_path: Path) -> None:
    unknown = Authority(tmp_path, "unknown")
    line = refused({"zookeeper.connect": secured.secure, **secured.tls(unknown)}, tmp_path / "data")
    assert "its certificate is not accepted: unable to get local issuer certificate) within 3000 ms" in line
    jaas = tmp_path / "wrong.conf"
    jaas.write_text(secured.client_jaas.read_text().replace("secret", "wrong"))
    line = refused({"zookeeper.connect": secured.plain, _LOGIN: str(jaas)}, tmp_path / "data")
    assert f"ZooKeeper at {secured.plain} does not accept the credentials of this broker" in line
    owned = {"zookeeper.connect": f"{secured.plain}/kept", "zookeeper.set.acl": "true"}
    with secured.broker("kbroker", owned["zookeeper.connect"], 2, owned, secured.client_jaas):
        line = refused({**owned, "zookeeper.digest.credentials": "other:secret"}, tmp_path / "data")
        assert "ZooKeeper does not let this broker use" in line
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
