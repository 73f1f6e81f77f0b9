"""What a handler raises to end a connection without an answer."""

from __future__ import annotations


class CloseConnection(Exception):  # noqa: N818 - an instruction, not a failure of the program
    """The connection must end without an answer (Kafka's reaction to what it cannot parse or does not serve)."""
