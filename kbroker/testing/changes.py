"""Carries out a change of the table `kbroker.changes` on an embedded broker or cluster, without a connection."""

from __future__ import annotations

from kbroker.changes import Change
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.testing.asking import Asking
from kbroker.testing.missing import MissingError, check, visible


class Changeable:
    """A topic or a group of a test: what a change is made of."""

    def __init__(self, name: str, asking: Asking) -> None:
        self._name = name
        self._asking = asking

    def change(self, change: Change, **values: object) -> None:
        """Make a change. Raises MissingError if the entity does not exist, ApiError for another refusal."""
        if change.of == "group" and not self._asking.partitions_of(OFFSETS_TOPIC):  # there is no coordinator to ask
            raise MissingError("group", self._name, ())
        for failure in change.make(self._asking, [self._name], values):
            if failure.missing:
                known = visible(self._asking.state) if failure.missing == "topic" else self._asking.groups()
                raise MissingError(failure.missing, failure.about, known)
            about = f", {failure.about}" if failure.about else ""
            check(failure.code, f"{change.of} {failure.name}{about}", failure.message)
