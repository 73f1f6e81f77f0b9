"""Types of option values: times, durations, offsets in a file, patterns, replicas.

Owns their parsing; an invalid value raises a UsageError that shows the valid form.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
from kafka.structs import TopicPartition

from kbroker.admin.partition_offsets import parse_iso

_DURATION: Final = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?")


class Moment(click.ParamType[int]):
    """A time in ISO 8601 (in UTC if it has no zone), converted to ms since 1970."""

    name = "iso"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return max(parse_iso(value), 0)
        except ValueError:
            self.fail(f"{value!r} is no time like 2026-01-31T12:00:00Z", param, ctx)


class Ago(click.ParamType[int]):
    """A duration in ISO 8601, converted to the time that lies this duration before now, in ms since 1970."""

    name = "iso"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _DURATION.fullmatch(value)
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is no duration like P1DT2H30M", param, ctx)
        days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
        ago_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return int(max(time.time() - ago_s, 0.0) * 1000)


class OffsetsInFile(click.ParamType[Mapping[TopicPartition, int]]):
    """A file of lines "topic,partition,offset", as for kafka-consumer-groups."""

    name = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[TopicPartition, int]:
        found = {}
        try:
            with open(value, encoding="utf-8", newline="") as file:
                for row in csv.reader(file):
                    if row:
                        topic, partition, offset = (cell.strip() for cell in row)
                        found[TopicPartition(topic, int(partition))] = int(offset)
        except OSError as err:
            self.fail(f"{value}: {err.strerror}", param, ctx)
        except ValueError:
            self.fail(f"{value} does not have lines of the form topic,partition,offset", param, ctx)
        return found


def compiled(pattern: str, option: str) -> Any:
    """Compile an RE2 expression; raises UsageError that names the option."""
    import re2

    try:
        return re2.compile(pattern)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        raise click.UsageError(f"{option}: {pattern!r} is no regular expression of RE2: {reason}") from None


def whole_match(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that tests whether an RE2 expression matches a complete name; None matches all.

    Raises UsageError.
    """
    if pattern is None:
        return lambda _name: True
    expression = compiled(pattern, "the pattern")
    return lambda name: expression.fullmatch(name) is not None


class ReplicaAssignment(click.ParamType[Sequence[Sequence[int]]]):
    """The brokers of each partition, in kafka-topics' form: 1:2,2:3 for two partitions with two replicas each."""

    name = "ID:ID,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Sequence[Sequence[int]]:
        try:
            found = [[int(broker) for broker in each.split(":")] for each in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not of the form 1:2,2:3: replicas of partition 0, of partition 1", param, ctx)
        if any(len(set(each)) < len(each) for each in found):
            self.fail(f"{value!r} names a broker twice for one partition", param, ctx)
        return found
