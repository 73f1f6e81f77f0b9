"""The schemas for showing values. Owns the page; they belong to this console, not to the cluster."""

from __future__ import annotations

from typing import Any, Final

from kbroker.console.console import Console
from kbroker.console.decoding.schemas import from_form
from kbroker.console.listing import Listing
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values


async def find(console: Console, values: Values) -> Facts:
    """Return a page of the schemas."""
    return {"list": Listing(console.schemas.all(), values.page(), "/schemas")}


def add(console: Console, admin: Any, values: Values) -> Done:
    """Add a schema until the console stops."""
    del admin
    name = values.needed("name", "the name")
    kind = values.one_of("kind", ("avro", "protobuf"))
    from_form(console.schemas, name, kind, values.needed("text", "the schema"))
    return Done(f"Schema {name} is added, until the console is started again.", "/schemas")


def remove(console: Console, admin: Any, values: Values) -> Done:
    """Remove a schema."""
    del admin
    name = values.needed("name", "the name")
    console.schemas.remove(name)
    return Done(f"Schema {name} is forgotten.", "/schemas")


PAGES: Final = (Page("/schemas", "schemas.html", find),)
ACTIONS: Final = (Action("schema-add", add, long=frozenset({"text"})), Action("schema-remove", remove))
