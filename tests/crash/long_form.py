"""The long form of a kill test, as a command: a number of kills, a printed seed, and the counts at the end."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Work(Protocol):
    """A test that kills and checks."""

    broker: Any

    def run(self, kills: int) -> None:
        """Kill this often, and check."""

    def summary(self) -> str:
        """Return the counts."""


def say(text: str) -> None:
    """Print a line immediately."""
    print(text, flush=True)


def long_form(doc: str | None, kills: int, begin: Callable[[Path, int], Work], verdict: str) -> None:
    """Read --kills and --seed, run, and print `verdict` and the counts; the data is removed only after a success."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kbroker-kills-"))
    say(f"seed {args.seed}, {args.kills} kills, data in {folder}")
    work = begin(folder, args.seed)
    try:
        work.run(args.kills)
    finally:
        work.broker.kill()
    say(f"{verdict}: {work.summary()}")
    shutil.rmtree(folder)
