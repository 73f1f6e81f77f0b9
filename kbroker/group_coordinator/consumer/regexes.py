"""Subscribed patterns: RE2's syntax, resolved to topics by the coordinator.

Owns when a group's patterns are resolved (when one is new, when topics were created, and every so often; at most every
10 s) and the work itself, which goes on in slices behind the heartbeat that asked for it. RE2 has no backtracking, so
that time is linear in a name's length; but slices count matches, and a pattern may be made to take long for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Any

import re2

from kbroker.coordination_outcome import Outcome, Schedule
from kbroker.group_coordinator.consumer import records
from kbroker.group_coordinator.consumer.group import ConsumerGroup, ResolvedRegex
from kbroker.group_coordinator.consumer.member import ConsumerMember
from kbroker.group_coordinator.consumer.settings import Settings
from kbroker.group_coordinator.consumer.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

MIN_REFRESH_INTERVAL_MS = 10_000
SLICE_MATCHES = 4_000
"""Matches tried before the loop may breathe: a few ms."""

_WORDINGS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "bad repetition operator": "invalid nested repetition operator",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
}
"""What RE2 says is wrong, and what its translation to Java, in Kafka, says; in all else they agree."""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class Change(Enum):
    """What a heartbeat changed of a member's pattern: nothing, a pattern yet unresolved, or one that counts at once."""

    NONE = 0
    UPDATED = 1
    RESOLVED = 2


def compile_regex(pattern: str) -> Callable[[str], Any]:
    """Return what matches whole topic names; raises INVALID_REGULAR_EXPRESSION."""
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as err:
        reason = err.args[0] if err.args else ""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        text = text.partition(": ")[0]
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {_WORDINGS.get(text, text)}.",
        ) from None
    match: Callable[[str], Any] = compiled.fullmatch
    return match


class _Job:
    """One look at all topics for a group's patterns."""

    def __init__(self, patterns: list[str], topics: Topics, now_ms: int) -> None:
        self.found: dict[str, set[str]] = {}
        self.version = topics.state.version
        self.created_version = topics.created_version
        self.started_ms = now_ms
        matchers = []
        for pattern in patterns:
            self.found[pattern] = set()
            try:
                matchers.append((compile_regex(pattern), self.found[pattern]))
            except ApiError as err:  # it was checked when a member brought it: by another version of RE2, then
                log.error("a subscribed pattern is passed over: %s", err)
        names = list(topics.state.topics)
        self._steps = ((match, name, found) for name in names for match, found in matchers)

    def run(self) -> bool:
        """Work a slice off; return whether that was all."""
        count = 0
        for match, name, found in islice(self._steps, SLICE_MATCHES):
            count += 1
            if match(name):
                found.add(name)
        return count < SLICE_MATCHES


class Regexes:
    """The patterns of all groups of a shard. Shares the `find` that returns a consumer group by its id."""

    def __init__(self, find: Callable[[str], ConsumerGroup | None], topics: Topics, settings: Settings) -> None:
        self._find = find
        self._topics = topics
        self._settings = settings
        self._jobs: dict[str, _Job] = {}

    def update(
        self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, out: Outcome, now_ms: int
    ) -> Change:
        """See to a member's pattern when `old` becomes `new`, and to the group's. Raises ApiError."""
        change, is_new = self._change(group, old, new, out)
        if (not is_new and not group.regexes) or group.group_id in self._jobs:
            return change
        last = next((resolved.timestamp for resolved in group.resolved.values()), None)
        if last is not None and now_ms <= last + MIN_REFRESH_INTERVAL_MS:
            return change
        patterns = dict(group.regexes)
        for regex, step in ((old.regex, -1), (new.regex, 1)):
            if regex:
                patterns[regex] = patterns.get(regex, 0) + step
        wanted = [regex for regex, count in patterns.items() if count > 0]
        due = (
            is_new
            or len(wanted) != len(group.resolved)
            or group.regex_version < self._topics.created_version
            or (last is not None and now_ms > last + self._settings.config.consumer_regex_refresh_interval_ms)
        )
        if due and wanted:
            self._jobs[group.group_id] = _Job(wanted, self._topics, now_ms)
            out.timers.append(Schedule(("regex", group.group_id), 0))
        return change

    def _change(
        self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, out: Outcome
    ) -> tuple[Change, bool]:
        """Return what changed, and whether the pattern is one that the group does not have yet."""
        if old.regex == new.regex:
            return Change.NONE, False
        if old.regex and group.regexes.get(old.regex) == 1:
            out.records.append(records.resolved_regex(group.group_id, old.regex, None))
        if not new.regex:
            return (Change.RESOLVED if old.regex else Change.UPDATED), False
        if not group.regexes.get(new.regex):
            compile_regex(new.regex)
            return Change.UPDATED, True
        return (Change.RESOLVED if new.regex in group.resolved else Change.UPDATED), False

    def on_timer(self, group_id: str, _now_ms: int) -> Outcome:
        """Go on with a group's look at all topics; write what it found once it is over."""
        out = Outcome()
        job = self._jobs.get(group_id)
        if job is None:
            return out
        if not job.run():
            out.timers.append(Schedule(("regex", group_id), 0))
            return out
        del self._jobs[group_id]
        group = self._find(group_id)
        if group is not None:
            self._write(group, job, out)
        return out

    def _write(self, group: ConsumerGroup, job: _Job, out: Outcome) -> None:
        counts = group.counts.copy()
        bump = False
        for regex, topics in job.found.items():
            if regex not in group.regexes:
                continue
            old = group.resolved.get(regex)
            new = ResolvedRegex(frozenset(topics), job.version, job.started_ms)
            if (old.topics if old is not None else frozenset()) != new.topics:
                bump = True
                counts.count_regex(old, -1)
                counts.count_regex(new, 1)
            out.records.append(records.resolved_regex(group.group_id, regex, new))
        metadata_hash = self._topics.hash_of(counts.topics())
        if bump or metadata_hash != group.metadata_hash:
            out.records.append(records.group_epoch(group.group_id, group.epoch + 1, metadata_hash))
            log.info("group %s: epoch %d, as its patterns match other topics", group.group_id, group.epoch + 1)

        def note(_out: Outcome, _now_ms: int) -> None:
            group.regex_version = job.created_version

        out.when_written(note)
