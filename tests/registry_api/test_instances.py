"""Several registries beside one Kafka, and their ends: ids are dense and unique, and no acknowledged schema is lost."""

from __future__ import annotations

import random
import signal
import socket
from pathlib import Path

import pytest

from tests.registry_api.beside import Clients, Process, ended
from tests.registry_api.conftest import Http
from tests.tries import FORM


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def instances(directory: Path, bootstrap: str, count: int = 3) -> list[tuple[Process, str]]:
    """Return registries that do not run yet, with their addresses."""
    made = []
    for number in range(count):
        port = free_port()
        arguments = ("registry", "--bootstrap", bootstrap, "--listen", f"127.0.0.1:{port}")
        made.append((Process(directory, f"registry{number}", *arguments), f"http://127.0.0.1:{port}"))
    return made


def broker_at(directory: Path) -> tuple[Process, str]:
    """Return a broker that does not run yet, with its address."""
    at = f"127.0.0.1:{free_port()}"
    arguments = ("start", "--dev", "--listen", at, "--data-dir", str(directory / "data"))
    return Process(directory, "broker", *arguments), at


def tortured(directory: Path, kills: int, seed: int) -> None:
    """Kill registries and the broker repeatedly, while clients register."""
    chance = random.Random(seed)
    broker, at = broker_at(directory)
    made = instances(directory, at)
    urls = [url for _, url in made]
    with ended(broker, *(process for process, _ in made)):
        broker.start()
        for process, _ in made:
            process.start()
        with Clients(urls, 6) as clients:
            clients.wait_for(20)
            for number in range(kills):
                victim = broker if number % 4 == 1 else made[chance.randrange(len(made))][0]
                victim.kill()
                if victim is not broker:
                    clients.wait_for(10)  # the others continue
                victim.start()
                clients.wait_for(10)
        clients.judge(urls)
        for process, _ in made:
            status, took = process.end()
            assert status == 0
            assert took < 5  # the machine may be busy


@pytest.mark.long
def test_ids_are_dense_and_unique_with_three_instances(tmp_path: Path) -> None:
    broker, at = broker_at(tmp_path)
    made = instances(tmp_path, at)
    urls = [url for _, url in made]
    with ended(broker, *(process for process, _ in made)):
        broker.start()
        for process, _ in made:
            process.start()
        with Clients(urls, 6) as clients:
            clients.wait_for(150 if FORM == "long" else 40)
        assert not clients.refused
        clients.judge(urls)


@pytest.mark.long
def test_instances_and_the_broker_are_killed(tmp_path: Path) -> None:
    tortured(tmp_path, kills=2, seed=1)


@pytest.mark.skipif(FORM != "long", reason="a minute and a half of kills: only with KBROKER_TESTS=long")
def test_instances_and_the_broker_are_killed_often(tmp_path: Path) -> None:
    tortured(tmp_path, kills=40, seed=2)


@pytest.mark.long
def test_it_ends_at_once_also_without_its_kafka(tmp_path: Path) -> None:
    broker, at = broker_at(tmp_path)
    ((process, url),) = instances(tmp_path, at, 1)
    with ended(broker, process):
        broker.start()
        process.start()
        assert Http(url).ok("GET", "/subjects") == []
        broker.kill()
        status, took = process.end(signal.SIGTERM)
        assert status == 0
        assert took < 5


def test_it_does_not_start_without_kafka(tmp_path: Path) -> None:
    ((process, _),) = instances(tmp_path, "127.0.0.1:1", 1)
    with ended(process), pytest.raises(AssertionError, match="no broker answers at"):
        process.start()
    assert process.log().count("\n") == 1
