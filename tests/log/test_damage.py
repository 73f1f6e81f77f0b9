"""One damage after another, to every kind of file: no wrong answer, and the broker never ends (S3, S4, S6).

A reader checks the CRC of each batch, as Kafka's clients do. What it accepts must be what was written, and it must
receive every offset up to the end of the log, or up to the first batch that it refuses.

In Kafka's format, the CRC does not cover base offset and leader epoch (bytes 0-7 and 12-15 of a batch). kbroker
compares them with the neighbouring batches.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from kbroker.controller.embedded_store import CorruptMetadata, EmbeddedStore
from kbroker.controller.store_interface import Put
from kbroker.log.append_info import COORDINATOR
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import HEADER_SIZE, build_marker, compute_crc, parse_header, read_records
from tests.figures import figure
from tests.log.builders import NOW, batch, first_at, largest
from tests.log.cleaner.context import clean
from tests.tries import tries

SEED = 20261121
DAMAGES = tries(600)
NEXT_EPOCH = 3
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150)
COMPACTED = LogConfig(segment_bytes=1500, index_interval_bytes=150, cleanup_policy=("compact",))
TOPIC_IDS = {"t": uuid.UUID(int=7), "u": uuid.UUID(int=8), "c": uuid.UUID(int=9)}
REFUSED = "refused"
TIMES = (NOW, NOW + 60, NOW + 95)
EPOCHS = "leader-epoch-checkpoint"
ANSWERS_BUT_EPOCHS = slice(1 + len(TIMES) + 1)
Found = tuple[bytes | None, bytes | None, int]


@dataclass(frozen=True)
class Source:
    """A directory as a broker left it, and the broker's answers about it."""

    path: Path
    clean: bool
    values: dict[str, dict[int, Found]]
    times: dict[str, list[object]]
    starts: dict[str, int]


