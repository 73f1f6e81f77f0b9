"""The progress of a replay, which is stored beside the archive, so that the replay can be resumed.

Owns the file `_replay/<target topic>.json`, which is written again before and after each slice. Two file names
alternate, because not every file system can replace a file atomically. Never sends records.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.replay.plan import Bounds
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import WriterLock
from kbroker.pipeline.storage.swap_lock import writer_lock

_FOLDER: Final = "_replay"


@dataclass(slots=True)
class ReplayState:
    """The positions of a replay."""

    options: dict[str, Any]
    """The options of the replay. A replay is resumed only with the same options."""
    turn: int = 0
    done: dict[Partition, int] = field(default_factory=dict)
    """The next offset to send, by partition."""
    under_way: Bounds = field(default_factory=dict)
    """The offsets of the unfinished slice."""
    target: dict[Partition, int] = field(default_factory=dict)
    """The end offsets of the target's partitions when the unfinished slice began."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The id of this replay in the headers of its records, which distinguishes them from records of earlier replays."""
    target_id: str = ""
    """The id of the target topic (KIP-516)."""

    def encode(self) -> str:
        """Return the state as a JSON document."""
        fields = {
            "options": self.options,
            "turn": self.turn,
            "done": [[*p, offset] for p, offset in sorted(self.done.items())],
            "under_way": [[*p, start, end] for p, (start, end) in sorted(self.under_way.items())],
            "target": [[*p, offset] for p, offset in sorted(self.target.items())],
            "id": self.id,
            "target_id": self.target_id,
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def decode(cls, text: str) -> ReplayState:
        fields = json.loads(text)
        return cls(
            fields["options"],
            fields["turn"],
            {Partition(topic, number): offset for topic, number, offset in fields["done"]},
            {Partition(topic, number): (start, end) for topic, number, start, end in fields["under_way"]},
            {Partition(topic, number): offset for topic, number, offset in fields["target"]},
            fields["id"],
            fields["target_id"],
        )


class StateFile:
    """The files with the state of the replay to one topic."""

    def __init__(self, session: Any, files: Files, cluster: str, topic: str) -> None:
        self._files = files
        self._lock = writer_lock(Files(session, f"{files.url(_FOLDER)}/{cluster}-{topic}"))
        self._names = [f"{_FOLDER}/{cluster}-{topic}-{turn}.json" for turn in range(2)]

    def only_one(self) -> WriterLock:
        """Return a lock against a second replay of the archive to the topic, which would send the same records."""
        return self._lock

    def load(self) -> ReplayState | None:
        """Return the newest state. Return None if no replay has begun."""
        found = []
        for name in self._names:
            if self._files.exists(name):
                try:
                    found.append(ReplayState.decode(self._files.read(name)))
                except (ValueError, KeyError, TypeError) as err:
                    raise PipelineError(f"{self._files.url(name)} is damaged; --restart begins anew") from err
        return max(found, key=lambda state: state.turn, default=None)

    def save(self, state: ReplayState) -> None:
        """Store a state; keep the previous state until the next call."""
        state.turn += 1
        name = self._names[state.turn % 2]
        self._files.delete(name)
        self._files.write(name, state.encode())

    def forget(self) -> None:
        """Remove the state, for a restart."""
        for name in self._names:
            self._files.delete(name)
