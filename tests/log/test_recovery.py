"""A log after a crash: it contains everything that was complete, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log import recovery
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import compute_crc, iter_batches, parse_header
from tests.log.builders import NOW, batch, first_at, largest, offsets_of, open_log, read_all

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=150)


def filled(directory: Path, batches: int = 60) -> PartitionLog:
    log = open_log(directory, config=SMALL)
    for index in range(batches):
        log.append_as_leader(batch(2, timestamp=NOW + index), index // 20, NOW)
    return log


def verify(directory: Path) -> None:
    """S2: in every file offsets increase, no batch overlaps another, and each CRC is valid."""
    end = 0
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        position = 0
        assert int(path.stem) >= end
        for position, header in iter_batches(content):
            assert header.base_offset >= end
            assert compute_crc(content[position : position + header.size]) == header.crc
            end = header.last_offset + 1
            position += header.size
        assert position == len(content)


@pytest.mark.parametrize("recovery_point", [0, 30, 119, 120, 10**9])
def test_s1_a_crash_loses_nothing_that_was_written(tmp_path: Path, recovery_point: int) -> None:
    log = filled(tmp_path / "topic-0")
    before = read_all(log)
    epochs = log.leader_epochs.entries
    del log
    log = open_log(tmp_path / "topic-0", clean=False, config=SMALL, recovery_point=recovery_point)
    assert read_all(log) == before
    assert log.leader_epochs.entries == epochs == [(0, 0), (1, 40), (2, 80)]
    assert log.log_end_offset == 120
    verify(tmp_path / "topic-0")


def tails() -> list[bytes]:
    whole = batch(2, base_offset=120)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    backwards = batch(1, base_offset=3)
    return [
        b"\x00",
        bytes(100),
        bytes(10_000),
        whole[:30],
        whole[:-1],
        bytes(flipped),
        backwards,
        os.urandom(500),
        batch(1, base_offset=2**31 + 200),
        b"\xff" * 61,
    ]


def parse_prefix(tail: bytes) -> bytes:
    try:
        return tail[: sum(header.size for _, header in iter_batches(tail))]
    except Malformed:
        return b""


def is_whole(tail: bytes) -> bool:
    return len(parse_prefix(tail)) == len(tail)


CASES = [(tail, clean) for tail in tails() for clean in (False, True) if not (clean and is_whole(tail))]
"""After a clean stop, a complete batch is accepted unchecked, as in Kafka."""


@pytest.mark.parametrize(("tail", "clean"), CASES, ids=range(len(CASES)))
def test_s4_garbage_at_the_end_is_cut_off(tmp_path: Path, tail: bytes, clean: bool) -> None:
    log = filled(tmp_path / "topic-0")
    before = read_all(log)
    path = log.segments.active.path()
    if clean:
        log.close()
    del log
    with open(path, "ab") as file:
        file.write(tail)
    log = open_log(tmp_path / "topic-0", clean=clean, config=SMALL)
    assert read_all(log) == before
    log.append_as_leader(batch(), 2, NOW)
    assert offsets_of(read_all(log))[-1] == 120
    verify(tmp_path / "topic-0")


def test_s15_a_crash_between_the_steps_of_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records after a cut never reappear, wherever it is interrupted: a gap would look like an intact log."""
    for stop_at in ("recovery.cut", "recovery.checked"):
        directory = tmp_path / stop_at / "topic-0"
        directory.parent.mkdir()
        log = filled(directory)
        before = offsets_of(read_all(log))
        second = log.segments[1]
        with open(second.path(), "r+b") as file:
            file.seek(second.size - 1)
            file.write(b"\xff")
        del log

        def passed(name: str, stop_at: str = stop_at) -> None:
            if name == stop_at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(recovery, "passed", passed)
            with pytest.raises(KeyboardInterrupt):
                open_log(directory, clean=False, config=SMALL)
        found = offsets_of(read_all(open_log(directory, clean=False, config=SMALL)))
        assert 0 < len(found) < len(before)
        assert found == before[: len(found)]


def with_a_hole(directory: Path) -> list[int]:
    """Write a log and remove one batch in the middle, as compaction does; returns the remaining offsets."""
    log = filled(directory)
    segment = log.segments[2]
    content = Path(segment.path()).read_bytes()
    second, third = [place for place, _ in iter_batches(content)][1:3]
    gone = parse_header(memoryview(content), second)
    left = [o for o in offsets_of(read_all(log)) if not gone.base_offset <= o <= gone.last_offset]
    del log
    Path(segment.path()).write_bytes(content[:second] + content[third:])
    return left


@pytest.mark.parametrize("compacted", [True, False])
def test_s4_a_hole_is_compactions_or_a_loss(tmp_path: Path, compacted: bool) -> None:
    left = with_a_hole(tmp_path / "topic-0")
    log = open_log(tmp_path / "topic-0", clean=False, config=SMALL, recovery_point=1, compacted=compacted)
    found = offsets_of(read_all(log))
    if compacted:
        assert found == left
    else:
        assert found == list(range(len(found))), "nothing behind the hole"


