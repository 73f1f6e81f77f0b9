"""Jars, fetched with Maven once and kept.

Owns the directories into which they go: each is named after its pom file and that file's content, and is there whole or
not at all. Never runs what it fetched.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from kbroker.launcher.child import Child, LauncherError, Pause, wait_until

FETCH_TIMEOUT_S: Final = 600


class JarsMissing(LauncherError):  # noqa: N818 - what the machine lacks
    """This machine has no Java or no Maven, or Maven could not fetch what a pom file names."""


def user_cache_dir() -> Path:
    """Return the directory below which this user's jars are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbroker"


def missing_tools() -> list[str]:
    """Return which of the programs that jars are fetched and run with are not installed."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def kept(pom: Path, cache: Path) -> Path:
    """Return the directory in which the jars of a pom file are kept, whether it is there or not."""
    return cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


def fetch_jars(pom: Path, cache: Path, pause: Pause = time.sleep) -> Path:
    """Return the directory with the jars that a pom file names, fetching them when they are not there."""
    target = kept(pom, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process fetches, others wait: several may start together.
    with open(cache / f"{pom.stem}.lock", "w") as lock:
        if not wait_until(lambda: _locked(lock.fileno()), FETCH_TIMEOUT_S, pause):
            raise JarsMissing(f"another process has been fetching {pom.stem} for {FETCH_TIMEOUT_S} s")
        if not target.is_dir():
            _copy_dependencies(pom, target, pause)
    return target


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _copy_dependencies(pom: Path, target: Path, pause: Pause) -> None:
    """Fetch beside `target` and move into place whole, so that half of it is never used."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        maven = Child("Maven", Path(scratch) / "maven.log")
        maven.start(command)
        try:
            if not wait_until(lambda: not maven.running, FETCH_TIMEOUT_S, pause):
                raise JarsMissing(f"Maven did not fetch {pom.name} within {FETCH_TIMEOUT_S} s")
        finally:
            maven.kill()
        if maven.ended or not any(jars.glob("*.jar")):
            raise JarsMissing(f"Maven could not fetch {pom.name}: {' | '.join(maven.tail(20))}")
        jars.rename(target)
