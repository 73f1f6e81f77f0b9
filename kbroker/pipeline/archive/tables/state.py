"""The note of an archive in each commit of a table: the archived offsets, with the sums of their records.

Owns the form of the note. The note of a commit describes the archive as a whole, so the newest note suffices. Other
engines may therefore expire older commits. Never reads or writes a table.

    {"format": 1, "partition_by": "date", "at": ISO time, "streams": {stream's id: last batch}, "topics": {name: id},
     "ranges": {topic: [[partition, start, end, records, checksum]...]}, "gaps": {topic: [[partition, start, end]...]}}
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from kbroker.pipeline.archive.manifest import Entry, Manifest
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition, Range, Sums

FORMAT: Final = 1


def encode(manifest: Manifest, partition_by: str, at: str) -> str:
    """Return the note for an archive's content."""
    whole = manifest.summary("", at)
    fields = {
        "format": FORMAT,
        "partition_by": partition_by,
        "at": at,
        "streams": dict(whole.queries),
        "topics": dict(whole.topics),
        "ranges": _by_topic(
            (each.partition, [each.start, each.end, each.sums.records, f"{each.sums.checksum:016x}"])
            for each in whole.ranges
        ),
        "gaps": _by_topic((each.partition, [each.start, each.end]) for each in whole.gaps),
    }
    return json.dumps(fields, separators=(",", ":"))


def decode(text: str, place: str) -> tuple[Entry, str]:
    """Return a note as one entry, and the columns of `--partition-by`. Raises PipelineError for an invalid note."""
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise PipelineError(f"{place} was archived in format {fields['format']}, which is too new for this")
        ranges = [
            Range(Partition(topic, number), start, end, Sums(records, int(checksum, 16)))
            for topic, found in fields["ranges"].items()
            for number, start, end, records, checksum in found
        ]
        gaps = [
            Range(Partition(topic, number), start, end)
            for topic, found in fields["gaps"].items()
            for number, start, end in found
        ]
        name = f"table-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        streams, topics = dict(fields["streams"]), dict(fields["topics"])
        entry = Entry(name, "table", str(fields["at"]), tuple(ranges), tuple(gaps), queries=streams, topics=topics)
        return entry, str(fields["partition_by"])
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise PipelineError(f"the note of the archived offsets in {place} is damaged: {err!r}") from err


def _by_topic(found: Iterable[tuple[Partition, list[Any]]]) -> dict[str, list[list[Any]]]:
    by_topic: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for partition, fields in found:
        by_topic[partition.topic].append([partition.number, *fields])
    return dict(by_topic)
