"""What an installed kbroker must be able to do: the command line starts a broker, writes to it and reads from it.

    python tests/package/smoke.py DIR/bin/python      # of an environment in which a wheel is installed, of any Python

Knows nothing of this checkout; in an environment with pytest, the plugin is tried, too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

DEADLINE_S = 60
TEST = """
from kafka import KafkaConsumer, KafkaProducer


def test_a_record(kafka, kafka_topic):
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(str(kafka_topic), b"one").get(20)
    producer.close()
    consumer = KafkaConsumer(str(kafka_topic), bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
    assert next(consumer).value == b"one"
    consumer.close()
"""


class Installed:
    """An environment that contains kbroker, identified by its python."""

    def __init__(self, python: Path, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`directory` is for what the smoke test writes; `environment` replaces this process's."""
        self._python = python
        self._directory = directory
        self._environment = environment

    def _run(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            [self._python, *arguments], input=stdin, capture_output=True, timeout=DEADLINE_S, check=False,
            cwd=self._directory, env=self._environment,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(
                f"{arguments} ended with {done.returncode}:\n{done.stdout.decode()}{done.stderr.decode()}"
            )
        return done.stdout.decode()

    def kbroker(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run the command; return what it prints."""
        return self._run("-m", "kbroker", *arguments, stdin=stdin)

    def version(self) -> str:
        """Return the version that the package reports, which must be the same everywhere."""
        code = "import kbroker, importlib.metadata as m; assert m.version('kbroker') == kbroker.__version__; "
        version = self._run("-c", code + "print(kbroker.__version__)").strip()
        assert version in self.kbroker("--version")
        return version

    def location(self) -> Path:
        """Return the directory of the package."""
        return Path(self._run("-c", "import kbroker; print(kbroker.__path__[0])").strip())

    def has_pytest(self) -> bool:
        """Whether pytest is installed, too."""
        return "yes" in self._run("-c", "import importlib.util as u; print('yes' if u.find_spec('pytest') else 'no')")

    def try_broker(self) -> None:
        """Start a broker, write to it and read from it."""
        with self._broker() as bootstrap:
            at = ("--bootstrap", bootstrap)
            self.kbroker("topic", "create", "hello", "-p", "3", *at)
            self.kbroker("produce", "hello", *at, stdin=b"hello, world\n")
            read = self.kbroker("consume", "hello", "--from-beginning", "--count", "1", *at)
            assert read == "hello, world\n", read
            assert "hello" in self.kbroker("topic", "list", *at)

    @contextlib.contextmanager
    def _broker(self) -> Iterator[str]:
        ready, told = self._directory / "ready", self._directory / "log"
        arguments = ["--memory", "--listen", "127.0.0.1:0", "--ready-file", str(ready), "--log-format", "json"]
        command = [self._python, "-m", "kbroker", "start", *arguments]
        with told.open("wb") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, cwd=self._directory, env=self._environment
            )
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not ready.exists():
                assert process.poll() is None, told.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield str(json.loads(ready.read_text())["bootstrap_servers"])
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()
        for line in told.read_text().splitlines():
            assert json.loads(line)["level"] in ("INFO", "WARNING"), line  # a loop that others' work held is a warning

    def try_plugin(self) -> None:
        """Run a test with the plugin's fixtures; pytest finds them by the package's entry point."""
        (self._directory / "test_it.py").write_text(TEST)
        assert "1 passed" in self._run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")


def main(python: Path) -> None:
    """Try everything, and print the result."""
    with tempfile.TemporaryDirectory() as directory:
        installed = Installed(python.absolute(), Path(directory))
        version = installed.version()
        installed.try_broker()
        with_pytest = installed.has_pytest()
        if with_pytest:
            installed.try_plugin()
        print(f"kbroker {version} works{', with pytest' if with_pytest else ''}: {python}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
