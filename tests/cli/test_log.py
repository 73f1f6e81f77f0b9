"""`kbroker log`: the output of the audit, the dump and the repair."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer

from kbroker import Broker
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.store_interface import Put
from kbroker.log import checkpoints
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.files import HEADERS_SUFFIX
from kbroker.log.header_indexing import ensure
from kbroker.log.log_config import LogConfig
from kbroker.schedules.marks import CONTROL_TYPE
from kbroker.schedules.marks import KEY as CONTROL_KEY
from tests.cli.conftest import CommandLine
from tests.log.builders import NOW, batch, committed


@pytest.fixture
def offline() -> CommandLine:
    return CommandLine("127.0.0.1:1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a clean stop."""
    logs = LogDirectory(str(tmp_path / "data"), node_id=1)
    logs.load(lambda _topic: LogConfig(), NOW)
    log = logs.get_or_create("orders", 0, None, LogConfig(index_interval_bytes=200))
    for index in range(20):
        log.append_as_leader(batch(2, timestamp=NOW + index), 0, NOW)
    committed(log)
    logs.close()
    return tmp_path / "data"


@pytest.fixture
def log_file(data: Path) -> Path:
    return data / "orders-0" / f"{0:020}.log"


def test_a_directory_without_a_fault_says_what_was_checked(offline: CommandLine, data: Path) -> None:
    inside = {f"{0:020}.log", f"{0:020}.index", f"{0:020}.timeindex", f"{40:020}.snapshot"}
    inside |= {f"{0:020}.txnindex", checkpoints.LEADER_EPOCHS}
    beside = {checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS}
    beside |= {meta_properties.META_PROPERTIES}
    assert {path.name for path in (data / "orders-0").iterdir()} == inside
    assert {path.name for path in data.iterdir() if path.is_file()} - {".lock", checkpoints.CLEAN_SHUTDOWN} == beside
    said = "checked 1 partition, %d files, 20 batches, 40 records: all is well\n"
    assert offline.ok("log", "check", str(data)).text == said % (len(inside) + len(beside))
    assert offline.ok("log", "check", f"{data}/", "--json").json == []
    assert offline.ok("log", "check", str(data / "orders-0")).text == said % len(inside)
    for path in (data / "orders-0").iterdir():
        path.unlink()
    (data / "orders-0").rmdir()
    (data / checkpoints.CLEAN_SHUTDOWN).unlink()
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS):
        (data / name).unlink()
    assert offline.ok("log", "check", str(data)).lines == [
        "checked 0 partitions, 1 file, 0 batches, 0 records: all is well"
    ]


def test_findings_are_lines_and_exit_1(offline: CommandLine, data: Path, log_file: Path) -> None:
    size = log_file.stat().st_size
    log_file.write_bytes(log_file.read_bytes() + b"junk")
    done = offline("log", "check", str(data))
    assert (done.status, done.err) == (1, "")
    assert done.lines == [f"{log_file} at {size}: 4 bytes are no batch; the last 4 bytes cannot be read"]
    (data / checkpoints.CLEAN_SHUTDOWN).unlink()
    done = offline("log", "check", str(data), "--json")
    assert done.status == 1
    assert done.json == [
        {
            "file": str(log_file),
            "position": size,
            "kind": "recovery",
            "what": "recovery will cut 4 bytes from here on: 4 bytes are no batch",
        }
    ]


def test_what_is_no_data_directory_is_one_line(offline: CommandLine, tmp_path: Path) -> None:
    assert "neither a data directory nor" in offline.fails("log", "check", str(tmp_path))
    assert "neither a data directory nor" in offline.fails("log", "repair", "--yes", str(tmp_path))
    assert "not a file of a log directory" in offline.fails("log", "dump", __file__)


def test_repair_asks_first(offline: CommandLine, data: Path, log_file: Path) -> None:
    content = log_file.read_bytes()
    assert offline.ok("log", "repair", str(data)).lines == ["nothing to repair"]
    log_file.write_bytes(content + b"junk")
    for answer in (b"n\n", b""):
        done = offline("log", "repair", str(data), stdin=answer)
        assert done.status == 1
        assert done.err.splitlines()[-1].startswith("kbroker: nothing was changed")
        assert log_file.read_bytes() == content + b"junk"
    done = offline.ok("log", "repair", str(data), stdin=b"y\n")
    assert f"{log_file} at {len(content)}: recovery will cut 4 bytes from here on: 4 bytes are no batch" in done.lines
    partition = data / "orders-0"
    assert f"{partition}: cut 4 bytes, 0 segments removed; the log ends at 40" in done.lines
    assert log_file.read_bytes() == content
    assert offline.ok("log", "check", str(data)).text.endswith(": all is well\n")


