"""New connections per second: of an address, of a listener, of the broker."""

from __future__ import annotations

import pytest

from kbroker.quota.connection_rate import UNLIMITED, ConnectionRates, canonical
from kbroker.quota.rate import Window

WINDOW = Window(11, 1000)


class World:
    def __init__(self):
        self.now = 50_000.0
        self.rates = ConnectionRates(lambda: self.now, WINDOW)

    def comes(self, host="10.0.0.1"):
        return self.rates.refused_ms(host, "PLAINTEXT", protected=False)


def test_nothing_is_limited_at_first():
    world = World()
    assert not world.rates.active
    assert [world.comes() for _ in range(1000)] == [0] * 1000
    assert world.rates.pause_ms("PLAINTEXT", protected=False) == 0
    world.rates.limit_all({"": UNLIMITED})
    assert not world.rates.active


def test_an_address_has_ten_seconds_worth_at_once_and_is_refused_then():
    world = World()
    world.rates.limit_ip("10.0.0.1", 2.0)
    assert world.rates.active
    told = [world.comes() for _ in range(25)]
    assert told[:20] == [0] * 20
    assert told[20:] == [500] * 5  # (2.1 - 2) / 2 of ten seconds; refused ones do not count
    assert world.comes("10.0.0.2") == 0
    world.now += 11_000
    assert world.comes() == 0
    world.rates.limit_ip("10.0.0.1", None)
    assert not world.rates.active
    assert [world.comes() for _ in range(100)] == [0] * 100


def test_a_connection_is_held_for_one_sample_at_most():
    world = World()
    world.rates.limit_ip(None, 0.01)
    assert world.comes() == 1000


def test_the_default_is_for_each_address_without_a_limit_of_its_own():
    world = World()
    world.rates.limit_ip(None, 1.0)
    world.rates.limit_ip("10.0.0.1", 3.0)
    assert sum(not world.comes() for _ in range(50)) == 30
    assert sum(not world.comes("10.0.0.2") for _ in range(50)) == 10
    assert sum(not world.comes("10.0.0.3") for _ in range(50)) == 10


def test_a_broker_waits_and_counts_all():
    world = World()
    world.rates.limit_all({"": 1, "EXTERNAL": 2})
    assert [world.rates.pause_ms("PLAINTEXT", protected=False) for _ in range(11)] == [0] * 10 + [1000]
    # The inter-broker listener has only its own limit.
    assert world.rates.pause_ms("PLAINTEXT", protected=True) == 0
    assert world.rates.pause_ms("EXTERNAL", protected=True) == 0


def test_what_its_address_keeps_out_does_not_count_for_the_broker():
    world = World()
    world.rates.limit_all({"": 1})
    world.rates.limit_ip(None, 0.1)
    for _ in range(9):
        assert world.rates.pause_ms("PLAINTEXT", protected=False) == 0
        world.comes()
    assert [world.rates.pause_ms("PLAINTEXT", protected=False) for _ in range(9)] == [0] * 9


def test_no_connection_at_all():
    world = World()
    world.rates.limit_all({"": 0})
    assert world.rates.pause_ms("PLAINTEXT", protected=False) == 1000


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("a host", "a host"),
    ],
)
def test_addresses_have_one_form(host, known):
    assert canonical(host) == known
