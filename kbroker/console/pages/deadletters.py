"""Dead letters of a topic: their causes, the records themselves, replaying and purging them.

Owns the previews and their forms. A form contains the shown offsets, and affects only dead letters at these offsets:
later dead letters stay. The replay is refused if another replay ran in between.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kbroker.admin.connection import patience
from kbroker.admin.dead_letters import DeadLetter, Letters, Originals, causes_of, replayed_to, strangers_of
from kbroker.admin.errors import AdminError, Failures, WrongInput
from kbroker.admin.replays import Replay, Wanted, purge, purges
from kbroker.console.console import Console
from kbroker.console.decoding.shown import shown
from kbroker.console.listing import place
from kbroker.console.number_text import number, plural
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

_MOST_LETTERS: Final = 50
_MOST_CAUSES: Final = 200
_MOST_COUNTED: Final = 100_000
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_SECONDS: Final = 3.0
"""The seconds after which no further dead letter is counted or shown.

The number and the bytes of the dead letters are also limited.
"""
_MOST_REPLAYED: Final = 2_000
"""The maximum number of dead letters of one replay, because a request may take only some seconds.

_MOST_BYTES is another limit.
"""
_ENTRY: Final = re.compile(r"(\d{1,9}):(\d{1,19})")


async def find(console: Console, values: Values) -> Facts:
    """Return the causes of a topic's dead letters, and the first dead letters that were not replayed."""
    topic = values.needed("topic", "the topic")
    return await console.ask(_impatiently(lambda admin: _found(admin, topic, console)))


def _impatiently(question: Callable[[Any], Facts]) -> Callable[[Any], Facts]:
    """Limit a request's wait for leaders to some seconds. The page then names a missing leader."""

    def asked(admin: Any) -> Facts:
        with patience(_MOST_SECONDS):
            return question(admin)

    return asked


class _Some:
    """The first dead letters, up to the limits of one request."""

    def __init__(self, letters: Iterator[DeadLetter], most: int) -> None:
        self._letters = letters
        self._most = most
        self.is_cut = False

    def __iter__(self) -> Iterator[DeadLetter]:
        until = time.monotonic() + _MOST_SECONDS
        number = size = 0
        for letter in self._letters:
            self.is_cut = number >= self._most or size >= _MOST_BYTES or time.monotonic() > until
            if self.is_cut:
                return
            yield letter
            number, size = number + 1, size + letter.record.size


def _found(admin: Any, topic: str, console: Console) -> Facts:
    letters, mark, originals = Letters(admin, topic), replayed_to(admin, topic), Originals(admin)
    counted = _Some(letters.read(), _MOST_COUNTED)
    causes = causes_of(counted, mark)
    rows = []
    for letter in _Some(letters.read(mark), _MOST_LETTERS):
        found, problem = originals.told(letter)
        value = None if found is None else shown(found[1], "auto", console.schemas).brief
        place_of = (letter.record.partition, letter.record.offset)
        rows.append({"place": place_of, "origin": letter.origin, "value": value, "problem": problem})
    return {
        "topic": topic,
        "causes": causes[:_MOST_CAUSES],
        "left_out": max(len(causes) - _MOST_CAUSES, 0),
        "count": sum(each.count for each in causes),
        "replayed": sum(each.replayed for each in causes),
        "groups": sorted({each.group for each in causes if each.group}),
        "strangers": strangers_of(causes),
        "unreadable": letters.unreadable,
        "is_cut": counted.is_cut,
        "letters": rows,
    }


async def find_replay(console: Console, values: Values) -> Facts:
    """Return the targets of the dead letters."""
    facts: Facts = {"topic": values.needed("topic", "the topic"), "values": values, "rows": None, "failure": None}
    if values.flag("show"):
        try:
            facts |= await console.ask(_impatiently(lambda admin: _preview(Replay(admin, _wanted(values)))))
        except AdminError as error:
            facts["failure"] = str(error)
    return facts


def _preview(work: Replay) -> Facts:
    rows = work.preview()
    left = sum(row.count for row in rows if row.problem is not None)
    count = sum(row.count for row in rows) - left
    return {"rows": rows, "ends": work.ends, "mark": work.mark, "count": count, "left": left, "is_cut": work.is_cut}


def _wanted(values: Values, before: Mapping[int, int] | None = None, mark: Mapping[int, int] | None = None) -> Wanted:
    return Wanted(
        values.needed("topic", "the topic"),
        to=values.text("to") or None,
        again=values.flag("again"),
        keep_headers=values.flag("keep"),
        skip=values.flag("skip"),
        count=_MOST_REPLAYED,
        most_bytes=_MOST_BYTES,
        before=before,
        mark=mark,
    )


def replay(console: Console, values: Values) -> Done:
    """Replay the dead letters that the preview showed."""
    wanted = _wanted(values, before=_entries(values.all("end")), mark=_entries(values.all("mark")))
    with console.connection.admin() as admin:
        rows = Replay(admin, wanted).execute(console.connection)
    count = sum(row.count for row in rows if row.problem is None)
    passed = sum(row.count for row in rows) - count
    text = f"{plural(count, 'dead letter')} replayed{f', {number(passed)} passed over' if passed else ''}."
    return Done(text, place("/deadletters", topic=wanted.topic))


def _entries(texts: list[str]) -> dict[int, int]:
    found = {}
    for text in texts:
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise WrongInput("the form's offsets cannot be read")
        found[int(match[1])] = int(match[2])
    return found


async def find_purge(console: Console, values: Values) -> Facts:
    """Return the dead letters that a purge would delete."""
    topic, what = values.needed("topic", "the topic"), values.one_of("what", ("replayed", "all"))

    def found(admin: Any) -> Facts:
        return {"rows": purges(admin, topic, replayed_to(admin, topic) if what == "replayed" else None)}

    return {"topic": topic, "what": what, **await console.ask(_impatiently(found))}


def purge_letters(admin: Any, values: Values) -> Done:
    """Delete the dead letters that the preview showed."""
    topic, before = values.needed("topic", "the topic"), _entries(values.all("set"))
    if not before:
        raise WrongInput("there is nothing to delete")
    wanted = purges(admin, topic, before, tuple(before))
    failures = purge(admin, topic, wanted) if wanted else []
    if failures:
        raise Failures(failures)
    return Done(f"Dead letters of {topic} deleted.", place("/deadletters", topic=topic))


PAGES: Final = (
    Page("/deadletters", "deadletters.html", find),
    Page("/deadletters/replay", "deadletters_replay.html", find_replay),
    Page("/deadletters/purge", "deadletters_purge.html", find_purge),
)
ACTIONS: Final = (
    Action("deadletter-replay", replay, "topic", long=frozenset({"end", "mark"}), of_console=True),
    Action("deadletter-purge", purge_letters, "topic", long=frozenset({"set"})),
)