def test_repair_says_what_it_cannot_mend(offline: CommandLine, data: Path, log_file: Path) -> None:
    content = bytearray(log_file.read_bytes())
    content[100] ^= 1
    log_file.write_bytes(content)
    (data / checkpoints.HIGH_WATERMARKS).write_text("1\n0\n")
    done = offline("log", "repair", str(data), "--yes", "--json")
    assert done.status == 1
    assert [each["file"] for each in done.json["left"]] == [str(data / checkpoints.HIGH_WATERMARKS)]
    assert done.json["partitions"][0]["log_end_offset"] == 2
    assert bytes(content).startswith(log_file.read_bytes())
    assert done.json["partitions"][0]["cut_bytes"] == len(content) - log_file.stat().st_size > 1000


def test_repair_removes_a_record_that_is_named(offline: CommandLine, data: Path) -> None:
    partition = data / "orders-0"
    assert "takes a partition's directory" in offline("log", "repair", "--yes", "--drop", "3", str(data)).err
    assert "has the offsets 0 to 39" in offline.fails("log", "repair", "--yes", "--drop", "40", str(partition))
    done = offline("log", "repair", str(partition), "--drop", "3", stdin=b"n\n")
    assert "the record at offset 3 will be removed" in done.lines
    assert done.status == 1
    done = offline.ok("log", "repair", str(partition), "--yes", "--drop", "3", "--drop", "38", "--drop", "39")
    assert done.lines == [f"{partition}: 3 records removed; the log ends at 40", "recovered 1 partitions"]
    assert "has no record at offset 3" in offline.fails("log", "repair", "--yes", "--drop", "3", str(partition))
    assert offline.ok("log", "check", str(data)).text.endswith(", 37 records: all is well\n")
    left = offline.ok("log", "dump", "--deep-iteration", str(partition / f"{0:020}.log")).text
    assert [offset for offset in range(40) if f"| offset: {offset} " in left] == [*range(3), *range(4, 38)]


def test_a_directory_in_use_is_not_repaired(offline: CommandLine, tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path / "data")):
        said = offline.fails("log", "repair", "--yes", str(tmp_path / "data"))
        assert "in use by another process" in said
        assert f"(pid {os.getpid()})" in said or not os.path.exists("/proc/locks")
        done = offline("log", "check", str(tmp_path / "data"))
        assert "a broker uses this directory" in done.err


def test_dump_prints_every_kind_of_file(offline: CommandLine, data: Path, log_file: Path) -> None:
    lines = offline.ok("log", "dump", str(log_file), "--deep-iteration", "--print-data-log").lines
    assert lines[:2] == [f"Dumping {log_file}", "Log starting offset: 0"]
    assert lines[2].startswith("baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 ")
    assert lines[3].endswith("keySize: 3 valueSize: 5 sequence: -1 headerKeys: [] key: key payload: value")
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.name not in (".lock",):
            assert offline.ok("log", "dump", str(path)).lines[0] == f"Dumping {path}"
    said = offline.ok("log", "dump", str(data / checkpoints.HIGH_WATERMARKS)).lines
    assert said[1:] == ["topic: orders partition: 0 offset: 40"]
    said = offline.ok("log", "dump", str(data / "orders-0" / checkpoints.LEADER_EPOCHS)).lines
    assert said[1:] == ["epoch: 0 startOffset: 0"]


def test_dump_prints_the_files_of_a_partition_in_order(offline: CommandLine, data: Path) -> None:
    checkpoints.write_topic_id(str(data / "orders-0"), UUID(int=7 << 64))
    partition = data / "orders-0"
    log_file = partition / f"{0:020}.log"
    index = log_file.with_suffix(HEADERS_SUFFIX)
    ensure(str(log_file), str(index), 0, log_file.stat().st_size, ["region"], lambda: False)
    assert offline.ok("log", "dump", str(index)).lines[2] == "header: region values: 0"
    names = [f"{0:020}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex", HEADERS_SUFFIX)]
    names += [f"{40:020}.snapshot", checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA]
    (partition / "notes.txt").write_text("not ours")
    for directory in (str(partition), f"{partition}/"):
        lines = offline.ok("log", "dump", directory, "--deep-iteration").lines
        assert [line for line in lines if line.startswith("Dumping")] == [f"Dumping {partition}/{n}" for n in names]
        assert sum(line.startswith("| offset: ") for line in lines) == 40
    assert "not the directory of a partition" in offline.fails("log", "dump", str(data))
    assert "neither a data directory nor one of a partition" in offline.fails("log", "dump", str(data.parent))


