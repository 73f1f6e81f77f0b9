"""Sockets of simulated processes, beside what a kernel does with them."""

from __future__ import annotations

from random import Random

from tests.simulation.loop import SimLoop
from tests.simulation.network import Network


def test_a_number_that_a_dying_process_knows_is_nobody_elses() -> None:
    loop = SimLoop()
    network = loop.network = Network(loop, Random(1))
    known = network.bind("broker1", 9092, None).fileno()
    network.vanish("broker1")
    other = network.bind("broker2", 9092, None)
    loop.add_reader(other.fileno(), print)
    loop.remove_reader(known)  # as a connection of it does that is ended last
    assert other.reader is not None
    network.vanish("broker1")
    network.reuse_fds("broker1")
    assert network.bind("broker1", 9092, None).fileno() == known
    loop.close()
