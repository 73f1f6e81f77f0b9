"""JVMs that end soon. They spend most time on loading classes: here from class archives, which lie beside the jars.

Owns the archives: the first run of a program that ends by itself writes one. A JVM that cannot use the archive, because
its build or its jars differ, starts without it. Never judges how a program ended.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from compat_tests.harness.tools import ToolsJvm, give_back, idle

TIMEOUT_S: Final = 120
_TRUSTING: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
BRIEF: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_TRUSTING)
"""The options of a JVM that lives for seconds: more expensive compilation would not pay off.

Verifying the classes of published jars takes a fifth of Spark's start.
"""
_KAFKAS: Final = ("org.apache.kafka.", "kafka.")


class ClassArchive:
    """The archive that one run of a program, from the jars in `libs`, uses or writes.

    Measured with Apache Kafka 4.4.0: a start takes 2.5 s of CPU time instead of 5.1 s; writing the archive takes 4 s at
    the end of a run.
    """

    _making: Final[set[Path]] = set()

    def __init__(self, libs: Path, program: str) -> None:
        jars = libs.resolve()  # the archive knows its jars by their paths
        self._path = jars.with_name(f"{jars.name}.{program}.jsa")
        self._made: Path | None = None
        if not self._path.exists() and self._path not in self._making:
            self._making.add(self._path)
            self._made = self._path.with_suffix(f".{uuid.uuid4().hex}")

    @property
    def options(self) -> tuple[str, ...]:
        """Return the JVM's options. No log: it would report on stdout what the JVM cannot use of the archive."""
        made = f"-XX:ArchiveClassesAtExit={self._made}"
        return ("-Xlog:disable", made if self._made else f"-XX:SharedArchiveFile={self._path}")

    def ended(self) -> None:
        """Keep the archive that the run wrote: the program has ended."""
        if self._made is None:
            return
        if self._made.exists():
            os.replace(self._made, self._path)
        self._making.discard(self._path)
        self._made = None


def run_java(libs: Path, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Run a class of the jars in `libs` with its arguments; return its exit status, stdout and stderr.

    Kafka's classes run in a JVM that stays, others, sources and those with options for their JVM in one of their own.
    """
    main = arguments[0]
    if os.environ.get("KBROKER_TESTS") != "long" and main.startswith(_KAFKAS):
        return _run_in_kept_jvm(libs, arguments, stdin, timeout_s)
    classes = ClassArchive(libs, "tools")
    command = [*_command(libs, classes), *arguments]
    try:
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=timeout_s, check=False)
    finally:
        classes.ended()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def _command(libs: Path, classes: ClassArchive) -> list[str]:
    options = ("-Xmx256M", *BRIEF, *classes.options, "-Dfile.encoding=UTF-8")
    return ["java", *options, "-cp", f"{libs.resolve()}/*"]


def _run_in_kept_jvm(libs: Path, arguments: tuple[str, ...], stdin: str, timeout_s: float) -> tuple[int, str, str]:
    jvm = idle(libs)
    if jvm is None:
        classes = ClassArchive(libs, "kept")
        jvm = ToolsJvm(_command(libs, classes), classes.ended)
    result = jvm.run(arguments, stdin, timeout_s)
    give_back(libs, jvm)
    return result


def dump_log_segments(libs: Path, files: Iterable[Path], *options: str) -> str:
    """Return what DumpLogSegments prints of files, which it must be able to read."""
    names = ",".join(map(str, sorted(files)))
    status, out, err = run_java(libs, "org.apache.kafka.tools.DumpLogSegments", *options, "--files", names)
    assert status == 0, out[-3000:] + err
    return out
