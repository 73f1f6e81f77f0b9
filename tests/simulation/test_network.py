"""Sockets of simulated processes, compared with a kernel's."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

from tests.simulation.loop import SimLoop
from tests.simulation.network import Network, Pipe, Socket


def test_a_number_that_a_dying_process_knows_is_nobody_elses() -> None:
    loop = SimLoop()
    network = loop.network = Network(loop, Random(1))
    known = network.bind("broker1", 9092, None).fileno()
    network.vanish("broker1")
    other = network.bind("broker2", 9092, None)
    loop.add_reader(other.fileno(), print)
    loop.remove_reader(known)  # as the last connection to be closed does
    assert other.reader is not None
    network.vanish("broker1")
    network.reuse_fds("broker1")
    assert network.bind("broker1", 9092, None).fileno() == known
    loop.close()


def test_nobody_is_told_of_a_socket_that_went_with_its_process() -> None:
    loop = SimLoop()
    network = loop.network = Network(loop, Random(1))
    there, back = Pipe(network, "client", "broker1"), Pipe(network, "broker1", "client")
    sock = Socket(network, back, there, "broker1", ("client", 1))
    loop.add_reader(sock.fileno(), print)
    sock.was_reset()
    network.vanish("broker1")
    ready: deque[asyncio.Handle] = deque()
    network.poll(ready)
    assert not ready
    loop.close()
