"""The error that ends a job; its text is one line."""

from __future__ import annotations

from typing import Final

_OWN: Final = "kbroker.pipeline.errors.PipelineError: "


class PipelineError(Exception):
    """Raised if a job cannot continue. The text is one line for people."""


def first_line(err: BaseException) -> str:
    """Return the first meaningful line of an error, because Spark's errors contain pages of stack traces."""
    text = str(err)
    if _OWN in text:  # a Python task has raised it
        return text.partition(_OWN)[2].splitlines()[0].strip()
    found = ""
    for line in text.splitlines():
        text = line.strip().removeprefix(": ")
        if "PythonException: Traceback" in text:
            return _last_line(str(err)) or text
        if text and not text.startswith(("at ", "An error occurred", "JVM stacktrace")):
            found = text
            break
    return found or type(err).__name__


def of_spark(err: BaseException) -> bool:
    """Whether Spark, or the connection to its JVM, raised an error.

    Such errors have hundreds of types without a common base.
    """
    return type(err).__module__.partition(".")[0] in ("py4j", "pyspark")


def _last_line(text: str) -> str:
    """Return the last line of a Python traceback within a text."""
    lines = text.partition("Traceback")[2].splitlines()
    plain = (line.strip() for line in lines if line[:1].strip() and ": " in line)
    return next((line for line in plain if not line.startswith(("at ", "Caused by"))), "")
