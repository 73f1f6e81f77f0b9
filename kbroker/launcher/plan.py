"""The plan of a cluster: brokers by id and address, their data directories, and their settings.

Owns the layout of a cluster's directory, the settings that the launcher gives to brokers, the form of addresses (in
tables, in settings, and in lines to copy), and the choice of free ports. Never starts a process.

    DIR/cluster.json          the running cluster (description.py)
    DIR/control.sock          the socket from `kbroker cluster` to the launcher (control.py)
    DIR/zookeeper/            the ZooKeeper that the launcher starts: zoo.cfg, snapshots, log, zookeeper.log
    DIR/broker-N/data         the broker's log directory
    DIR/broker-N/broker.log   the broker's output
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kbroker.launcher.child import LauncherError

LAST_PORT: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
OWN_KEYS: Final = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "zookeeper.connect",
    }
)
"""The settings that differ between brokers. Therefore --set must not set them for all brokers."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker, which listens on `host` and `port`. Its own `settings` override the cluster's settings."""

    node_id: int
    host: str
    port: int
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics: str | None = None
    """The address of the broker's metrics, as HOST:PORT."""
    registry: str | None = None
    """The address of the broker's schema registry, as HOST:PORT."""

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "broker.log"

    @property
    def contact(self) -> tuple[str, int]:
        """The address by which this machine reaches the broker."""
        return reached_at(self.host), self.port

    @property
    def address(self) -> str:
        return joined(*self.contact)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster in one directory. Without `zookeeper` (a connection string), the launcher starts a ZooKeeper."""

    directory: Path
    brokers: tuple[BrokerPlan, ...]
    zookeeper: str | None
    settings: Mapping[str, str]
    options: tuple[str, ...] = ()
    """Further options of `kbroker start`, for all brokers."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def zookeeper_directory(self) -> Path:
        return self.directory / "zookeeper"


def make_plan(
    directory: Path, count: int, listen: tuple[str, int], zookeeper: str | None, settings: Mapping[str, str]
) -> ClusterPlan:
    """Plan brokers 1 to `count` on neighbouring ports, starting at `listen`. Port 0 means free ports."""
    directory = directory.absolute()
    host, port = listen
    if port + count - 1 > LAST_PORT:
        raise LauncherError(f"{count} brokers that start at port {port} would need ports above {LAST_PORT}")
    ports = range(port, port + count) if port else free_ports(host, count)
    brokers = tuple(
        BrokerPlan(number, host, each, directory / f"broker-{number}") for number, each in enumerate(ports, 1)
    )
    return ClusterPlan(directory, brokers, zookeeper, {**defaults(count), **settings})


def with_metrics(plan: ClusterPlan, listen: tuple[str, int]) -> ClusterPlan:
    """Add metrics addresses on neighbouring ports, starting at `listen`. Port 0 means free ports."""
    pairs = zip(plan.brokers, _neighbours(plan, "--metrics", *listen), strict=True)
    return replace(plan, brokers=tuple(replace(broker, metrics=each) for broker, each in pairs))


def with_registries(plan: ClusterPlan, listen: tuple[str, int]) -> ClusterPlan:
    """Add addresses of schema registries on neighbouring ports, starting at `listen`. Port 0 means free ports."""
    pairs = zip(plan.brokers, _neighbours(plan, "--registry", *listen), strict=True)
    return replace(plan, brokers=tuple(replace(broker, registry=each) for broker, each in pairs))


def _neighbours(plan: ClusterPlan, option: str, host: str, port: int) -> list[str]:
    count = len(plan.brokers)
    if port + count - 1 > LAST_PORT:
        raise LauncherError(f"{option}: {count} brokers that start at port {port} would need ports above {LAST_PORT}")
    ports = range(port, port + count) if port else free_ports(host, count)
    return [joined(host, each) for each in ports]


def defaults(count: int) -> dict[str, str]:
    """Return the default settings of brokers on one machine.

    The option --set overrides them. Kafka's internal topics have three replicas and so need three brokers. The timeouts
    are short: with Kafka's defaults the controller detects a killed broker only after 18 s, and the last broker retries
    its controlled shutdown for 15 s. Only brokers may use the inter-broker APIs.
    """
    return {
        "offsets.topic.replication.factor": str(min(count, 3)),
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(count, 3)),
        "share.coordinator.state.topic.min.isr": str(min(count, 2)),
        "share.coordinator.state.topic.replication.factor": str(min(count, 3)),
        "transaction.state.log.replication.factor": str(min(count, 3)),
        "transaction.state.log.min.isr": str(min(count, 2)),
        "zookeeper.session.timeout.ms": "6000",
        "controlled.shutdown.retry.backoff.ms": "500",
        "inter.broker.apis.from": "brokers",
    }


def broker_command(program: Sequence[str], plan: ClusterPlan, broker: BrokerPlan, zookeeper: str) -> list[str]:
    """Return the command that runs a broker in the foreground."""
    settings = {
        **plan.settings,
        "zookeeper.connect": zookeeper,
        "broker.id": str(broker.node_id),
        "listeners": f"PLAINTEXT://{joined(broker.host, broker.port)}",
        **broker.settings,
    }
    command = [*program, "start", "--data-dir", str(broker.data_dir), *plan.options]
    if broker.metrics is not None:
        command += ["--metrics", broker.metrics]
    if broker.registry is not None:
        command += ["--registry", broker.registry]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Read KEY=VALUE texts. Refuse keys that the launcher itself sets."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise LauncherError(f"--set takes KEY=VALUE, not {text!r}")
        if key.strip() in OWN_KEYS:
            raise LauncherError(f"--set {key.strip()}: it differs from broker to broker and is set by the launcher")
        settings[key.strip()] = value.strip()
    return settings


def require_free(brokers: Iterable[BrokerPlan]) -> None:
    """Raise LauncherError for an address on which a broker cannot listen."""
    for broker in brokers:
        try:
            bound(broker.host, broker.port).close()
        except OSError as error:
            raise LauncherError(f"{joined(broker.host, broker.port)}: {error.strerror or error}") from None


def reached_at(host: str) -> str:
    """Return the address by which this machine reaches a listener on `host`."""
    return _ANYWHERE.get(host, host)


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Parse HOST:PORT, the value of an option."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > LAST_PORT:
        raise LauncherError(f"{option} takes HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """Return an address as HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(host: str, count: int) -> list[int]:
    """Return several different ports that are free at this moment."""
    with ExitStack() as held:
        return [held.enter_context(bound(host, 0)).getsockname()[1] for _ in range(count)]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises OSError if the address is in use."""
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    except BaseException:
        probe.close()
        raise
    return probe
