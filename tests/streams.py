"""Runs all tests: `python -m tests.streams ARGUMENTS...`, in three pytest processes at once, on parts of like length.

Many tests wait for Spark, for sessions to expire, or for killed processes to start again: another part uses that time.
Owns which part has which folders. Prints the last part as it runs, then the output of the others, and the counts of
each. With a path among the arguments one process runs these tests only. Not a shell script: its background processes
would ignore SIGINT, and so would the jobs that tests interrupt.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PARTS: Final = {
    "spark and clients": ["compat_tests/pipeline", "compat_tests/spark", "compat_tests/clients"],
    "clusters and security": ["compat_tests/cluster", "compat_tests/security", "tests/crash"],
}
"""The folders of the parts beside the last, which has all other tests."""


def main(arguments: list[str]) -> int:
    """Run the tests; return the exit status: that of the first part that fails."""
    pytest = [sys.executable, "-m", "pytest"]
    if any(Path(each.partition("::")[0]).exists() for each in arguments):
        return subprocess.run([*pytest, *arguments], check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        for name, paths in PARTS.items():
            log = Path(folder) / name
            with log.open("wb") as output:
                running[log] = subprocess.Popen([*pytest, *paths, *arguments], stdout=output, stderr=output)
        others = [f"--ignore={path}" for paths in PARTS.values() for path in paths]
        statuses = [subprocess.run([*pytest, *others, *arguments], check=False).returncode]
        counts = []
        for log, process in running.items():
            statuses.append(process.wait())
            text = log.read_text(errors="replace").rstrip()
            print(f"\n--- {log.name}\n{text}", flush=True)
            counts.append(f"{log.name}: {text.rpartition(chr(10))[2]}")
    print("", *counts, "all others: above", sep="\n", flush=True)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
