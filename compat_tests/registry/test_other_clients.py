"""Clients of a schema registry in other languages, against kbroker's: franz-go's (Go) and Confluent's (JavaScript).

Each test fetches the client with its language's own tool, which takes a minute: only with KBROKER_TESTS=long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from compat_tests.compared import of_kfake
from kbroker import Broker
from tests.tries import FORM

pytestmark = pytest.mark.skipif(
    FORM != "long", reason="fetches clients in other languages: only with KBROKER_TESTS=long"
)
CLIENTS: Final = Path(__file__).with_name("clients")
TIMEOUT_S: Final = 600


@pytest.fixture
def registry() -> Iterator[str]:
    with Broker(registry=True) as broker:
        yield str(broker.registry_url)


def run(directory: Path, registry: str, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "REGISTRY": registry},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def test_franz_go(registry: str, tmp_path: Path) -> None:
    go = of_kfake.go()
    if go is None:
        pytest.skip("there is no Go here")
    shutil.copytree(CLIENTS / "go", tmp_path / "go")
    said = run(tmp_path / "go", registry, go, "test", "-count=1", "-v", ".")
    assert len(re.findall(r"^--- PASS: Test\w+", said, re.MULTILINE)) == 6


def test_confluents_client_for_javascript(registry: str, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no Node.js here")
    shutil.copytree(CLIENTS / "node", tmp_path / "node")
    run(tmp_path / "node", registry, npm, "install", "--ignore-scripts", "--no-audit", "--no-fund")
    said = run(tmp_path / "node", registry, node, "--test", "registry.test.js")
    assert len(re.findall(r"^ok \d+", said, re.MULTILINE)) == 4
