"""The examples of docs/testing-other-languages.md, each by its language's own tools against a real broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.jvm import BRIEF

HERE = Path(__file__).parent / "languages"


def run(*command: str, timeout_s: float = 60) -> str:
    """Run a tool that finds `kbroker` on its path; return what it printed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GO111MODULE": "auto", "KBROKER_BOOTSTRAP": ""}
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_node() -> None:
    assert "# pass 1" in run("node", "--test", "--test-reporter=tap", "orders.test.mjs")


@pytest.mark.long
def test_go() -> None:
    """The first time it compiles Go's own library."""
    told = run("go", "test", "-count=1", "-v", "orders_test.go", timeout_s=300)
    assert "--- PASS: TestAnOrderIsWrittenAgainWhereTheLeaderHasMoved" in told


@pytest.mark.java
def test_java(kafka_libs: Path) -> None:
    assert "the order was written again" in run("java", *BRIEF, "-cp", f"{kafka_libs}/*", "Orders.java", timeout_s=120)
