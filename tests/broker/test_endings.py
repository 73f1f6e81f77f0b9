"""What must hold when a broker, a connection, a topic or a disk ends."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from compat_tests.wire.client import CLOSED, WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.broker.periodic_work import DeletedTopics
from kbroker.log.checkpoints import RECOVERY_POINTS, CheckpointFile
from kbroker.log.directories import log_directory as log_manager
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState

MARK = ".kafka_cleanshutdown"
DEADLINE_SECONDS = 20.0


def create(client, *names, partitions=1):
    topics = [CreatableTopic(name, partitions, 1) for name in names]
    answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 7)
    assert [t.error_code for t in answer.topics] == [0] * len(names)


def delete(client, name):
    answer = client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), 6)
    assert answer.responses[0].error_code == 0


def fetch(topic, *, wait_ms=0, size=1 << 20):
    partition = FetchPartition(partition=0, partition_max_bytes=size)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=size, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )


def end_of(client, topic):
    return client.ask(fetch(topic), 11).responses[0].partitions[0].high_watermark


def until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def interrupt_deletion(directory: Path, topic: str, *, is_known: bool = True) -> None:
    """Leave the state of a crash between the deletion's journal entry and its first rename.

    Without `is_known`, the deletion had ended long ago, and somebody has restored the files.
    """
    with Broker(data_dir=str(directory)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, topic)
        assert client.ask(produce_request(topic, batch(3)), 9).responses[0].partition_responses[0].error_code == 0
        saved = directory.with_name("saved")
        shutil.copytree(directory / f"{topic}-0", saved)
        delete(client, topic)
        if not is_known:
            until(lambda: not broker.node.controller.deleted_topics)
    shutil.copytree(saved, directory / f"{topic}-0")
    (directory / MARK).unlink()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_deletion_cut_short_never_brings_back_old_data(tmp_path, monkeypatch, is_known):
    directory = tmp_path / "data"
    with monkeypatch.context() as patch:
        if is_known:
            patch.setattr(DeletedTopics, "tick", lambda _self: None)
        interrupt_deletion(directory, "t", is_known=is_known)
    with Broker(data_dir=str(directory)) as broker, WireClient(broker.bootstrap_servers) as client:
        assert client.ask(MetadataRequest(topics=None), 9).topics == []
        assert ("t", 0) not in broker.node.logs
        create(client, "t")
        assert end_of(client, "t") == 0
        client.ask(produce_request("t", batch(1)), 9)
    assert len(list(directory.glob("t-0.*-stray"))) == (not is_known), "what is moved aside is kept"
    kept = [path for path in directory.glob("t-0*") if not path.name.endswith("-delete")]
    assert len(kept) == 1 + (not is_known)
    with Broker(data_dir=str(directory)) as broker, WireClient(broker.bootstrap_servers) as client:
        assert end_of(client, "t") == 1


def test_a_clean_stop_leaves_no_mark_when_a_log_had_failed(tmp_path):
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        client.ask(produce_request("t", batch(3)), 9)
        broker.node.replicas.get(("t", 0)).log.refuse_appends("half a batch is in the file")
    assert not (tmp_path / MARK).exists()
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        assert end_of(client, "t") == 3


def test_a_partition_that_cannot_be_hosted_does_not_stop_the_others(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(28, "No space left on device")

    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "good")
        monkeypatch.setattr(log_manager, "log_class", lambda: refuse)
        create(client, "bad")
        answer = client.ask(produce_request("bad", batch()), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.ask(produce_request("good", batch()), 9).responses[0].partition_responses[0].error_code == 0
        monkeypatch.undo()
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        assert client.ask(produce_request("bad", batch()), 9).responses[0].partition_responses[0].error_code == 0


def test_idle_partitions_hold_no_descriptors(tmp_path):
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "few", partitions=1)
        before = len(os.listdir("/proc/self/fd"))
        create(client, "many", partitions=100)
        assert len(os.listdir("/proc/self/fd")) < before + 20


def test_deleting_many_partitions_writes_the_checkpoints_once(tmp_path, monkeypatch):
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "many", partitions=50)
        written = []
        write_by = CheckpointFile.write_by

        def counted(file, *what):
            written.append(os.path.basename(file.path))
            return write_by(file, *what)

        def on_the_loop(*_):
            raise AssertionError("a deletion waits for the disk")

        monkeypatch.setattr(CheckpointFile, "write_by", counted)
        monkeypatch.setattr(CheckpointFile, "write", on_the_loop)
        delete(client, "many")
        until(lambda: len(written) >= 3)
        monkeypatch.undo()
        assert written.count(RECOVERY_POINTS) <= 3  # a periodic write can come between; 50 deletions would need 50


def test_a_failed_request_without_acks_has_no_answer(connect):
    client = connect()
    create(client, "unanswered")
    records = bytearray(batch())
    records[16] = 7  # an unknown magic: the complete request fails
    client.start(produce_request("unanswered", bytes(records), 0), 9)
    assert client.receive() == CLOSED


def test_a_stop_answers_what_is_parked(tmp_path):
    broker = Broker(data_dir=str(tmp_path)).start()
    with WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        client.start(fetch("t", wait_ms=60_000), 11)
        until(lambda: broker.node.replicas.get(("t", 0)).waiters)
        broker.stop()
        answer = client.finish()
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert client.receive() == CLOSED


def test_a_stop_lets_an_answer_leave_that_is_on_its_way(tmp_path):
    broker = Broker(data_dir=str(tmp_path)).start()
    with WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        for _ in range(40):
            client.ask(produce_request("t", batch(1, size=900_000)), 9)
        client.start(fetch("t", size=50 << 20), 11)
        client._sock.recv(1, socket.MSG_PEEK)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        answer = client.receive()
        assert len(answer) > 40 * 900_000
        stopping.join(DEADLINE_SECONDS)
        assert not stopping.is_alive()


def test_a_client_that_never_takes_its_answer_is_idle_some_day():
    with Broker({"connections.max.idle.ms": "300"}) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        for _ in range(40):
            client.ask(produce_request("t", batch(1, size=900_000)), 9)
        client.start(fetch("t", size=50 << 20), 11)
        until(lambda: broker.node.server.connection_count == 0)


def test_a_long_poll_is_not_idle():
    settings = {"connections.max.idle.ms": "100", "connection.failed.authentication.delay.ms": "10"}
    with Broker(settings) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        answer = client.ask(fetch("t", wait_ms=600), 11)
        assert answer.error_code == 0


def test_limits_of_connections_change_at_run_time():
    with Broker() as broker, WireClient(broker.bootstrap_servers) as client:

        def change(name, value):
            configs = [IncrementalConfig(name, 0, value)]
            resource = IncrementalResource(4, "", configs)
            answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            assert answer.responses[0].error_code == 0

        change("max.connections", "1")
        with WireClient(broker.bootstrap_servers) as refused:
            assert refused.receive() == CLOSED
        change("max.connections", "10")
        with WireClient(broker.bootstrap_servers) as taken:
            assert taken.ask(ApiVersionsRequest(), 0).error_code == 0


def test_topics_that_one_request_creates_are_stored_in_one_write(monkeypatch):
    with Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        written = []
        write = broker.node.store.write
        monkeypatch.setattr(broker.node.store, "write", lambda changes: written.append(1) or write(changes))
        names = [MetadataRequestTopic(name=f"t{i}") for i in range(30)]
        client.ask(MetadataRequest(topics=names), 9)
        assert len(written) == 1
        assert len(client.ask(MetadataRequest(topics=None), 9).topics) == 30


def test_a_request_cannot_create_topics_without_end():
    with Broker({"num.partitions": "5000"}) as broker, WireClient(broker.bootstrap_servers) as client:
        client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=n) for n in ("a", "b", "c")]), 9)
        assert client.ask(MetadataRequest(topics=None), 9).topics == []


def test_a_start_that_fails_at_its_second_listener_gives_the_first_back(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
        probe.close()
        listeners = f"A://127.0.0.1:{free},B://127.0.0.1:{taken.getsockname()[1]}"
        config = {"listeners": listeners, "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
        config["inter.broker.listener.name"] = "A"
        with pytest.raises(OSError, match="cannot listen"):
            Broker(config, data_dir=str(tmp_path)).start()
        with socket.create_server(("127.0.0.1", free)):
            pass
    with Broker(data_dir=str(tmp_path)):
        pass


def test_a_partition_asked_for_many_times_costs_no_more_than_each_once(connect):
    client = connect()
    many = [ListOffsetsPartition(partition_index=i % 20_000, timestamp=-1) for i in range(40_000)]
    started = time.process_time()
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=many)]), 5)
    assert len(answer.topics[0].partitions) == 20_000
    assert time.process_time() - started < 4


@pytest.mark.long
def test_many_partitions_are_hosted_while_others_are_served(connect):
    """A topic with many partitions exists immediately, and its partitions are hosted in slices."""
    client, other = connect(), connect()
    create = CreateTopicsRequest(topics=[CreatableTopic("many", 600, 1)], timeout_ms=5000)
    client.start(create, 7)
    slowest = 0.0
    deadline = time.monotonic() + 30
    served = 0
    while served < 600:
        assert time.monotonic() < deadline
        begun = time.monotonic()
        asked = [ListOffsetsPartition(i, timestamp=-1) for i in range(600)]
        answer = other.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("many", asked)]), 5)
        slowest = max(slowest, time.monotonic() - begun)
        served = sum(p.error_code == 0 for p in answer.topics[0].partitions)
    assert client.finish().topics[0].error_code == 0
    print(f"slowest answer meanwhile: {slowest * 1000:.0f} ms")
    deleted = client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="many")], timeout_ms=5000), 6)
    assert deleted.responses[0].error_code == 0


@pytest.mark.long
def test_a_topic_deleted_while_it_is_being_hosted_stays_deleted(broker, connect):
    client = connect()
    create = CreateTopicsRequest(topics=[CreatableTopic("brief", 400, 1)], timeout_ms=5000)
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="brief")], timeout_ms=5000)
    assert client.ask(create, 7).topics[0].error_code == 0
    assert client.ask(delete, 6).responses[0].error_code == 0
    assert client.ask(create, 7).topics[0].error_code == 0
    assert client.ask(delete, 6).responses[0].error_code == 0
    assert not any(p.topic == "brief" for p in broker.node.replicas)
