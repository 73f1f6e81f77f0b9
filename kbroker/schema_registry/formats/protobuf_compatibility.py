"""Finds the incompatible changes of a Protobuf file, according to Confluent's registry.

Fields are compared by their numbers, messages and enums by their names. Protobuf can read a scalar as another scalar of
the same kind. The kinds are: varints, including enums and bool; zigzag varints; fixed-size integers of one width;
float; double; strings and bytes. Members of a `oneof` exclude each other. A change must not make fields exclude each
other. Types of other files are compared where they are used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kbroker.schema_registry.formats.common import Incompatibility, InvalidSchema, Steps, java_order, run
from kbroker.schema_registry.formats.protobuf import ProtobufSchema

COMPATIBLE: Final = frozenset(
    (
        "MESSAGE_ADDED",
        "MESSAGE_MOVED",
        "ENUM_ADDED",
        "ENUM_REMOVED",
        "ENUM_CONST_ADDED",
        "ENUM_CONST_CHANGED",
        "ENUM_CONST_REMOVED",
        "FIELD_ADDED",
        "FIELD_REMOVED",
        "FIELD_NAME_CHANGED",
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED",
        "ONEOF_ADDED",
        "ONEOF_REMOVED",
        "ONEOF_FIELD_ADDED",
        "ONEOF_FIELD_MOVED_TO_TOP_LEVEL",
    )
)
"""The kinds of changes after which a reader can still read the writer's data."""
_TEXTS: Final = {
    "PACKAGE_CHANGED": "The package at '{path}'"
    " in the {reader} schema does not match the package in the {writer} schema",
    "MESSAGE_REMOVED": "The {reader} schema is missing a MESSAGE type at path '{path}' in the {writer} schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}'"
    " in the {reader} schema does not match the {writer} schema",
    "FIELD_SCALAR_KIND_CHANGED": "The kind of a SCALAR field at path '{path}'"
    " in the {reader} schema does not match its kind in the {writer} schema",
    "FIELD_NAMED_TYPE_CHANGED": "The type of a MESSAGE field at path '{path}'"
    " in the {reader} schema does not match its type in the {writer} schema",
    "FIELD_NUMERIC_LABEL_CHANGED": "The label for a NUMERIC field at path '{path}'"
    " in the {reader} schema does not match its label in the {writer} schema",
    # Confluent's message also has these two blanks.
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}'"
    " in the {reader} schema is missing in the {writer} schema",
    "REQUIRED_FIELD_REMOVED": "The {reader} schema"
    " is missing a required field at path: '{path}' in the {writer} schema",
    "ONEOF_FIELD_REMOVED": "The {reader} schema is missing a oneof field at path '{path}' in the {writer} schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "Multiple fields in the oneof at path '{path}'"
    " in the {reader} schema are outside a oneof in the {writer} schema",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "A field in the oneof at path '{path}'"
    " in the {reader} schema is outside an existing oneof in the {writer} schema",
}
"""The texts of the messages of Confluent's registry; clients and people search for these words."""
_MESSAGE: Final = 11
_GROUP: Final = 10
_ENUM: Final = 14
_REQUIRED: Final = 2
_REPEATED: Final = 3
_GENERAL: Final = "GENERAL_NUMBER"
_KINDS: Final = {
    **dict.fromkeys((3, 4, 5, 8, 13, _ENUM), _GENERAL),
    **dict.fromkeys((17, 18), "SIGNED_NUMBER"),
    **dict.fromkeys((9, 12), "STRING_OR_BYTES"),
    **dict.fromkeys((7, 15), "FIXED32"),
    **dict.fromkeys((6, 16), "FIXED64"),
    2: "FLOAT",
    1: "DOUBLE",
}
"""The kinds of scalars by FieldDescriptorProto.Type."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A change, and its path from the top of the file."""

    kind: str
    path: tuple[str, ...]


_Work = Generator[Any, list[Difference], list[Difference]]
"""A comparison that yields further comparisons and receives their findings (common.run)."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A message, and facts about the file that defines the message."""

    message: Any
    package: str
    is_own: bool
    is_proto3: bool


def compatible(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Incompatibility]:
    """Return the incompatible changes from the writer's schema to the reader's."""
    return [
        Incompatibility("PROTOBUF", each.kind, "#/" + "/".join(each.path), _TEXTS.get(each.kind, ""))
        for each in differences(writer, reader)
        if each.kind not in COMPATIBLE
    ]


def differences(original: ProtobufSchema, update: ProtobufSchema) -> list[Difference]:
    """Return all changes from one schema to another. Raises InvalidSchema if they cannot be compared."""
    try:
        return run(_Comparison(original, update).whole())
    except RecursionError:
        raise InvalidSchema("these schemas are nested too deeply to be compared") from None