@pytest.mark.parametrize("uncompacted_from", [None, 0, 20])
def test_s4_a_segment_that_was_never_compacted_ends_where_the_next_begins(
    tmp_path: Path, uncompacted_from: int | None
) -> None:
    """A power loss removed the end of a closed segment of a compacted topic, and left the empty next segment."""
    log = filled(tmp_path / "topic-0", 10)
    log.roll(NOW)
    first, end = log.segments[0].path(), log.log_end_offset
    assert log.segments.bases == [0, end]
    del log
    content = Path(first).read_bytes()
    places = [place for place, _ in iter_batches(content)]
    Path(first).write_bytes(content[: places[3]])
    left = parse_header(memoryview(content), places[3]).base_offset
    config = LogConfig(cleanup_policy=("compact",))
    log = open_log(
        tmp_path / "topic-0", clean=False, config=config, recovery_point=1, uncompacted_from=uncompacted_from
    )
    assert log.log_end_offset == (left if uncompacted_from == 0 else end)


def test_s4_a_segment_with_holes_may_end_before_the_next_begins(tmp_path: Path) -> None:
    """Another broker's compaction, which was interrupted before its checkpoint was written."""
    log = filled(tmp_path / "topic-0", 10)
    log.roll(NOW)
    first, end = log.segments[0].path(), log.log_end_offset
    del log
    content = Path(first).read_bytes()
    places = [place for place, _ in iter_batches(content)]
    Path(first).write_bytes(content[: places[1]] + content[places[2] : places[3]])
    config = LogConfig(cleanup_policy=("compact",))
    log = open_log(tmp_path / "topic-0", clean=False, config=config, recovery_point=1, uncompacted_from=0)
    assert log.log_end_offset == end


def test_s4_without_a_recovery_point_holes_are_kept(tmp_path: Path) -> None:
    left = with_a_hole(tmp_path / "topic-0")
    assert offsets_of(read_all(open_log(tmp_path / "topic-0", clean=False, config=SMALL))) == left


def test_s4_a_bad_batch_ends_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    bases = list(log.segments.bases)
    third = log.segments[2].path()
    del log
    content = bytearray(Path(third).read_bytes())
    second_batch = list(iter_batches(content))[1][0]
    content[second_batch + 70] ^= 1
    Path(third).write_bytes(content)
    log = open_log(tmp_path / "topic-0", clean=False, config=SMALL)
    assert log.segments.bases == bases[:3], "later segments are gone"
    assert log.log_end_offset == bases[2] + 2
    assert offsets_of(read_all(log)) == list(range(bases[2] + 2))
    verify(tmp_path / "topic-0")


