"""`kbroker log check --from`: what the records in a data directory name, compared with the objects in the store."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kbroker import Broker
from kbroker.remote.object_format import ObjectName, Part, epochs_bytes, parse_object_name
from kbroker.remote.segment_objects import SegmentObject, write_segment
from kbroker.remote.store import open_store
from kbroker.restore.restored_logs import filler
from tests.tiers.test_broker import (
    EARLIEST,
    LOCAL,
    PATIENCE_S,
    TOPIC,
    admin,
    create,
    offset,
    produce,
    settings,
    until,
)
from tests.tiers.test_restore import FAST, NOWHERE, copied, states


class Checked:
    """A data directory that no broker uses, and its store."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.store = directory / "store"

    def copy(self, directory: Path) -> Checked:
        for name in ("data", "store"):
            shutil.copytree(getattr(self, name), directory / name)
        return Checked(directory)

    @property
    def objects(self) -> list[Path]:
        """The objects of segments, by base offset."""
        return sorted(self.store.glob("*/0/*"), key=lambda path: path.name)

    def check(self, *more: str) -> Any:
        return NOWHERE("log", "check", str(self.data), "--from", f"file://{self.store}", *more)

    def add(self, topic_id: bytes, base: int, parts: dict[Part, bytes]) -> Path:
        """Write an object that no record names."""
        name = ObjectName(topic_id, 0, base, uuid.uuid4().bytes)

        async def write() -> None:
            await write_segment(open_store(f"file://{self.store}"), name.text(), name.segment_id, parts)

        asyncio.run(write())
        self.age(self.store / name.text())
        return self.store / name.text()

    def age(self, path: Path, days: float = 1.01) -> None:
        """Let an object be so old."""
        written = time.time() - days * 86_400
        os.utime(path, (written, written))

    def name(self, path: Path) -> ObjectName:
        found = parse_object_name(str(path.relative_to(self.store)))
        assert found is not None
        return found

    def parts(self, path: Path) -> dict[Part, bytes]:
        """Return the parts of an object."""

        async def read() -> dict[Part, bytes]:
            name = self.name(path)
            stored = await SegmentObject.open(open_store(f"file://{self.store}"), name.text(), name.segment_id)
            return {part: await stored.whole(part) for part in Part if stored.layout.lengths[part]}

        return asyncio.run(read())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    found = Checked(tmp_path_factory.mktemp("checked"))
    with Broker({**settings(found.store), **FAST}, data_dir=str(found.data)) as broker:
        create(broker)
        broker.topics.create("plain", partitions=1)
        produce(broker, 0, 600)
        until(lambda: offset(broker, LOCAL) > 300)
        copied(broker, found.store)
    return found


@pytest.fixture
def checked(made: Checked, tmp_path: Path) -> Checked:
    return made.copy(tmp_path)


def flip(path: Path, at: int) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def next_state(broker: Broker, checked: Checked) -> None:
    """Wait for a state copy that is begun after this call."""
    for _ in range(2):  # the first of them may have been begun before
        known = {path.name for path in states(checked.store)}
        produce(broker, 2000, 1)
        until(lambda known=known: states(checked.store)[-1].name not in known)  # type: ignore[misc]


def far_away(base: int, epoch: int = 0) -> dict[Part, bytes]:
    """Return the parts of a segment with the ten offsets from `base` on."""
    return {
        Part.LOG: filler(base, base + 10, epoch, int(time.time() * 1000)),
        Part.LEADER_EPOCHS: epochs_bytes([(epoch, 0)]),
    }


def test_a_sound_store(checked: Checked) -> None:
    for more in ((), ("--deep",), ("--delete-orphans",)):
        done = checked.check(*more)
        assert (done.status, done.err) == (0, "")
        size = sum(path.stat().st_size for path in checked.objects)
        assert f", {len(checked.objects)} remote segments of {size} bytes: all is well" in done.text
    assert checked.check("--json").json == []


def test_missing_and_damaged_objects_are_told(checked: Checked) -> None:
    gone, short, flipped, *_ = checked.objects
    gone.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    flip(flipped, 100)
    done = checked.check()
    assert done.status == 1
    assert len(done.text.splitlines()) == 2
    last = int(short.name[:20]) - 1
    assert f"{gone.relative_to(checked.store)}: the object is missing; its offsets were 0 to {last}" in done.text
    size = len(short.read_bytes())
    assert f"{short.relative_to(checked.store)}: the object has {size} bytes, not {size + 1}" in done.text
    found = checked.check("--deep", "--json").json
    assert [each["kind"] for each in found] == ["fault"] * 3
    assert "another CRC32C" in next(each["what"] for each in found if flipped.name in each["file"])


def test_an_object_that_other_segments_make_useless_is_deleted(checked: Checked) -> None:
    first = checked.objects[0]
    before = set(checked.objects)
    twice = checked.add(checked.name(first).topic_id, 0, checked.parts(first))
    stranger = checked.add(uuid.uuid4().bytes, 0, far_away(0))
    done = checked.check("--json")
    assert done.status == 1
    assert [(Path(each["file"]).name, each["kind"]) for each in done.json] == [(twice.name, "orphan")]
    assert "1 object of the unknown topic" in done.err
    assert "other segments have its records" in checked.check().text
    checked.age(twice, 0.99)
    done = checked.check("--delete-orphans")
    assert (done.status, twice.exists(), "it is younger than a day" in done.text) == (1, True, True)
    checked.age(twice)
    done = checked.check("--delete-orphans")
    assert done.status == 0
    assert f"deleted {twice.relative_to(checked.store)}: no record names it" in done.err
    assert set(checked.objects) == {*before, stranger}


