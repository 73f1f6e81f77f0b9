"""The reading of a schedule topic's log: no record is read in one piece with another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.append_info import COORDINATOR
from kbroker.long_work import step, whole
from kbroker.protocol.compression import GZIP
from kbroker.protocol.records import build_batch
from kbroker.schedules.marks import Begin, Done, Due, build_marks
from kbroker.scheduling import reading
from kbroker.scheduling.index import Event, Lane, Marked, Positions, Put
from kbroker.scheduling.reading import Context, read_events
from tests.log.builders import NOW, open_log
from tests.scheduling.world import CONFIG


@pytest.mark.parametrize("codec", [0, GZIP])
def test_other_work_has_a_turn_after_each_record(tmp_path: Path, codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, config=replace(CONFIG, segment_bytes=1 << 20))
    log.append_as_leader(bytearray(build_marks([Begin("a", is_change=True)], NOW)), 0, NOW, origin=COORDINATOR)
    headers = (("x-delay", b"5"), *[("h", b"1")] * 900)
    log.append_as_leader(
        bytearray(build_batch([(NOW, None, b"v", headers)] * 20, codec=codec)), 0, NOW, origin=COORDINATOR
    )
    log.set_high_watermark(log.log_end_offset)
    taken = 0
    take = reading.take_record

    def counted(*args: Any) -> None:
        nonlocal taken
        taken += 1
        take(*args)

    monkeypatch.setattr(reading, "take_record", counted)
    found: list[Event] = []

    async def read() -> None:
        context = Context(b"salt", {}, lambda _topic: 1, 1 << 20)
        async for events, _ in read_events(log, Positions(), log.last_stable_offset, context):
            found.extend(events)

    work = read()
    pieces: list[int] = []
    while not step(work):
        pieces.append(taken)
        taken = 0
    log.close()
    assert len([each for each in found if isinstance(each, Put)]) == 20
    assert max([*pieces, taken]) == 1


@pytest.mark.parametrize("codec", [0, GZIP])
def test_a_damaged_batch_is_left_out(tmp_path: Path, codec: int) -> None:
    """Its times and targets may be other ones than those that were acknowledged."""
    log = open_log(tmp_path, config=replace(CONFIG, segment_bytes=1 << 20))
    log.append_as_leader(bytearray(build_marks([Begin("a", is_change=True)], NOW)), 0, NOW, origin=COORDINATOR)
    places = []
    for _ in range(3):
        places.append(log.segments.size)
        batch = build_batch([(NOW, None, b"v", (("x-deliver-at", b"%d" % (NOW + 5)),))], codec=codec)
        log.append_as_leader(bytearray(batch), 0, NOW, origin=COORDINATOR)
    places.append(log.segments.size)
    done = build_marks([Done(1, following=(Due(1, NOW + 7),))], NOW)
    log.append_as_leader(bytearray(done), 0, NOW, origin=COORDINATOR)
    log.set_high_watermark(log.log_end_offset)
    path = Path(log.segments[0].path())
    data = bytearray(path.read_bytes())
    data[places[2] - 3] ^= 1  # in the second record
    data[-3] ^= 1  # in the time of the last mark
    path.write_bytes(data)
    found: list[Event] = []
    context = Context(b"salt", {}, lambda _topic: 1, 1 << 20)

    async def read() -> None:
        async for events, _ in read_events(log, Positions(), log.last_stable_offset, context):
            found.extend(events)

    whole(read())
    log.close()
    assert [each.offset for each in found if isinstance(each, Put)] == [1, 3]
    assert [each for each in found if isinstance(each, Marked)] == []
    assert context.unreadable == 1


@pytest.mark.parametrize("codec", [0, GZIP])
def test_the_records_of_a_very_large_batch_are_replayed_in_pieces(
    tmp_path: Path, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes 3,000,000 events held the event loop for 1.7 s. A replay can begin again after each piece."""
    monkeypatch.setattr(reading, "_AT_ONCE", 10)
    log = open_log(tmp_path, config=replace(CONFIG, segment_bytes=1 << 20))
    log.append_as_leader(bytearray(build_marks([Begin("a", is_change=True)], NOW)), 0, NOW, origin=COORDINATOR)
    rows = [(NOW, b"%d" % number, None if number % 3 else b"v", (("x-delay", b"5"),)) for number in range(95)]
    rows = [(*row[:3], row[3] if row[2] else ()) for row in rows]
    log.append_as_leader(bytearray(build_batch(rows, codec=codec)), 0, NOW, origin=COORDINATOR)
    log.set_high_watermark(log.log_end_offset)
    pieces: list[tuple[list[Event], Positions]] = []

    async def read(at: Positions) -> None:
        context = Context(b"salt", {Lane("a", -1): 0, Lane("a", 0): 0}, lambda _topic: 1, 1 << 20)
        pieces.extend([piece async for piece in read_events(log, at, log.last_stable_offset, context)])

    whole(read(Positions()))
    whole_story = list(pieces)
    assert [len(events) for events, _ in whole_story] == [10] * 9 + [5]
    assert [at.records_to for _, at in whole_story] == [*range(11, 96, 10), 96]
    assert all(at.marks_to == at.records_to and at.epoch == 0 for _, at in whole_story)
    for number in (0, 4, 8):
        pieces.clear()
        whole(read(whole_story[number][1]))
        assert pieces == whole_story[number + 1 :]
    log.close()
