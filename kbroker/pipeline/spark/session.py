"""The SparkSession of a job: its options, the Kafka connector, and the errors of its start.

Owns the start and the stop of Spark. A user's `--conf` overrides all settings except the settings on which results
depend. Never runs a query.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kbroker.extras import how_to_install
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.spark.connectors import Connector, require_tried
from kbroker.pipeline.spark.jvm import Jvm
from kbroker.pipeline.spark.signals import Ending

_URL: Final = re.compile(r"spark://([^/]+)")
_PATIENCE_S: Final = 10.0


def address_towards(master: str) -> str | None:
    """Return the address of this machine that reaches the master `spark://HOST:PORT[,HOST:PORT]`, in Spark's form.

    Return None for another kind of master, or for a name that Spark will refuse. Raises PipelineError if no master
    answers.
    """
    found = _URL.fullmatch(master)
    places = [place.rpartition(":") for place in found[1].split(",")] if found else []
    if not places or not all(host and port.isdecimal() for host, _, port in places):
        return None
    reasons = []
    for host, _, port in places:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S) as connection:
                own = str(connection.getsockname()[0])
                return f"[{own}]" if ":" in own else own
        except TimeoutError:
            reasons.append(f"{host}:{port}: no answer")
        except (OSError, UnicodeError, OverflowError) as err:
            reasons.append(f"{host}:{port}: {(getattr(err, 'strerror', None) or str(err)).lower()}")
    raise PipelineError(f"no Spark master answers at {'; '.join(reasons)}")


# Spark prints a page of warnings at its start. This hides them; an important error becomes an exception anyway.
_QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.quiet.name = org.apache.spark.sql
logger.quiet.level = off
logger.tasks.name = org.apache.spark.scheduler
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.kafka.name = org.apache.kafka
logger.kafka.level = off
logger.hadoop.name = org.apache.hadoop
logger.hadoop.level = off
"""
_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the older type has no statistics
    # Use Spark 4's setting: decoded dates may be old, and Spark 3.5 would end the job at a date before 1582.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # A topic may be called 2026. This is a name, not a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
_ONE_TRY: Final = {
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    "spark.stage.maxConsecutiveAttempts": "1",
}
_SECRETS: Final = "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key"
"""Matches the options whose values Spark hides: Spark's default pattern, and the Kafka client's logins and keys."""
_LOCAL: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
_PARTITIONS: Final = "16"
_REPORTED_AFTER_S: Final = 15.0
_CHECK_S: Final = 0.1
_LAST_WORD_S: Final = 5.0
_LITTER: Final = Path("artifacts")
TRIED: Final = ("4.2.0", "4.1.1", "4.0.0", "3.5.7", "3.5.3", "3.5.1", "3.5.0")
"""The Spark versions with which the jobs were tested, each with the connector of the same version."""
NOT_WHOLE: Final = ("4.1.0", "4.0.1")
"""The versions whose connector lacks files that the jobs need."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of every command that determine the connection to Spark or its start."""

    master: str = _LOCAL
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    """The jars of all connectors. Without jars, Spark downloads the jars for the installed pyspark."""
    connectors: tuple[Connector, ...] = ()
    """The connectors that the job needs besides the Kafka connector."""
    retries: bool = True
    """Whether Spark may retry a failed task. False if tasks send records that must arrive only once."""
    debug: bool = False
    """Whether to show Spark's own log."""

    def local_path(self, path: str) -> Path | None:
        """Return a path as a local path. Return None if Hadoop's settings determine the path's file system."""
        if path.startswith("file:"):
            return Path("/" + path.removeprefix("file:").lstrip("/"))
        elsewhere = "HADOOP_CONF_DIR" in os.environ or "spark.hadoop.fs.defaultFS" in self.conf
        return None if "://" in path or elsewhere or not self.master.startswith("local") else Path(path)


@contextmanager
def open_session(options: SparkOptions, name: str) -> Iterator[Any]:
    """Yield a SparkSession that works in UTC, and stop it at the end. Raises PipelineError if the start fails."""
    _require_java()
    _require_files(options.jars)
    if not options.retries and re.fullmatch(r"local\[.*,.*\]", options.master):
        raise PipelineError(f"--master {options.master} retries failed tasks, which this job must prevent")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    if not options.debug:
        logging.getLogger().addHandler(logging.NullHandler())  # py4j's messages would reach the root logger, too
    jvm = Jvm()
    littered = _LITTER.exists()
    with Ending(jvm) as ending, tempfile.TemporaryDirectory(prefix="kbroker-spark-") as scratch:
        ending.scratch = Path(scratch)
        try:
            session = _start(options, name, Path(scratch), jvm, ending)
            with _used(session, jvm, ending):
                if options.master.startswith("spark://"):
                    _await_executor(session, options.master)
                yield configure(session)
        finally:
            ending.jobs_are_over()
            if ending.number:
                jvm.end()
            if not littered:
                _remove_litter()


def _remove_litter() -> None:
    """Remove the folder for artifacts of sessions, which Spark 4.0 creates and does not delete."""
    for folder in _LITTER.glob("spark-*"):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        _LITTER.rmdir()