def test_dump_prints_the_metadata_journal(offline: CommandLine, tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", "orders", "-p", "2", "-c", "retention.ms=5")
        cli.ok("topic", "delete", "orders")
    lines = offline.ok("log", "dump", str(tmp_path / "__metadata.journal")).lines
    assert lines[0] == f"Dumping {tmp_path}/__metadata.journal"
    assert any(line.startswith("position: 0 size: ") and line.endswith(" isvalid: true") for line in lines)
    (topic,) = (line for line in lines if line.startswith("| put /brokers/topics/orders {"))
    assert '"partitions":{"0":[1],"1":[1]}' in topic
    assert any(line.startswith("| put /brokers/topics/orders/partitions/1/state {") for line in lines)
    assert '| put /config/topics/orders {"version":1,"config":{"retention.ms":"5"}}' in lines
    assert "| delete /brokers/topics/orders" in lines


def test_adopt_makes_a_broker_serve_what_only_files_know(offline: CommandLine, data: Path) -> None:
    checkpoints.write_topic_id(str(data / "orders-0"), UUID(int=7 << 64))
    done = offline("log", "adopt", str(data), "--config", "orders=1")
    assert done.status == 2
    assert "TOPIC:KEY=VALUE" in done.err
    assert "no config of a topic" in offline.fails("log", "adopt", str(data), "-c", "orders:retention=1")
    settings = ["-c", "orders:retention.ms=-1", "-c", "orders:segment.ms=1000"]
    said = offline.ok("log", "adopt", str(data), *settings).lines
    assert said == ["adopted orders: 1 partition, retention.ms=-1, segment.ms=1000"]
    assert offline.ok("log", "adopt", str(data)).lines == ["nothing to adopt"]
    with Broker(data_dir=str(data)) as broker:
        assert "in use by another process" in offline.fails("log", "adopt", str(data))
        (topic,) = CommandLine(broker.bootstrap_servers).ok("topic", "describe", "orders", "--json").json
    assert topic["configs"] == {"retention.ms": "-1", "segment.ms": "1000"}
    assert [(each["earliest"], each["latest"]) for each in topic["partitions"]] == [(0, 40)]


def test_what_was_not_adopted_is_neither_served_nor_touched(data: Path) -> None:
    before = {path: path.read_bytes() for path in (data / "orders-0").iterdir()}
    with pytest.raises(LogDirError, match="kbroker log adopt"):
        Broker(data_dir=str(data)).start()
    store = EmbeddedStore(str(data))
    store.write([Put("/config/brokers/<default>", {"version": 1, "config": {}})])
    store.close()
    with Broker(data_dir=str(data)) as broker:
        assert CommandLine(broker.bootstrap_servers).ok("topic", "list", "--json").json == []
    assert {path: path.read_bytes() for path in (data / "orders-0").iterdir()} == before


def test_a_schedule_topic_with_its_marks_is_well_and_a_damaged_mark_is_damage(
    offline: CommandLine, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        broker.topics.create("now")
        config = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime", "schedule.target.topic": "now"}
        broker.topics.create("later", config=config)
        for number in range(20):
            headers = [("x-deliver-after", "0" if number % 2 else "3600000")]
            broker.topics["later"].produce(f"v{number}", key=f"k{number}", headers=headers)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(30)
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce("later", "v", headers=[("x-deliver-after", "0")])
            assert producer.flush(30) == 0
            end(30)
        producer.close()
        deadline = time.monotonic() + 30
        while len(broker.topics["now"].records()) < 11:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        killed = tmp_path / "killed"
        shutil.copytree(data, killed)  # as after the end of the process
    for directory in (data, killed):
        assert "all is well" in offline.ok("log", "check", str(directory)).text
        assert offline.ok("log", "check", str(directory), "--json").json == []
    path = data / "later-0" / f"{0:020}.log"
    dumped = offline.ok("log", "dump", "--deep-iteration", "--print-data-log", str(path)).text
    assert dumped.count(f" controlType: {CONTROL_TYPE}\n") >= 3
    content = bytearray(path.read_bytes())
    place = content.rindex(CONTROL_KEY)
    content[place + len(CONTROL_KEY) + 5] ^= 0xFF
    path.write_bytes(content)
    done = offline("log", "check", str(data))
    assert done.status != 0
    assert "CRC" in done.text
