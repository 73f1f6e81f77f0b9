"""The ZooKeeper that the launcher starts, and the way to its jars."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kbroker.launcher.child import LauncherError, wait_until
from kbroker.launcher.plan import free_ports
from kbroker.launcher.zookeeper import (
    HOST,
    POM,
    JarsMissing,
    ZooKeeperServer,
    config_text,
    fetch_jars,
    kept,
    zookeeper_jars,
)

DEADLINE_S = 60.0


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a directory with all programs that there are, and let the cache of jars be empty."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return programs


def program(directory: Path, name: str, script: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    file.chmod(0o755)


COPY = 'for each in "$@"; do case $each in -DoutputDirectory=*) out=${each#*=};; esac; done\nmkdir -p "$out"'


def test_what_is_not_installed_is_said_in_a_line(alone: Path) -> None:
    with pytest.raises(
        JarsMissing, match=r"^java and mvn must be installed to start a ZooKeeper; --zookeeper HOST:PORT"
    ):
        zookeeper_jars()
    program(alone, "java", "")
    with pytest.raises(JarsMissing, match=r"^mvn must be installed"):
        zookeeper_jars()


def test_jars_are_fetched_once_and_then_need_no_maven(alone: Path, tmp_path: Path) -> None:
    program(alone, "java", "")
    program(alone, "mvn", f'{COPY}\necho once >> {tmp_path}/runs\ntouch "$out/zookeeper.jar"')
    jars = zookeeper_jars()
    assert [each.name for each in jars.iterdir()] == ["zookeeper.jar"]
    assert jars == kept(POM, tmp_path / "cache" / "kbroker")
    (alone / "mvn").unlink()
    assert zookeeper_jars() == jars
    assert (tmp_path / "runs").read_text() == "once\n"


def test_what_maven_says_is_told_and_nothing_is_kept(alone: Path, tmp_path: Path) -> None:
    program(alone, "mvn", f'{COPY}\ntouch "$out/half.jar"\necho "[ERROR] no such artifact"\nexit 1')
    with pytest.raises(JarsMissing, match=r"Maven could not fetch zookeeper.xml: \[ERROR\] no such artifact"):
        fetch_jars(POM, tmp_path / "jars")
    program(alone, "mvn", COPY)
    with pytest.raises(JarsMissing, match="could not fetch"):
        fetch_jars(POM, tmp_path / "jars")
    assert not kept(POM, tmp_path / "jars").exists()


def test_a_fetch_can_be_given_up(alone: Path, tmp_path: Path) -> None:
    class GivenUp(Exception):  # noqa: N818 - an order
        pass

    def give_up(_seconds: float) -> None:
        raise GivenUp

    program(alone, "mvn", "sleep 600")
    with pytest.raises(GivenUp):
        fetch_jars(POM, tmp_path / "jars", give_up)
    assert [each.name for each in (tmp_path / "jars").iterdir()] == ["zookeeper.lock"]


def test_the_pom_names_zookeeper_and_no_place() -> None:
    text = POM.read_text()
    assert "<artifactId>zookeeper</artifactId>" in text
    assert "<repositor" not in text
    assert text.count("://") == 1  # the name of the format


def test_configuration(tmp_path: Path) -> None:
    lines = config_text(tmp_path, 2181).splitlines()
    assert {
        "clientPort=2181",
        "clientPortAddress=127.0.0.1",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        f"dataDir={tmp_path}/snapshots",
        f"dataLogDir={tmp_path}/log",
    } <= set(lines)


@pytest.mark.java
def test_a_server(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, free_ports(HOST, 1)[0])
    server.start()
    try:
        with socket.create_connection((HOST, server.port), timeout=DEADLINE_S) as asked:
            asked.sendall(b"dump")
            assert b"not in the whitelist" in asked.recv(1000)
        for seconds in (6, 18):
            client = KazooClient(server.address, timeout=seconds)
            client.start(DEADLINE_S)
            try:
                assert client._session_timeout == seconds * 1000, "what brokers ask for is what they get"
                client.ensure_path(f"/kept/{seconds}")
            finally:
                client.stop()
                client.close()
    finally:
        server.stop()
    assert wait_until(lambda: not server.child.running, DEADLINE_S)
    assert any((tmp_path / "log" / "version-2").iterdir())
    again = ZooKeeperServer(tmp_path, free_ports(HOST, 1)[0])
    again.start()
    try:
        client = KazooClient(again.address)
        client.start(DEADLINE_S)
        try:
            assert sorted(client.get_children("/kept")) == ["18", "6"]
        finally:
            client.stop()
            client.close()
    finally:
        again.child.kill()


@pytest.mark.java
def test_a_server_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        server = ZooKeeperServer(tmp_path, taken.getsockname()[1])
        with pytest.raises(LauncherError, match=r"ZooKeeper has ended: "):
            server.start()