class _Side:
    """One of the two schemas, with its types by their full names."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.file = schema.file
        self.messages: dict[str, _Known] = {}
        for file in schema.files.file:
            is_own = file.name == schema.own
            waiting = [(file.package, each) for each in file.message_type]
            while waiting:
                scope, message = waiting.pop()
                full = f"{scope}.{message.name}" if scope else message.name
                self.messages[full] = _Known(message, file.package, is_own, file.syntax == "proto3")
                waiting += [(full, each) for each in message.nested_type]

    def of(self, field: Any) -> _Known:
        return self.messages[field.type_name.lstrip(".")]

    def entry(self, field: Any) -> Any:
        """Return the message of a map's entries if the field is a map, or None."""
        if field.type != _MESSAGE or field.label != _REPEATED:
            return None
        message = self.of(field).message
        return message if message.options.map_entry else None


class _Comparison:
    def __init__(self, original: ProtobufSchema, update: ProtobufSchema) -> None:
        self._original = _Side(original)
        self._update = _Side(update)
        self._open: set[int] = set()
        self._compared: dict[tuple[int, int], list[Difference]] = {}
        self._steps = Steps()

    def whole(self) -> _Work:
        before, after = self._original.file, self._update.file
        found = [Difference("PACKAGE_CHANGED", ())] if before.package != after.package else []
        return found + (
            yield self._types(
                before.message_type,
                after.message_type,
                before.enum_type,
                after.enum_type,
                (),
                (before.syntax == "proto3", after.syntax == "proto3"),
            )
        )

    def _types(
        self,
        before: Any,
        after: Any,
        enums_before: Any,
        enums_after: Any,
        path: tuple[str, ...],
        proto3: tuple[bool, bool],
    ) -> _Work:
        found: list[Difference] = []
        old, new = _by_name(before), _by_name(after)
        for name in java_order(old, new):
            here = (*path, name)
            if name not in new:
                found.append(Difference("MESSAGE_REMOVED", here))
            elif name not in old:
                found.append(Difference("MESSAGE_ADDED", here))
            else:
                found += yield self._message(old[name][1], new[name][1], here, proto3)
                if old[name][0] != new[name][0]:
                    found.append(Difference("MESSAGE_MOVED", here))
        old_enums, new_enums = {each.name: each for each in enums_before}, {each.name: each for each in enums_after}
        for name in java_order(old_enums, new_enums):
            here = (*path, name)
            if name not in new_enums:
                found.append(Difference("ENUM_REMOVED", here))
            elif name not in old_enums:
                found.append(Difference("ENUM_ADDED", here))
            else:
                found += self._enum(old_enums[name], new_enums[name], here)
        return found

    def _enum(self, before: Any, after: Any, path: tuple[str, ...]) -> list[Difference]:
        old, new = ({each.number: each.name for each in enum.value} for enum in (before, after))
        self._steps.take(len(old) + len(new))
        found = []
        for number in java_order(old, new):
            if old.get(number) != new.get(number):
                change = "REMOVED" if number not in new else "ADDED" if number not in old else "CHANGED"
                found.append(Difference(f"ENUM_CONST_{change}", (*path, str(number))))
        return found

    def _message(self, before: Any, after: Any, path: tuple[str, ...], proto3: tuple[bool, bool]) -> _Work:
        found: list[Difference] = []
        self._steps.take()
        if id(before) not in self._open:
            self._open.add(id(before))
            found += yield self._fields(_Fields(before, proto3[0]), _Fields(after, proto3[1]), path)
            self._open.discard(id(before))
        return found + (
            yield self._types(
                _without_groups(before), _without_groups(after), before.enum_type, after.enum_type, path, proto3
            )
        )

    def _fields(self, before: _Fields, after: _Fields, path: tuple[str, ...]) -> _Work:
        found = _newly_exclusive(before, after, path)
        for name in sorted(before.oneofs.keys() | after.oneofs.keys()):
            if name not in after.oneofs:
                found.append(Difference("ONEOF_REMOVED", (*path, name)))
            elif name not in before.oneofs:
                found.append(Difference("ONEOF_ADDED", (*path, name)))
        for number in sorted(before.by_number.keys() | after.by_number.keys()):
            self._steps.take()
            old, new = before.by_number.get(number), after.by_number.get(number)
            was, will = before.oneof_of.get(number), after.oneof_of.get(number)
            at = (*path, *([will] if will else []), str(number))
            if new is None:
                assert old is not None
                if was is None:
                    found.append(_of_label(old, "REMOVED", (*path, str(number))))
                elif was in after.oneofs or any(each in after.by_number for each in before.oneofs[was]):
                    found.append(Difference("ONEOF_FIELD_REMOVED", (*path, was, str(number))))
            elif old is None:
                found.append(Difference("ONEOF_FIELD_ADDED", at) if will else _of_label(new, "ADDED", at))
            else:
                if was is not None and will is None:
                    found.append(Difference("ONEOF_FIELD_MOVED_TO_TOP_LEVEL", at))
                if old.name != new.name:
                    found.append(Difference("FIELD_NAME_CHANGED", at))
                found += yield self._kinds(old, new, (before.label(old), after.label(new)), at)
        return found

    def _kinds(self, old: Any, new: Any, labels: tuple[int | None, int | None], path: tuple[str, ...]) -> _Work:
        old_entry, new_entry = self._original.entry(old), self._update.entry(new)
        if old_entry is not None and new_entry is not None:
            return (yield self._kinds(old_entry.field[0], new_entry.field[0], (None, None), path)) + (
                yield self._kinds(old_entry.field[1], new_entry.field[1], (None, None), path)
            )
        if (old_entry is None) != (new_entry is None) or (old.type == _MESSAGE) != (new.type == _MESSAGE):
            return [Difference("FIELD_KIND_CHANGED", path)]
        if old.type == _MESSAGE:
            return (yield self._messages(self._original.of(old), self._update.of(new), old, new, path))
        kind = _KINDS.get(old.type)
        if kind != _KINDS.get(new.type):
            return [Difference("FIELD_SCALAR_KIND_CHANGED", path)]
        if None not in labels and labels[0] != labels[1]:
            of = "STRING_OR_BYTES" if kind == "STRING_OR_BYTES" else "NUMERIC"
            return [Difference(f"FIELD_{of}_LABEL_CHANGED", path)]
        return []

    def _messages(self, old: _Known, new: _Known, before: Any, after: Any, path: tuple[str, ...]) -> _Work:
        local = _local(before.type_name, old.package)
        if local != _local(after.type_name, new.package):
            return [Difference("FIELD_NAMED_TYPE_CHANGED", path)]
        if old.is_own and new.is_own:
            return []  # each own message is compared separately
        pair = (id(old.message), id(new.message))
        if pair not in self._compared:
            self._compared[pair] = []
            proto3 = (old.is_proto3, new.is_proto3)
            self._compared[pair] = yield self._message(old.message, new.message, tuple(local.split(".")), proto3)
        found = self._compared[pair]
        self._steps.take(1 + len(found))
        if all(each.kind in COMPATIBLE for each in found):
            return found
        return [*found, Difference("FIELD_NAMED_TYPE_CHANGED", path)]


