"""Quotas on both brokers: requests about them, kafka-configs, and how clients over their quota are throttled.

The window is shorter than by default, so that a client soon has used what it may accumulate: two seconds' worth.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

from compat_tests.harness import report
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import run_java
from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from compat_tests.wire.plain import Plain
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlteredEntity,
    AlteredEntry,
    ComponentData,
    DescribeClientQuotasRequest,
    OpData,
)
from kbroker.protocol.messages.cluster import DescribeClusterRequest, MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

pytestmark = pytest.mark.java

SETTINGS = {"quota.window.num": "3", "auto.create.topics.enable": "false"}
OTHER = "127.0.0.2"
A = TypeVar("A")


@pytest.fixture(scope="module")
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("quotas")
    with (
        ApacheKafka(kafka_libs, directory / "apache", SETTINGS) as apache,
        KBroker(directory / "kbroker", SETTINGS) as ours,
    ):
        yield {"apache": apache, "kbroker": ours}


def ask(broker: BrokerProcess, request: Any, version: int, client_id: str | None = "admin") -> Any:
    with WireClient(broker.bootstrap, client_id) as client:
        return client.ask(request, version)


def both(brokers: dict[str, BrokerProcess], work: Callable[[BrokerProcess], A]) -> dict[str, A]:
    """Call a function on both brokers in parallel, because most of the time is waiting."""
    with ThreadPoolExecutor(len(brokers)) as pool:
        return dict(zip(brokers, pool.map(work, brokers.values()), strict=True))


# --- requests


def entry(entity: list[tuple[str, str | None]], *ops: tuple[str, float | None]) -> AlteredEntry:
    return AlteredEntry([AlteredEntity(*part) for part in entity], [OpData(k, v or 0.0, v is None) for k, v in ops])


RATE = ("producer_byte_rate", 1024.0)
ALICE: list[tuple[str, str | None]] = [("user", "alice")]
BOTH: list[tuple[str, str | None]] = [("user", "alice"), ("client-id", "app")]
ALTERATIONS = {
    "a user": [entry(ALICE, RATE, ("request_percentage", 12.5))],
    "a user's client id": [entry(BOTH, ("consumer_byte_rate", 2048.0))],
    "defaults": [
        entry([("user", None)], RATE),
        entry([("client-id", None)], RATE),
        entry([("user", None), ("client-id", None)], RATE),
        entry([("client-id", "a b/c%d*~ü")], ("controller_mutation_rate", 0.25)),
    ],
    "addresses": [
        entry([("ip", "127.0.0.9")], ("connection_creation_rate", 100.0)),
        entry([("ip", None)], ("connection_creation_rate", 1e6)),
        entry([("ip", "::1")], ("connection_creation_rate", 7.0)),
    ],
    "no entity": [entry([], RATE)],
    "no limits": [entry(ALICE)],
    "nothing": [],
    "another type": [entry([("group", "g")], RATE)],
    "an empty user": [entry([("user", "")], RATE)],
    "an empty client id": [entry([("client-id", "")], RATE)],
    "an empty address": [entry([("ip", "")], RATE)],
    "an address and a user": [entry([("ip", "127.0.0.1"), ("user", "u")], RATE)],
    "no address": [entry([("ip", "256.1.1.1.1.invalid")], ("connection_creation_rate", 1.0))],
    "a type twice": [entry([("user", "first"), ("user", "twice")], RATE)],
    "a key twice": [entry([("user", "key-twice")], RATE, RATE)],
    "an entity twice": [
        entry([("user", "twice-a")], RATE),
        entry([("user", "twice-a")], ("producer_byte_rate", 5.0)),
        entry([("user", "twice-a")], ("producer_byte_rate", 6.0)),
    ],
    "a pair twice": [entry(BOTH, RATE), entry(BOTH, RATE)],
    "a default twice": [entry([("user", None), ("client-id", "x")], RATE)] * 2,
    "an unknown key": [entry(ALICE, ("bytes", 1.0))],
    "another type's key": [entry(ALICE, ("connection_creation_rate", 1.0))],
    "an address's other key": [entry([("ip", "127.0.0.9")], RATE)],
    "a password's key": [entry(ALICE, ("SCRAM-SHA-256", 1.0))],
    "zero": [entry(ALICE, ("producer_byte_rate", 0.0))],
    "less than nothing": [entry(ALICE, ("request_percentage", -1.0))],
    "a fraction": [entry(ALICE, ("producer_byte_rate", 1.5))],
    "nearly whole": [entry(ALICE, ("consumer_byte_rate", 3.0000001))],
    "fractions of what may have them": [entry(ALICE, ("controller_mutation_rate", 0.001))],
    "a fraction of a connection": [entry([("ip", "127.0.0.9")], ("connection_creation_rate", 0.5))],
    "too much": [entry(ALICE, ("producer_byte_rate", 1e19)), entry([("ip", None)], ("connection_creation_rate", 1e10))],
    "the most": [
        entry(ALICE, ("producer_byte_rate", 2.0**63)),
        entry([("ip", None)], ("connection_creation_rate", 2.0**31 - 1)),
    ],
    "without end": [entry(ALICE, ("request_percentage", float("inf")))],
    "one good, one bad": [
        entry([("user", "good")], RATE, ("consumer_byte_rate", -5.0)),
        entry([("user", "fine")], RATE),
    ],
    "what is not there is removed": [entry([("user", "nobody")], ("producer_byte_rate", None))],
    "an unknown key is removed": [entry(ALICE, ("bytes", None))],
    "some is removed": [entry(ALICE, ("producer_byte_rate", None))],
    "all is removed": [entry(BOTH, ("consumer_byte_rate", None), ("producer_byte_rate", None))],
}  # fmt: skip
FILTERS: dict[str, tuple[list[tuple[str, int, str | None]], bool]] = {
    "all": ([], False),
    "none": ([], True),
    "alice": ([("user", 0, "alice")], False),
    "alice alone": ([("user", 0, "alice")], True),
    "alice with a client id": ([("user", 0, "alice"), ("client-id", 2, None)], True),
    "the default user": ([("user", 1, None)], False),
    "any user": ([("user", 2, None)], True),
    "any client id": ([("client-id", 2, None)], False),
    "any client id alone": ([("client-id", 2, None)], True),
    "both defaults": ([("user", 1, None), ("client-id", 1, None)], True),
    "any address": ([("ip", 2, None)], False),
    "an address": ([("ip", 0, "127.0.0.9")], True),
    "nobody": ([("user", 0, "nobody")], False),
    "an empty name": ([("user", 0, "")], False),
    "an empty type": ([("", 0, "a")], False),
    "an unknown type": ([("group", 0, "a")], False),
    "a type twice": ([("user", 2, None), ("user", 2, None)], False),
    "an address and a user": ([("ip", 2, None), ("user", 2, None)], False),
    "exactly nothing": ([("user", 0, None)], False),
    "a default with a name": ([("user", 1, "alice")], False),
    "any with a name": ([("user", 2, "alice")], False),
    "an unknown match": ([("user", 3, None)], False),
    "a negative match": ([("user", -1, "alice")], False),
}


def plain(answer: Any) -> Any:
    return in_order(Plain().of(answer))


def in_order(value: Any) -> Any:
    """Sort lists, because quotas have no order."""
    if isinstance(value, dict):
        return {name: in_order(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((in_order(each) for each in value), key=repr)
    return value


def described(broker: BrokerProcess, version: int) -> dict[str, Any]:
    found = {}
    with WireClient(broker.bootstrap, "admin") as client:
        for name, (components, strict) in FILTERS.items():
            request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
            found[name] = plain(client.ask(request, version))
    return found


@pytest.mark.parametrize("version", [0, 1])
def test_requests_about_quotas(brokers: dict[str, BrokerProcess], version: int) -> None:
    for name, entries in ALTERATIONS.items():
        for validate_only in (True, False):
            request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
            told = {side: plain(ask(broker, request, version)) for side, broker in brokers.items()}
            assert told["kbroker"] == told["apache"], name
            report.count_exchanges("quotas", 1)
    ours, theirs = described(brokers["kbroker"], version), described(brokers["apache"], version)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while theirs["all"] != ours["all"] and time.monotonic() < deadline:  # its broker learns of it from its controller
        theirs = described(brokers["apache"], version)
    assert ours == theirs
    report.count_exchanges("quotas", len(FILTERS))
    cleared(brokers)


def cleared(brokers: dict[str, BrokerProcess]) -> None:
    """Remove all quotas, and wait until both brokers know that."""

    def of(broker: BrokerProcess) -> list[Any]:
        entries: list[Any] = ask(broker, DescribeClientQuotasRequest(), 1).entries
        return entries

    for broker in brokers.values():
        gone = [
            AlteredEntry(
                [AlteredEntity(each.entity_type, each.entity_name) for each in found.entity],
                [OpData(each.key, remove=True) for each in found.values],
            )
            for found in of(broker)
        ]
        answer = ask(broker, AlterClientQuotasRequest(entries=gone), 1)
        assert not any(each.error_code for each in answer.entries), answer
        until(lambda broker=broker: not of(broker))  # type: ignore[misc]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def limit(brokers: dict[str, BrokerProcess]) -> Iterator[Callable[..., None]]:
    """Set a quota on both brokers, and wait until they know it; it is removed after the test."""

    def set_both(entity: tuple[str, str | None], **limits: float) -> None:
        for broker in brokers.values():
            answer = ask(broker, AlterClientQuotasRequest(entries=[entry([entity], *limits.items())]), 1)
            assert not answer.entries[0].error_code, answer
            until(lambda broker=broker: bool(ask(broker, DescribeClientQuotasRequest(), 1).entries))  # type: ignore[misc]

    yield set_both
    cleared(brokers)


# --- kafka-configs


@pytest.fixture
def kafka_configs(kafka_libs: Path) -> Callable[..., list[str]]:
    def run(broker: BrokerProcess, *arguments: str) -> list[str]:
        main = "org.apache.kafka.tools.ConfigCommand"
        status, out, err = run_java(kafka_libs, main, "--bootstrap-server", broker.bootstrap, *arguments)
        assert status == 0, out + err
        # The limits of one entity have no order.
        return sorted(" ".join(sorted(line.replace(",", " ").split())) for line in out.splitlines() if line.strip())

    return run


def test_kafka_configs(brokers: dict[str, BrokerProcess], kafka_configs: Callable[..., list[str]]) -> None:
    def life(broker: BrokerProcess) -> list[list[str]]:
        add = ("--alter", "--add-config")
        user, client = ("--entity-type", "users"), ("--entity-type", "clients")
        alice = (*user, "--entity-name", "al ice")
        address = ("--entity-type", "ips", "--entity-name", "127.0.0.9")
        default = "--entity-default"
        said = [
            kafka_configs(broker, *add, "producer_byte_rate=1024,request_percentage=50", *alice),
            kafka_configs(broker, *add, "consumer_byte_rate=2048", *alice, *client, "--entity-name", "app"),
            kafka_configs(broker, *add, "consumer_byte_rate=4096", *user, default, *client, default),
            kafka_configs(broker, *add, "controller_mutation_rate=1.5", *client, default),
            kafka_configs(broker, *add, "connection_creation_rate=100", *address),
            kafka_configs(broker, *add, "SCRAM-SHA-256=[password=secret]", *alice),
        ]
        said += [kafka_configs(broker, "--describe", "--entity-type", kind) for kind in ("users", "clients", "ips")]
        said += [kafka_configs(broker, "--describe", *alice, *client)]
        gone = ("--alter", "--delete-config")
        said += [
            kafka_configs(broker, *gone, "producer_byte_rate", *alice),
            kafka_configs(broker, "--describe", *alice),
        ]
        return said

    told = both(brokers, life)
    report.count("kafka-configs", "both")
    assert told["kbroker"] == told["apache"]
    assert any("producer_byte_rate=1024" in line for line in told["kbroker"][6])
    assert any("SCRAM-SHA-256=iterations=" in line for line in told["kbroker"][-1])
    cleared(brokers)


# --- rates

BOUND = 200_000
SIZE = 5_000
WANTED = 1.6
"""The wanted rate, as a multiple of the bound."""
SETTLED_SECONDS, MEASURED_SECONDS = 3.5, 8.0
"""After the first pause: how long until the excess has left the window, and how long is measured then."""


def topic(broker: BrokerProcess, name: str, partitions: int = 1, version: int = 7, client_id: str = "admin") -> Any:
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1)], timeout_ms=10_000)
    return ask(broker, request, version, client_id)


def led(broker: BrokerProcess, name: str) -> bytes:
    """Wait until a topic has a leader; return the topic's id."""
    assert topic(broker, name).topics[0].error_code in (0, 36)
    found: list[Any] = []

    def look() -> bool:
        found[:] = [t for t in ask(broker, MetadataRequest(topics=None), 12).topics if t.name == name]
        return bool(found) and bool(found[0].partitions) and found[0].partitions[0].leader_id >= 0

    until(look)
    return bytes(found[0].topic_id)


