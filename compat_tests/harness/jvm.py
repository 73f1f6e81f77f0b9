"""A JVM for one of Kafka's programs that soon ends. Most of its time it loads classes: here from an archive of them.

Owns the archive, which lies beside the jars; the first program that has ended by itself leaves it. A JVM that cannot
use it, of another build or with other jars, does without. Never judges how a program ended.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 120
BRIEF: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The options of a JVM that lives for seconds: it would not use what takes longer to compile."""
# No log: it would say on stdout what of the archive it cannot use.
_OPTIONS: Final = ("-Xmx256M", *BRIEF, "-Xlog:disable")


def run_java(libs: Path, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Run a class of the jars in `libs` with its arguments; return its exit status, stdout and stderr."""
    jars = libs.resolve()  # the archive knows its jars by their paths
    archive = jars.with_name(f"{jars.name}.jsa")
    made = None if archive.exists() else archive.with_suffix(f".{uuid.uuid4().hex}")
    option = f"-XX:SharedArchiveFile={archive}" if made is None else f"-XX:ArchiveClassesAtExit={made}"
    command = ["java", *_OPTIONS, option, "-cp", f"{jars}/*", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    if made is not None and made.exists():
        os.replace(made, archive)
    return done.returncode, done.stdout, done.stderr


def dump_log_segments(libs: Path, files: Iterable[Path], *options: str) -> str:
    """Return what DumpLogSegments says of files, which it must be able to read."""
    names = ",".join(map(str, sorted(files)))
    status, out, err = run_java(libs, "org.apache.kafka.tools.DumpLogSegments", *options, "--files", names)
    assert status == 0, out[-3000:] + err
    return out
