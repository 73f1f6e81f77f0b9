"""The records of a topic: browsing, searching, inspecting, following and writing them.

Owns the meaning of the page's fields, the `kbroker consume` line that prints the same record, and the page of the
schemas that decode values.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from kbroker.admin.cluster_view import TopicView, cluster_view
from kbroker.admin.errors import AdminError, NotThere, WrongInput
from kbroker.admin.fetching import Found, fetch
from kbroker.admin.records import write_record
from kbroker.console.console import Console
from kbroker.console.decoding.schemas import from_form
from kbroker.console.decoding.shown import forms, shown
from kbroker.console.listing import Listing, place
from kbroker.console.page_and_action import Action, Done, Facts, Page, Raw
from kbroker.console.pages.topic import view_shown
from kbroker.console.records import filters
from kbroker.console.records.search import MOST_RECORDS, MOST_SHOWN, Cursor, Search, parse_cursor
from kbroker.console.records.tail import Tail
from kbroker.console.values import Values, queried
from kbroker.schema_registry.formats.common import InvalidValue

_FROM: Final = ("newest", "oldest", "offset", "time")
_LIMITS: Final = ("50", "20", "100", "200")
_FIELDS: Final = ("from", "partition", "offset", "since", "until", "limit", "key", "value", "header", "where", "regex",
                  "kform", "vform", "committed")  # fmt: skip
_ADVANCED: Final = ("header", "where", "until", "limit", "regex", "committed", "kform", "vform")
"""The advanced fields. The page hides these fields at first if none of them is set."""
_USUAL: Final = {"limit": _LIMITS[0], "kform": "auto", "vform": "auto"}


class Fields:
    """The meaning of the page's fields."""

    def __init__(self, values: Values, topic: TopicView, console: Console) -> None:
        self.values = values
        self.topic = topic
        self.schemas = console.schemas
        self.start = values.one_of("from", _FROM)
        self.limit = int(values.one_of("limit", _LIMITS))
        self.kform = values.text("kform") or "auto"
        self.vform = values.text("vform") or "auto"
        for form in (self.kform, self.vform):
            if form not in forms(self.schemas):
                raise WrongInput(f"{form[:50]!r} is no way to show a value")
        self.partition = values.optional_number("partition", "the partition")
        known = [each.partition_index for each in topic.partitions]
        if self.partition is not None and self.partition not in known:
            raise WrongInput(f"topic {topic.name} has no partition {self.partition}")
        chosen = known if self.partition is None else [self.partition]
        self.leaderless = sorted(
            each.partition_index for each in topic.partitions if each.leader_id < 0 and each.partition_index in chosen
        )
        """The chosen partitions without a leader. They cannot be read now."""
        self.partitions = [each for each in chosen if each not in self.leaderless]
        self.wanted = filters.parsed(values, self.vform, self.schemas)
        offset = values.optional_number("offset", "the offset")
        if self.start == "offset" and offset is None:
            raise WrongInput("the offset is missing")
        since = values.time("since")
        if self.start == "time" and since is None:
            raise WrongInput("the time is missing")
        self.search = Search(
            topic,
            self.partitions,
            self.wanted,
            forward=self.start != "newest",
            since_ms=since,
            until_ms=values.time("until"),
            from_offset=offset if self.start == "offset" else None,
            committed=values.flag("committed"),
            limit=self.limit,
        )

    def query(self) -> dict[str, str]:
        """Return the fields that are not empty."""
        return {name: self.values.raw(name) for name in _FIELDS if self.values.raw(name)}

    def row(self, record: Found) -> dict[str, Any]:
        """Return the row of a record in the list."""
        value = shown(record.value, self.vform, self.schemas)
        return {
            "record": record,
            "key": shown(record.key, self.kform, self.schemas),
            "value": value,
            "href": place(
                "/topics",
                self.topic.name,
                "records",
                record.partition,
                record.offset,
                kform=self.values.text("kform"),
                vform=self.values.text("vform"),
            ),
        }


