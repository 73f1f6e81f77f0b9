"""The copies of a broker's state that stay in the store, and the moment that a copy shows."""

from __future__ import annotations

from kbroker.remote.object_client import StoredObject
from kbroker.restore.state_copies import superfluous

MINUTE_MS = 60_000
DAY_MS = 1440 * MINUTE_MS


def test_a_copy_of_the_day_before_stays() -> None:
    """A copy each minute for three days: a few stay, among them the two newest, and one that is 24 to 48 hours old."""
    kept: list[StoredObject] = []
    for minute in range(3 * 1440):
        now_ms = minute * MINUTE_MS
        kept.append(StoredObject(f"{now_ms:013}", 1, now_ms))
        gone = set(superfluous(kept, now_ms))
        kept = [each for each in kept if each.name not in gone]
        ages = [now_ms - each.modified_ms for each in kept]
        assert len(kept) <= 4
        assert sorted(ages)[:2] == [0, MINUTE_MS][: minute + 1]
        if minute > 2 * 1440:
            assert any(DAY_MS <= age <= 2 * DAY_MS for age in ages)


def test_a_long_silence_removes_nothing_that_is_needed() -> None:
    old = [StoredObject(str(number), 1, number) for number in range(3)]
    now_ms = 30 * DAY_MS
    assert superfluous([*old, StoredObject("new", 1, now_ms)], now_ms) == ["0", "1"]
    assert superfluous(old[:1], now_ms) == []
