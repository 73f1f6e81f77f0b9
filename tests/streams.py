"""Runs all tests: `python -m tests.streams ARGUMENTS...`, in three pytest processes at once, on parts of like length.

Many tests wait for Spark, for sessions to expire, or for killed processes to start again: another part uses that time.
Owns which part has which folders. Prints the last part as it runs, then the output of the others and the counts of
each, also when it is interrupted or terminated: then the parts end first, with their fixtures. With a path among the
arguments one process runs these tests only. Not a shell script: its background processes would ignore SIGINT, and so
would the jobs that tests interrupt.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PARTS: Final = {
    "spark, clients, examples and registries": [
        *("compat_tests/pipeline", "compat_tests/spark", "compat_tests/clients", "compat_tests/faults"),
        *("compat_tests/files", "compat_tests/telemetry", "compat_tests/wire"),
        *("compat_tests/examples", "examples/orders", "examples/recipes", "tests/examples"),
        *("tests/package", "tests/pipeline", "tests/registry_api"),
    ],
    "clusters and security": [
        *("compat_tests/cluster", "compat_tests/security", "tests/cluster", "tests/crash", "tests/console"),
    ],
}
"""The folders of the parts beside the last, which has all other tests.

pytest does not ignore a whole folder of its `testpaths`, so the folders of `examples` stand here one by one.
"""
_ENDS_S: Final = 20.0
"""How long terminated parts may tear their fixtures down; `timeout` in .ci/run kills after 30."""
_NO_TESTS: Final = 5
"""pytest's exit status where `-k` or `-m` selects nothing: no failure if another part has tests."""


def main(arguments: list[str]) -> int:
    """Run the tests; return the exit status: that of the first part that fails."""
    pytest = [sys.executable, "-m", "pytest"]
    if any(Path(each.partition("::")[0]).exists() for each in arguments):
        return subprocess.run([*pytest, *arguments], check=False).returncode
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    others = [f"--ignore={path}" for paths in PARTS.values() for path in paths]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / name for name in PARTS]
        parts = [
            subprocess.Popen([*pytest, *paths, *arguments], stdout=log.open("wb"), stderr=subprocess.STDOUT)
            for log, paths in zip(logs, PARTS.values(), strict=True)
        ]
        parts.append(subprocess.Popen([*pytest, *others, *arguments]))
        try:
            for part in reversed(parts):
                part.wait()
        except KeyboardInterrupt:  # each part has it, too, and tears its fixtures down
            for part in parts:
                with suppress(KeyboardInterrupt):
                    part.wait()
        except SystemExit:  # SIGTERM, which they do not have
            _end(parts)
            raise
        finally:
            texts = {log.name: log.read_text(errors="replace").rstrip() for log in logs}
            for name, text in texts.items():
                print(f"\n--- {name}\n{text}", flush=True)
            print("", *(f"{name}: {text.rpartition(chr(10))[2]}" for name, text in texts.items()), sep="\n", flush=True)
    statuses = [part.returncode for part in parts]
    failed = [status for status in statuses if status not in (0, _NO_TESTS)]
    return failed[0] if failed else min(statuses)


def _end(parts: list[subprocess.Popen[bytes]]) -> None:
    for part in parts:
        part.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _ENDS_S
    for part in parts:
        try:
            part.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            part.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
