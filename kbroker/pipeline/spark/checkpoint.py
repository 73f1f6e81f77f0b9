"""The content of a Spark stream's checkpoint: its id, and the offsets of its batches.

Reads Spark's own files (`metadata`, `offsets/N`, `commits/N`, `sources/0/0`). Spark does not change their form between
versions, so that streams survive an upgrade. Never writes.
"""

from __future__ import annotations

import json
from typing import Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.storage.files import Files

Offsets = dict[Partition, int]


class Checkpoint:
    """The checkpoint of a stream with one Kafka source."""

    def __init__(self, session: Any, root: str) -> None:
        self._files = Files(session, root)
        self.root = root

    def url(self) -> str:
        """Return the complete path of the checkpoint."""
        return self._files.url()

    def holds(self, name: str) -> bool:
        """Whether the checkpoint has a file or folder of this name.

        The name shows the kind of job that wrote the checkpoint.
        """
        return self._files.exists(name)

    def query(self) -> str | None:
        """Return the stream's id; None before its first start."""
        if not self._files.exists("metadata"):
            return None
        try:
            return str(json.loads(self._files.read("metadata"))["id"])
        except (ValueError, KeyError, TypeError) as err:
            # Spark does not sync the file to the disk, so a power cut can leave it empty.
            raise PipelineError(f"{self._files.url('metadata')} is damaged: it does not name the stream") from err

    def committed(self) -> int:
        """Return the number of the last finished batch; -1 for none."""
        return self._last("commits")

    def planned(self) -> int:
        """Return the number of the last started batch; -1 for none."""
        return self._last("offsets")

    def ends(self, batch: int) -> Offsets:
        """Return the exclusive end of a batch in each partition. Raises PipelineError."""
        return self._offsets(f"offsets/{batch}", 2)

    def starts(self, batch: int) -> Offsets:
        """Return the start of a batch in each partition, without partitions that are new in the batch."""
        return self._offsets("sources/0/0", 1) if batch == 0 else self.ends(batch - 1)

    def _last(self, folder: str) -> int:
        return max((int(each.name) for each in self._files.listing(folder) if each.name.isdecimal()), default=-1)

    def _offsets(self, path: str, line: int) -> Offsets:
        lines = self._files.read(path).removeprefix("\0").splitlines()
        try:
            topics = json.loads(lines[line])
            return {Partition(t, int(p)): offset for t, found in topics.items() for p, offset in found.items()}
        except (IndexError, ValueError, AttributeError) as err:
            raise PipelineError(f"{self._files.url(path)} is not the checkpoint of a single Kafka source") from err
