"""The first commands of docs/security.md, as a shell runs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
SECONDS = 90


def lines() -> list[str]:
    section = DOCS.read_text().partition("## A secured broker")[2].partition("\n## ")[0]
    return [line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")]


@pytest.mark.long
def test_a_secured_broker_two_users_and_their_rights(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = lines()
    assert len(said) == 10
    forbidden = [
        "echo written by bob | kbroker produce orders --command-config bob.properties",
        "kbroker consume orders --from-beginning --count 1 --command-config alice.properties",
        "kbroker topic list -X security.protocol=SASL_SSL -X ssl.ca.location=./certs/ca.crt -X sasl.mechanism=PLAIN "
        "-X sasl.username=alice -X sasl.password=alice-secret",
        "kbroker topic list --command-config alice.properties -X sasl.password=guessed",
    ]
    script = "\n".join(
        ["set -e", *said, *(f"if {each}; then echo ALLOWED: '{each}'; fi" for each in forbidden), "kill %1", "wait"]
    ).replace("9093", str(port))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=SECONDS)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
    assert shell.returncode == 0, printed
    assert "1 record written to orders" in printed
    assert "\none order\n" in printed
    assert "ALLOWED" not in printed
    assert "Traceback" not in printed
    assert "-secret" not in printed
