"""Several log directories: placement, moves under load, and what happens when one of them fails (KIP-112, KIP-113)."""

from __future__ import annotations

import errno
import shutil
import threading
import time
import uuid
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.log import leader_epochs
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from kbroker.protocol.records import iter_batches
from tests.broker.test_endings import create, delete, until

TOPIC = "t"


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "a"), str(tmp_path / "b")


def broker_on(dirs, **config):
    keys = {name.replace("_", "."): value for name, value in config.items()}
    return Broker({"log.dirs": ",".join(dirs), **keys})


def client_of(broker):
    return WireClient(broker.bootstrap_servers)


def described(client):
    """Return {directory: (error, {(topic, partition): (size, is future)})}."""
    answer = client.ask(DescribeLogDirsRequest(topics=None), 5)
    found = {}
    for each in answer.results:
        partitions = [(topic.name, p) for topic in each.topics for p in topic.partitions]
        sizes = {(name, p.partition_index): (p.partition_size, p.is_future_key) for name, p in partitions}
        found[each.log_dir] = each.error_code, sizes
    return found


def home_of(client, partition):
    key = TOPIC, partition
    return [where for where, (_, found) in described(client).items() if key in found and not found[key][1]]


def move(client, where, partition, topic=TOPIC):
    wanted = AlterReplicaLogDir(where, [AlterReplicaLogDirTopic(topic, [partition])])
    answer = client.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
    return answer.results[0].partitions[0].error_code


def produce(client, partition, count=1):
    answer = client.ask(produce_request(TOPIC, batch(count), partition=partition), 9)
    return answer.responses[0].partition_responses[0]


def without_leader(client, partition):
    """Wait until a partition has no leader, and return the topic's partitions."""
    deadline = time.monotonic() + 20
    while True:
        partitions = client.ask(MetadataRequest(topics=None), 12).topics[0].partitions
        by_index = {p.partition_index: p for p in partitions}
        if by_index[partition].error_code == ErrorCode.LEADER_NOT_AVAILABLE:
            return by_index
        assert time.monotonic() < deadline


def read(client, partition):
    """Return the offsets of all batches, or the error."""
    offsets, position = [], 0
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        if data.error_code:
            return data.error_code
        if position >= data.high_watermark:
            return offsets
        for _, header in iter_batches(data.records):
            offsets.append(header.base_offset)
            position = header.last_offset + 1


def other(dirs, where):
    return dirs[1] if where == dirs[0] else dirs[0]


def test_partitions_go_where_fewest_are(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=10)
        found = described(client)
        assert {where: len(partitions) for where, (_, partitions) in found.items()} == dict.fromkeys(dirs, 5)
        assert produce(client, 3).error_code == 0
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert described(client).keys() == found.keys()
        assert read(client, 3) == [0]
        delete(client, TOPIC)
        assert all(not partitions for _, partitions in described(client).values())


def test_a_partition_moves_while_it_is_written_and_read(dirs):
    with broker_on(dirs, log_segment_bytes=1 << 20) as broker, client_of(broker) as client:
        create(client, TOPIC)
        (source,) = home_of(client, 0)
        target, stop, acknowledged = other(dirs, source), threading.Event(), []

        def write():
            with client_of(broker) as writer:
                while not stop.is_set():
                    acknowledged.append(produce(writer, 0, 20).base_offset)

        writer = threading.Thread(target=write)
        writer.start()
        until(lambda: len(acknowledged) > 200)
        assert move(client, target, 0) == 0
        assert move(client, target, 0) == 0, "asked again it goes on"
        until(lambda: home_of(client, 0) == [target])
        seen = len(acknowledged)
        until(lambda: len(acknowledged) > seen + 200)
        stop.set()
        writer.join()
        assert acknowledged == [20 * i for i in range(len(acknowledged))]
        assert read(client, 0) == acknowledged
        assert not (Path(source) / f"{TOPIC}-0").exists()
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert home_of(client, 0) == [target]
        assert read(client, 0) == acknowledged


def test_sequences_and_epochs_move_with_the_partition(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC)
        (source,) = home_of(client, 0)
        sequenced = produce_request(TOPIC, batch(2, producer_id=7, producer_epoch=0, base_sequence=0))
        assert client.ask(sequenced, 9).responses[0].partition_responses[0].base_offset == 0
        before = broker.node.replicas.get((TOPIC, 0)).log
        move(client, other(dirs, source), 0)
        until(lambda: broker.node.replicas.get((TOPIC, 0)).log is not before)
        after = broker.node.replicas.get((TOPIC, 0)).log
        assert after.leader_epochs.entries == before.leader_epochs.entries
        again = client.ask(sequenced, 9).responses[0].partition_responses[0]
        assert (again.error_code, again.base_offset) == (0, 0), "the retry is known"
        assert read(client, 0) == [0]