def rate_of(step: Callable[[], tuple[int, int]]) -> tuple[float, list[int]]:
    """Return the bytes per second that pass when slightly more are wanted, and the throttle times.

    A client that sent everything immediately would be measured in bursts: first the accumulated quota, and then nothing
    until the window has passed.
    """
    began = due = time.monotonic()
    total, pauses, counts_from = 0, list[int](), began + DEADLINE_SECONDS
    while (now := time.monotonic()) < counts_from + MEASURED_SECONDS:
        time.sleep(max(0.0, due - now))
        due = max(due, now - 0.1) + SIZE / BOUND / WANTED
        size, pause = step()
        if not pauses and pause:
            counts_from = now + SETTLED_SECONDS
        if pause:
            pauses.append(pause)
        if now >= counts_from:
            total += size
    return total / (now - counts_from), pauses


def test_a_producer_goes_at_its_rate(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    for broker in brokers.values():
        led(broker, "produced")
    limit(("client-id", "slow"), producer_byte_rate=float(BOUND))
    records = batch(1, size=SIZE)

    def produce(broker: BrokerProcess) -> tuple[float, list[int]]:
        with WireClient(broker.bootstrap, "slow") as client:

            def step() -> tuple[int, int]:
                answer = client.ask(produce_request("produced", records, acks=1), 9)
                assert not answer.responses[0].partition_responses[0].error_code
                return len(records), answer.throttle_time_ms

            return rate_of(step)

    found = both(brokers, produce)
    for side, (rate, pauses) in found.items():
        assert rate == pytest.approx(BOUND, rel=0.15), (side, rate)
        assert pauses, side
    report.count("throttled producer", "both")


def test_a_consumer_goes_at_its_rate(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    ids = {side: led(broker, "consumed") for side, broker in brokers.items()}
    for broker in brokers.values():
        with WireClient(broker.bootstrap, "admin") as client:
            for _ in range(800):
                client.ask(produce_request("consumed", batch(1, size=SIZE), acks=1), 9)
    limit(("client-id", "slow"), consumer_byte_rate=float(BOUND))

    def consume(broker: BrokerProcess) -> tuple[float, list[int]]:
        offset = 0
        with WireClient(broker.bootstrap, "slow") as client:

            def step() -> tuple[int, int]:
                nonlocal offset
                partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=SIZE + 100)
                topics = [FetchTopic(topic_id=ids[broker.name], partitions=[partition])]
                answer = client.ask(
                    FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics), 13
                )
                if answer.throttle_time_ms:
                    assert answer.responses == []
                    return 0, answer.throttle_time_ms
                size = len(answer.responses[0].partitions[0].records or b"")
                assert size > SIZE
                offset += 1
                return size, 0

            return rate_of(step)

    found = both(brokers, consume)
    for side, (rate, pauses) in found.items():
        assert rate == pytest.approx(BOUND, rel=0.15), (side, rate)
        assert pauses, side
    report.count("throttled consumer", "both")


