"""pytest fixtures: brokers for tests, clean for each of them, and what went on in them where a test fails.

    kafka_broker    a broker for the session; `.bootstrap_servers` is what clients connect to
    kafka           a clean broker for one test: the session's, reset before it; or one of its own, by the marker
    kafka_topic     the name of a fresh topic with one partition, of `kafka` or `kafka_cluster` where a test has it, or
                    of kafka_broker
    kafka_clock     the clean broker's clock;  kafka_faults  its faults, or the cluster's
    kafka_cluster   three brokers of the test's own

    @pytest.mark.kafka(config={...}, tls=True, users={"alice": "secret"}, acls=[...])   what `kafka` and `kafka_cluster`
                                                                                        are given
    kafka_config, kafka_tls, kafka_users                                                the same for all, as ini options

With KAFKA_BOOTSTRAP_SERVERS set, the fixtures use that broker instead, of which nothing else is known: one suite, two
targets. A test that wants more of it is skipped, and says what. Owns the fixtures; loaded by every run of pytest in an
environment with kbroker, so it imports nothing of it before a fixture is used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from kbroker.embed import Broker
    from kbroker.embed_cluster import Cluster
    from kbroker.testing.faults import Fault, Faults
    from kbroker.testing.requests import Request
    from kbroker.testing.steered_clock import SteeredClock

_PROBE_SECONDS = 3.0
_REQUESTS = 20
"""How many requests are shown of a test that fails, how many that tell more, and how many that met a fault."""
_ALL_THE_TIME = frozenset({"ApiVersions", "ConsumerGroupHeartbeat", "Fetch", "Heartbeat", "Metadata"})
"""What clients ask whatever a test does: twenty of them would hide the commit that it is about."""
_OPTIONS = frozenset({"config", "tls", "users", "acls"})
_STORMS = 10
"""How many storms are told of a test that fails."""
_USED: Final = pytest.StashKey["list[_Used]"]()


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that somebody else runs. What only an embedded one has skips the test that asks for it."""

    bootstrap_servers: str

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"{name} cannot be had of a broker that KAFKA_BOOTSTRAP_SERVERS names")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options."""
    parser.addini("kafka_config", "settings of the fixtures' brokers, one key=value a line", "linelist", [])
    parser.addini("kafka_tls", "whether the fixtures' brokers listen by TLS", "bool", default=False)
    parser.addini("kafka_users", "users of the fixtures' brokers, one name=password a line", "linelist", [])


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line(
        "markers",
        "kafka(config=None, tls=False, users=None, acls=None): what the fixtures `kafka` and `kafka_cluster` are given",
    )


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[Broker | ExternalBroker]:
    """A running broker; `.bootstrap_servers` is what clients connect to."""
    external = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if external:
        _require_reachable(external)
        yield ExternalBroker(external)
        return
    with _broker(request.config, {}) as broker:
        yield broker


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Broker | ExternalBroker]:
    """A clean broker: without topics, groups or faults, with the settings that the marker `kafka` says."""
    marker = request.node.get_closest_marker("kafka")
    if marker is None:
        broker = request.getfixturevalue("kafka_broker")
        if isinstance(broker, ExternalBroker):
            yield broker
            return
        broker.reset()
        with _watched(request.node, broker):
            yield broker
        return
    own = _own(marker)
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("settings cannot be had of a broker that KAFKA_BOOTSTRAP_SERVERS names")
    with _broker(request.config, own) as made, _watched(request.node, made):
        yield made


@pytest.fixture
def kafka_clock(request: pytest.FixtureRequest) -> SteeredClock:
    """The time of the clean broker: `kafka_clock.advance(hours=25)`. A cluster has none that could be moved."""
    if _has_cluster_alone(request):
        request.getfixturevalue("kafka_cluster")
        pytest.fail("kafka_clock is a broker's: a cluster has no clock to move", pytrace=False)
    kafka: Broker = request.getfixturevalue("kafka")
    return kafka.clock


@pytest.fixture
def kafka_faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """How the clean broker misbehaves: `kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)`.

    In a test that has `kafka_cluster`, and not `kafka`, how all brokers of that do.
    """
    owner: Broker | Cluster = request.getfixturevalue("kafka_cluster" if _has_cluster_alone(request) else "kafka")
    faults = owner.faults
    yield faults
    faults.clear()


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers of the test's own, with the settings that the marker `kafka` says."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("a cluster cannot be had of a broker that KAFKA_BOOTSTRAP_SERVERS names")
    from kbroker.embed_cluster import Cluster

    settings = _settings(request.config, _own(request.node.get_closest_marker("kafka")))
    with Cluster(brokers=3, **settings) as cluster, _watched(request.node, cluster):
        yield cluster


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh topic with one partition, of the broker that the test has; deleted afterwards."""
    # First the clean broker, where the test has it: its reset would remove the topic.
    name = f"test-{uuid.uuid4().hex[:12]}"
    names = request.fixturenames
    if _has_cluster_alone(request) and "kafka_broker" not in names:
        cluster: Cluster = request.getfixturevalue("kafka_cluster")
        yield cluster.topics.create(name).name  # it goes with the cluster
        return
    steered = {"kafka_faults", "kafka_clock"} & set(names)
    is_clean = "kafka" in names or (steered and not _has_cluster_alone(request))
    kafka_broker: Broker | ExternalBroker = request.getfixturevalue("kafka" if is_clean else "kafka_broker")
    if not isinstance(kafka_broker, ExternalBroker):
        topic = kafka_broker.topics.create(name)
        yield name
        with contextlib.suppress(KeyError):  # the test, or a reset, has deleted it
            topic.delete()
        return
    with _clients_warnings_ignored():
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap_servers.split(","))
    try:
        with _clients_warnings_ignored():
            admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        yield name
        with _clients_warnings_ignored():
            admin.delete_topics([name])
    finally:
        with _clients_warnings_ignored():
            admin.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the broker was asked last, and the storms that it had, to the report of a test that fails."""
    report = yield
    if report.failed:
        for used in item.stash.get(_USED, []):
            told = {"requests to kbroker": _told(list(used.owner.requests)), "storms in kbroker": used.storms()}
            report.sections += [section for section in told.items() if section[1]]
    return report


def _told(requests: Sequence[Request]) -> str:
    """Return the last requests, the last that clients do not ask all the time, and the last that met a fault."""
    met = [at for at, each in enumerate(requests) if each.fault is not None]
    telling = [at for at, each in enumerate(requests) if each.api not in _ALL_THE_TIME]
    last = range(max(len(requests) - _REQUESTS, 0), len(requests))
    shown = {*met[-_REQUESTS:], *telling[-_REQUESTS:], *last}
    lines = []
    for at in sorted(shown):
        lines += ["..."] if at and at - 1 not in shown else []
        lines.append(repr(requests[at]))
    return "\n".join(lines)


@dataclass(frozen=True)
class _Used:
    """What a test has, with the storms that it had before."""

    owner: Broker | Cluster
    before: tuple[Fault, ...]

    def storms(self) -> str:
        """Return how to have the test's storms again, the last of them, a line each."""
        storms = [each for each in self.owner.faults.storms if each not in self.before]
        more = [f"... {len(storms) - _STORMS} before"] if len(storms) > _STORMS else []
        return "\n".join([*more, *(each.told_again() for each in storms[-_STORMS:])])


