"""What ends a job in one line."""

from __future__ import annotations


class PipelineError(Exception):
    """A job cannot go on; the text is a line for people."""