class _Fields:
    """The fields of a message, and the groups of fields that exclude each other."""

    def __init__(self, message: Any, is_proto3: bool) -> None:
        self._is_proto3 = is_proto3
        synthetic = {each.oneof_index for each in message.field if each.proto3_optional}
        names = {index: each.name for index, each in enumerate(message.oneof_decl) if index not in synthetic}
        self.by_number: dict[int, Any] = {}
        self.oneof_of: dict[int, str] = {}
        self.oneofs: dict[str, list[int]] = {name: [] for name in names.values()}
        for each in message.field:
            if each.type == _GROUP:
                continue  # Confluent's registry does not compare groups
            self.by_number[each.number] = each
            if each.HasField("oneof_index") and each.oneof_index in names:
                name = names[each.oneof_index]
                self.oneof_of[each.number] = name
                self.oneofs[name].append(each.number)

    def label(self, field: Any) -> int | None:
        """Return the label that a field has in the text, or None."""
        if field.number in self.oneof_of or (self._is_proto3 and field.label == 1 and not field.proto3_optional):
            return None
        return int(field.label)


def _newly_exclusive(before: _Fields, after: _Fields, path: tuple[str, ...]) -> list[Difference]:
    found = []
    for name, numbers in after.oneofs.items():
        old = [number for number in numbers if number in before.by_number]
        origins = {before.oneof_of.get(number, number) for number in old}
        if len(origins) > 1:
            from_top = sum(number not in before.oneof_of for number in old)
            kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if from_top > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
            found.append(Difference(kind, (*path, name)))
    return found


def _of_label(field: Any, change: str, path: tuple[str, ...]) -> Difference:
    required = "REQUIRED_" if field.label == _REQUIRED else ""
    return Difference(f"{required}FIELD_{change}", path)


def _by_name(messages: Iterable[Any]) -> dict[str, tuple[int, Any]]:
    """Return messages with their indexes by name, without the entries of maps, which have no index."""
    known = [each for each in messages if not each.options.map_entry]
    return {each.name: (index, each) for index, each in enumerate(known)}


def _without_groups(message: Any) -> list[Any]:
    groups = {each.type_name.rpartition(".")[2] for each in message.field if each.type == _GROUP}
    return [each for each in message.nested_type if each.name not in groups]


def _local(type_name: str, package: str) -> str:
    full = type_name.lstrip(".")
    return full[len(package) + 1 :] if package and full.startswith(f"{package}.") else full