async def find(console: Console, values: Values) -> Facts:
    """Return records of a topic, and the position from which the next page continues."""
    topic = await console.topic(values.needed("topic", "the topic"))
    failure, facts = None, {}
    try:
        fields = Fields(values, topic, console)
        facts = await _found(console, fields, values)
    except WrongInput as error:
        failure = str(error)
    return {
        "topic": topic,
        "view": await console.ask(lambda admin: view_shown(admin, topic.name)),
        "values": values,
        "failure": failure,
        "forms": forms(console.schemas),
        "limits": _LIMITS,
        "tab": "messages",
        "rows": [],
        "step": None,
        "more": None,
        "continues": False,
        "base": place("/topics", topic.name, "messages"),
        "tail": None,
        "leaderless": [],
        "advanced": any(values.raw(name) not in ("", _USUAL.get(name)) for name in _ADVANCED),
        **facts,
    }


async def _found(console: Console, fields: Fields, values: Values) -> Facts:
    """Run one step of the search."""
    cursor = None
    if values.text("at"):
        read = values.number("read", "the number of records")
        found = values.number("found", "the number of records")
        cursor = Cursor(fields.search.forward, parse_cursor(values.text("at")), read, found)
    step = await console.ask(lambda admin: fields.search.step(admin, cursor))
    path = place("/topics", fields.topic.name, "messages")
    now = step.cursor
    more = None if step.over else place(path, **{**fields.query(), "at": now, "read": now.read, "found": now.found})
    # The page continues the search by itself until the page is full, or until the search has read so many records that
    # the user should confirm it.
    continues = bool(fields.wanted) and more is not None and now.found < fields.limit
    bound = now.read - values.number("asked", "the number of records") >= MOST_RECORDS
    rows = await console.cluster.work(lambda: [fields.row(each) for each in step.records[:MOST_SHOWN]])
    return {
        "rows": rows,
        "step": step,
        "more": more,
        "continues": continues and not bound,
        "leaderless": fields.leaderless,
        "filtered": bool(fields.wanted),
        "continued": bool(values.text("at")),
        "tail": place("/topics", fields.topic.name, "tail", **fields.query()),
    }


# -- one record


async def find_one(console: Console, values: Values) -> Facts:
    """Return a record with all its details."""
    record = await _record(console, values)
    kform, vform = values.text("kform") or "auto", values.text("vform") or "auto"
    schemas = console.schemas
    path = place("/topics", record.topic, "records", record.partition, record.offset)
    topic = await console.topic(record.topic)
    key, value, headers = await console.cluster.work(
        lambda: (
            shown(record.key, kform, schemas),
            shown(record.value, vform, schemas),
            [(name, shown(data, "auto", schemas)) for name, data in record.headers],
        )
    )
    return {
        "record": record,
        "key": key,
        "value": value,
        "headers": headers,
        "command": command(console, record),
        "forms": forms(schemas),
        "kform": kform,
        "vform": vform,
        "base": path,
        "topic": topic,
        "tab": "messages",
    }


async def _record(console: Console, values: Values) -> Found:
    name = values.needed("topic", "the topic")
    partition = values.number("partition", "the partition")
    offset = values.number("offset", "the offset")
    return await console.ask(partial(_fetched, name, partition, offset))


def _fetched(name: str, partition: int, offset: int, admin: Any) -> Found:
    view = cluster_view(admin, [name])
    key = (name, partition)
    led = view.leaders()
    if all(each != key for each, _ in view.partitions()):
        raise NotThere(f"there is no {name}-{partition}")
    if key not in led:
        raise AdminError(f"{name}-{partition} has no leader")
    piece = fetch(admin, led, {key: offset}, {name: view.topics[name].topic_id})[key]
    for each in piece.records:
        if each.offset == offset:
            return each
    raise NotThere(f"{name}-{partition} has no record at offset {offset}; it has offsets {piece.begin} to {piece.end}")


