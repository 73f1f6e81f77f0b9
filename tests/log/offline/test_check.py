"""The audit reports nothing about files that brokers wrote, and always reports later changes to them."""

from __future__ import annotations

import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log import checkpoints
from kbroker.log.append_info import COORDINATOR
from kbroker.log.directories import meta_properties
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.offline.audit import Checked, Finding
from kbroker.log.offline.check import NoLogDir, audit, log_bytes, partitions_of
from kbroker.log.offline.repair import repair
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.compression import LZ4, ZSTD
from kbroker.protocol.records import build_batch, build_marker, iter_batches
from tests.log.bombs import MINIMAL, sealed
from tests.log.builders import NOW, batch, committed, purge

SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=300)
BATCHES = 150


def write(log: PartitionLog) -> None:
    """Write plain, idempotent and transactional batches of two producers, in three leader epochs."""
    sequence = {5: 0, 6: 0}
    for index in range(BATCHES):
        epoch = index // 60
        log.append_as_leader(batch(3, timestamp=NOW + index * 7 % 50, codec=index % 5), epoch, NOW)
        producer = 5 + index % 2
        produced = batch(
            2, producer_id=producer, producer_epoch=0, base_sequence=sequence[producer], transactional=True
        )
        log.append_as_leader(produced, epoch, NOW)
        sequence[producer] += 2
        if index % 6 == 5:
            for each in (5, 6):
                marker = build_marker(
                    producer_id=each, producer_epoch=0, commit=index % 4 == 1, coordinator_epoch=0, timestamp=NOW
                )
                log.append_as_leader(marker, epoch, NOW, origin=COORDINATOR)
    committed(log)


