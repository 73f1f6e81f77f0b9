"""The real parts, fetched with Maven: Apache Kafka 4.4.0, 3.9.1 with ZooKeeper, Spark's Kafka connector, HDFS.

Owns the cache directory: `.parts/` in the checkout, or the directory that KBROKER_PARTS names. A part is fetched once
for each content of its pom file. Never fetches anything else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kbroker.launcher.zookeeper import JarsMissing, fetch_jars, missing_tools

__all__ = ["PartsMissing", "fetch", "missing_tools"]

ROOT: Final = Path(__file__).parents[2]
POMS: Final = ROOT / "compat_tests" / "parts"
PartsMissing = JarsMissing
"""This machine has no Java or no Maven, or Maven could not fetch a part."""


def cache_dir() -> Path:
    """Return the directory that holds the fetched parts."""
    return Path(os.environ.get("KBROKER_PARTS") or ROOT / ".parts")


def fetch(part: str) -> Path:
    """Return the directory with the jars of `part` (the name of a pom file), fetching them when they are not there."""
    if missing := missing_tools():
        raise PartsMissing(f"not installed: {', '.join(missing)}")
    return fetch_jars(POMS / f"{part}.xml", cache_dir())