def test_moves_that_cannot_be(dirs):
    with broker_on(dirs, cordoned_log_dirs=dirs[1]) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=3)
        assert [home_of(client, i) for i in range(3)] == [[dirs[0]]] * 3, "nothing new in a cordoned directory"
        assert move(client, dirs[1], 0) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert move(client, "/somewhere", 0) == ErrorCode.LOG_DIR_NOT_FOUND
        assert move(client, dirs[0], 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(client, dirs[0], 0) == 0
        assert not broker.node.logs.moves


def test_a_directory_wished_for_before_the_topic_exists(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert move(client, dirs[1], 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create(client, TOPIC)
        assert home_of(client, 0) == [dirs[1]]


def test_a_move_that_a_stop_cut_short_begins_again(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC)
        assert produce(client, 0).error_code == 0
        (source,) = home_of(client, 0)
    target = other(dirs, source)
    future = Path(target) / f"{TOPIC}-0.{uuid.uuid4().hex}-future"
    future.mkdir()
    (future / f"{0:020d}.log").write_bytes(b"half")
    with broker_on(dirs) as broker, client_of(broker) as client:
        until(lambda: home_of(client, 0) == [target])
        assert read(client, 0) == [0]
        until(lambda: not future.exists())


def test_a_stop_between_the_two_renames_of_a_move(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC)
        assert produce(client, 0).error_code == 0
        (source,) = home_of(client, 0)
    shutil.copytree(f"{source}/{TOPIC}-0", f"{other(dirs, source)}/{TOPIC}-0")
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert len(home_of(client, 0)) == 1
        assert read(client, 0) == [0]
    kept = [path for each in dirs for path in Path(each).glob(f"{TOPIC}-0*")]
    assert sorted(path.name.endswith("-stray") for path in kept) == [False, True]


def test_a_failing_directory_goes_offline_and_the_other_serves(dirs, monkeypatch):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=2)
        ((lost,), (kept,)) = sorted(([i] for i in range(2)), key=lambda i: home_of(client, *i) == [dirs[0]])
        assert produce(client, lost).error_code == produce(client, kept).error_code == 0
        append = Segment.append

        def failing(segment, *rest):
            if segment.path().startswith(dirs[1]):
                raise OSError(errno.EIO, "Input/output error")
            append(segment, *rest)

        monkeypatch.setattr(Segment, "append", failing)
        assert produce(client, lost).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, kept).error_code == 0
        assert read(client, lost) == ErrorCode.KAFKA_STORAGE_ERROR
        assert read(client, kept) == [0, 1]
        by_index = without_leader(client, lost)
        assert (by_index[lost].leader_id, by_index[lost].offline_replicas) == (-1, [1])
        assert (by_index[kept].leader_id, by_index[kept].offline_replicas) == (1, [])
        assert described(client)[dirs[1]] == (ErrorCode.KAFKA_STORAGE_ERROR, {})
        create(client, "later", partitions=2)
        assert len(described(client)[dirs[0]][1]) == 3
        assert move(client, dirs[1], kept) == ErrorCode.KAFKA_STORAGE_ERROR
        epoch = by_index[lost].leader_epoch
    monkeypatch.undo()
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert read(client, lost) == [0]
        assert read(client, kept) == [0, 1]
        partitions = client.ask(MetadataRequest(topics=None), 12).topics
        found = next(t for t in partitions if t.name == TOPIC).partitions[lost]
        assert found.leader_id == 1
        assert found.leader_epoch > epoch, "clients passed over what is older than they know"
        assert produce(client, lost).error_code == 0


def test_a_directory_that_cannot_be_opened_keeps_its_partitions(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=2)
        lost = next(i for i in range(2) if home_of(client, i) == [dirs[1]])
        assert produce(client, lost).error_code == 0
    aside = dirs[1] + "-aside"
    shutil.move(dirs[1], aside)
    Path(dirs[1]).write_text("no directory")
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert produce(client, lost).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, 1 - lost).error_code == 0
        assert not (Path(dirs[0]) / f"{TOPIC}-{lost}").exists(), "an empty one in its place would lose the data"
    Path(dirs[1]).unlink()
    shutil.move(aside, dirs[1])
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert read(client, lost) == [0]


