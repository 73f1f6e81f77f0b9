"""pytest fixtures: clean brokers for tests, and the broker's log and requests for each failed test.

    kafka_broker    a broker for the session; `.bootstrap_servers` is the address for clients
    kafka           a clean broker for one test: the session's broker after a reset, or, with the marker, another one
    kafka_topic     the name of a fresh topic with one partition, on the test's `kafka` or `kafka_cluster`, or else
                    on kafka_broker
    kafka_clock     the clean broker's clock;  kafka_faults  its faults, or the cluster's
    kafka_cluster   three brokers for this test alone

    @pytest.mark.kafka(config={...}, tls=True, users={"alice": "secret"}, acls=[...])   the settings of `kafka` and
                                                                                        `kafka_cluster`
    kafka_config, kafka_tls, kafka_users                                                the same for all, as ini options

If KAFKA_BOOTSTRAP_SERVERS is set, the fixtures use that external broker instead, so one test suite has two targets. A
test that needs more than the address is skipped, with the reason. Owns the fixtures. Every run of pytest in an
environment with kbroker loads this module, so it imports nothing of kbroker before a fixture is used.
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
"""The number of requests of each kind in a failed test's report: the last, the last rare, and the last with a fault."""
_ALL_THE_TIME = frozenset({"ApiVersions", "ConsumerGroupHeartbeat", "Fetch", "Heartbeat", "Metadata"})
"""Requests that clients send continuously. They would hide rarer requests, like the commit that a test checks."""
_OPTIONS = frozenset({"config", "tls", "users", "acls"})
_STORMS = 10
"""The maximum number of storms in a failed test's report."""
_USED: Final = pytest.StashKey["list[_Used]"]()


@dataclass(frozen=True)
class ExternalBroker:
    """A broker outside the test run. A test that needs features of an embedded broker is skipped."""

    bootstrap_servers: str

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"{name} cannot be used with the broker that KAFKA_BOOTSTRAP_SERVERS names")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options."""
    parser.addini("kafka_config", "settings of the fixtures' brokers, one key=value a line", "linelist", [])
    parser.addini("kafka_tls", "whether the fixtures' brokers listen by TLS", "bool", default=False)
    parser.addini("kafka_users", "users of the fixtures' brokers, one name=password a line", "linelist", [])


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and exclude kbroker's own modules from pytest's assertion rewriting."""
    _keep_as_it_is(config)
    config.addinivalue_line(
        "markers",
        "kafka(config=None, tls=False, users=None, acls=None): settings of the fixtures `kafka` and `kafka_cluster`",
    )


def _keep_as_it_is(config: pytest.Config) -> None:
    """Stop pytest from rewriting kbroker's asserts.

    By default, pytest rewrites the asserts of all modules in a plugin's distribution. A broker imports modules in its
    own thread, and CPython 3.11 cannot parse in two threads at a time (SystemError, "AST constructor recursion depth
    mismatch").
    """
    hook = config.pluginmanager.rewrite_hook
    marked = getattr(hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("kbroker")
        hook.mark_rewrite()  # this call drops cached results


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[Broker | ExternalBroker]:
    """A running broker; clients connect to `.bootstrap_servers`."""
    external = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if external:
        _require_reachable(external)
        yield ExternalBroker(external)
        return
    with _broker(request.config, {}) as broker:
        yield broker


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Broker | ExternalBroker]:
    """A clean broker, without topics, groups or faults, and with the settings of the marker `kafka`."""
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
        pytest.skip("settings cannot be used with the broker that KAFKA_BOOTSTRAP_SERVERS names")
    with _broker(request.config, own) as made, _watched(request.node, made):
        yield made


@pytest.fixture
def kafka_clock(request: pytest.FixtureRequest) -> SteeredClock:
    """The clock of the clean broker: `kafka_clock.advance(hours=25)`. A cluster has no such clock."""
    if _has_cluster_alone(request):
        request.getfixturevalue("kafka_cluster")
        pytest.fail("kafka_clock needs a single broker: a cluster has no clock to move", pytrace=False)
    kafka: Broker = request.getfixturevalue("kafka")
    return kafka.clock


