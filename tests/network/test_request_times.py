"""Which requests are timed, and what is kept of their times."""

from __future__ import annotations

from kbroker.network.request_times import FETCH, KEPT, OFTEN, RequestTimes


class Asker:
    def __init__(self, *, follows: bool = False) -> None:
        self.follows = follows


class Work:
    since = 0.0


def frame(key: int) -> memoryview:
    return memoryview(key.to_bytes(2, "big") + bytes(8))


def test_one_in_so_many_is_due_after_each() -> None:
    times = RequestTimes()
    times.sample(frame(3), Asker(), None, 1.0, 1.5)
    assert times.due == OFTEN - 1
    assert list(times.took[3]) == [0.5]


def test_what_waits_is_taken_when_it_is_answered() -> None:
    times, work = RequestTimes(), Work()
    times.sample(frame(11), Asker(), work, 2.0, 2.1)
    assert work.since == 2.0
    assert not times.took


def test_a_frame_without_a_key_is_none() -> None:
    times = RequestTimes()
    times.sample(memoryview(b"\0"), Asker(), None, 1.0, 2.0)
    assert not times.took


def test_followers_are_told_from_consumers() -> None:
    times = RequestTimes()
    times.note(FETCH, Asker(follows=True), 1.0)
    times.note(FETCH, Asker(), 2.0)
    assert list(times.took[FETCH]) == [1.0, 2.0]
    assert (list(times.took_followers), list(times.took_consumers)) == ([1.0], [2.0])


def test_the_latest_are_kept() -> None:
    times = RequestTimes()
    for number in range(KEPT + 5):
        times.note(0, Asker(), float(number))
    assert list(times.took[0]) == [float(number) for number in range(5, KEPT + 5)]


def test_a_tally_outlives_who_counts() -> None:
    times = RequestTimes()
    times.tally(0, 9).requests += 3
    assert times.tally(0, 9).requests == 3