def test_the_metadata_directory_must_not_fail(dirs, monkeypatch):
    with broker_on(dirs[:1]) as broker, client_of(broker) as client:
        create(client, TOPIC)

        def failing(*_rest):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(Segment, "append", failing)
        assert produce(client, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        until(broker.node.failed.done)
    assert not (Path(dirs[0]) / ".kafka_cleanshutdown").exists()


def test_a_copy_of_a_directory_is_refused(dirs):
    with broker_on(dirs):
        pass
    shutil.rmtree(dirs[1])
    shutil.copytree(dirs[0], dirs[1])
    with pytest.raises(LogDirError, match="copy"), broker_on(dirs):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_leader_epoch_does_not_keep_the_others_from_a_start(dirs, monkeypatch, number):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=2)
        assert [produce(client, index).error_code for index in (0, 1)] == [ErrorCode.NONE] * 2
        elsewhere = next(index for index in (0, 1) if home_of(client, index) == [dirs[1]])
    for directory in dirs:
        (Path(directory) / ".kafka_cleanshutdown").unlink()  # a crash: the next start begins new epochs
    write = leader_epochs.write_epochs

    def refusing(path, *args, **kw):
        if path.startswith(dirs[1]):
            raise OSError(number, "no room, or worse")
        write(path, *args, **kw)

    monkeypatch.setattr(leader_epochs, "write_epochs", refusing)
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert produce(client, 1 - elsewhere).error_code == ErrorCode.NONE
        until(lambda: produce(client, elsewhere).error_code == ErrorCode.KAFKA_STORAGE_ERROR)


def test_a_topic_deleted_in_the_moment_of_a_failure_can_come_back(dirs):
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=2)
        node, done = broker.node, threading.Event()

        def fail_and_delete():
            node.logs.managers[1].report(OSError(errno.EIO, "broken"))
            node.controller.delete_topics([TOPIC])
            node.failed.get_loop().call_soon(done.set)

        node.failed.get_loop().call_soon_threadsafe(fail_and_delete)
        assert done.wait(60)
        create(client, TOPIC, partitions=2)
        assert [produce(client, index).error_code for index in (0, 1)] == [ErrorCode.NONE] * 2


def refuse_epochs_in(directory, monkeypatch):
    """Make the disk below a directory fail as soon as a leader epoch is written there."""
    write = leader_epochs.write_epochs

    def refusing(path, *args, **kw):
        if path.startswith(directory):
            raise OSError(errno.EIO, "broken")
        write(path, *args, **kw)

    monkeypatch.setattr(leader_epochs, "write_epochs", refusing)


def after_a_crash(dirs, partitions):
    """Leave `partitions` partitions with one record each; return those in the second directory."""
    with broker_on(dirs) as broker, client_of(broker) as client:
        create(client, TOPIC, partitions=partitions)
        assert [produce(client, index).error_code for index in range(partitions)] == [ErrorCode.NONE] * partitions
        there = [index for index in range(partitions) if home_of(client, index) == [dirs[1]]]
    for directory in dirs:
        (Path(directory) / ".kafka_cleanshutdown").unlink()
    return there


def test_what_a_directory_held_that_fails_during_the_start_is_offline_and_not_made_anew(dirs, monkeypatch):
    there = after_a_crash(dirs, 6)
    assert len(there) == 3
    with monkeypatch.context() as patch:
        refuse_epochs_in(dirs[1], patch)
        with broker_on(dirs) as broker, client_of(broker) as client:
            topic = broker.node.controller.state.topics[TOPIC]
            assert [index for index, each in enumerate(topic.partitions) if each.leader < 0] == there
            assert [produce(client, index).error_code for index in there] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
            assert not [index for index in there if (Path(dirs[0]) / f"{TOPIC}-{index}").exists()]
    with broker_on(dirs) as broker, client_of(broker) as client:
        assert [read(client, index) for index in range(6)] == [[0]] * 6


def test_a_start_on_a_metadata_directory_that_fails_is_known_to_have_failed(dirs, monkeypatch):
    after_a_crash(dirs, 2)
    refuse_epochs_in(dirs[0], monkeypatch)
    with broker_on(dirs) as broker:
        until(broker.node.failed.done)
