"""`kbroker registry`, and the address of a registry for other brokers of a cluster."""

from __future__ import annotations

import socket

import pytest

from kbroker.cli.beside import RegistryPlace
from kbroker.config.listeners import own_host_name
from tests.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("listens", "advertised", "host"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, own_host_name()),
        ("0.0.0.0", ("registry.example", 80), "registry.example"),
    ],
)
def test_the_address_for_other_brokers(listens: str, advertised: tuple[str, int] | None, host: str) -> None:
    with socket.create_server((listens, 0)) as made:
        port = made.getsockname()[1] if advertised is None else advertised[1]
        assert RegistryPlace(made, advertised).url_for_others == f"http://{host}:{port}"


def test_what_is_refused(cli: CommandLine) -> None:
    assert "--listen takes HOST:PORT" in cli.fails("registry", "--listen", "8081")
    line = cli.fails("registry", "--listen", "0.0.0.0:0")
    assert "others than this machine could reach it, and everybody could register and delete schemas" in line
    cli.ok("topic", "create", "_schemas", "--partitions", "2")
    line = cli.fails("registry", "--listen", "127.0.0.1:0")
    assert line == "topic _schemas has 2 partitions; a registry needs one, which orders all changes"
    cli.ok("topic", "delete", "_schemas", "--yes")


def test_an_advertised_address_without_a_registry(cli: CommandLine) -> None:
    line = cli.fails("start", "--registry-advertised", "127.0.0.1:8081")
    assert "--registry-advertised has no effect without --registry" in line
