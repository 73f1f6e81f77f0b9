"""The real parts, fetched with Maven: Apache Kafka 4.3.0, 3.9.1 with ZooKeeper, and Spark's Kafka connector.

Owns the cache directory: `.parts/` in the checkout, or the directory that KBROKER_PARTS names. A part is fetched once
for each content of its pom file. Never fetches anything else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
POMS: Final = ROOT / "compat_tests" / "parts"
FETCH_TIMEOUT_S: Final = 600


class PartsMissing(Exception):  # noqa: N818 - says what the machine lacks
    """This machine has no Java or no Maven, or Maven could not fetch a part."""


def cache_dir() -> Path:
    """Return the directory that holds the fetched parts."""
    return Path(os.environ.get("KBROKER_PARTS") or ROOT / ".parts")


def missing_tools() -> list[str]:
    """Return which of the programs that the real parts need are not installed."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def fetch(part: str) -> Path:
    """Return the directory with the jars of `part` (the name of a pom file), fetching them when they are not there."""
    if missing := missing_tools():
        raise PartsMissing(f"not installed: {', '.join(missing)}")
    pom = POMS / f"{part}.xml"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    target = cache_dir() / f"{part}-{digest}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process fetches, others wait: test workers start together.
    with open(target.parent / f"{part}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _copy_dependencies(pom, target)
    return target


def _copy_dependencies(pom: Path, target: Path) -> None:
    """Fetch beside `target` and move into place whole, so that a half-fetched part is never used."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise PartsMissing(f"Maven did not fetch {pom.name} within {FETCH_TIMEOUT_S} s") from None
        if done.returncode or not any(jars.glob("*.jar")):
            raise PartsMissing(f"Maven could not fetch {pom.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        jars.rename(target)
