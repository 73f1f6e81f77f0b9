"""What ends a job in one line."""

from __future__ import annotations


class PipelineError(Exception):
    """A job cannot go on; the text is a line for people."""


def first_line(err: BaseException) -> str:
    """Return the first line of an error that says something: Spark's come with pages of stack."""
    told = ""
    for line in str(err).splitlines():
        text = line.strip().removeprefix(": ")
        if "PythonException: Traceback" in text:
            return _last_line(str(err)) or text
        if text and not text.startswith(("at ", "An error occurred", "JVM stacktrace")):
            told = text
            break
    return told or type(err).__name__


def of_spark(err: BaseException) -> bool:
    """Whether Spark, or the way to its JVM, raised an error: those have hundreds of types, and no common one."""
    return type(err).__module__.partition(".")[0] in ("py4j", "pyspark")


def _last_line(text: str) -> str:
    """Return what a Python traceback within a text ends with."""
    lines = text.partition("Traceback")[2].splitlines()
    plain = (line.strip() for line in lines if line[:1].strip() and ": " in line)
    return next((line for line in plain if not line.startswith(("at ", "Caused by"))), "")