def manager(directory: Path) -> LogDirectory:
    logs = LogDirectory(str(directory), node_id=1)
    logs.load(lambda _topic: SMALL, NOW)
    return logs


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory after a clean stop: one complete partition, one with a deleted prefix, one empty."""
    directory = tmp_path_factory.mktemp("written") / "data"
    logs = manager(directory)
    for name, partition in (("whole", 0), ("cut", 3), ("empty", 0)):
        log = logs.get_or_create(name, partition, None, SMALL)
        if name != "empty":
            write(log)
        if name == "cut":
            log.advance_log_start(log.segments.bases[4] + 7, NOW)
            purge(log, NOW + 10**9)
    logs.close()
    return directory


@pytest.fixture
def clean(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


@pytest.fixture
def crashed(clean: Path) -> Path:
    (clean / checkpoints.CLEAN_SHUTDOWN).unlink()
    (clean / checkpoints.RECOVERY_POINTS).write_text("0\n0\n")
    return clean


def found(directory: Path) -> list[Finding]:
    return list(audit(str(directory)))


def logs_of(directory: Path, partition: str = "whole-0") -> list[Path]:
    return sorted((directory / partition).glob("*.log"))


def test_what_a_broker_wrote_is_as_it_should_be(clean: Path, crashed: Path) -> None:
    assert found(clean) == []
    assert found(crashed) == []
    assert [Path(path).name for path in partitions_of(str(clean))] == ["cut-3", "empty-0", "whole-0"]
    assert log_bytes(str(clean)) == sum(path.stat().st_size for path in clean.glob("*/*.log"))


@pytest.mark.parametrize(("topic", "findings"), [("__cluster_metadata", 0), ("other", 1)])
def test_the_metadata_log_of_kafka_ends_without_the_last_entry_of_its_time_index(
    tmp_path: Path, topic: str, findings: int
) -> None:
    logs = manager(tmp_path)
    log = logs.get_or_create(topic, 0, None, LogConfig())
    log.append_as_leader(batch(3, timestamp=NOW), 0, NOW)
    committed(log)
    logs.close()
    (index,) = (tmp_path / f"{topic}-0").glob("*.timeindex")
    assert index.stat().st_size == 12
    index.write_bytes(b"")
    assert ["ends with timestamp -1" in str(each) for each in found(tmp_path)] == [True] * findings


def test_nothing_is_changed_by_looking(clean: Path) -> None:
    logs_of(clean)[2].write_bytes(b"nonsense" * 100)
    before = {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()}
    assert found(clean)
    assert {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()} == before


def test_a_partition_can_be_checked_alone(clean: Path) -> None:
    assert found(clean / "cut-3") == []
    path = logs_of(clean, "cut-3")[-1]
    path.write_bytes(path.read_bytes() + b"xxx")
    assert [each.what for each in found(clean / "cut-3")] == ["3 bytes are no batch; the last 3 bytes cannot be read"]
    (clean / checkpoints.CLEAN_SHUTDOWN).unlink()
    assert [each.recovery for each in found(clean / "cut-3")] == [True]


def test_what_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoLogDir):
        found(tmp_path)


def positions(path: Path) -> list[int]:
    return [position for position, _ in iter_batches(path.read_bytes())]


def change(path: Path, position: int, new: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(new)] = new
    path.write_bytes(content)


def flip(path: Path, position: int) -> None:
    change(path, position, bytes([path.read_bytes()[position] ^ 0x55]))


def first(directory: Path, suffix: str) -> Path:
    """Return the first file of a kind that is not empty."""
    return next(path for path in sorted((directory / "whole-0").glob(f"*{suffix}")) if path.stat().st_size)


def damage_record(directory: Path) -> Path:
    path = logs_of(directory)[1]
    flip(path, positions(path)[2] + 70)
    return path


def damage_offset(directory: Path) -> Path:
    path = logs_of(directory)[1]
    change(path, positions(path)[2], struct.pack(">q", 1))
    return path


def move_beyond(directory: Path) -> Path:
    path = logs_of(directory)[1]
    change(path, positions(path)[-1], struct.pack(">q", 10**6))
    return path


def rename_segment(directory: Path) -> Path:
    path = logs_of(directory)[1]
    return path.rename(path.with_name(f"{int(path.stem) - 2:020}.log"))


def damage_epoch(directory: Path) -> Path:
    path = logs_of(directory)[-1]
    change(path, positions(path)[-1] + 12, struct.pack(">i", 0))
    return path


def index_position(directory: Path) -> Path:
    path = first(directory, ".index")
    flip(path, 7)
    return path


def index_offset(directory: Path) -> Path:
    path = first(directory, ".index")
    change(path, 0, struct.pack(">I", struct.unpack(">I", path.read_bytes()[:4])[0] + 1))
    return path


def index_order(directory: Path) -> Path:
    path = first(directory, ".index")
    path.write_bytes(path.read_bytes() + path.read_bytes()[:8])
    return path


def index_beyond(directory: Path) -> Path:
    path = first(directory, ".index")
    path.write_bytes(path.read_bytes() + struct.pack(">II", 10**6, 10**6))
    return path


def index_torn(directory: Path) -> Path:
    path = first(directory, ".index")
    path.write_bytes(path.read_bytes() + b"\1")
    return path


def index_behind_zeros(directory: Path) -> Path:
    path = first(directory, ".index")
    path.write_bytes(path.read_bytes() + bytes(2048) + b"\1" * 8)
    return path


def index_gone(directory: Path) -> Path:
    path = first(directory, ".index")
    path.unlink()
    return path


def time_of_index(directory: Path) -> Path:
    path = first(directory, ".timeindex")
    flip(path, 7)
    return path


def offset_of_time_index(directory: Path) -> Path:
    path = first(directory, ".timeindex")
    change(path, 8, struct.pack(">I", struct.unpack(">I", path.read_bytes()[8:12])[0] + 8))
    return path


def time_index_short(directory: Path) -> Path:
    """Kafka would use a largest timestamp of the segment that is too small."""
    path = first(directory, ".timeindex")
    path.write_bytes(path.read_bytes()[:-12])
    return path


def aborted_gone(directory: Path) -> Path:
    path = first(directory, ".txnindex")
    path.write_bytes(b"")
    return path


def aborted_elsewhere(directory: Path) -> Path:
    path = first(directory, ".txnindex")
    flip(path, 17)
    return path


def aborted_stable(directory: Path) -> Path:
    path = first(directory, ".txnindex")
    flip(path, 33)
    return path


def snapshot_content(directory: Path) -> Path:
    path = first(directory, ".snapshot")
    flip(path, 20)
    return path


def snapshot_version(directory: Path) -> Path:
    path = first(directory, ".snapshot")
    change(path, 0, b"\0\7")
    return path


def epochs_unsorted(directory: Path) -> Path:
    path = directory / "whole-0" / checkpoints.LEADER_EPOCHS
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:2], lines[3], lines[2], *lines[4:]]))
    return path


def epochs_elsewhere(directory: Path) -> Path:
    path = directory / "whole-0" / checkpoints.LEADER_EPOCHS
    checkpoints.write_epochs(str(path), [(e, s + 5 if e else s) for e, s in checkpoints.read_epochs(str(path))])
    return logs_of(directory)[0].parent


def checkpoint_broken(directory: Path) -> Path:
    path = directory / checkpoints.HIGH_WATERMARKS
    path.write_text(path.read_text().replace("whole 0 ", "whole 0 x"))
    return path


def checkpoint_short(directory: Path) -> Path:
    path = directory / checkpoints.RECOVERY_POINTS
    path.write_text(path.read_text().replace("\n3\n", "\n4\n"))
    return path


def stranger(directory: Path) -> Path:
    path = directory / checkpoints.RECOVERY_POINTS
    checkpoints.write_offsets(str(path), {**checkpoints.read_offsets(str(path)), ("gone", 0): 4})
    return path


def watermark_beyond(directory: Path) -> Path:
    path = directory / checkpoints.HIGH_WATERMARKS
    checkpoints.write_offsets(str(path), {("whole", 0): 10**6})
    return directory / "whole-0"


def watermark_below(directory: Path) -> Path:
    checkpoints.write_offsets(str(directory / checkpoints.HIGH_WATERMARKS), {("cut", 3): 1})
    return directory / "cut-3"


def topic_id_broken(directory: Path) -> Path:
    path = directory / "whole-0" / checkpoints.PARTITION_METADATA
    path.write_text("version: 0\ntopic_id: AAAA")
    return path


def properties_broken(directory: Path) -> Path:
    path = directory / meta_properties.META_PROPERTIES
    path.write_text("version=1\n")
    return path


def interrupted(directory: Path) -> Path:
    path = logs_of(directory)[1].with_suffix(".log.swap")
    path.write_bytes(b"")
    return path


DAMAGES: list[Callable[[Path], Path]] = [
    damage_record, damage_offset, move_beyond, rename_segment, damage_epoch, index_position, index_offset, index_order,
    index_beyond, index_torn, index_behind_zeros, index_gone, time_of_index, offset_of_time_index, time_index_short,
    aborted_gone, aborted_elsewhere, aborted_stable, snapshot_content, snapshot_version, epochs_unsorted,
    epochs_elsewhere,
    checkpoint_broken, checkpoint_short, stranger, watermark_beyond, watermark_below, topic_id_broken,
    properties_broken, interrupted,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damage_is_found_where_it_is(clean: Path, damage: Callable[[Path], Path]) -> None:
    path = damage(clean)
    findings = found(clean)
    print("\n".join(map(str, findings)))
    assert any(each.path.startswith(str(path)) for each in findings)
    assert not any(each.recovery for each in findings)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_broker_is_just_writing_is_no_finding(clean: Path, goes_on: bool) -> None:
    path = max((clean / "whole-0").glob("*.log"))
    content, removed = path.read_bytes(), clean / "cut-3" / "00000000000000009999.log"
    path.write_bytes(content[:-10])
    removed.symlink_to("nowhere")
    (clean / checkpoints.CLEAN_SHUTDOWN).unlink()
    pauses = []

    def pause() -> None:
        removed.unlink(missing_ok=True)
        pauses.append(len(pauses))
        if goes_on:
            path.write_bytes(content)

    checked = Checked()
    found = list(audit(str(clean), checked=checked, pause=pause))
    assert [each.path for each in found if each.path.endswith(".log")] == ([] if goes_on else [str(path)])
    assert pauses
    assert checked.partitions == 3


LYING = {
    "a count too high": sealed(MINIMAL, 2, 0),
    "garbage in zstd": sealed(b"none", 2, ZSTD, compressed=True),
    "the offset of another": sealed(MINIMAL * 2, 2, LZ4),
    "a record that is cut off": sealed(MINIMAL + MINIMAL[:3], 2, 0),
}


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
def test_a_sound_batch_that_nobody_can_read_is_named_with_the_offset_behind_it(tmp_path: Path, lying: bytes) -> None:
    logs = manager(tmp_path / "data")
    log = logs.get_or_create("t", 0, None, LogConfig(record_validation="header"))
    log.append_as_leader(batch(3), 0, NOW)
    log.append_as_leader(lying, 0, NOW)
    log.append_as_leader(batch(3), 0, NOW)
    committed(log)
    logs.close()
    (found,) = audit(str(tmp_path / "data"))
    assert (found.position, found.recovery) == (len(batch(3)), False)
    assert "no client can read the records from offset 3 on" in found.what
    assert found.what.endswith("the next batch begins at 5")


def test_zeros_behind_the_entries_of_an_index_are_unused_space(clean: Path) -> None:
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        for path in (clean / "whole-0").glob(f"*{suffix}"):
            path.write_bytes(path.read_bytes() + bytes(size * 1000))
    assert found(clean) == []


def tails(whole: bytes) -> list[bytes]:
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    again = bytearray(whole)
    again[:8] = bytes(8)
    return [b"x", bytes(5000), whole[:40], whole[:-1], bytes(flipped), bytes(again), b"\xff" * 300]


def test_recovery_cuts_what_was_foretold(crashed: Path, tmp_path: Path) -> None:
    seed = 23
    print("seed", seed)
    rng = random.Random(seed)
    good = bytearray(build_batch([(NOW, None, b"v", ())] * 2, base_offset=10**5))
    for number, tail in enumerate(tails(bytes(good))):
        for turn in range(3):
            copy = shutil.copytree(crashed, tmp_path / f"{number}-{turn}")
            logs = logs_of(copy)
            path = logs[-1] if turn == 0 else rng.choice(logs)
            content = path.read_bytes()
            where = len(content) if turn == 0 else rng.choice(positions(path))
            path.write_bytes(content[:where] + tail)
            findings = found(copy)
            cuts = [each for each in findings if "recovery will cut" in each.what]
            assert [(each.path, each.position, each.recovery) for each in cuts] == [(str(path), where, True)]
            assert f"cut {len(tail)} bytes" in cuts[0].what
            gone = {each.path for each in findings if "remove the segment" in each.what}
            assert gone == {str(later) for later in logs if later > path}

            recovered = manager(copy)
            ends = recovered.logs["whole", 0].log_end_offset
            recovered.close(clean=False)
            assert path.stat().st_size == where
            assert {str(each) for each in logs} - {str(each) for each in logs_of(copy)} == gone
            shutil.rmtree(copy)
            assert ends <= 10**5 + 2


def test_a_crash_before_the_log_start_was_written_down_is_no_fault(crashed: Path) -> None:
    (crashed / checkpoints.LOG_STARTS).unlink()
    assert found(crashed) == []


def test_below_the_recovery_point_a_fault_is_one(crashed: Path) -> None:
    logs = logs_of(crashed)
    checkpoints.write_offsets(str(crashed / checkpoints.RECOVERY_POINTS), {("whole", 0): int(logs[3].stem) + 1})
    flip(logs[1], positions(logs[1])[1] + 70)
    flip(logs[4], positions(logs[4])[1] + 70)
    assert {(each.path, each.recovery) for each in found(crashed) if each.path.endswith(".log")} == {
        (str(logs[1]), False),
        *((str(later), True) for later in logs[4:]),
    }


def test_repair_leaves_nothing_that_recovery_can_mend(clean: Path) -> None:
    logs = logs_of(clean)
    content = logs[-1].read_bytes()
    logs[-1].write_bytes(content + b"garbage")
    index_gone(clean)
    done = {Path(each.path).name: each for each in repair(str(clean), NOW)}
    assert done["whole-0"].cut_bytes == 7
    assert done["cut-3"][1:3] == (0, 0)
    assert logs[-1].read_bytes() == content
    assert not (clean / checkpoints.CLEAN_SHUTDOWN).exists()
    # The stop was clean, so recovery reads only the last segment.
    assert [each.what for each in found(clean)] == ["is missing and will be built again"]
    (clean / checkpoints.RECOVERY_POINTS).unlink()
    repair(str(clean), NOW)
    assert found(clean) == []


def test_repair_brings_the_checkpoints_in_line(crashed: Path) -> None:
    logs = logs_of(crashed)
    point = int(logs[3].stem)
    checkpoints.write_offsets(str(crashed / checkpoints.RECOVERY_POINTS), {("whole", 0): point})
    flip(logs[4], 70)
    end = repair(str(crashed / "whole-0"), NOW)[0].log_end_offset
    assert end == int(logs[4].stem)
    assert checkpoints.read_offsets(str(crashed / checkpoints.HIGH_WATERMARKS))["whole", 0] == end
    assert found(crashed) == []


def test_garbage_costs_bounded_memory(clean: Path) -> None:
    rng = random.Random(5)
    print("seed 5")
    huge = bytearray(build_batch([(NOW, None, b"v", ())], base_offset=10**5))
    struct.pack_into(">i", huge, 8, (48 << 20) - 12)
    with open(logs_of(clean)[-1], "ab") as file:
        file.write(huge)
        file.truncate(file.tell() + (48 << 20))
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        first(clean, suffix).write_bytes(rng.randbytes(6 << 20))
    (clean / checkpoints.HIGH_WATERMARKS).write_bytes(rng.randbytes(1 << 20))
    (clean / "whole-0" / checkpoints.LEADER_EPOCHS).write_bytes(b"0\n" * (1 << 20))
    tracemalloc.start()
    try:
        findings = found(clean)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(findings) >= 7
    assert peak < 80 << 20
    assert all(len(str(each)) < 1000 for each in findings)


@pytest.mark.long
def test_any_file_may_hold_anything(written: Path, tmp_path: Path) -> None:
    rng = random.Random(8)
    print("seed 8")
    directory = shutil.copytree(written, tmp_path / "data")
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for _ in range(150):
        path = rng.choice(files)
        content = path.read_bytes()
        broken = bytearray(content or b"x")
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken[: rng.randrange(len(broken) + 1)] if rng.random() < 0.5 else broken)
        found(directory)
        path.write_bytes(content)
    assert found(directory) == []


def test_a_topic_that_a_running_broker_deletes_is_no_finding(tmp_path: Path) -> None:
    """It is no finding between the listing and the check, nor while checkpoints still name the topic."""
    logs = manager(tmp_path)
    for index in range(3):
        log = logs.get_or_create("t", index, None, SMALL, NOW)
        log.append_as_leader(batch(3), 0, NOW)
        committed(log)
    logs.checkpoint()
    logs.delete_all([("t", 2)], NOW)
    gone: list[int] = []

    def read(_size: int) -> None:
        if not gone:
            gone.append(1)
            logs.delete_all([("t", 0), ("t", 1)], NOW)

    assert list(audit(str(tmp_path), read, pause=lambda: None)) == []
    assert gone
    logs.close(True, NOW)
