"""Znodes: encoded and decoded as Apache Kafka 3.9.1 writes them; anything else is Unreadable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.controller import znodes
from kbroker.controller.znodes import (
    Assignment,
    ClusterId,
    ControllerNode,
    Endpoint,
    Features,
    LeaderAndIsr,
    ProducerIdBlock,
    Registration,
    Unreadable,
    read,
    read_number,
)
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest

ID = bytes(range(16))
small = st.integers(-1, 1 << 31)
brokers = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
by_index = st.dictionaries(st.integers(0, 100), brokers, max_size=4)
words = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text("abcXYZ_-.09", min_size=1, max_size=20)
listeners = st.lists(st.tuples(names, st.sampled_from(["h", "::1", "10.0.0.1"]), st.integers(0, 65535)), max_size=3)

VALUES = st.one_of(
    st.builds(ClusterId, words),
    st.builds(ControllerNode, small, small, small),
    st.builds(
        Registration,
        listeners.map(lambda each: tuple(Endpoint(*one) for one in each)),
        st.dictionaries(names, st.sampled_from(["PLAINTEXT", "SSL"]), max_size=3),
        st.none() | words,
        small,
        st.dictionaries(names, st.dictionaries(names, st.integers(0, 9), max_size=2), max_size=2),
    ),
    st.builds(Assignment, by_index, st.none() | st.binary(min_size=16, max_size=16), by_index, by_index),
    st.builds(LeaderAndIsr, small, small, brokers, small, st.booleans()),
    st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)).map(lambda b: ProducerIdBlock(1, min(b), max(b))),
    st.builds(Features, st.dictionaries(names, st.integers(0, 9), max_size=3), st.booleans()),
)

READERS: dict[str, Callable[[Any], Any]] = {
    **{
        cls.__name__: cls.decode
        for cls in (ClusterId, ControllerNode, Registration, Assignment, LeaderAndIsr, ProducerIdBlock, Features)
    },
    "configs": znodes.decode_configs,
    "config change": znodes.decode_config_change,
    "partitions": znodes.decode_partitions,
    "reassignments": znodes.decode_reassignments,
    "log dir event": znodes.decode_log_dir_event,
}


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    assert read("/x", value.encode(), type(value).decode) == value


@given(st.dictionaries(st.tuples(names, st.integers(0, 99)), brokers, max_size=4), st.dictionaries(names, words))
def test_there_and_back_without_a_class(
    replicas: dict[tuple[str, int], tuple[int, ...]], texts: dict[str, str]
) -> None:
    assert read("/x", znodes.encode_reassignments(replicas), znodes.decode_reassignments) == replicas
    assert read("/x", znodes.encode_partitions(replicas), znodes.decode_partitions) == list(replicas)
    assert read("/x", znodes.encode_configs(texts), znodes.decode_configs) == texts
    for name in texts:
        assert read("/x", znodes.encode_config_change(name), znodes.decode_config_change) == name
    assert read("/x", znodes.encode_log_dir_event(7), znodes.decode_log_dir_event) == 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "version", "id", "brokerid", "timestamp", "kraftControllerEpoch", "endpoints", "listener_security_protocol_map",
    "features", "rack", "partitions", "topic_id", "adding_replicas", "removing_replicas", "leader", "leader_epoch",
    "isr", "controller_epoch", "leader_recovery_state", "config", "entity_path", "entity_type", "broker", "status",
    "block_start", "block_end",
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), JSON).map(lambda value: json.dumps(value).encode())


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@given(
    data=st.binary(max_size=60) | st.dictionaries(st.sampled_from(FIELDS), JSON).map(lambda v: json.dumps(v).encode())
)
def test_whatever_stands_there_is_read_or_named(reader: Callable[[Any], Any], data: bytes) -> None:
    try:
        read("/brokers/x", data, reader)
    except Unreadable as error:
        said = str(error)
    else:
        said = ""
    assert not said or said.startswith("/brokers/x cannot be read: ")


def test_what_is_nested_without_end_is_named_too() -> None:
    with pytest.raises(Unreadable, match="/controller cannot be read"):
        read("/controller", b"[" * 100_000, ControllerNode.decode)
    with pytest.raises(Unreadable, match="/controller_epoch cannot be read: not a number"):
        read_number("/controller_epoch", b"1x")
    assert read_number("/controller_epoch", b"12") == 12


@pytest.fixture(scope="module")
def written_by_kafka(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """Yield all znodes of a broker with a topic, configs and a block of producer ids."""
    directory = tmp_path_factory.mktemp("kafka39")
    with (
        ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper,
        Kafka39(kafka39_libs, directory / "kafka", zookeeper, {"broker.rack": "r1"}) as broker,
    ):
        with WireClient(broker.bootstrap) as client:
            topic = CreatableTopic("t", 2, 1, configs=[CreatableTopicConfig("retention.ms", "1000")])
            deadline = time.monotonic() + 30
            # Refused until its controller knows the broker, which may be after the broker has reported its start.
            while client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7).topics[0].error_code:
                assert time.monotonic() < deadline
            resource = IncrementalResource(4, "", [IncrementalConfig("min.insync.replicas", 0, "1")])
            altered = client.ask(IncrementalAlterConfigsRequest([resource]), 1)
            assert [each.error_code for each in altered.responses] == [0]
            while client.ask(InitProducerIdRequest(None, 1000), 4).error_code:  # no ids until a block has arrived
                assert time.monotonic() < deadline
        with zookeeper.tree() as tree:
            found: dict[str, bytes] = {}
            _collect(tree, "", found)
        yield found


def _collect(tree: Any, path: str, found: dict[str, bytes]) -> None:
    for name in tree.get_children(path or "/"):
        below = f"{path}/{name}"
        found[below] = tree.get(below)[0]
        _collect(tree, below, found)


@pytest.mark.java
def test_what_apache_kafka_writes_is_read_and_written_the_same(written_by_kafka: dict[str, bytes]) -> None:
    kinds: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bytes]]] = {
        "/cluster/id": (ClusterId.decode, ClusterId.encode),
        "/controller": (ControllerNode.decode, ControllerNode.encode),
        "/brokers/ids/1": (Registration.decode, Registration.encode),
        "/brokers/topics/t": (Assignment.decode, Assignment.encode),
        "/brokers/topics/t/partitions/0/state": (LeaderAndIsr.decode, LeaderAndIsr.encode),
        "/latest_producer_id_block": (ProducerIdBlock.decode, ProducerIdBlock.encode),
        "/feature": (Features.decode, Features.encode),
        "/config/topics/t": (znodes.decode_configs, znodes.encode_configs),
        "/config/brokers/<default>": (znodes.decode_configs, znodes.encode_configs),
        "/config/changes/config_change_0000000000": (znodes.decode_config_change, znodes.encode_config_change),
    }
    for path, (reader, writer) in kinds.items():
        theirs = written_by_kafka[path]
        assert json.loads(writer(read(path, theirs, reader))) == json.loads(theirs), path
    assert read_number("/controller_epoch", written_by_kafka["/controller_epoch"]) == 1
    registration = read("/brokers/ids/1", written_by_kafka["/brokers/ids/1"], Registration.decode)
    assert (registration.rack, [each.listener for each in registration.endpoints]) == ("r1", ["PLAINTEXT"])


@pytest.mark.java
def test_every_path_of_apache_kafka_is_known(written_by_kafka: dict[str, bytes]) -> None:
    missing = [path for path in znodes.PERSISTENT if path not in written_by_kafka]
    assert missing == [f"{znodes.CONFIG}/groups"]  # of kbroker alone
    assert znodes.state_path("t", 1) in written_by_kafka
