"""A ZooKeeper server for the brokers of this machine.

Owns the server's configuration, its process and its jars, which Maven downloads once. The name of a directory of jars
depends on the pom file's name and content; the directory exists completely or not at all. The server listens only on
loopback, without an admin server, and answers one four-letter command, `srvr`, which shows whether it serves.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from kbroker.launcher.child import Child, LauncherError, Pause, wait_until

POM: Final = Path(__file__).with_name("zookeeper.xml")
HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
FETCH_TIMEOUT_S: Final = 600
STOP_TIMEOUT_S: Final = 15.0
_ASK_TIMEOUT_S: Final = 2.0

SETTINGS: Final = {
    # ZooKeeper limits a session's timeout to 2 to 20 ticks, and Kafka's brokers request 6 to 18 s.
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "clientPortAddress": HOST,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}
_JAVA: Final = (
    "java",
    "-Xmx256M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=[yyyy-MM-dd HH:mm:ss,SSS]",
)


def zookeeper_jars(pause: Pause = time.sleep) -> Path:
    """Return the directory with ZooKeeper's jars. Download them the first time. Raises JarsMissing."""
    missing = missing_tools()
    if kept(POM, user_cache_dir()).is_dir():
        missing = [name for name in missing if name == "java"]
    if missing:
        raise JarsMissing(
            f"{' and '.join(missing)} must be installed to start a ZooKeeper; --zookeeper HOST:PORT names one that runs"
        )
    return fetch_jars(POM, user_cache_dir(), pause)


def config_text(directory: Path, port: int) -> str:
    """Return the content of a server's configuration file. Snapshots and logs are stored below `directory`."""
    settings = {
        **SETTINGS,
        "clientPort": str(port),
        "dataDir": str(directory / "snapshots"),
        "dataLogDir": str(directory / "log"),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


class ZooKeeperServer:
    """One server. It stores its data below `directory`."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.child = Child("ZooKeeper", directory / "zookeeper.log")

    @property
    def address(self) -> str:
        """The value for zookeeper.connect."""
        return f"{HOST}:{self.port}"

    def start(self, pause: Pause = time.sleep) -> None:
        """Start the server, and wait until it serves. Raises LauncherError."""
        jars = zookeeper_jars(pause)
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text(config_text(self.directory, self.port))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.child.start([*_JAVA, "-cp", f"{jars}/*", main, str(config)])
        if not wait_until(lambda: self.serves() or not self.child.running, START_TIMEOUT_S, pause):
            raise LauncherError(f"ZooKeeper does not serve after {START_TIMEOUT_S:.0f} s, see {self.child.log_file}")
        if not self.child.running:
            raise LauncherError(f"ZooKeeper has ended: {self.child.last_words()}")

    def serves(self) -> bool:
        """Whether the server responds."""
        try:
            with socket.create_connection((HOST, self.port), timeout=_ASK_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                return b"Mode: standalone" in connection.recv(65536)
        except OSError:
            return False

    def stop(self, pause: Pause = time.sleep) -> None:
        """Stop the server. All acknowledged writes are already on the disk."""
        self.child.stop(STOP_TIMEOUT_S, pause)


def require_reachable(connect: str) -> None:
    """Raise LauncherError if no server of a connection string (HOST:PORT[,HOST:PORT]...[/chroot]) is reachable."""
    failures = []
    for address in connect.partition("/")[0].split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise LauncherError(f"--zookeeper takes HOST:PORT[/chroot], not {connect!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ASK_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{address}: {error}")
        else:
            return
    raise LauncherError(f"no ZooKeeper takes a connection: {'; '.join(failures)}")


class JarsMissing(LauncherError):  # noqa: N818 - a state of the machine
    """Raised if this machine has no Java or no Maven, or if Maven cannot download the jars of a pom file."""


def user_cache_dir() -> Path:
    """Return the directory below which this user's jars are stored."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbroker"


def missing_tools() -> list[str]:
    """Return the missing programs among those that download and run the jars."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def kept(pom: Path, cache: Path) -> Path:
    """Return the directory for the jars of a pom file. The directory need not exist."""
    return cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


def fetch_jars(pom: Path, cache: Path, pause: Pause = time.sleep) -> Path:
    """Return the directory with the jars of a pom file. Download them if the directory does not exist."""
    target = kept(pom, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may start at the same time: one process downloads the jars, and all others wait for this
    # process.
    with open(cache / f"{pom.stem}.lock", "w") as lock:
        if not wait_until(lambda: _locked(lock.fileno()), FETCH_TIMEOUT_S, pause):
            raise JarsMissing(f"another process has been fetching {pom.stem} for {FETCH_TIMEOUT_S} s")
        if not target.is_dir():
            _copy_dependencies(pom, target, pause)
    return target


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _copy_dependencies(pom: Path, target: Path, pause: Pause) -> None:
    """Download into a temporary directory, and rename it to `target`, so that a partial result is never used."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        maven = Child("Maven", Path(scratch) / "maven.log")
        maven.start(command)
        try:
            if not wait_until(lambda: not maven.running, FETCH_TIMEOUT_S, pause):
                raise JarsMissing(f"Maven did not fetch {pom.name} within {FETCH_TIMEOUT_S} s")
        finally:
            maven.kill()
        if maven.ended or not any(jars.glob("*.jar")):
            raise JarsMissing(f"Maven could not fetch {pom.name}: {' | '.join(maven.tail(20))}")
        jars.rename(target)