def write(directory: Path) -> LogDirectory:
    logs = LogDirectory(str(directory), node_id=1, cluster_id="c" * 22)
    logs.load(config_of, NOW)
    for topic, topic_id in TOPIC_IDS.items():
        log = logs.get_or_create(topic, 0, topic_id, config_of(topic), NOW)
        for number in range(48):
            codec = number % 5 if topic == "t" else 0
            key = b"%d" % (number % 7 if topic == "c" else number)
            producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number * 2} if number % 2 else {}
            transactional = topic == "t" and bool(producer) and number % 12 == 1
            records = batch(2, value=b"%d." % number * 8, timestamp=NOW + number * 2, codec=codec, key=key)
            if producer:
                sequence = log_sequence(log, 5)
                producer["base_sequence"] = sequence
                records = batch(
                    2, value=b"%d." % number * 8, timestamp=NOW + number * 2, codec=codec, key=key,
                    transactional=transactional, **producer,
                )  # fmt: skip
            log.append_as_leader(records, number // 16, NOW)
            if number == 4:
                log.flush()  # from here on recovery reads everything
            if transactional:
                marker = build_marker(
                    producer_id=5, producer_epoch=0, commit=number % 24 == 1, coordinator_epoch=0, timestamp=NOW
                )
                log.append_as_leader(marker, number // 16, NOW, origin=COORDINATOR)
        log.set_high_watermark(log.log_end_offset)
        if topic == "c":
            clean(log, None)
    return logs


def config_of(topic: str) -> LogConfig:
    return COMPACTED if topic == "c" else CONFIG


def log_sequence(log: PartitionLog, producer_id: int) -> int:
    return next((e.last_sequence + 1 for e in log.active_producers() if e.producer_id == producer_id), 0)


def read(log: PartitionLog) -> tuple[dict[int, Found], int, bool]:
    """Read like a client; return (key, value, leader epoch) by offset, the end, and whether everything was accepted."""
    found: dict[int, Found] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            piece = log.read(offset, 1 << 20, log.log_end_offset, min_one=True)
        except ApiError as error:
            if error.code != ErrorCode.CORRUPT_MESSAGE:
                raise
            return found, offset, False
        view = piece.view()
        if len(view) < HEADER_SIZE:
            return found, offset, False
        while len(view) >= HEADER_SIZE:
            try:
                header = parse_header(view)
                if header.crc != compute_crc(view[: header.size]):
                    return found, offset, False
                records = list(read_records(view[: header.size], max_bytes=1 << 20))
            except Malformed:
                return found, offset, False
            epoch = header.leader_epoch
            found.update({r.offset: (r.key, r.value, epoch) for r in records if r.offset >= offset})
            if header.last_offset < offset:
                return found, offset, False
            offset = header.last_offset + 1
            view = view[header.size :]
    return found, offset, True


def answers_by_time(log: PartitionLog) -> list[object]:
    found: list[object] = [sorted(log.aborted_transactions(log.log_start_offset, log.log_end_offset))]
    for ask in (*(partial(first_at, log, time) for time in TIMES), partial(largest, log)):
        try:
            found.append(ask())
        except ApiError as error:
            if error.code != ErrorCode.CORRUPT_MESSAGE:
                raise
            found.append(REFUSED)
    found.append([log.proven_epochs().end_offset_for(epoch, log.log_end_offset) for epoch in range(-1, 4)])
    found.append([log.proven_epochs().epoch_for_offset(offset) for offset in range(0, log.log_end_offset, 7)])
    return found


@pytest.fixture(scope="module", params=["clean", "crashed"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("damage") / "source"
    logs = write(path)
    values = {topic: read(log)[0] for (topic, _), log in logs.logs.items()}
    logs.logs["u", 0].advance_log_start(9)
    logs.checkpoint()
    for log in logs.logs.values():
        log.leader_epochs.assign(NEXT_EPOCH, log.log_end_offset)
    starts = {topic: log.log_start_offset for (topic, _), log in logs.logs.items()}
    times = {topic: answers_by_time(log) for (topic, _), log in logs.logs.items()}
    clean = request.param == "clean"
    if clean:
        logs.close()
    kept = shutil.copytree(path, path.with_name("kept"))
    return Source(kept, clean, values, times, starts)


def kind_of(path: Path) -> str:
    return path.suffix if path.parent.name.endswith("-0") and path.suffix else path.name


def damage(rng: random.Random, path: Path) -> tuple[str, int, int]:
    """Change one file; returns a description of the change, and its byte range."""
    content = bytearray(path.read_bytes())
    size = len(content)
    how = rng.choice(("flip", "flip", "garbage", "zeros", "cut", "tail"))
    at = rng.randrange(size) if size else 0
    if how == "flip" and size:
        content[at] ^= 1 << rng.randrange(8)
        end = at + 1
    elif how in ("garbage", "zeros") and size:
        end = min(size, at + rng.randint(1, 40))
        content[at:end] = bytes(end - at) if how == "zeros" else rng.randbytes(end - at)
    elif how == "cut" and size:
        del content[at:]
        end = size
    else:
        content += rng.randbytes(rng.randint(1, 100))
        how, at, end = "tail", size, len(content)
    path.write_bytes(content)
    return how, at, end


@pytest.mark.long
def test_any_single_damage(source: Source, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    files = sorted(path for path in source.path.rglob("*") if path.is_file() and path.name != ".lock")
    kinds = sorted({kind_of(path) for path in files})
    counts: Counter[str] = Counter()
    for turn in range(DAMAGES // 2):
        kind = kinds[turn % len(kinds)] if turn % 2 else ".log"
        victim = rng.choice([path for path in files if kind_of(path) == kind])
        directory = tmp_path / "now"
        shutil.copytree(source.path, directory)
        hit = directory / victim.relative_to(source.path)
        how, at, end = damage(rng, hit)
        label = f"turn {turn}: {victim.relative_to(source.path)} {how} {at}-{end}"
        check(source, directory, kind, label, counts)
        counts[kind] += 1
        shutil.rmtree(directory)
    figure(f"damages after a {'clean stop' if source.clean else 'crash'}, seed {SEED}", str(dict(counts)))
    assert sum(counts[kind] for kind in kinds) == DAMAGES // 2


def check(source: Source, directory: Path, kind: str, label: str, counts: Counter[str]) -> None:
    """Open the damaged directory and compare its answers with the source's."""
    logs = LogDirectory(str(directory), node_id=1, cluster_id="c" * 22)
    try:
        logs.load(config_of, NOW)
    except LogDirError:
        assert kind == "meta.properties", label
        counts["refused to start"] += 1
        return
    try:
        for (topic, _), log in logs.logs.items():
            log.leader_epochs.assign(NEXT_EPOCH, log.log_end_offset)  # as every leader does
            early = answers_by_time(log)
            found, end, whole = read(log)
            expected = source.values[topic]
            wrong = {offset for offset, entry in found.items() if expected.get(offset) != entry}
            assert not wrong, (label, topic, sorted(wrong)[:5])
            first = log.log_start_offset
            assert set(found) == {offset for offset in expected if first <= offset < end}, (label, topic)
            if kind != ".log":
                assert whole, (label, topic)
                assert end == max(expected) + 1 or end == max(expected) + 2, (label, topic, end)
                if first == source.starts[topic]:
                    # If compaction has removed the first batch of an epoch, only the checkpoint knew the epoch's start
                    # offset.
                    alike = ANSWERS_BUT_EPOCHS if topic == "c" and kind == EPOCHS else slice(None)
                    for now in (early, answers_by_time(log)):
                        assert now[alike] == source.times[topic][alike], (label, topic)
                else:
                    assert kind == "log-start-offset-checkpoint", label
            elif not whole:
                counts["seen by the reader"] += 1
                for now in (early, answers_by_time(log)):
                    told = zip(now, source.times[topic], strict=True)
                    assert all(one in (REFUSED, other) for one, other in told), (label, topic, now)
            elif end <= max(expected):
                counts["cut off by recovery"] += 1
            log.append_as_leader(batch(), 9, NOW)
    finally:
        logs.close()


def test_any_damage_to_the_metadata(tmp_path: Path) -> None:
    """Either the start is refused, or everything up to the last complete entry is there."""
    rng = random.Random(SEED)
    source = tmp_path / "source"
    source.mkdir()
    store = EmbeddedStore(str(source))
    states = [{}]
    for number in range(30):
        store.write([Put(f"/a/{number % 7}", {"n": number})])
        states.append({name: dict(store.get(f"/a/{name}").value) for name in store.children("/a")})  # type: ignore[union-attr]
    store.close()
    counts: Counter[str] = Counter()
    for turn in range(300):
        directory = tmp_path / "now"
        shutil.copytree(source, directory)
        how, at, end = damage(rng, directory / "__metadata.journal")
        try:
            again = EmbeddedStore(str(directory))
        except CorruptMetadata:
            counts["refused to start"] += 1
        else:
            found = {name: dict(again.get(f"/a/{name}").value) for name in again.children("/a")}  # type: ignore[union-attr]
            again.close()
            assert found in states, (turn, how, at, end)
            counts["all or a beginning"] += 1
        shutil.rmtree(directory)
    figure(f"damages to the metadata journal, seed {SEED}", str(dict(counts)))
    assert len(counts) == 2