def test_librdkafka_is_told(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    for broker in brokers.values():
        led(broker, "rdkafka")
    limit(("client-id", "rd"), producer_byte_rate=50_000.0)

    def produce(broker: BrokerProcess) -> tuple[int, int]:
        told: list[Any] = []
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "rd",
            "throttle_cb": told.append,
            "linger.ms": 0,
        }
        producer = Producer(settings)
        for _ in range(20):
            producer.produce("rdkafka", bytes(10_000))
            producer.poll(0)
        left = producer.flush(20)
        producer.close()
        return left, len(told)

    for side, (left, told) in both(brokers, produce).items():
        assert left == 0, side
        assert told > 0, side
    report.count("confluent-kafka throttled", "both")


# --- the others

SLOW = {
    "ApiVersions": (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
    "Metadata": (MetadataRequest(), 12),
    "DescribeCluster": (DescribeClusterRequest(), 1),
    "ListGroups": (ListGroupsRequest(), 4),
    "FindCoordinator": (FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4),
    "DescribeClientQuotas": (DescribeClientQuotasRequest(), 1),
    "AlterClientQuotas": (AlterClientQuotasRequest(), 1),
    "CreateTopics": (CreateTopicsRequest(timeout_ms=1000), 7),
}


def test_the_time_of_requests(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    limit(("client-id", "slow"), request_percentage=1e-6)
    found = {
        side: {
            name: ask(broker, request, version, "slow").throttle_time_ms for name, (request, version) in SLOW.items()
        }
        for side, broker in brokers.items()
    }
    assert found["kbroker"] == found["apache"] == dict.fromkeys(SLOW, 1000)
    report.count_exchanges("quotas", len(SLOW))


def test_mutations_of_topics(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    limit(("client-id", "slow"), controller_mutation_rate=0.01)

    def story(broker: BrokerProcess) -> list[tuple[str, int, list[int], list[str | None]]]:
        growth = [CreatePartitionsTopic(name="grows", count=4, assignments=None)]
        led(broker, "grows")
        steps = [
            ("the first", CreateTopicsRequest([CreatableTopic("first", 3, 1)], timeout_ms=10_000), 7),
            ("one more", CreateTopicsRequest([CreatableTopic("more", 1, 1)], timeout_ms=10_000), 7),
            ("only validated", CreateTopicsRequest([CreatableTopic("more", 1, 1)], 10_000, validate_only=True), 6),
            ("what exists", CreateTopicsRequest([CreatableTopic("first", 1, 1)], timeout_ms=10_000), 7),
            ("growth", CreatePartitionsRequest(topics=growth, timeout_ms=10_000), 3),
            ("deletion", DeleteTopicsRequest(topic_names=["first"], timeout_ms=10_000), 5),
            ("one more of old", CreateTopicsRequest([CreatableTopic("old", 2, 1)], timeout_ms=10_000), 5),
            ("growth of old", CreatePartitionsRequest(topics=growth, timeout_ms=10_000), 2),
            ("deletion of old", DeleteTopicsRequest(topic_names=["old"], timeout_ms=10_000), 4),
        ]
        told = []
        for name, request, version in steps:
            answer = ask(broker, request, version, "slow")
            results = next(
                each for field in ("topics", "results", "responses") if (each := getattr(answer, field, None))
            )
            texts = [getattr(each, "error_message", None) for each in results]
            # Rounded to a tenth of a partition: the quota that comes back meanwhile is less.
            told.append((name, round(answer.throttle_time_ms / 10_000), [each.error_code for each in results], texts))
        return told

    found = both(brokers, story)
    assert found["kbroker"] == found["apache"]
    assert [codes for _, _, codes, _ in found["kbroker"]][:3] == [[0], [89], [89]]
    report.count_exchanges("quotas", len(found["kbroker"]))


def test_new_connections_of_an_address(brokers: dict[str, BrokerProcess], limit: Callable[..., None]) -> None:
    limit(("ip", OTHER), connection_creation_rate=5.0)

    def come(broker: BrokerProcess) -> tuple[int, int]:
        host, _, port = broker.bootstrap.rpartition(":")
        socks = [socket.create_connection((host, int(port)), 10, source_address=(OTHER, 0)) for _ in range(30)]
        served = refused = 0
        for sock in socks:
            with sock:
                sock.settimeout(10)
                sock.sendall(bytes.fromhex("0000000a0012000000000001ffff"))  # ApiVersions v0
                try:
                    is_answered = bool(sock.recv(4))
                except ConnectionResetError:
                    is_answered = False
                served, refused = served + is_answered, refused + (not is_answered)
        return served, refused

    found = both(brokers, come)
    for side, (served, refused) in found.items():
        assert 10 <= served <= 14, side
        assert served + refused == 30, side
    # Other requests still pass.
    assert all(not ask(broker, ApiVersionsRequest(), 0).error_code for broker in brokers.values())
    report.count("connections of an address", "both")
