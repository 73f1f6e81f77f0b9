"""How long a full socket is retried, with a fake clock."""

from __future__ import annotations

from itertools import pairwise

from kbroker.network.outbox import ASKED_FOR, MOST_PASSED_OVER, Patience

END = 1000.0


def ask_until_it_ends(patience: Patience, at: float, end: float = END, *, crowded: bool = False) -> float:
    """Retry a socket that stays full, every us; return for how long."""
    began = at
    while patience.lasts(at, end, crowded=crowded):
        at += 0.000_001
    return at - began


def test_a_full_socket_is_asked_for_a_while() -> None:
    assert ASKED_FOR - 1e-6 < ask_until_it_ends(Patience(), 1.0) < ASKED_FOR + 2e-6


def test_the_while_begins_again_with_each_time_that_it_took_something() -> None:
    patience, at = Patience(), 1.0
    for _ in range(100):
        assert patience.lasts(at, END, crowded=False)
        at += ASKED_FOR * 0.9
        patience.took(at)
    assert patience.lasts(at, END, crowded=False)


def test_what_was_in_vain_is_tried_less_and_less_often() -> None:
    patience = Patience()
    asked = [n for n in range(400) if ask_until_it_ends(patience, 1.0 + n)]
    passed_over = [later - earlier - 1 for earlier, later in pairwise(asked)]
    assert passed_over[:7] == [1, 3, 7, 15, 31, MOST_PASSED_OVER, MOST_PASSED_OVER]


def test_a_client_that_takes_again_is_asked_each_time_again() -> None:
    patience = Patience()
    for n in range(100):
        ask_until_it_ends(patience, 1.0 + n)
    while not patience.lasts(200.0, END, crowded=False):
        pass
    patience.took(200.0)
    for n in range(20):
        assert patience.lasts(300.0 + n, END, crowded=False)
        patience.took(300.0 + n)
    assert ask_until_it_ends(patience, 400.0)
    assert not ask_until_it_ends(patience, 401.0), "one is passed over"
    assert ask_until_it_ends(patience, 402.0)


def test_nobody_is_waited_for_while_others_wait() -> None:
    patience = Patience()
    for n in range(10):
        assert not ask_until_it_ends(patience, 1.0 + n, crowded=True)
    assert ask_until_it_ends(patience, 20.0), "which says nothing of the client"


def test_the_end_of_the_slice_says_nothing_of_the_client() -> None:
    patience = Patience()
    for n in range(10):
        assert 0 < ask_until_it_ends(patience, 1.0 + n, 1.0 + n + ASKED_FOR / 2) < ASKED_FOR


def test_it_says_for_how_long_it_was_asked() -> None:
    patience = Patience()
    assert patience.lasts(1.0, END, crowded=False)
    patience.took(1.25)
    assert patience.lasts(2.0, END, crowded=False)
    assert not patience.lasts(2.5, END, crowded=False)
    assert not patience.lasts(3.0, END, crowded=True)
    assert patience.asked_s == 0.75
