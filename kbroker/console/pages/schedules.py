"""A schedule topic: its pending records, its late and refused records, and the cancelling of a record.

Owns the limits of one page. A form names a record by partition and offset, and cancels only this record: a newer record
with the same key stays.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kbroker.admin.connection import patience
from kbroker.admin.errors import NotThere
from kbroker.admin.schedules import NoScheduleTopic, Place, Scheduled, ScheduleTopic, cancel_at, first_due
from kbroker.console.console import Console
from kbroker.console.decoding.shown import shown
from kbroker.console.listing import place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

_MOST_SHOWN: Final = 50
_MOST_SECONDS: Final = 3.0
"""The seconds for which a page reads a topic, and for which it waits for a leader."""


async def find(console: Console, values: Values) -> Facts:
    """Return the numbers of a schedule topic, and the records that are due first."""
    topic, only_failed = values.needed("topic", "the topic"), values.flag("failed")
    await console.topic(topic)

    def found(admin: Any) -> Facts:
        with patience(_MOST_SECONDS):
            state = ScheduleTopic(admin, topic, most_s=_MOST_SECONDS)
            rows = first_due([state], _MOST_SHOWN, None, failed=only_failed)
        now_ms = int(time.time() * 1000)
        return {
            "topic": topic,
            "only_failed": only_failed,
            "count": state.count,
            "late": state.late(now_ms),
            "failed": state.failed,
            "wrong": sum(each.wrong for each in state.partitions.values()),
            "next_ms": min((each.due_ms for each in state.places()), default=None),
            "unreadable": state.unreadable,
            "is_cut": state.is_cut,
            "rows": [_row(each, now_ms, console) for each in rows],
        }

    try:
        return await console.ask(found)
    except NoScheduleTopic as error:
        raise NotThere(str(error)) from None


def _row(found: Scheduled, now_ms: int, console: Console) -> Facts:
    if found.is_delivering:
        state, level = "delivering", "accent"
    elif found.failure is not None:
        state, level = "failed", "bad"
    else:
        state, level = ("late", "warn") if found.place.due_ms < now_ms else ("pending", "")
    key = found.record.key
    return {
        "place": found.place,
        "state": state,
        "level": level,
        "key": None if key is None else shown(key, "auto", console.schemas).brief,
        "to": found.schedule.topic,
        "to_partition": found.schedule.partition,
        "repeats": found.repeats,
        "error": found.error,
        "value": shown(found.record.value, "auto", console.schemas).brief,
        "next": found.next_times(),
    }


async def find_cancel(console: Console, values: Values) -> Facts:
    """Return the record that a form would cancel."""
    wanted = _place(values)

    def found(admin: Any) -> Facts:
        with patience(_MOST_SECONDS):
            state = ScheduleTopic(admin, wanted.topic, (wanted.partition,), most_s=_MOST_SECONDS)
            at = state.at(wanted.partition, wanted.offset)
            record = None if at is None else state.load(at)
        if record is None:
            raise NotThere(f"the record at {wanted.partition}:{wanted.offset} of {wanted.topic} is not pending")
        return {"topic": wanted.topic, "row": _row(record, int(time.time() * 1000), console)}

    return await console.ask(found)


def _place(values: Values) -> Place:
    return Place(
        0,
        values.needed("topic", "the topic"),
        values.needed_number("partition", "the partition"),
        values.needed_number("offset", "the offset"),
    )


def cancel(console: Console, values: Values) -> Done:
    """Cancel a pending record by writing a record with its key and without a value."""
    wanted = _place(values)
    with patience(_MOST_SECONDS), console.connection.admin() as admin:
        cancel_at(admin, console.connection, wanted, _MOST_SECONDS)
    text = f"The record at offset {wanted.offset} of partition {wanted.partition} is cancelled."
    return Done(text, place("/schedules", topic=wanted.topic))


PAGES: Final = (
    Page("/schedules", "schedules.html", find),
    Page("/schedules/cancel", "schedules_cancel.html", find_cancel),
)
ACTIONS: Final = (Action("schedule-cancel", cancel, "topic", of_console=True),)
