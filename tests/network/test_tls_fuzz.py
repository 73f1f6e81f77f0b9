"""Thousands of broken clients at a TLS port that requires certificates: none gets a byte, memory stays, one is served.

A failure prints the seed. Each client sends a handshake, intact or damaged in some way, and a request.
"""

from __future__ import annotations

import random
import socket
import ssl
from pathlib import Path

import psutil
import pytest

from compat_tests.harness.brokers import KBroker
from kbroker.protocol.messages.connections import ApiVersionsRequest
from tests.network.test_connection import frame
from tests.network.test_tls import TlsClient, context
from tests.security.tls.conftest import Files
from tests.tries import tries

SEED = 20261123
CLIENTS = tries(2_000)
GROWTH_BYTES = 40 * 1024 * 1024
HOW = ("whole", "no certificate", "strange certificate", "changed", "cut", "garbage", "doubled", "plaintext", "late")
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("strangers"), "another")


class SslBroker(KBroker):
    """A broker process with one TLS listener."""

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--listen") : command.index("--listen") + 2] = ["--set", "listeners=SSL://127.0.0.1:0"]
        return command


def spoiled(how: str, rng: random.Random, data: bytes) -> bytes:
    if how == "changed":
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] ^= rng.randint(1, 255)
        return bytes(changed)
    if how == "cut":
        return data[: rng.randrange(len(data))]
    if how == "garbage":
        return data[: rng.randrange(len(data))] + rng.randbytes(rng.randint(1, 2000))
    if how == "doubled":
        return data + data
    if how == "plaintext":
        return frame(ApiVersionsRequest(), 0, 1)
    return data


def answered(sock: socket.socket, made: ssl.SSLContext, how: str, rng: random.Random) -> bool:
    """Send a handshake and a request; return whether there was a response."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = made.wrap_bio(incoming, outgoing, server_hostname="localhost")
    asked, flights = False, 0
    at = rng.randrange(2)  # which flight is spoiled
    while True:
        try:
            if asked:
                return bool(tls.read(1000))
            tls.do_handshake()
            tls.write(frame(ApiVersionsRequest(), 0, 1))
            asked = True
        except ssl.SSLWantReadError:
            pass
        data = outgoing.read()
        if data:
            sock.sendall(spoiled(how, rng, data) if flights == at else data)
            flights += 1
            if flights > at and how in ("cut", "changed", "garbage", "doubled"):
                sock.shutdown(socket.SHUT_WR)  # otherwise the broker would wait for the rest
            if flights > at and how == "late" and asked:
                sock.sendall(rng.randbytes(100))
        received = sock.recv(1 << 16)
        if not received:
            return False
        incoming.write(received)


@pytest.mark.long
def test_none_of_them_gets_a_byte(files: Files, strangers: Files, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    settings = files.listener(client_auth="required")
    versions = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    shown = {"no certificate": None, "strange certificate": strangers.client}
    contexts = {(how, version): context(files, shown.get(how, files.client)) for how in HOW for version in versions}
    for (_, version), made in contexts.items():
        made.minimum_version = made.maximum_version = version
    counts = dict.fromkeys(HOW, 0)
    with SslBroker(tmp_path, settings) as broker, TlsClient(broker.bootstrap, context(files, files.client)) as quiet:
        process = psutil.Process(broker.pid)
        before = 0
        port = int(broker.bootstrap.rpartition(":")[2])
        for number in range(CLIENTS):
            how, version = rng.choice(HOW), rng.choice(versions)
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
                try:
                    got = answered(sock, contexts[how, version], how, rng)
                except (ssl.SSLError, ConnectionError):
                    got = False
            counts[how] += got
            if how == "whole":
                assert got, f"client {number} of seed {SEED}"
            elif how not in ("late", "doubled"):  # spoiled behind what was asked, where the first flight is not
                assert not got, f"client {number} of seed {SEED}: {how}"
            if number % 100 == 0:
                assert quiet.ask(ApiVersionsRequest(), 0).error_code == 0
            if number == CLIENTS // 4:
                before = process.memory_info().rss
        assert process.memory_info().rss < before + GROWTH_BYTES
        assert quiet.ask(ApiVersionsRequest(), 0).error_code == 0
        assert broker.running
    assert "Traceback" not in broker.log_file.read_text()
