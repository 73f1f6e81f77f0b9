"""The parts of `make test` run at the same time, and all end after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WAIT_S = 60.0
ROOT = Path(__file__).parents[1]
PART = """
import time
import pathlib
import pytest

@pytest.fixture
def held():
    yield
    (pathlib.Path({folder!r}) / "torn down {name}").touch()

def test_{name}(held):
    (pathlib.Path({folder!r}) / "begun {name}").touch()
    time.sleep({seconds})
"""
PROGRAM = """
import signal
import sys
from tests import streams
streams.PARTS = {{"first": [{first!r}]}}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
sys.exit(streams.main(sys.argv[1:]))
"""


def start(folder: Path, seconds: float, *arguments: str) -> subprocess.Popen[str]:
    for name in ("first", "last"):
        (folder / name).mkdir()
        text = PART.format(folder=str(folder), name=name, seconds=seconds)
        (folder / name / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = last\n")
    program = PROGRAM.format(first=str(folder / "first"))
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def begun(folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(list(folder.glob("begun *"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_parts_and_shows_their_output(tmp_path: Path, number: signal.Signals) -> None:
    running = start(tmp_path, WAIT_S * 2)
    begun(tmp_path)
    if number == signal.SIGTERM:
        running.send_signal(number)
    else:
        os.killpg(running.pid, number)  # as a terminal does
    output, _ = running.communicate(timeout=WAIT_S)
    assert running.returncode != 0
    assert {each.name for each in tmp_path.glob("torn down *")} == {"torn down first", "torn down last"}
    assert "--- first" in output
    assert output.count("KeyboardInterrupt") >= 2


def test_the_counts_of_all_parts_are_shown(tmp_path: Path) -> None:
    running = start(tmp_path, 0)
    output, _ = running.communicate(timeout=WAIT_S)
    assert (running.returncode, output.count("1 passed")) == (0, 3), output


@pytest.mark.long
@pytest.mark.parametrize(("wanted", "status"), [("test_first", 0), ("test_last", 0), ("neither", 5)])
def test_a_part_without_a_chosen_test_is_no_failure(tmp_path: Path, wanted: str, status: int) -> None:
    running = start(tmp_path, 0, "-k", wanted)
    output, _ = running.communicate(timeout=WAIT_S)
    assert running.returncode == status, output