def test_an_object_of_deleted_records_is_deleted(checked: Checked) -> None:
    with Broker({**settings(checked.store), **FAST}, data_dir=str(checked.data)) as broker:
        client = admin(broker)
        client.delete_records([TopicPartition(TOPIC, 0, 100)])[TopicPartition(TOPIC, 0)].result(PATIENCE_S)
        assert offset(broker, EARLIEST) == 100
        until(lambda: int(checked.objects[0].name[:20]) > 14)  # the first segment is deleted
    old = checked.add(checked.name(checked.objects[0]).topic_id, 5, far_away(5))
    done = checked.check("--delete-orphans")
    assert (done.status, "its records are before the log's start" in done.err) == (0, True), done.text
    assert not old.exists()


@pytest.mark.parametrize("kind", ["only copy", "damaged", "damaged elsewhere", "damaged records", "damaged local log"])
def test_an_object_that_somebody_may_need_stays(checked: Checked, kind: str) -> None:
    """If anything is wrong, nothing is deleted."""
    first = checked.objects[0]
    topic_id = checked.name(first).topic_id
    orphan = checked.add(topic_id, 0, checked.parts(first))
    said = "nothing was deleted, because there are faults"
    if kind == "only copy":
        checked.add(topic_id, 1_000_000, far_away(1_000_000))
        text = "no other segment has its records (offsets 1000000 to 1000009): kbroker log restore reads them"
    elif kind == "damaged":
        first.with_name(f"{7:020}-{first.name[21:]}").write_bytes(b"junk")
        text = "no record names it, and it cannot be read"
    elif kind == "damaged elsewhere":
        flip(first, 100)
        text = "another CRC32C"
    elif kind == "damaged records":
        logs = [each for each in checked.data.glob("__remote_log_metadata-*/*.log") if each.stat().st_size]
        flip(logs[0], 20)
        text, said = "", "lacks records of its newest state"
    else:
        (log, *_) = sorted(checked.data.glob(f"{TOPIC}-0/*.log"))
        flip(log, 100)
        text = "CRC"
    done = checked.check("--delete-orphans")
    assert (done.status, said in done.err, text in done.text) == (1, True, True), (done.err, done.text)
    assert orphan.exists()


def test_without_a_state_in_the_store_nothing_is_deleted(checked: Checked) -> None:
    first = checked.objects[0]
    orphan = checked.add(checked.name(first).topic_id, 0, checked.parts(first))
    shutil.rmtree(checked.store / "broker-state")
    assert "orphan" in checked.check("--json").text
    done = checked.check("--delete-orphans")
    assert (done.status, "orphans are deleted only when there is one" in done.err) == (1, True)
    assert orphan.exists()


def test_a_broker_may_use_the_directory(checked: Checked) -> None:
    with Broker({**settings(checked.store), **FAST}, data_dir=str(checked.data)) as broker:
        for begin in range(600, 1800, 300):
            produce(broker, begin, 300)
            done = checked.check("--deep")
            assert done.status == 0, done.text


def test_an_old_copy_of_the_directory_is_not_checked(checked: Checked, tmp_path: Path) -> None:
    """It would take the newest objects for orphans."""
    old = tmp_path / "old"
    shutil.copytree(checked.data, old)
    with Broker({**settings(checked.store), **FAST}, data_dir=str(checked.data)) as broker:
        produce(broker, 600, 600)
        until(lambda: offset(broker, LOCAL) > 900)
        next_state(broker, checked)
    done = NOWHERE("log", "check", str(old), "--from", f"file://{checked.store}", "--delete-orphans")
    assert (done.status, "lacks records of its newest state" in done.err) == (1, True)


def test_a_restored_copy_is_no_longer_checked_when_the_broker_goes_on(checked: Checked, tmp_path: Path) -> None:
    drill = tmp_path / "drill"
    assert NOWHERE("log", "restore", str(drill), "--from", f"file://{checked.store}").status == 0
    with Broker({**settings(checked.store), **FAST}, data_dir=str(checked.data)) as broker:
        produce(broker, 600, 300)
        until(lambda: offset(broker, LOCAL) > 600)
        next_state(broker, checked)
        done = NOWHERE("log", "check", str(drill), "--from", f"file://{checked.store}", "--delete-orphans")
        assert (done.status, "lacks records of its newest state" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "s3://b", "--option", "a=b,c=d"), "--option takes one NAME=VALUE"),
        (("--deep",), "--option, --deep and --delete-orphans need --from"),
        (("--from", "file://{}"), "does not have all partitions of __remote_log_metadata"),
    ],
)
def test_what_cannot_be_checked(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    with Broker(data_dir=str(tmp_path / "data")):
        pass
    done = NOWHERE("log", "check", str(tmp_path / "data"), *(each.format(tmp_path) for each in options))
    assert (done.status != 0, said in done.err) == (True, True), done.err
