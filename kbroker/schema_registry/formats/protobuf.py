"""Protobuf: parsing, the printed forms, values."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, Schema, need, value_in
from kbroker.schema_registry.formats.protobuf_compiler import compiled, from_base64
from kbroker.schema_registry.formats.protobuf_printing import printed

NAME_OF_FILE: Final = "default"
"""The file name in a serialized descriptor."""
_MOST_INDEXES: Final = 100


def parse(text: str, references: Mapping[str, str]) -> ProtobufSchema:
    """Parse a schema's text, or a file descriptor in base64. Raises InvalidSchema."""
    need("google.protobuf")
    try:
        file = from_base64(text)
        source = text if file is None else _text_of(file, references)
        files, own = compiled(source, references)
        return ProtobufSchema(text, references, source, files, own)
    except (InvalidSchema, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidSchema(f"Invalid schema of type PROTOBUF, details: {reason}") from None


def _text_of(file: Any, references: Mapping[str, str]) -> str:
    """Return the text of a descriptor, including options that its imports define."""
    if not file.dependency:
        return printed(file, None)
    imports, own = compiled("".join(f'import "{each}"; ' for each in file.dependency), references)
    return printed(file, None, classes=_classes([*(each for each in imports.file if each.name != own), file]))


def _classes(files: Iterable[Any]) -> Callable[[str], Any]:
    """Return a function that returns the class of a message by its full name. Raises InvalidSchema."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        for each in files:
            pool.Add(each)
    except TypeError as error:
        raise InvalidSchema(str(error)[:500]) from None

    def found(name: str) -> Any:
        try:
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except KeyError:  # needed for the options of a file that does not import descriptor.proto
            return getattr(descriptor_pb2, name.rpartition(".")[2])

    return found


@dataclass(frozen=True)
class ProtobufSchema(Schema):
    """A Protobuf file with the files that it imports."""

    source: str
    files: Any = field(repr=False)
    """The FileDescriptorSet; imports come first."""
    own: str
    schema_type = "PROTOBUF"

    @cached_property
    def file(self) -> Any:
        """The file's own descriptor."""
        return next(each for each in self.files.file if each.name == self.own)

    @cached_property
    def canonical(self) -> str:
        """The text as Confluent's registry prints it."""
        return printed(self.file, self.source)

    @cached_property
    def normalized(self) -> str:
        """The text with full names, and with everything sorted by number or name."""
        return printed(self.file, self.source, normalize=True, extensions=self._extensions())

    def _extensions(self) -> Iterator[str]:
        for file in self.files.file:
            waiting = [(file.package, each) for each in (file, *file.message_type)]
            while waiting:
                scope, owner = waiting.pop()
                if owner is not file:
                    scope = f"{scope}.{owner.name}" if scope else owner.name
                    waiting += [(scope, each) for each in owner.nested_type]
                yield from (f"{scope}.{each.name}" if scope else each.name for each in owner.extension)

    @property
    def name(self) -> str | None:
        """The full name of the first message."""
        return self.names[0] if self.names else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The full names of all messages; each message comes before the messages within it."""
        found: list[str] = []

        def add(scope: str, messages: Any) -> None:
            for each in messages:
                if not each.options.map_entry:
                    full = f"{scope}.{each.name}" if scope else each.name
                    found.append(full)
                    add(full, each.nested_type)

        add(self.file.package, self.file.message_type)
        return tuple(found)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the first message's fields."""
        return (
            frozenset(each.name for each in self.file.message_type[0].field) if self.file.message_type else frozenset()
        )

    @cached_property
    def serialized(self) -> str:
        """The file descriptor in base64, without comments and source locations."""
        file = type(self.file)()
        file.CopyFrom(self.file)
        file.ClearField("source_code_info")
        file.name = NAME_OF_FILE
        return base64.b64encode(bytes(file.SerializeToString(deterministic=True))).decode()

    @cached_property
    def message_class(self) -> Callable[[str], Any]:
        """A function that returns the class of a message's full name. Raises InvalidValue."""
        try:
            return _classes(self.files.file)
        except InvalidSchema as error:
            raise InvalidValue(f"this schema cannot be read: {error}") from None

    @cached_property
    def _by_indexes(self) -> dict[bytes, Any]:
        """The classes of the messages in earlier values, by the bytes of their indexes."""
        return {}

    def check_value(self, data: bytes) -> None:
        """Raise InvalidValue unless the bytes are the indexes of a message of this file, followed by that message."""
        self.message_of(data)

    def value_of(self, data: bytes) -> Any:
        """Return the message in Protobuf's JSON form, with the field names of the file."""
        from google.protobuf.json_format import MessageToDict

        try:
            return MessageToDict(self.message_of(data), preserving_proto_field_name=True)
        except (ValueError, TypeError, RecursionError) as error:  # for example an Any of an unknown type
            raise InvalidValue(f"the Protobuf message has no JSON form: {str(error)[:300]}") from None

    def data_of(self, text: str) -> bytes:
        """Encode a value as the file's first message; return its indexes and its bytes."""
        from google.protobuf.json_format import ParseDict, ParseError

        value = value_in(text, "Protobuf message")
        if not isinstance(value, dict):
            raise InvalidValue("does not match the Protobuf message: not an object")
        message = self.message_class(self._message_at([0]))()
        try:
            ParseDict(value, message)
            return b"\0" + bytes(message.SerializeToString())
        except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidValue(f"does not match the Protobuf message: {str(error)[:300]}") from None

    def message_of(self, data: bytes) -> Any:
        """Return the message as an object of google.protobuf. Raises InvalidValue."""
        from google.protobuf.message import DecodeError

        indexes, position = _indexes(data)
        known = self._by_indexes.get(data[:position])
        if known is None:
            known = self._by_indexes[data[:position]] = self.message_class(self._message_at(indexes))
        message = known()
        try:
            message.ParseFromString(data[position:])
        except (DecodeError, RecursionError, ValueError):
            raise InvalidValue("does not match the Protobuf message") from None
        if not message.IsInitialized():
            raise InvalidValue("does not match the Protobuf message: a required field is missing")
        return message

    def _message_at(self, indexes: list[int]) -> str:
        messages, name = self.file.message_type, str(self.file.package)
        for index in indexes:
            # Entries of maps have no index, because they are not in the text.
            known = [each for each in messages if not each.options.map_entry]
            if not 0 <= index < len(known):
                raise InvalidValue(f"no message has the indexes {indexes}")
            name = f"{name}.{known[index].name}" if name else str(known[index].name)
            messages = known[index].nested_type
        return name


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the indexes of a message, outermost first, and the position after them.

    The encoding is zigzag, and begins with the number of indexes.
    """
    count, position = _zigzag(data, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= _MOST_INDEXES:
        raise InvalidValue("the indexes of a Protobuf message are at most 100")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(data, position)
        indexes.append(index)
    return indexes, position


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), position
    raise InvalidValue("the indexes of a Protobuf message end early")
