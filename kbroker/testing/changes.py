"""Applies a change of the table `kbroker.changes` to an embedded broker or cluster, without a connection."""

from __future__ import annotations

from kbroker.changes import Change
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.testing.asking import Asking
from kbroker.testing.missing import MissingError, check, visible


class Changeable:
    """A topic or a group of a test, to which a change can be applied."""

    def __init__(self, name: str, asking: Asking) -> None:
        self._name = name
        self._asking = asking

    def change(self, change: Change, **values: object) -> None:
        """Apply a change. Raises MissingError if the topic or group does not exist, and ApiError for other refusals."""
        if change.of == "group" and not self._asking.partitions_of(OFFSETS_TOPIC):  # there is no coordinator yet
            raise MissingError("group", self._name, ())
        for failure in change.make(self._asking, [self._name], values):
            if failure.missing:
                known = visible(self._asking.state) if failure.missing == "topic" else self._asking.groups()
                raise MissingError(failure.missing, failure.about, known)
            about = f", {failure.about}" if failure.about else ""
            check(failure.code, f"{change.of} {failure.name}{about}", failure.message)
