"""A Delta table at a path, as Delta's own connector reads and writes it.

Owns the calls into the connector, and the reading of commits (`_delta_log/N.json`, by Delta's published protocol). The
note of an archive is the user metadata of a commit. The commit also contains the transaction id of the stream and the
batch, so that Delta itself refuses a repeated batch. The search for the newest note goes backwards from the newest
commit, and skips commits of other writers. At a RESTORE, the search continues at the restored version.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.connectors import DELTA, require_class
from kbroker.pipeline.storage.files import Files

LOG: Final = "_delta_log"
_KEY: Final = "kbroker.archive"
_APP: Final = "kbroker-archive-"
_DIGITS: Final = 20


class DeltaLog:
    """The commits of a Delta table."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def versions(self) -> set[int]:
        """Return the versions whose commits are in the log. Delta deletes old commits."""
        names = (each.name.removesuffix(".json") for each in self._files.listing(LOG) if each.name.endswith(".json"))
        return {int(name) for name in names if len(name) == _DIGITS and name.isdecimal()}

    def note(self) -> str | None:
        """Return the newest note of an archive that the table's content includes.

        Return None if no archive has created the table. Raises PipelineError if the commits with the notes are gone.
        """
        versions = self.versions()
        version = max(versions)
        while version in versions:
            commit = self._commit(version)
            found = _note(commit.get("userMetadata"))
            if found is not None:
                return found
            if commit.get("operation") == "RESTORE":
                version = self._restored(commit)
            else:
                version -= 1
        if version >= 0:
            raise self._forgotten("the commits of the archive are no longer in its log")
        return None

    def _restored(self, commit: dict[str, Any]) -> int:
        version = str((commit.get("operationParameters") or {}).get("version"))
        if not version.isdecimal():
            raise self._forgotten("it was restored to a time")
        return int(version)

    def _forgotten(self, why: str) -> PipelineError:
        return PipelineError(f"{self._files.root} does not say what was archived: {why}; archive to another place")

    def _commit(self, version: int) -> dict[str, Any]:
        """Return the facts about a commit."""
        path = f"{LOG}/{version:0{_DIGITS}d}.json"
        for line in self._files.read(path).splitlines():
            if '"commitInfo"' in line:
                try:
                    found = json.loads(line).get("commitInfo")
                except ValueError as err:
                    raise PipelineError(f"{self._files.url(path)} is damaged: {err}") from err
                if isinstance(found, dict):
                    return found
        return {}


class DeltaTable:
    """Implements Table."""

    kind = "Delta"
    widens = False

    def __init__(self, session: Any, files: Files) -> None:
        require_class(session, "io.delta.sql.DeltaSparkSessionExtension", DELTA.what)
        self._session = session
        self._log = DeltaLog(files)
        self._url = files.url()

    def exists(self) -> bool:
        return bool(self._log.versions())

    def note(self) -> str | None:
        return self._log.note()

    def folders(self, partition_by: str) -> tuple[str, ...]:
        return tuple(partition_by.split(","))

    def create(self, schema: Any, partition_by: str, note: str) -> None:
        from pyspark.sql import functions as f

        nothing = [f.lit(None).cast(each.dataType).alias(each.name) for each in schema.fields]
        writer = self._session.range(0).select(*nothing).write.format("delta").mode("errorifexists")
        writer.option("userMetadata", _text(note)).partitionBy("topic", *self.folders(partition_by)).save(self._url)

    def schema(self) -> Any:
        return self.frame().schema

    def evolve(self, schema: Any) -> None:
        """Do nothing, because an append itself changes the columns."""

    def frame(self) -> Any:
        return self._session.read.format("delta").load(self._url)

    def append(self, frame: Any, note: str, stream: str, batch: int) -> None:
        writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", f"{_APP}{stream}").option("txnVersion", str(batch))
        writer.option("userMetadata", _text(note)).save(self._url)

    def tidy(self, most: int) -> None:
        """Do nothing, because Delta merges and deletes its commits itself."""


def _text(note: str) -> str:
    return json.dumps({_KEY: note}, separators=(",", ":"))


def _note(metadata: Any) -> str | None:
    """Return the note in a commit's user metadata. Return None without a note: the metadata may be another writer's."""
    if not isinstance(metadata, str) or not metadata.startswith(f'{{"{_KEY}"'):
        return None
    found = json.loads(metadata).get(_KEY)
    return found if isinstance(found, str) else None
