"""Jars, fetched with Maven once and kept.

Owns their directories: each is named after its pom file and that file's content, and exists completely or not at all.
Never runs the fetched code.
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
    """This machine has no Java or no Maven, or Maven could not fetch the jars of a pom file."""


def user_cache_dir() -> Path:
    """Return the directory below which this user's jars are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbroker"


def missing_tools() -> list[str]:
    """Return the missing programs among those that fetch and run jars."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def kept(pom: Path, cache: Path) -> Path:
    """Return the directory for the jars of a pom file, which need not exist."""
    return cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


def fetch_jars(pom: Path, cache: Path, pause: Pause = time.sleep) -> Path:
    """Return the directory with the jars of a pom file; fetch them if it does not exist."""
    target = kept(pom, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process fetches while others wait: several may start together.
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
    """Fetch into a temporary directory and rename it to `target`, so that a partial result is never used."""
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
