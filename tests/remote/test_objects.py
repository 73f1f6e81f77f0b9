"""Segments as objects: what is written comes back, and every lie of an object is seen."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import subprocess
import sys
import time

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.remote.object_client import PART_BYTES
from kbroker.remote.object_format import (
    FOOTER_BYTES,
    VERSION,
    Layout,
    ObjectName,
    Part,
    epochs_bytes,
    folder_of,
    parse_object_name,
    read_epochs_bytes,
    read_footer,
)
from kbroker.remote.segment_objects import FilePart, SegmentObject, write_segment
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_errors import DamagedObjectError, ObjectExistsError, StoreError, WrongLengthError
from tests.tries import tries

ID = bytes(range(16))
NAME = ObjectName(bytes(range(16, 32)), 3, 12345, ID).text("tiers")
PARTS = {
    Part.LOG: b"log" * 1000,
    Part.OFFSET_INDEX: b"offsets",
    Part.TIME_INDEX: b"times",
    Part.PRODUCER_SNAPSHOT: b"producers",
    Part.LEADER_EPOCHS: epochs_bytes([(0, 0), (4, 100)]),
}


def memory() -> Store:
    return open_store("memory://", deadline_s=20)


async def read_all(found: SegmentObject) -> dict[Part, bytes]:
    return {part: await found.whole(part) for part in Part}


@settings(max_examples=tries(40))
@given(st.dictionaries(st.sampled_from(Part), st.binary(max_size=2000)))
def test_parts_come_back_whole_and_in_ranges(parts):
    async def scenario():
        store = memory()
        layout = await write_segment(store, NAME, ID, parts)
        found = await SegmentObject.open(store, NAME, ID)
        assert found.layout == layout
        assert (await SegmentObject.open(store, NAME, ID, footer=layout.footer())).layout == layout
        assert await read_all(found) == {part: parts.get(part, b"") for part in Part}
        assert (await store.head(NAME)).size == layout.object_bytes
        for part, data in parts.items():
            for start in range(0, len(data), 501):
                assert bytes(await found.read(part, start, min(7, len(data) - start))) == data[start : start + 7]
            for start, size in ((0, len(data) + 1), (len(data), 1), (-1, 1), (0, 0)):
                with pytest.raises(ValueError, match="a range of"):
                    await found.read(part, start, size)

    asyncio.run(scenario())


def test_a_large_log_goes_from_its_file_in_pieces(tmp_path):
    log = tmp_path / "log"
    data = random.Random(1).randbytes(PART_BYTES * 2 + 777)
    log.write_bytes(data + b"what was appended since")
    (tmp_path / "store").mkdir()

    async def scenario():
        store = open_store(f"file://{tmp_path}/store", deadline_s=20)
        await write_segment(store, NAME, ID, {Part.LOG: FilePart(str(log), len(data)), Part.TIME_INDEX: b"t"})
        found = await SegmentObject.open(store, NAME, ID)
        pieces = [bytes(piece) async for piece in found.pieces(Part.LOG)]
        assert b"".join(pieces) == data
        assert [len(piece) for piece in pieces] == [PART_BYTES, PART_BYTES, 777]
        assert bytes(await found.read(Part.LOG, PART_BYTES - 3, 9)) == data[PART_BYTES - 3 : PART_BYTES + 6]

    asyncio.run(scenario())


def test_the_loops_thread_has_little_to_do_meanwhile(tmp_path):
    """Its own processor time counts, so that a busy machine does no harm."""
    size = 32 << 20
    log = tmp_path / "log"
    log.touch()
    os.truncate(log, size)  # a hole, which takes no room
    (tmp_path / "store").mkdir()
    longest = 0.0

    async def watch():
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    async def scenario():
        store = open_store(f"file://{tmp_path}/store", deadline_s=20)
        watching = asyncio.ensure_future(watch())
        await write_segment(store, NAME, ID, {Part.LOG: FilePart(str(log), size)})
        found = await SegmentObject.open(store, NAME, ID)
        assert [len(piece) async for piece in found.pieces(Part.LOG)] == [PART_BYTES] * 4
        watching.cancel()

    asyncio.run(scenario())
    assert 0 < longest < 0.02


LARGE = 96 << 20
WRITE_AND_TELL_PEAK = """
import asyncio, resource, sys
from kbroker.remote.object_format import Part
from kbroker.remote.segment_objects import FilePart, write_segment
from kbroker.remote.store import open_store

