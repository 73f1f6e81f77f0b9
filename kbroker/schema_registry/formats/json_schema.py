"""JSON Schema: parsing, references, the two printed forms, values. Drafts 4, 6, 7, 2019-09 and 2020-12.

jsonschema-rs validates schemas and values. The library receives each referenced schema beforehand, and a retriever that
refuses every request. So it never opens a file or an address. Patterns run in its engine of linear time. A pattern that
this engine does not support (a look-around) runs in the other engine, with a limit on backtracking.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urljoin

from kbroker.schema_registry.formats.common import (
    InvalidSchema,
    InvalidValue,
    Schema,
    from_json,
    need,
    to_json,
    value_in,
)
from kbroker.schema_registry.formats.json_schema_model import Model

BASE: Final = "https://schema.invalid/"
"""The address of a schema without `$id`. References are relative to this address. `.invalid` never resolves."""
LONGEST_PATTERN: Final = 10_000
"""The maximum number of characters of a pattern."""
LARGEST_PATTERN: Final = 10 * 1024 * 1024
"""The maximum size in bytes of a compiled pattern."""
LARGEST_PATTERNS: Final = 64 * 1024 * 1024
"""The maximum size in bytes of all compiled patterns of a schema."""
MOST_BACKTRACKS: Final = 10_000
"""The maximum number of backtracks when one text is matched with a pattern that needs backtracking."""
_DRAFTS: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}


def parse(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Parse a schema; raises InvalidSchema, also if a referenced schema is not among `references`."""
    need("jsonschema_rs")
    try:
        root = from_json(text)
        if not isinstance(root, (dict, bool)):
            raise InvalidSchema(
                f"Invalid JSON schema: expected an object or boolean at the root, found {_kind_name(root)}"
            )
        given = {name: from_json(each) for name, each in references.items()}
        schema = JsonSchema(text, references, root, given)
        schema.validator  # noqa: B018 - made now, so that what is wrong is told now
    except InvalidSchema as error:
        raise InvalidSchema(f"Invalid schema of type JSON, details: {error}") from None
    return schema


def _kind_name(value: Any) -> str:
    if value is None:
        return "NULL"
    return "ARRAY" if isinstance(value, list) else "STRING" if isinstance(value, str) else "NUMBER"


def draft_of(document: Any) -> int:
    """Return the draft that `$schema` names (4, 6, 7, 2019 or 2020), or 7 if it names none of them."""
    said = document.get("$schema") if isinstance(document, dict) else None
    if isinstance(said, str):
        address = said.partition("://")[2]
        return next((draft for begin, draft in _DRAFTS.items() if address.startswith(begin)), 7)
    return 7


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"remote references are never followed: {uri[:200]}")