@pytest.fixture
def kafka_faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """The faults of the clean broker: `kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)`.

    In a test that uses `kafka_cluster` but not `kafka`, these are the faults of all brokers of the cluster.
    """
    owner: Broker | Cluster = request.getfixturevalue("kafka_cluster" if _has_cluster_alone(request) else "kafka")
    faults = owner.faults
    yield faults
    faults.clear()


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers for this test alone, with the settings of the marker `kafka`."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("a cluster cannot be used with the broker that KAFKA_BOOTSTRAP_SERVERS names")
    from kbroker.embed_cluster import Cluster

    settings = _settings(request.config, _own(request.node.get_closest_marker("kafka")))
    with Cluster(brokers=3, **settings) as cluster, _watched(request.node, cluster):
        yield cluster


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with one partition, on the test's broker or cluster.

    The topic is deleted after the test.
    """
    # If the test uses the clean broker, request that fixture first, because its reset would delete the topic.
    name = f"test-{uuid.uuid4().hex[:12]}"
    names = request.fixturenames
    if _has_cluster_alone(request) and "kafka_broker" not in names:
        cluster: Cluster = request.getfixturevalue("kafka_cluster")
        yield cluster.topics.create(name).name  # the topic is deleted with the cluster
        return
    steered = {"kafka_faults", "kafka_clock"} & set(names)
    is_clean = "kafka" in names or (steered and not _has_cluster_alone(request))
    kafka_broker: Broker | ExternalBroker = request.getfixturevalue("kafka" if is_clean else "kafka_broker")
    if not isinstance(kafka_broker, ExternalBroker):
        topic = kafka_broker.topics.create(name)
        yield name
        with contextlib.suppress(KeyError):  # the test or a reset has already deleted the topic
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
    """Add the broker's last requests and its storms to the report of a failed test."""
    report = yield
    if report.failed:
        for used in item.stash.get(_USED, []):
            requests = _requests_text(list(used.owner.requests))
            found = {"requests to kbroker": requests, "storms in kbroker": used.storms()}
            report.sections += [section for section in found.items() if section[1]]
    return report


def _requests_text(requests: Sequence[Request]) -> str:
    """Return the last requests, the last rare requests, and the last requests that met a fault."""
    met = [at for at, each in enumerate(requests) if each.fault is not None]
    rare = [at for at, each in enumerate(requests) if each.api not in _ALL_THE_TIME]
    last = range(max(len(requests) - _REQUESTS, 0), len(requests))
    shown = {*met[-_REQUESTS:], *rare[-_REQUESTS:], *last}
    lines = []
    for at in sorted(shown):
        lines += ["..."] if at and at - 1 not in shown else []
        lines.append(repr(requests[at]))
    return "\n".join(lines)


@dataclass(frozen=True)
class _Used:
    """A test's broker or cluster, and the storms that existed before the test."""

    owner: Broker | Cluster
    before: tuple[Fault, ...]

    def storms(self) -> str:
        """Return the calls that repeat the test's last storms, one call per line."""
        storms = [each for each in self.owner.faults.storms if each not in self.before]
        more = [f"... {len(storms) - _STORMS} before"] if len(storms) > _STORMS else []
        return "\n".join([*more, *(each.call_text() for each in storms[-_STORMS:])])


def _has_cluster_alone(request: pytest.FixtureRequest) -> bool:
    """Whether a test uses a cluster but no clean broker."""
    return "kafka_cluster" in request.fixturenames and "kafka" not in request.fixturenames


def _own(marker: pytest.Mark | None) -> Mapping[str, Any]:
    """Return the settings of a test's marker. Fail the test for an unknown setting."""
    if marker is None:
        return {}
    unknown = sorted(marker.kwargs.keys() - _OPTIONS) or [str(each) for each in marker.args]
    if unknown:
        pytest.fail(f"@pytest.mark.kafka takes {', '.join(sorted(_OPTIONS))}, not {unknown[0]}", pytrace=False)
    return marker.kwargs


def _broker(config: pytest.Config, own: Mapping[str, Any]) -> Broker:
    """Return a broker with the settings of the ini options and of a test's marker."""
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
    """Record the broker's log, requests and storms for the report of a failed test."""
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
    """Hide deprecation warnings from kafka-python's own code, because a suite may run with `-W error`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _require_reachable(bootstrap_servers: str) -> None:
    """Fail with a one-line message if no address accepts a connection: a client would retry for half a minute."""
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
