"""Subscribed patterns in RE2's syntax, which the coordinator resolves to topics.

Owns the times at which a group's patterns are resolved: for a new pattern, for new topics, and periodically, but at
most every 10 s. Also owns the resolving itself: a heartbeat starts the work, and the work continues in time slices
after the heartbeat.

Any client may send a pattern, so the cost of a pattern is limited. RE2 has no backtracking: the time of a match is
linear in a name's length. The limit on RE2's memory also limits the work per character, and a match captures few or no
groups. A match takes a few ms at most. A slice exceeds its time by at most one match, or one compilation of a pattern.
All groups together have a limited share of the event loop's turns (coordination/timers.py). A pattern in a heartbeat is
compiled immediately, to check its syntax. This takes some tens of ms at most, because a pattern's length and number of
Unicode classes are limited. RE2 expands these classes before its memory limit applies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

from kbroker.coordination.shard import Outcome, Schedule
from kbroker.group_coordinator.config import Settings
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup, ResolvedRegex
from kbroker.group_coordinator.groups.consumer_member import ConsumerMember
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.group_coordinator.topics import Topics
from kbroker.long_work import SLICE_SECONDS, for_a_while, step, turn
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

MIN_REFRESH_INTERVAL_MS = 10_000
MAX_PATTERN_BYTES = 8 << 10
MAX_UNICODE_CLASSES = 64
MAX_NAMED_GROUPS = 32
MAX_MEMORY_BYTES = 256 << 10
"""The memory that RE2 may use for a pattern, both for the compiled pattern and during a match."""

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
"""The error texts that differ between RE2 and Kafka's library RE2/J. All other texts are the same."""


MaySee = Callable[[str], bool]
"""Returns whether the client may see a topic."""


def everything(_topic: str) -> bool:
    """Return True for each topic: without an authorizer no topic is hidden."""
    return True


class Change(Enum):
    """The change of a member's pattern by a heartbeat: no change, an unresolved pattern, or a resolved pattern."""

    NONE = 0
    UPDATED = 1
    RESOLVED = 2


def compile_regex(pattern: str) -> Callable[[str], Any]:
    """Return a matcher of complete topic names. Raises INVALID_REGULAR_EXPRESSION, also for too costly patterns."""
    if len(pattern) > MAX_PATTERN_BYTES or len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise _invalid(f"{pattern[:100]}...", f"longer than {MAX_PATTERN_BYTES} bytes")
    if pattern.count("\\p") + pattern.count("\\P") > MAX_UNICODE_CLASSES:
        raise _invalid(pattern, f"more than {MAX_UNICODE_CLASSES} Unicode classes")
    import re2  # imported here because the import costs 5 ms and 2.5 MB, and few brokers use patterns

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_MEMORY_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as err:
        reason = err.args[0] if err.args else ""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        text = text.partition(": ")[0]
        raise _invalid(pattern, _WORDINGS.get(text, text)) from None
    if compiled.groups > MAX_NAMED_GROUPS:
        raise _invalid(pattern, f"more than {MAX_NAMED_GROUPS} named groups")
    match: Callable[[str], Any] = compiled.fullmatch
    return match


def _invalid(pattern: str, why: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}.",
    )


class _Job:
    """One job that matches all topics against a group's patterns."""

    def __init__(self, patterns: list[str], topics: Topics, now_ms: int, may_see: MaySee) -> None:
        self.found: dict[str, set[str]] = {pattern: set() for pattern in patterns}
        self.version = topics.state.version
        self.created_version = topics.created_version
        self.started_ms = now_ms
        self._may_see = may_see
        self._names = list(topics.state.topics)
        # The first run creates the coroutine, because the job may be dropped before that run.
        self._work: Coroutine[Any, Any, None] | None = None

    async def _match(self, names: list[str]) -> None:
        for pattern, found in self.found.items():
            try:
                match = compile_regex(pattern)
            except ApiError as err:  # a broker of another version must have accepted the pattern
                log.error("a subscribed pattern is passed over: %s", err)
                continue
            await turn
            for name in names:
                if match(name) and self._may_see(name):
                    found.add(name)
                await turn

    def run(self, seconds: Callable[[], float], budget: float) -> bool:
        """Work for `budget` seconds, or for one step if a step takes longer; return whether the work is done."""
        work = self._work = self._work or self._match(self._names)
        return not for_a_while(lambda: not step(work), budget, seconds)


class Regexes:
    """The patterns of all groups of a shard (shard.py). `seconds` is a stopwatch for the slices of work."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        settings: Settings,
        seconds: Callable[[], float],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._seconds = seconds
        self._jobs: dict[str, _Job] = {}

    def update(
        self,
        group: ConsumerGroup,
        old: ConsumerMember,
        new: ConsumerMember,
        out: Outcome,
        now_ms: int,
        may_see: MaySee = everything,
    ) -> Change:
        """Handle a member's change of pattern from `old` to `new`; resolve the group's patterns if due.

        Patterns match only topics that this member `may_see`, as in Kafka. Raises ApiError.
        """
        change, is_new = self._change(group, old, new, out)
        if (not is_new and not group.regexes) or group.group_id in self._jobs:
            return change
        last = next((resolved.timestamp for resolved in group.resolved.values()), None)
        if last is not None and now_ms <= last + MIN_REFRESH_INTERVAL_MS:
            return change
        patterns = dict(group.regexes)
        for regex, change_by in ((old.regex, -1), (new.regex, 1)):
            if regex:
                patterns[regex] = patterns.get(regex, 0) + change_by
        wanted = [regex for regex, count in patterns.items() if count > 0]
        due = (
            is_new
            or len(wanted) != len(group.resolved)
            or group.regex_version < self._topics.created_version
            or (last is not None and now_ms > last + self._settings.config.consumer_regex_refresh_interval_ms)
        )
        if due and wanted:
            out.when_written(lambda done, now: self._start(group.group_id, wanted, may_see, done, now))
        return change

    def _start(self, group_id: str, patterns: list[str], may_see: MaySee, out: Outcome, now_ms: int) -> None:
        if group_id not in self._jobs:
            self._jobs[group_id] = _Job(patterns, self._topics, now_ms, may_see)
            out.timers.append(Schedule(("regex", group_id), 0))

    def _change(
        self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, out: Outcome
    ) -> tuple[Change, bool]:
        """Return the change, and whether the pattern is new in the group."""
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
        """Continue to match all topics against a group's patterns; write the result when it is complete."""
        out = Outcome()
        job = self._jobs.pop(group_id, None)  # if the job fails, the next heartbeat starts a new job
        if job is None:
            return out
        if not job.run(self._seconds, SLICE_SECONDS / (1 + len(self._jobs))):
            self._jobs[group_id] = job
            out.timers.append(Schedule(("regex", group_id), 0))
            return out
        group = self._groups.consumer(group_id)
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
            log.debug("group %s: epoch %d, as its patterns match other topics", group.group_id, group.epoch + 1)

        def note(_out: Outcome, _now_ms: int) -> None:
            group.regex_version = job.created_version

        out.when_written(note)