def _start(options: SparkOptions, name: str, scratch: Path, jvm: Jvm, ending: Ending) -> Any:
    """Return a new session. Raises PipelineError."""
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError(f"this needs Spark: {how_to_install('spark')}") from None
    settings = {**_settings(options, scratch, pyspark.__version__), **options.conf}
    _choose_python(options.master, settings)
    if not options.retries:
        settings |= _ONE_TRY
    builder = SparkSession.builder.master(options.master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _quiet_start(scratch_log := scratch / "spark.log", options.debug), jvm.noted():
            return ending.start(builder.getOrCreate)
    except Exception as err:
        message = _last_words(scratch_log) or first_line(err)
        if "unresolved dependency" in message or "[download failed" in message:
            message = (
                f"its Kafka connector, {', '.join(_packages(options, pyspark.__version__))}, cannot be fetched:"
                f" name its jars with --jars, or install a pyspark that was tried: {', '.join(TRIED)}"
                f" (the connectors of {' and '.join(NOT_WHOLE)} are not whole)"
            )
        if "stopped SparkContext" in message:  # Spark has already tried for a minute
            message = f"what listens there does not answer as a master of Spark {pyspark.__version__}"
        raise PipelineError(f"Spark does not start with --master {options.master}: {message}") from err


@contextmanager
def _used(session: Any, jvm: Jvm, ending: Ending) -> Iterator[None]:
    """Stop Spark at the end. Raises PipelineError if Spark's JVM ended while the job ran."""
    failed = False
    try:
        yield
    except Exception as err:
        failed = True
        if (status := jvm.status(_LAST_WORD_S if _is_of_a_connection(err) else 0.0)) is not None:
            raise PipelineError(f"Spark's JVM ended while the job ran ({_in_words(status)})") from err
        raise
    finally:
        ending.jobs_are_over()
        if jvm.status() is None:  # without a JVM, pyspark would warn
            _stop(session, quietly=failed or ending.number != 0)


def _stop(session: Any, *, quietly: bool) -> None:
    """Stop Spark. With `quietly` (after an error or a signal), ignore errors."""
    with contextlib.suppress(Exception) if quietly else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()


def _is_of_a_connection(err: BaseException | None) -> bool:
    """Whether the JVM's end may have caused an error. A JVM's connection breaks before its process has ended."""
    while err is not None:
        if isinstance(err, ConnectionError | EOFError) or type(err).__name__ == "Py4JNetworkError":
            return True
        err = err.__cause__ or err.__context__
    return False


def _in_words(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def configure(session: Any) -> Any:
    """Set the options on which the jobs' results depend. Return the session."""
    for key, value in _NEEDED.items():
        session.conf.set(key, value)
    return session


@contextmanager
def _quiet_start(log: Path, debug: bool) -> Iterator[None]:
    """Redirect the output of a JVM that starts within the `with` block to the file `log`, until the JVM ends."""
    if debug:
        yield
        return
    terminal = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(target)
        os.close(terminal)


def _last_words(log: Path) -> str | None:
    """Return the last line with an exception in a JVM's log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [line.strip() for line in lines if "Exception" in line or "Error" in line]
    return found[-1] if found else None


def _settings(options: SparkOptions, scratch: Path, version: str) -> dict[str, str]:
    log = scratch / "log4j2.properties"
    log.write_text(_QUIET)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.redaction.regex": _SECRETS,
    }
    if not options.debug:
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log}"
    if options.jars:
        settings["spark.jars"] = ",".join(options.jars)
    else:
        require_tried(options.connectors, version)
        settings["spark.jars.packages"] = ",".join(_packages(options, version))
        settings["spark.jars.excludes"] = ",".join(each for found in options.connectors for each in found.excludes)
    for each in options.connectors:
        settings |= each.settings
    if options.master.startswith("local"):
        return settings | {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(scratch),
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    return settings | _on_a_cluster(options.master)


def _on_a_cluster(master: str) -> dict[str, str]:
    """Return the settings for a Spark cluster that differ from those for a single machine.

    Raises PipelineError if the cluster is unreachable.
    """
    settings = {
        # The number of tasks in each shuffle, even for few records: Spark's default of 200 is too many for a stream's
        # batches.
        "spark.sql.shuffle.partitions": _PARTITIONS,
    }
    host = address_towards(master)
    if host is not None and "SPARK_LOCAL_IP" not in os.environ:
        settings["spark.driver.host"] = host  # without it, Spark would choose any local address
    return settings


def _choose_python(master: str, settings: Mapping[str, str]) -> None:
    """Set the executors' Python: the requested Python, or this process's Python if they run on this machine."""
    if (executable := settings.get("spark.pyspark.python")) is not None:
        os.environ["PYSPARK_PYTHON"] = executable  # after Python has started, pyspark reads only this variable
    elif master.startswith("local") or settings.get("spark.driver.host") == _LOOPBACK:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _await_executor(session: Any, master: str) -> None:
    """Wait for the first executor. Print a message if the wait is long, because Spark prints no message."""
    context = session.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # with dynamic allocation, executors start with the first tasks
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - pyspark's own has no executors
    report_at = time.monotonic() + _REPORTED_AFTER_S
    while True:
        if context._jsc.sc().isStopped():  # noqa: SLF001
            raise PipelineError(f"{master} has ended the job before it began")
        if len(tracker.getExecutorInfos()) > 1:  # one of these is the driver
            return
        if time.monotonic() > report_at:
            memory = context.getConf().get("spark.executor.memory", "1g")
            print(
                f"waiting for an executor: no worker of {master} has a core and {memory} (spark.executor.memory) free",
                file=sys.stderr,
                flush=True,
            )
            report_at = float("inf")
        time.sleep(_CHECK_S)


def _packages(options: SparkOptions, version: str) -> list[str]:
    return [connector(version), *(package for each in options.connectors for package in each.packages)]


def connector(version: str) -> str:
    """Return the coordinates of the Kafka connector for a version of pyspark."""
    scala = "2.12" if version.startswith("3.") else "2.13"
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{version.partition('+')[0]}"


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise PipelineError("Spark needs Java (17 or newer), and there is no `java` here")


def _require_files(jars: tuple[str, ...]) -> None:
    for jar in jars:
        if "://" not in jar and not Path(jar).is_file():
            raise PipelineError(f"--jars: {jar} is not there")
