"""Apache Kafka 3.9.1 on ZooKeeper, both as processes on loopback.

Owns starting and stopping the two, as brokers.py does for the others. Never speaks Kafka's protocol; a test writes into
ZooKeeper through `tree`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from compat_tests.harness.brokers import HERE, BrokerProcess, free_port
from compat_tests.harness.jvm import BRIEF, ClassArchive

_READ_TIMEOUT_S: Final = 5.0


def _java(libs: Path, memory: str, classes: ClassArchive, properties: Mapping[str, str], *arguments: str) -> list[str]:
    options = [f"-Xmx{memory}", *BRIEF, *classes.options]
    options += [f"-D{name}={value}" for name, value in properties.items()]
    options.append(f"-Dlog4j.configuration=file:{HERE / 'log4j.properties'}")
    return ["java", *options, "-cp", f"{libs.resolve()}/*", *arguments]


class ZooKeeper(BrokerProcess):
    """One ZooKeeper server; `bootstrap` is the value for zookeeper.connect.

    `own` are lines of its zoo.cfg besides the usual ones, `properties` those of its Java virtual machine.
    """

    name = "zookeeper"

    def __init__(
        self,
        libs: Path,
        directory: Path,
        own: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory)
        self._libs = libs
        self._port = 0
        self._own = own or {}
        self._properties = properties or {}

    def _command(self) -> list[str]:
        self._port = self._port or free_port()
        config = self.directory / "zoo.cfg"
        settings = {
            "tickTime": "500",
            "dataDir": str(self.data_dir),
            "clientPort": str(self._port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            **self._own,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._classes = ClassArchive(self._libs, "zookeeper")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return _java(self._libs, "256M", self._classes, self._properties, main, str(config))

    def _ready(self) -> bool:
        """Send the request of ZooKeeper's own tool; `srvr` is the only command that is allowed by default."""
        self.bootstrap = f"127.0.0.1:{self._port}"
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=_READ_TIMEOUT_S) as asked:
                asked.sendall(b"srvr")
                return b"Mode: standalone" in asked.recv(65536)
        except OSError:
            return False

    @contextmanager
    def tree(self) -> Iterator[KazooClient]:
        """Yield a ZooKeeper client."""
        client = KazooClient(self.bootstrap)
        client.start(30)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def put(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Write JSON values at paths, and create the parents."""
        with self.tree() as client:
            for path, value in values.items():
                client.ensure_path(path)
                client.set(path, json.dumps(dict(value)).encode())


class Kafka39(BrokerProcess):
    """Apache Kafka 3.9.1 as a broker on ZooKeeper; ZooKeeper must run as long as the broker."""

    name = "apache 3.9.1"

    def __init__(
        self, libs: Path, directory: Path, zookeeper: ZooKeeper, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(directory, {"zookeeper.session.timeout.ms": "6000", **(settings or {})})
        self._libs = libs
        self._zookeeper = zookeeper
        self._port = 0
        self.own: Mapping[str, str] = {}
        """Settings that override all others."""
        self.properties: Mapping[str, str] = {}
        """Properties of its Java virtual machine."""

    @property
    def port(self) -> int:
        """The port for clients; after a restart, the broker has the same port."""
        self._port = self._port or free_port()
        return self._port

    def _command(self) -> list[str]:
        properties = self.directory / "server.properties"
        settings = {
            **{key: value for key, value in self.settings.items() if not key.startswith("share.")},
            "broker.id": self.settings["node.id"],
            "zookeeper.connect": self._zookeeper.bootstrap,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.data_dir),
            **self.own,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._classes = ClassArchive(self._libs, "kafka")
        return _java(self._libs, "512M", self._classes, self.properties, "kafka.Kafka", str(properties))

    def _ready(self) -> bool:
        self.bootstrap = f"127.0.0.1:{self._port}"
        with open(self.log_file, "rb") as log:
            log.seek(self._log_begin)
            return b"started (kafka.server.KafkaServer)" in log.read()
