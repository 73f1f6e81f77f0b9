"""An archive's manifest: its offsets, its files, and its known gaps.

Owns the form of the entries (one JSON document each) and their combined meaning. Never reads or writes files: store.py
does.

    _manifest/<entry>.json
    {"format": 1, "kind": "archive" | "optimize" | "summary", "at": ISO time,
     "ranges": [{"topic", "partition", "start", "end", "records", "checksum"}...],      offsets [start, end)
     "gaps":   [{"topic", "partition", "start", "end"}...],                             deleted before they were read
     "files":  [{"path", "bytes", "records", "columns"}...], "removed": [paths],
     "topics": {name: id}, "queries": {stream's id: last batch}, "includes": [entries that a summary stands for]}

A range is the offsets of a batch. It may have fewer records than offsets: transaction markers, aborted records and
compacted records have offsets but are missing. `checksum` is the sum of the records' hashes modulo 2^64
(record_columns.py), so that the checksums of ranges can be added in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition, Range, by_partition, joined_ranges

FORMAT: Final = 1
MANY_ENTRIES: Final = 500
"""The number of entries after which a manifest is summarized, because each entry takes some ms to read."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the archive. `path` is relative to the archive's root."""

    path: str
    bytes: int
    records: int
    columns: str = ""
    """A text that differs between files whose decoded columns have different types.

    Empty for a file without decoded columns.
    """

    def encode(self) -> dict[str, str | int]:
        """Return the file in the form for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "columns" or value}


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of the archive. It happens completely or not at all."""

    name: str
    kind: str
    at: str
    ranges: tuple[Range, ...] = ()
    gaps: tuple[Range, ...] = ()
    files: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    queries: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    """The topics' ids (KIP-516). A recreated topic has a new id."""
    includes: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return the entry as a JSON document."""
        fields = {
            "format": FORMAT,
            "kind": self.kind,
            "at": self.at,
            "ranges": [each.encode() for each in self.ranges],
            "gaps": [each.encode() for each in self.gaps],
            "files": [each.encode() for each in self.files],
            "removed": list(self.removed),
            "queries": dict(self.queries),
            "topics": dict(self.topics),
            "includes": list(self.includes),
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def decode(cls, name: str, text: str) -> Entry:
        """Return the entry in a document. Raises PipelineError for an invalid document."""
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise PipelineError(f"manifest entry {name} has format {fields['format']}, which is too new for this")
            return cls(
                name,
                fields["kind"],
                fields["at"],
                tuple(map(Range.decode, fields["ranges"])),
                tuple(map(Range.decode, fields["gaps"])),
                tuple(File(**each) for each in fields["files"]),
                tuple(fields["removed"]),
                fields["queries"],
                fields["topics"],
                tuple(fields["includes"]),
            )
        except (ValueError, KeyError, TypeError) as err:
            raise PipelineError(f"manifest entry {name} is damaged: {err!r}") from err


class Manifest:
    """The content of an archive: all its entries together."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        everything = {entry.name: entry for entry in entries}
        covered = {name for entry in everything.values() for name in entry.includes}
        self.entries = [entry for name, entry in sorted(everything.items()) if name not in covered]
        self.obsolete = sorted(covered & everything.keys())
        """The entries that a summary includes, so that their documents may be deleted."""
        files = {file.path: file for entry in self.entries for file in entry.files}
        for entry in self.entries:
            for path in entry.removed:
                files.pop(path, None)
        self.files: dict[str, File] = files
        """The current files of the archive."""
        self.topics = {name: known for entry in self.entries for name, known in entry.topics.items()}
        self.queries: dict[str, int] = {}
        for entry in self.entries:
            for query, batch in entry.queries.items():
                self.queries[query] = max(batch, self.queries.get(query, -1))
        self.ranges: dict[Partition, list[Range]] = by_partition(each for e in self.entries for each in e.ranges)
        self.gaps: dict[Partition, list[Range]] = by_partition(each for e in self.entries for each in e.gaps)

    def ends(self) -> dict[Partition, int]:
        """Return the end of each archived partition, exclusive."""
        return {partition: ranges[-1].end for partition, ranges in self.ranges.items()}

    def faults(self) -> list[str]:
        """Return the faults between the ranges: offsets that are in no range, or in two."""
        found = []
        for partition, ranges in sorted(self.ranges.items()):
            for before, after in pairwise([Range(partition, 0, 0), *ranges]):
                if after.start > before.end:
                    found.append(f"{partition}: offsets {before.end} to {after.start - 1} are in no batch")
                elif after.start < before.end:
                    found.append(f"{partition}: offsets {after.start} to {before.end - 1} are in two batches")
        return found

    def summary(self, name: str, at: str) -> Entry:
        """Return one entry that replaces all entries. Neighbouring ranges are joined."""
        joined = [each for partition in sorted(self.ranges) for each in joined_ranges(self.ranges[partition])]
        return Entry(
            name,
            "summary",
            at,
            tuple(joined),
            tuple(each for partition in sorted(self.gaps) for each in joined_ranges(self.gaps[partition])),
            tuple(self.files[path] for path in sorted(self.files)),
            queries=dict(self.queries),
            topics=dict(self.topics),
            includes=tuple(sorted({entry.name for entry in self.entries} | set(self.obsolete))),
        )