def command(console: Console, record: Found) -> str:
    """Return the command line that prints a record's value."""
    words = ["--partition", str(record.partition), "--offset", str(record.offset), "--count", "1"]
    words += console.settings.cli
    # The name of a topic may be --help.
    words = [*words, "--", record.topic] if record.topic.startswith("-") else [record.topic, *words]
    return shlex.join(["kbroker", "consume", *words])


async def download(console: Console, request: Request) -> Response:
    """Return the bytes of a key or a value as a file that the browser must store and not show."""
    values = queried(request)
    what = values.one_of("part", ("value", "key"))
    record = await _record(console, values)
    data = record.value if what == "value" else record.key
    if data is None:
        raise WrongInput(f"the {what} is null")
    name = f"{record.topic}-{record.partition}-{record.offset}.{what}"
    headers = {"content-disposition": f'attachment; filename="{quote(name)}"', "x-content-type-options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


# -- following, and writing


async def tail(console: Console, request: Request) -> Response:
    """Return a response with new records as they arrive, until the reader disconnects."""
    values = queried(request)
    topic = await console.topic(values.needed("topic", "the topic"))
    fields = Fields(values, topic, console)
    at = parse_cursor(request.headers.get("last-event-id") or values.text("at"))
    return Tail(console, fields.search, fields.row, at)


def produce(console: Console, values: Values) -> Done:
    """Write a record."""
    topic = values.needed("topic", "the topic")
    key = values.raw("key").encode("utf-8", "surrogateescape") or (b"" if values.flag("empty_key") else None)
    value = None if values.flag("tombstone") else _value(console, values)
    headers = []
    for line in values.raw("headers").splitlines():
        if line.strip():
            name, equals, text = line.partition("=")
            if not equals or not name.strip():
                raise WrongInput(f"a header is NAME=TEXT, not {line.strip()[:80]!r}")
            headers.append((name.strip(), text.encode("utf-8", "surrogateescape")))
    where = values.optional_number("partition", "the partition")
    partition, offset = write_record(console.cluster.connection, topic, key, value, headers, where)
    return Done(f"The record is at offset {offset} of partition {partition}.", place("/topics", topic, "messages"))


def _value(console: Console, values: Values) -> bytes:
    """Return the typed value: unchanged, or encoded with the latest schema of a subject."""
    text, subject, registry = values.raw("value"), values.text("subject"), console.schemas.registry
    if not subject or registry is None:
        return text.encode("utf-8", "surrogateescape")
    try:
        return registry.framed(subject, "latest", text)
    except InvalidValue as error:
        raise WrongInput(f"the value {error}") from None


# -- the schemas by which values are shown, which belong to this console and not to the cluster


async def find_schemas(console: Console, values: Values) -> Facts:
    """Return a page of the schemas."""
    return {"list": Listing(console.schemas.all(), values.page(), "/schemas")}


def add_schema(console: Console, values: Values) -> Done:
    """Add a schema until the console stops."""
    name = values.needed("name", "the name")
    kind = values.one_of("kind", ("avro", "protobuf"))
    from_form(console.schemas, name, kind, values.needed("text", "the schema"))
    return Done(f"Schema {name} is added, until the console is started again.", "/schemas")


def remove_schema(console: Console, values: Values) -> Done:
    """Remove a schema."""
    name = values.needed("name", "the name")
    console.schemas.remove(name)
    return Done(f"Schema {name} is forgotten.", "/schemas")


PAGES: Final = (
    Page("/topics/{topic}/messages", "messages.html", find),
    Page("/topics/{topic}/records/{partition}/{offset}", "record.html", find_one),
    Page("/schemas", "schemas.html", find_schemas),
)
RAW: Final = (
    Raw("/topics/{topic}/records/{partition}/{offset}/download", download),
    Raw("/topics/{topic}/tail", tail),
)
ACTIONS: Final = (
    Action("produce", produce, long=frozenset({"key", "value", "headers"}), of_console=True),
    Action("schema-add", add_schema, long=frozenset({"text"}), of_console=True),
    Action("schema-remove", remove_schema, of_console=True),
)