def test_s4_nothing_below_the_recovery_point_is_changed(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    first, last_base = log.segments[0].path(), log.segments.bases[-1]
    del log
    content = bytearray(Path(first).read_bytes())
    content[70] ^= 1
    Path(first).write_bytes(content)
    log = open_log(tmp_path / "topic-0", clean=False, config=SMALL, recovery_point=last_base)
    assert Path(first).read_bytes() == content
    assert log.log_end_offset == 120
    view = log.read(0, 1 << 20, 120, min_one=True).view()
    _, header = next(iter_batches(view))
    assert compute_crc(view[: header.size]) != header.crc, "the reader sees that the batch is broken"


def test_s15_recovery_can_be_repeated(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    path = log.segments.active.path()
    del log
    with open(path, "ab") as file:
        file.write(b"tail")
    states = []
    for _ in range(5):
        log = open_log(tmp_path / "topic-0", clean=False, config=SMALL)
        states.append((log.log_end_offset, log.segments.bases, read_all(log), log.leader_epochs.entries))
        del log
    assert all(state == states[0] for state in states)


def test_bug_2_nothing_is_left_above_the_start(tmp_path: Path) -> None:
    """The only segment is damaged from its first byte, after DeleteRecords."""
    log = open_log(tmp_path / "topic-0")
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(10)
    log.advance_log_start(7)
    path = log.segments.active.path()
    del log
    Path(path).write_bytes(b"!" + Path(path).read_bytes()[17:])
    log = open_log(tmp_path / "topic-0", clean=False, log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 7, 7)
    assert log.append_as_leader(batch(), 3, NOW).base_offset == 7
    assert log.leader_epochs.entries == [(3, 7)]


def test_leftovers(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    log = filled(directory)
    before = read_all(log)
    log.close()
    for name in ("00000000000000000000.log.deleted", "00000000000000000007.log.cleaned", "00000000000000000005.index"):
        (directory / name).write_bytes(b"x")
    (directory / "leader-epoch-checkpoint.tmp").write_bytes(b"x")
    log = open_log(directory, config=SMALL)
    assert read_all(log) == before
    names = {path.name for path in directory.iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert "00000000000000000005.index" not in names


@pytest.mark.parametrize("crash", ["cleaning", "swapping", "renamed one", "done"])
def test_s10_replacing_segments_is_all_or_nothing(tmp_path: Path, crash: str) -> None:
    directory = tmp_path / "topic-0"
    log = filled(directory)
    old, bases, merged = read_all(log), list(log.segments.bases), b""
    for segment in log.segments[:2]:
        merged += Path(segment.path()).read_bytes()
    log.close()
    kept = b"".join(merged[p : p + h.size] for p, h in iter_batches(merged) if h.base_offset % 4 == 0)
    new = [r for r in old if r.offset >= bases[2] or r.offset // 2 * 2 % 4 == 0]
    name = directory / "00000000000000000000.log"
    if crash == "cleaning":
        Path(f"{name}.cleaned").write_bytes(kept)
        Path(f"{name}.swap").write_bytes(kept[:50])
    else:
        Path(f"{name}.swap").write_bytes(kept)
    if crash == "renamed one":
        os.rename(log.segments[1].path(), log.segments[1].path() + ".deleted")
    if crash == "done":
        os.replace(f"{name}.swap", name)
        os.unlink(log.segments[1].path())
    log = open_log(directory, config=SMALL, compacted=True)
    assert read_all(log) == (old if crash == "cleaning" else new)
    assert log.log_end_offset == 120


def test_bug_7_a_crash_between_creating_and_writing(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0", 5)
    log.roll(NOW)
    log.roll(NOW)
    assert log.segments.bases[-1] == 10
    del log
    for clean in (False, True):
        (tmp_path / "topic-0" / "00000000000000000010.index").unlink(missing_ok=True)
        log = open_log(tmp_path / "topic-0", clean=clean, config=SMALL)
        assert log.log_end_offset == 10
    assert log.append_as_leader(batch(), 0, NOW).base_offset == 10


def test_s1_s2_a_crash_at_any_byte(tmp_path: Path) -> None:
    """The page cache's part of the last write is cut at random places."""
    source = tmp_path / "source"
    source.mkdir()
    log = filled(source / "topic-0", 12)
    segment = Path(log.segments.active.path())
    content = segment.read_bytes()
    ends = [log.segments.active.base_offset, *[h.last_offset + 1 for _, h in iter_batches(content)]]
    places = [0, *[p + h.size for p, h in iter_batches(content)]]
    del log
    rng = random.Random(3)
    for cut in {*places, *(rng.randrange(len(content)) for _ in range(40))}:
        copy = tmp_path / "copy"
        shutil.copytree(source / "topic-0", copy)
        os.truncate(copy / segment.name, cut)
        log = open_log(copy, clean=False, config=SMALL)
        assert log.log_end_offset == ends[max(i for i, place in enumerate(places) if place <= cut)]
        verify(copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage",
    ["missing", "empty", "short", "odd", "zero", "garbage", "stale", "long", "middle", "middle zero", "shifted"],
)
@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
def test_s3_indexes_only_make_things_faster(
    tmp_path: Path, clean: bool, damage: str, suffixes: tuple[str, ...]
) -> None:
    directory = tmp_path / "topic-0"
    log = open_log(directory, config=replace(SMALL, segment_bytes=6000))
    for index in range(150):
        log.append_as_leader(batch(2, timestamp=NOW + index * 10 % 700), 0, NOW)
    answers = _answers(log)
    if clean:
        log.close()
    del log
    rng = random.Random(1)
    paths = [path for path in directory.iterdir() if path.suffix in suffixes]
    contents = [path.read_bytes() for path in paths]
    for index, path in enumerate(paths):
        _damage(path, damage, contents[index - 1], rng)
    log = open_log(directory, clean=clean, config=SMALL)
    assert _answers(log) == answers
    log.append_as_leader(batch(), 0, NOW)
    assert offsets_of(read_all(log)) == list(range(301))


def _answers(log: PartitionLog) -> list[object]:
    by_time = [first_at(log, NOW + time) for time in range(-5, 720, 5)]
    by_offset = [bytes(log.read(offset, 1, 300, min_one=True).view()) for offset in range(0, 300, 7)]
    return [by_time, by_offset, largest(log), log.log_end_offset]


def _damage(path: Path, damage: str, other: bytes, rng: random.Random) -> None:
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
        return
    entry = 8 if path.suffix == ".index" else 12
    path.write_bytes(
        {
            "empty": b"",
            "short": content[: len(content) // entry // 2 * entry],
            "odd": content + b"x",
            "zero": bytes(len(content)),
            "garbage": rng.randbytes(len(content)),
            "stale": other,
            "shifted": _shifted(content, entry),
            "middle": content[:entry] + rng.randbytes(max(0, len(content) - 9 * entry)) + content[-8 * entry :],
            "middle zero": content[:entry] + bytes(max(0, len(content) - 9 * entry)) + content[-8 * entry :],
            "long": content + struct.pack(">II" if entry == 8 else ">qI", 2**31 - 1, 2**31 - 1),
        }[damage]
    )


def _shifted(content: bytes, entry: int) -> bytes:
    """Let all entries except the last ones point slightly too far."""
    changed = bytearray(content)
    for place in range(entry - 4, len(content) - 8 * entry, entry):
        struct.pack_into(">I", changed, place, int.from_bytes(content[place : place + 4]) + 7)
    return bytes(changed)