@dataclass(frozen=True)
class JsonSchema(Schema):
    """A JSON Schema with the documents that it references."""

    root: Any
    given: Mapping[str, Any]
    schema_type = "JSON"

    @cached_property
    def canonical(self) -> str:
        """The text without white space, with the keys in the given order."""
        return to_json(self.root)

    @cached_property
    def normalized(self) -> str:
        """The text without white space, with sorted keys."""
        return to_json(self.root, sort_keys=True)

    @property
    def name(self) -> str | None:
        """The title."""
        title = self.root.get("title") if isinstance(self.root, dict) else None
        return title if isinstance(title, str) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The title, if there is one."""
        return () if self.name is None else (self.name,)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the object's properties."""
        properties = self.root.get("properties") if isinstance(self.root, dict) else None
        return frozenset(properties) if isinstance(properties, dict) else frozenset()

    @property
    def draft(self) -> int:
        """The draft: 4, 6, 7, 2019 or 2020."""
        return draft_of(self.root)

    @cached_property
    def documents(self) -> dict[str, Any]:
        """All documents by their addresses; the schema's own document is the first."""
        root = _ready(self.root)
        ready = {name: _ready(each) for name, each in self.given.items()}
        address = _identity(root, self.draft) or BASE
        found = {address: root}
        bases = [address, *(own for each in ready.values() if (own := _identity(each, draft_of(each))))]
        for name, each in ready.items():
            quoted = quote(name, safe="/:?#[]@!$&'()*+,;=%~-._")
            for base in bases:
                found.setdefault(urljoin(base, quoted).partition("#")[0], each)
        return found

    @cached_property
    def model(self) -> Model:
        """The form of the schema that is compared for compatibility. Raises InvalidSchema."""
        return Model(self.documents, self.draft)

    @cached_property
    def validator(self) -> Any:
        """The validator of values. Raises InvalidSchema."""
        import jsonschema_rs

        kind = {
            4: jsonschema_rs.Draft4Validator,
            6: jsonschema_rs.Draft6Validator,
            7: jsonschema_rs.Draft7Validator,
            2019: jsonschema_rs.Draft201909Validator,
            2020: jsonschema_rs.Draft202012Validator,
        }[self.draft]
        (address, root), *others = self.documents.items()
        options: dict[str, Any] = {"base_uri": address, "retriever": _no_retrieval}
        try:
            if others:
                options["registry"] = jsonschema_rs.Registry(others, retriever=_no_retrieval)
            limits = _limits(self.documents.values())
            try:
                return kind(root, pattern_options=jsonschema_rs.RegexOptions(**limits), **options)
            except jsonschema_rs.ValidationError:
                # The schema is wrong, or a pattern is not linear.
                bounded = jsonschema_rs.FancyRegexOptions(backtrack_limit=MOST_BACKTRACKS, **limits)
                return kind(root, pattern_options=bounded, **options)
        except jsonschema_rs.ValidationError as error:
            raise InvalidSchema(error.message[:500]) from None
        except (jsonschema_rs.ReferencingError, ValueError, TypeError, RecursionError) as error:
            raise InvalidSchema(str(error)[:500]) from None

    def check_value(self, data: bytes) -> None:
        """Raise InvalidValue unless the bytes are JSON that matches this schema."""
        self._check(self.value_of(data))

    def value_of(self, data: bytes) -> Any:
        """Return the JSON value, whether it matches the schema or not."""
        try:
            return value_in(data.decode(), "JSON schema")
        except UnicodeDecodeError:
            raise InvalidValue("does not match the JSON schema: not JSON") from None

    def data_of(self, text: str) -> bytes:
        """Return the JSON bytes of a value that matches the schema."""
        value = value_in(text, "JSON schema")
        self._check(value)
        return json.dumps(value, ensure_ascii=False).encode()

    def _check(self, value: Any) -> None:
        import jsonschema_rs

        depth = _depth(value)
        if self.model.costs.of(depth) > MOST_EVALUATIONS:
            raise InvalidValue("the JSON schema has too many alternatives within each other for a value of this depth")
        try:
            self.validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise InvalidValue(f"does not match the JSON schema: {error.message[:300]}") from None
        except ValueError as error:
            raise InvalidValue(f"does not match the JSON schema: {str(error)[:300]}") from None


def _limits(documents: Iterable[Any]) -> dict[str, int]:
    """Return the size limits of each pattern, so that all patterns together have a bound.

    Raises InvalidSchema if a pattern is too long.
    """
    count = 0
    waiting = list(documents)
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            patterns = here.get("patternProperties")
            found = [*patterns] if isinstance(patterns, dict) else []
            found += [here["pattern"]] if isinstance(here.get("pattern"), str) else []
            if any(len(each) > LONGEST_PATTERN for each in found):
                raise InvalidSchema(f"a pattern has at most {LONGEST_PATTERN} characters")
            count += len(found)
            waiting += here.values()
        elif isinstance(here, list):
            waiting += here
    limit = min(LARGEST_PATTERN, LARGEST_PATTERNS // max(count, 1))
    return {"size_limit": limit, "dfa_size_limit": limit}


MOST_EVALUATIONS: Final = 10_000_000
"""The maximum number of evaluations of one part of a value: nested alternatives multiply their number."""


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _identity(document: Any, draft: int) -> str | None:
    own = document.get("id" if draft == 4 else "$id") if isinstance(document, dict) else None
    return urljoin(BASE, own).partition("#")[0] if isinstance(own, str) and own else None


def _ready(document: Any) -> Any:
    """Return a document for the validator: without an unknown `$schema`, and with `definitions` in `$defs`."""
    if not isinstance(document, dict):
        return document
    ready = dict(document)
    said = ready.get("$schema")
    if said is not None and (not isinstance(said, str) or said.partition("://")[2].rstrip("#") not in _DRAFTS):
        del ready["$schema"]
    older, newer = ready.get("definitions"), ready.get("$defs", {})
    if older and isinstance(older, dict) and isinstance(newer, dict):
        ready["$defs"] = older | newer
    return ready