def _has_cluster_alone(request: pytest.FixtureRequest) -> bool:
    """Whether a test has a cluster, and no clean broker beside it."""
    return "kafka_cluster" in request.fixturenames and "kafka" not in request.fixturenames


def _own(marker: pytest.Mark | None) -> Mapping[str, Any]:
    """Return what a test's marker says; fails for what is no setting."""
    if marker is None:
        return {}
    unknown = sorted(marker.kwargs.keys() - _OPTIONS) or [str(each) for each in marker.args]
    if unknown:
        pytest.fail(f"@pytest.mark.kafka takes {', '.join(sorted(_OPTIONS))}, not {unknown[0]}", pytrace=False)
    return marker.kwargs


def _broker(config: pytest.Config, own: Mapping[str, Any]) -> Broker:
    """Return a broker of the ini options and a test's own."""
    from kbroker.embed import Broker

    return Broker(**_settings(config, own))


def _settings(config: pytest.Config, own: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**_pairs(config, "kafka_config"), **(own.get("config") or {})}
    users = {**_pairs(config, "kafka_users"), **(own.get("users") or {})}
    tls = bool(own.get("tls", config.getini("kafka_tls")))
    acls = own.get("acls")
    return {"config": settings, "tls": tls, "users": users or None, "acls": acls}


def _pairs(config: pytest.Config, option: str) -> dict[str, str]:
    found = {}
    for line in config.getini(option):
        key, equals, value = line.partition("=")
        if not equals:
            pytest.fail(f"{option}: {line!r} is not of the form key=value", pytrace=False)
        found[key.strip()] = value.strip()
    return found


@contextlib.contextmanager
def _watched(item: pytest.Item, owner: Broker | Cluster) -> Iterator[None]:
    """Have the broker's log, its requests and its storms at hand, should the test fail."""
    owner.requests.clear()
    item.stash.setdefault(_USED, []).append(_Used(owner, tuple(owner.faults.storms)))
    logger = logging.getLogger("kbroker")
    level = logger.level
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    yield
    logger.setLevel(level)


@contextlib.contextmanager
def _clients_warnings_ignored() -> Iterator[None]:
    """Keep the deprecations of kafka-python's own code out of a suite, which may run with `-W error`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _require_reachable(bootstrap_servers: str) -> None:
    """Fail in one line when no address takes a connection: a client would try for half a minute."""
    reasons = []
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            reasons.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
        except (OSError, OverflowError) as err:
            reasons.append(f"{address.strip()}: {getattr(err, 'strerror', None) or err}")
        else:
            return
    pytest.fail(f"no broker at KAFKA_BOOTSTRAP_SERVERS: {'; '.join(reasons)}", pytrace=False)