async def main():
    store = open_store(sys.argv[1], deadline_s=60)
    await store.put("first", [b"1"], 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await write_segment(store, "large", bytes(16), {Part.LOG: FilePart(sys.argv[2], int(sys.argv[3]))})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


def test_a_segment_is_never_in_memory_as_a_whole(tmp_path):
    log = tmp_path / "log"
    log.touch()
    os.truncate(log, LARGE)  # a hole, which takes no room
    (tmp_path / "store").mkdir()
    command = [sys.executable, "-c", WRITE_AND_TELL_PEAK, f"file://{tmp_path}/store", str(log), str(LARGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) << 10 < LARGE / 2, "kB at the peak"
    (tmp_path / "store" / "large").unlink()


@pytest.mark.asyncio
async def test_a_file_that_is_too_short_or_absent_leaves_no_object(tmp_path):
    store = memory()
    log = tmp_path / "log"
    log.write_bytes(b"short")
    with pytest.raises(WrongLengthError, match="log has 5 bytes, not 6"):
        await write_segment(store, NAME, ID, {Part.LOG: FilePart(str(log), 6)})
    with pytest.raises(FileNotFoundError):
        await write_segment(store, NAME, ID, {Part.LOG: FilePart(str(tmp_path / "none"), 6)})
    assert [each async for each in store.list("")] == []
    await write_segment(store, NAME, ID, PARTS)
    with pytest.raises(ObjectExistsError):
        await write_segment(store, NAME, ID, PARTS)


async def stored(store: Store) -> bytes:
    size = (await store.head(NAME)).size
    return bytes(await store.get(NAME, 0, size))


async def replaced(data: bytes) -> Store:
    store = memory()
    await store.put(NAME, [data], len(data))
    return store


@settings(max_examples=tries(200))
@given(st.data())
def test_every_damage_is_seen_at_the_latest_when_all_is_read(data):
    async def scenario():
        store = memory()
        await write_segment(store, NAME, ID, PARTS)
        whole = await stored(store)
        damaged = damage(data, whole)
        if damaged == whole:
            return
        store = await replaced(damaged)
        with pytest.raises(StoreError) as seen:
            await read_all(await SegmentObject.open(store, NAME, ID))
        assert isinstance(seen.value, DamagedObjectError)
        assert str(seen.value).startswith(NAME)
        assert "\n" not in str(seen.value)

    asyncio.run(scenario())


def damage(data: st.DataObject, whole: bytes) -> bytes:
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        at = len(whole) - 1 - at % FOOTER_BYTES
    how = data.draw(st.sampled_from(["change", "cut", "drop", "insert", "append"]))
    some = data.draw(st.binary(min_size=1, max_size=120))
    if how == "change":
        return whole[:at] + some[:1] + whole[at + 1 :]
    if how == "cut":
        return whole[:at] or b"\0"
    if how == "drop":
        return whole[:at] + whole[at + 1 :]
    return whole[:at] + some + whole[at:] if how == "insert" else whole + some


@pytest.mark.asyncio
async def test_each_lie_has_a_line_of_its_own():
    layout = await write_segment(memory(), NAME, ID, PARTS)
    footer = layout.footer()
    for changed, size, segment_id, why in [
        (footer[:-1], None, ID, "a footer of 99 bytes, not 100"),
        (footer[:-1] + b"X", None, ID, "no segment ends here"),
        (with_version(footer, VERSION + 1), None, ID, "format version 2, and only 1 is known"),
        (b"\1" + footer[1:], None, ID, "the footer has another CRC32C"),
        (footer, None, bytes(16), "is that of segment AAECAwQFBgcICQoLDA0ODw, not AAAAAAAAAAAAAAAAAAAAAA"),
        (footer, layout.object_bytes + 1, ID, "bytes, and its footer says"),
        (sealed(b"\xff" * 8 + footer[8:-8]), None, ID, "impossible parts"),
    ]:
        with pytest.raises(DamagedObjectError, match=why):
            read_footer(changed, size, segment_id)
    store = await replaced(b"too short")
    with pytest.raises(DamagedObjectError, match=f"{NAME} in memory://: 9 bytes are too few for a segment"):
        await SegmentObject.open(store, NAME, ID)
    lying = Layout(ID, layout.lengths, (1, *layout.checksums[1:]))
    store = memory()
    await write_segment(store, NAME, ID, PARTS)
    with pytest.raises(DamagedObjectError, match="LOG has another CRC32C than the footer says"):
        await SegmentObject(store, NAME, lying).whole(Part.LOG)


def sealed(body: bytes) -> bytes:
    return body + struct.pack(">I", crc32c(body)) + b"KBTS"


def with_version(footer: bytes, version: int) -> bytes:
    return sealed(footer[:-12] + struct.pack(">H", version) + footer[-10:-8])


def test_a_footer_fits_into_kafkas_custom_metadata():
    assert FOOTER_BYTES == 100 <= 128


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.binary(min_size=16, max_size=16),
    st.sampled_from(["", "a", "/a/b/"]),
)
def test_names_say_whose_segment_it_is(topic_id, partition, base, segment_id, prefix):
    name = ObjectName(topic_id, partition, base, segment_id)
    assert parse_object_name(name.text(prefix)) == name
    assert name.text(prefix).startswith(folder_of(topic_id, partition, prefix) + "/")
    assert parse_object_name(name.text(prefix) + "x") is None


def test_the_name_is_the_documented_one():
    assert NAME == "tiers/EBESExQVFhcYGRobHB0eHw/3/00000000000000012345-AAECAwQFBgcICQoLDA0ODw"
    assert parse_object_name("tiers/x/3/00000000000000012345-AAECAwQFBgcICQoLDA0ODw") is None


def test_leader_epochs_are_in_kafkas_form():
    assert epochs_bytes([(0, 0), (4, 100)]) == b"0\n2\n0 0\n4 100\n"
    assert read_epochs_bytes(b"0\n2\n0 0\n4 100\n") == [(0, 0), (4, 100)]
    for bad in (b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\n0 x\n", b"\xff"):
        with pytest.raises(DamagedObjectError):
            read_epochs_bytes(bad)
