"""`kbroker registry`, and its address for the other brokers of a cluster."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kbroker.admin.schemas import SchemaRegistry
from kbroker.cli.registry_place import RegistryOptions, RegistryPlace
from kbroker.config.listeners import own_host_name
from kbroker.local_http import NoPlace
from tests.cli.conftest import CommandLine
from tests.cli.test_start_control import started


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
        assert RegistryPlace(made, RegistryOptions(advertised)).url_for_others == f"http://{host}:{port}"
        with_tls = RegistryPlace(made, RegistryOptions(advertised, ("cert", "key")))
        assert with_tls.url_for_others == with_tls.url_for_console == f"https://{host}:{port}"


def test_what_is_refused(cli: CommandLine) -> None:
    assert "--listen takes HOST:PORT" in cli.fails("registry", "--listen", "8081")
    line = cli.fails("registry", "--listen", "0.0.0.0:0")
    assert "other machines could reach it, and everybody could register and delete schemas" in line
    cli.ok("topic", "create", "_schemas", "--partitions", "2")
    line = cli.fails("registry", "--listen", "127.0.0.1:0")
    assert line == "topic _schemas has 2 partitions; a registry needs one, which orders all changes"
    cli.ok("topic", "delete", "_schemas", "--yes")


def test_an_advertised_address_without_a_registry(cli: CommandLine) -> None:
    line = cli.fails("start", "--registry-advertised", "127.0.0.1:8081")
    assert "--registry-advertised has no effect without --registry" in line


def test_what_has_no_effect_without_a_registry(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("cert", "dev", str(tmp_path))
    for name, value in (("tls-cert", "server.pem"), ("tls-key", "server.pem"), ("ca", "ca.crt")):
        line = cli.fails("start", "--memory", f"--registry-{name}", str(tmp_path / value))
        assert "has no effect without --registry" in line or "go together" in line


def test_certificates_that_cannot_be_used(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("cert", "dev", str(tmp_path))
    pem, nothing = str(tmp_path / "server.pem"), str(tmp_path / "nothing.pem")
    start = ("start", "--memory", "--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0")
    line = cli.fails(*start, "--registry-tls-cert", pem)
    assert "--registry-tls-cert and --registry-tls-key go together" in line
    line = cli.fails(*start, "--registry-tls-cert", pem, "--registry-tls-key", nothing)
    assert "no such file or directory" in line
    assert "--registry-ca" in cli.fails(*start, "--registry-ca", nothing)
    line = cli.fails("registry", "--listen", "127.0.0.1:0", "--tls-key", pem)
    assert "--tls-cert and --tls-key go together" in line


@pytest.mark.long
def test_a_broker_with_a_registry_over_tls_and_a_console(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("cert", "dev", str(tmp_path))
    pem, ca = str(tmp_path / "server.pem"), str(tmp_path / "ca.crt")
    options = ["--registry", "127.0.0.1:0", "--registry-tls-cert", pem, "--registry-tls-key", pem, "--registry-ca", ca]
    with started(tmp_path, *options, "--console", "127.0.0.1:0") as (process, ready):
        assert ready["registry"].startswith("https://127.0.0.1:")
        registry = SchemaRegistry(ready["registry"], ca)
        registry.ask("POST", "subjects", "of-the-test", "versions", body={"schema": '"string"'})
        with urllib.request.urlopen(f"{ready['console']}/subjects", timeout=20) as answer:
            assert b"of-the-test" in answer.read()
        assert "of-the-test" in cli.ok("schema", "list", "--registry", ready["registry"], "--ca", ca).text
        with pytest.raises(urllib.error.URLError), urllib.request.urlopen(ready["registry"], timeout=20):
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err


def test_a_registry_that_asks_for_a_login(cli: CommandLine, tmp_path: Path) -> None:
    user = "SCRAM-SHA-256=[name=alice,password=secret]"
    options = ["--add-scram", user, "--registry", "127.0.0.1:0", "--registry-auth", "basic", "--console", "127.0.0.1:0"]
    with started(tmp_path, *options) as (process, ready):
        at = ready["registry"]
        assert "Unauthorized (401)" in cli.fails("schema", "list", "--registry", at)
        cli.ok("schema", "list", "--registry", at.replace("//", "//alice:secret@"))
        with urllib.request.urlopen(ready["console"], timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert b"the console has no pages of the schema registry" in err


def test_passwords_do_not_cross_a_network_in_the_clear(cli: CommandLine, tmp_path: Path) -> None:
    start = ("start", "--memory", "--listen", "127.0.0.1:0", "--registry", "0.0.0.0:0")
    assert "everybody could register and delete schemas" in cli.fails(*start)
    assert "passwords would cross the network in the clear" in cli.fails(*start, "--registry-auth", "BASIC")
    assert "--registry-auth has no effect without --registry" in cli.fails("start", "--registry-auth", "BASIC")
    cli.ok("cert", "dev", str(tmp_path))
    tls = RegistryOptions.of(
        registry_tls_cert=str(tmp_path / "server.pem"),
        registry_tls_key=str(tmp_path / "server.pem"),
        registry_auth="BASIC",
    )
    with (
        tls.listening("0.0.0.0", 0, public=False),
        RegistryOptions.of(registry_auth="BASIC").listening("0.0.0.0", 0, public=True),
    ):
        pass
    without_login = RegistryOptions(tls=tls.tls)
    with pytest.raises(NoPlace):
        without_login.listening("0.0.0.0", 0, public=False)
