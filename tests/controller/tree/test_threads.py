"""Connections over TLS as kazoo reads them."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

from compat_tests.harness.certificates import Authority
from kbroker.controller.tree.connection import Threads

PATIENCE_S = 30


def test_what_has_been_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    """Two responses may arrive in one TLS record: after the first is read, the socket holds nothing of the second."""
    authority = Authority(tmp_path, "authority")
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_verify_locations(authority.file)
    theirs.load_cert_chain(authority.sign("server"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with theirs.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.sendall(b"one two")
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        handler = Threads(ours, lambda: None)
        with handler.create_connection(listener.getsockname(), "127.0.0.1", PATIENCE_S) as connection:
            assert connection.recv(4) == b"one "
            began = time.monotonic()
            assert handler.select([connection], [], [], PATIENCE_S) == ([connection], [], [])
            assert time.monotonic() - began < PATIENCE_S / 2
            assert connection.recv(4) == b"two"
            assert handler.select([connection], [], [], 0) == ([], [], [])
            connection.sendall(b".")
        server.join()
