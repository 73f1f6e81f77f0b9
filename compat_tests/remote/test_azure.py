"""Topics in Azure's store: Azurite (npm) on this machine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests.clients.common import wait_for
from compat_tests.harness.brokers import free_port
from compat_tests.remote.stories import PATIENCE_S, keep_topic, verbs
from kbroker.remote.store import open_store
from tests.tries import FORM

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(FORM != "long", reason="fetches and builds servers: only with KBROKER_TESTS=long"),
]
FETCH_S = 600
ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"the key of an account" * 3).decode()
AZURITE = "azurite@3.35.0"


class Kind(NamedTuple):
    """A store on this machine."""

    url: str
    options: Mapping[str, str]


@contextmanager
def serving(command: Sequence[str], port: int, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})

    def answers() -> bool:
        assert server.poll() is None, (directory / "server.log").read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for("a server", answers, PATIENCE_S)
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    """Azurite with a container."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    directory, port = tmp_path_factory.mktemp("azure"), free_port()
    fetch = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(directory), AZURITE]
    subprocess.run(fetch, check=True, capture_output=True, timeout=FETCH_S)
    command = [str(directory / "node_modules/.bin/azurite-blob"), "--blobPort", str(port), "--inMemoryPersistence"]
    more = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with serving([*command, *more], port, directory, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        create_container(endpoint)
        yield Kind("az://segments/prefix", {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint})


def create_container(endpoint: str) -> None:
    date, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
    lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", f"/{ACCOUNT}/{ACCOUNT}/segments"]
    signed = "\n".join([*lines, "restype:container"])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    request = urllib.request.Request(f"{endpoint}/segments?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def test_the_verbs_in_azure(azure: Kind) -> None:
    asyncio.run(verbs(open_store(azure.url, azure.options)))


def test_a_topic_in_azure(azure: Kind, tmp_path: Path) -> None:
    keep_topic(tmp_path, azure.url, azure.options)
