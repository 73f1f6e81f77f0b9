"""The readable form of a key or a value.

Owns the order of guesses, and the shown size: large values are cut, and can be downloaded in full. Confluent's framing
(a zero byte, then a schema id of four bytes) is recognised and mentioned.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.registry_schemas import framed_id
from kbroker.console.decoding import protobuf
from kbroker.console.decoding.schemas import Schemas, as_json
from kbroker.schema_registry.formats.common import InvalidValue

FORMS: Final = ("auto", "json", "text", "hex", "protobuf")
"""The forms in which bytes can be shown; a schema is a further form, `schema:NAME`."""
LARGEST: Final = 1024 * 1024
"""The maximum number of bytes that are decoded; of a larger value only the beginning is shown, undecoded."""
LONGEST: Final = 64 * 1024
"""The maximum number of characters of a value that are shown."""
_BRIEF: Final = 300
_FRAME: Final = 5
_HEX_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text: the `kind` of the text, a `note` about the bytes, and whether the text was cut."""

    kind: str
    text: str
    note: str | None = None
    cut: bool = False
    value: Any = None
    """The decoded value, for conditions; None for text and hex."""

    @property
    def brief(self) -> str:
        """The beginning of the text, in one line."""
        if self.kind in ("json", "avro", "protobuf"):
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        else:
            text = self.text[: 2 * _BRIEF]
        line = " ".join(text[: 2 * _BRIEF].split())
        return line if len(line) <= _BRIEF else f"{line[:_BRIEF]}…"


def forms(schemas: Schemas) -> list[str]:
    """Return all forms."""
    return [*FORMS, *(f"schema:{each.name}" for each in schemas.all())]


def shown(data: bytes | None, form: str, schemas: Schemas) -> Shown:
    """Return the shown form of bytes. Raises WrongInput for an unknown form."""
    if data is None:
        return Shown("null", "null")
    if form.startswith("schema:"):
        return _by_schema(data, form.removeprefix("schema:"), schemas)
    if form not in FORMS:
        raise WrongInput(f"{form[:50]!r} is no way to show a value")
    if len(data) > LARGEST and form != "hex":
        return _text(data, f"it has {len(data):,} bytes; this is its beginning")
    if form == "auto":
        return _guess(data, schemas)
    if form == "hex":
        return _hex(data)
    if form == "text":
        return _text(data)
    if form == "json":
        return _json(data) or _text(data, "this is no JSON")
    return _wire(data) or _hex(data, "this is no message of Protobuf")


def _guess(data: bytes, schemas: Schemas) -> Shown:
    if not data:
        return Shown("text", "", "it is empty")
    if data[:1] in (b"{", b"["):
        found = _json(data)
        if found is not None:
            return found
    if len(data) >= _FRAME and data[0] == 0:
        framed = _framed(data, schemas)
        if framed is not None:
            return framed
    if _is_text(data):
        return _text(data)
    return _hex(data)


def _framed(data: bytes, schemas: Schemas) -> Shown | None:
    number = framed_id(data)
    schema = schemas.of_id(number) if number is not None else None
    if schema is not None:
        found = _by_schema(data, schema.name, schemas)
        if found.kind != "hex":
            return found
    note = f"Confluent's framing, schema id {number}"
    if number is not None and schemas.registry is not None:
        try:
            registered = schemas.registry.of_id(number)
            value = registered.value_of(data[_FRAME:])
            return _decoded(registered.schema_type.lower(), value, f"{note}: {registered.name or 'without a name'}")
        except (AdminError, InvalidValue) as error:
            note = f"{note}: {error}"
    rest = data[_FRAME:]
    inner = _json(rest) if rest[:1] in (b"{", b"[") else None
    if inner is not None:
        return Shown("json", inner.text, note, inner.cut, inner.value)
    return _hex(
        data, note if schemas.registry is not None else f"{note}; a schema of the name {number} would decode it"
    )


def _by_schema(data: bytes, name: str, schemas: Schemas) -> Shown:
    schema = schemas.get(name)
    if schema is None:
        raise WrongInput(f"there is no schema {name[:100]!r}")
    if len(data) > LARGEST:
        return _hex(data, f"it has {len(data):,} bytes: too many to decode here")
    number = framed_id(data)
    bodies: list[tuple[bytes, str | None]] = [(data, None)]
    if number is not None:
        bodies.insert(0, (_body(data, schema.kind), f"Confluent's framing, schema id {number}"))
    failure = ""
    for body, note in bodies:
        try:
            value = schema.decode(body)
            return _decoded(schema.kind, value, f"{note}, decoded by {name}" if note else f"decoded by {name}")
        except (ValueError, RecursionError) as error:
            failure = failure or str(error)
    return _hex(data, failure)


def _body(data: bytes, kind: str) -> bytes:
    """Return the bytes after the frame. For Protobuf, a message index that is a single zero is also left out."""
    rest = data[_FRAME:]
    return rest[1:] if kind == "protobuf" and rest[:1] == b"\0" else rest


def _decoded(kind: str, value: Any, note: str | None) -> Shown:
    text = as_json(value)
    # The value is parsed from the shown text, so that a condition applies to the shown value.
    return Shown(kind, text[:LONGEST], note, len(text) > LONGEST, json.loads(text))


def _json(data: bytes) -> Shown | None:
    try:
        value = json.loads(data)
        return _decoded("json", value, None)
    except (ValueError, RecursionError):
        return None


def _wire(data: bytes) -> Shown | None:
    bodies: Sequence[tuple[bytes, str | None]] = [(data, None)]
    number = framed_id(data)
    if number is not None:
        bodies = [(_body(data, "protobuf"), f"Confluent's framing, schema id {number}")]
    for body, note in bodies:
        try:
            return _decoded("protobuf", protobuf.decode(body), note)
        except ValueError:
            continue
    return None


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\n\r\t" for each in text)


def _text(data: bytes, note: str | None = None) -> Shown:
    text = data[: 4 * LONGEST].decode("utf-8", "replace")
    return Shown("text", text[:LONGEST], note, len(data) > 4 * LONGEST or len(text) > LONGEST)


def _hex(data: bytes, note: str | None = None) -> Shown:
    lines = []
    for at in range(0, min(len(data), _HEX_BYTES), 16):
        row = data[at : at + 16]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {letters}")
    return Shown("hex", "\n".join(lines), note, len(data) > _HEX_BYTES)
