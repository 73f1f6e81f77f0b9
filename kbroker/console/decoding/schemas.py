"""Schemas for decoding values: Avro schemas and Protobuf descriptor sets, from a directory, a form or a registry.

Owns the schemas, in bounded memory; a restart drops schemas that were added on a page. A file 42.avsc, or a schema
named 42, is the schema for Confluent's id 42. Other ids belong to the registry, if the console has one. Fetches nothing
else.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.registry_schemas import RegistrySchemas

MOST: Final = 200
LARGEST: Final = 1024 * 1024
_LONGEST_NAME: Final = 200
_KINDS: Final = {".avsc": "avro", ".desc": "protobuf", ".pb": "protobuf"}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with its decoder and a summary."""

    name: str
    kind: str
    about: str
    source: str
    decode: Callable[[bytes], Any]


class Schemas:
    """The schemas of one console; `registry` provides further schemas by their ids."""

    def __init__(self, directory: Path | None = None, registry: RegistrySchemas | None = None) -> None:
        self.registry = registry
        self._by_name: dict[str, Schema] = {}
        self._lock = threading.Lock()
        if directory is not None:
            self._read(directory)

    def all(self) -> list[Schema]:
        """Return the schemas in order of their names."""
        with self._lock:
            return [self._by_name[name] for name in sorted(self._by_name)]

    def get(self, name: str) -> Schema | None:
        """Return a schema by its name."""
        with self._lock:
            return self._by_name.get(name)

    def of_id(self, number: int) -> Schema | None:
        """Return the schema of an id in Confluent's framing: the schema whose name is the id."""
        return self.get(str(number))

    def add_avro(self, name: str, text: str, source: str = "added here") -> None:
        """Add an Avro schema, as JSON. Raises WrongInput."""
        from kbroker.console.decoding import avro

        schema = avro.parsed(text)
        self._add(Schema(_checked(name), "avro", avro.about(schema), source, avro.decoder(schema)))

    def add_protobuf(self, name: str, data: bytes, source: str = "added here") -> None:
        """Add the messages of a descriptor set, as `protoc --descriptor_set_out` writes it. Raises WrongInput."""
        from kbroker.console.decoding import protobuf

        found = protobuf.decoders(data)
        if not found:
            raise WrongInput("the descriptor set has no messages")
        for message, decode in found.items():
            self._add(Schema(_checked(f"{name}:{message}"), "protobuf", f"message {message}", source, decode))

    def remove(self, name: str) -> None:
        """Remove a schema. Raises WrongInput if it does not exist."""
        with self._lock:
            if self._by_name.pop(name, None) is None:
                raise WrongInput(f"there is no schema {name}")

    def _add(self, schema: Schema) -> None:
        with self._lock:
            if len(self._by_name) >= MOST and schema.name not in self._by_name:
                raise WrongInput(f"there are {MOST} schemas already")
            self._by_name[schema.name] = schema

    def _read(self, directory: Path) -> None:
        if not directory.is_dir():
            raise AdminError(f"--schemas {directory} is no directory")
        for path in sorted(directory.iterdir()):
            kind = _KINDS.get(path.suffix)
            if kind is None or not path.is_file():
                continue
            try:
                if path.stat().st_size > LARGEST:
                    raise WrongInput(f"it has more than {LARGEST:,} bytes")
                if kind == "avro":
                    self.add_avro(path.stem, path.read_text(encoding="utf-8"), path.name)
                else:
                    self.add_protobuf(path.stem, path.read_bytes(), path.name)
            except (WrongInput, UnicodeDecodeError) as error:
                raise AdminError(f"--schemas {path}: {error}") from None
            except OSError as error:
                raise AdminError(f"--schemas {path}: {(error.strerror or str(error)).lower()}") from None


def _checked(name: str) -> str:
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise WrongInput(f"a schema has a name of 1 to {_LONGEST_NAME} letters")
    return name


def from_form(schemas: Schemas, name: str, kind: str, text: str) -> None:
    """Add a pasted schema: JSON for Avro, base64 for a descriptor set. Raises WrongInput."""
    if len(text) > 2 * LARGEST:
        raise WrongInput(f"a schema has at most {LARGEST:,} bytes")
    if kind == "avro":
        schemas.add_avro(name, text)
        return
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise WrongInput(
            "a descriptor set is pasted as base64 (protoc --descriptor_set_out=x.desc, base64 x.desc)"
        ) from None
    schemas.add_protobuf(name, data)


def as_json(value: Any) -> str:
    """Return a decoded value as JSON; values without a JSON form become text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return str(value)
