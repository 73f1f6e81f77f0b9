"""A Protobuf file as Confluent's registry prints it: two blanks a level, no comments, messages before enums.

The messages keep their order from the file, and so do the enums.

The descriptor lacks some facts about the text: the written names of types, the form of options, and the grouping of
ranges in statements. This module copies these parts from the places in the text that the compiler reports. A descriptor
without a text is printed with full names.

The normalized form has full names, everything sorted by number or name, and options sorted by name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kbroker.schema_registry.formats.protobuf_options import Options

_MAX_FIELD: Final = 536_870_912
_MAX_ENUM: Final = 2_147_483_647
_BLANK: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\s", re.DOTALL)
_SCALARS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""The names of scalar types by FieldDescriptorProto.Type."""
_GROUP: Final = 10
_LABELS: Final = {1: "optional", 2: "required", 3: "repeated"}
Path = tuple[int, ...]
Place = tuple[int, int, int, int]
"""A part of the text: line and column of its start, line and column of its end. Columns count bytes."""


class Source:
    """The text of a file, addressed by the paths of descriptors (descriptor.proto: SourceCodeInfo)."""

    def __init__(self, file: Any, text: str | None) -> None:
        self._lines = (text or "").encode().split(b"\n")
        self._places: dict[Path, list[Place]] = {}
        self._under: dict[Path, list[tuple[Place, Path]]] = {}
        for location in file.source_code_info.location if text is not None else ():
            span = list(location.span)
            place = (span[0], span[1], span[0] if len(span) == 3 else span[2], span[-1])
            path = tuple(location.path)
            self._places.setdefault(path, []).append(place)
            for length in range(1, len(path)):
                # Options are looked up by their owner's path, which is only a few elements shorter than the option's
                # path.
                if len(path) - length <= 8:
                    self._under.setdefault(path[:length], []).append((place, path))

    def text(self, path: Path) -> str | None:
        """Return the text at a path, without the comments and white space around it."""
        places = self._places.get(path)
        return self.at(places[-1]) if places else None

    def at(self, place: Place) -> str:
        """Return the text at a place."""
        first, start, last, end = place
        if first == last:
            return self._lines[first][start:end].decode()
        lines = [self._lines[first][start:], *self._lines[first + 1 : last], self._lines[last][:end]]
        return b"\n".join(lines).decode()

    def places(self, path: Path) -> list[Place]:
        """Return the places in the text that have this path, in the order of the text."""
        return sorted(set(self._places.get(path, ())))

    def statements(self, path: Path) -> list[str]:
        """Return the written options below a path, in the text's order, without duplicates."""
        places = sorted({place for place, _ in self._under.get(path, ())})
        kept: list[Place] = []
        for place in places:
            if not kept or place[:2] >= kept[-1][2:]:
                kept.append(place)
        return [self.at(place) for place in kept]

    def name(self, path: Path, full: str) -> str:
        """Return a type's name as the text writes it, or else its full name."""
        written = self.text(path)
        return full if written is None else _BLANK.sub("", written)


def printed(
    file: Any,
    text: str | None,
    *,
    normalize: bool = False,
    extensions: Iterable[str] = (),
    classes: Callable[[str], Any] | None = None,
) -> str:
    """Return a file descriptor as text.

    `extensions` are the full names of all known extensions, for the names of options. If there is no text, `classes` is
    needed: it takes the full name of a class of options, and returns the class that knows the extensions.
    """
    return _Printer(file, text, Options(file.package, frozenset(extensions) if normalize else None, classes)).file()


class _Printer:
    def __init__(self, file: Any, text: str | None, options: Options) -> None:
        self._file = file
        self._source = Source(file, text)
        self._has_text = text is not None
        self._normalize = options.is_normalized
        self._options = options
        self._is_proto3 = file.syntax == "proto3"
        self._by_name: dict[int, dict[str, tuple[int, Any]]] = {}

    def file(self) -> str:
        file = self._file
        lines: list[str] = []
        if self._is_proto3:
            lines.append('syntax = "proto3";')
        elif not self._normalize and self._source.text((12,)) is not None:
            lines.append('syntax = "proto2";')
        if file.package:
            lines.append(f"package {file.package};")
        public = [file.dependency[index] for index in file.public_dependency]
        private = [each for each in file.dependency if each not in set(public)]
        if self._normalize:
            public, private = sorted(public), sorted(private)
        lines += _section([f'import "{each}";' for each in private] + [f'import public "{each}";' for each in public])
        lines += _section([f"option {each};" for each in self._options_at(file, (8,))])
        types: list[str] = []
        groups = _groups(file.extension)
        for index, message in enumerate(file.message_type):
            if message.name not in groups:
                types += self._message(message, (4, index))
        for index, enum in enumerate(file.enum_type):
            types += self._enum(enum, (5, index))
        lines += _section(types)
        lines += _section(self._extends(file.extension, (7,), file.message_type))
        services: list[str] = []
        for index, service in enumerate(file.service):
            services += self._service(service, (6, index))
        lines += _section(services)
        return "".join(f"{line}\n" for line in lines)

    def _options_at(self, descriptor: Any, path: Path, extra: Iterable[tuple[str, str]] = ()) -> list[str]:
        if self._has_text:
            written = self._source.statements(path)
        else:
            written = self._options.of_message(descriptor.options)
        return self._options.printed(written, extra)

    def _message(self, message: Any, path: Path) -> list[str]:
        options = [f"option {each};" for each in self._options_at(message, (*path, 7))]
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        fields, groups = [], []
        members: dict[int, list[tuple[int, Any]]] = {}
        for index, field in enumerate(message.field):
            if field.HasField("oneof_index") and field.oneof_index not in synthetic:
                members.setdefault(field.oneof_index, []).append((index, field))
            elif field.type == _GROUP:
                groups.append((index, field))
            else:
                fields.append((index, field))
        sections = [
            self._reserved(message, (*path, 9), (*path, 10), _MAX_FIELD, 1),
            options,
            [line for index, each in self._by_number(fields) for line in self._field(each, (*path, 2, index), entries)],
            self._oneofs(message, path, members),
            [line for index, each in self._by_number(groups) for line in self._group(each, message, (*path, 2, index))],
            self._extension_ranges(message, (*path, 5)),
            self._extends(message.extension, (*path, 6), message.nested_type),
            self._nested(message, path),
        ]
        return _braces(f"message {message.name}", sections)

    def _nested(self, message: Any, path: Path) -> list[str]:
        lines: list[str] = []
        groups = _groups(message.field) | _groups(message.extension)
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry and nested.name not in groups:
                lines += self._message(nested, (*path, 3, index))
        for index, enum in enumerate(message.enum_type):
            lines += self._enum(enum, (*path, 4, index))
        return lines

    def _by_number(self, fields: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return sorted(fields, key=lambda each: each[1].number) if self._normalize else fields

    def _field(self, field: Any, path: Path, entries: dict[str, Any], *, labelled: bool = True) -> list[str]:
        extra: list[tuple[str, str]] = []
        if field.HasField("default_value"):
            extra.append(("default", self._default(field)))
        if self._has_explicit_json_name(field, path):
            extra.append(("json_name", f'"{field.json_name}"'))
        kind, is_map = self._type(field, path, entries)
        label = "" if is_map or not labelled else self._label(field)
        options = self._options.bracketed(self._options_at(field, (*path, 8), extra))
        return f"{label}{kind} {field.name} = {field.number}{options};".split("\n")

    def _label(self, field: Any) -> str:
        if self._is_proto3 and field.label == 1 and not field.proto3_optional:
            return ""
        return f"{_LABELS[field.label]} "

    def _type(self, field: Any, path: Path, entries: dict[str, Any]) -> tuple[str, bool]:
        entry = entries.get(field.type_name.rpartition(".")[2]) if field.label == 3 and field.type == 11 else None
        if entry is not None:
            key, value = entry.field
            written = None if self._normalize else self._source.text((*path, 6))
            if written is not None:
                inner = _BLANK.sub("", written)[len("map<") : -1].split(",")[-1]
            else:
                inner = _SCALARS.get(value.type) or value.type_name
            return f"map<{_SCALARS[key.type]}, {inner}>", True
        if field.type in _SCALARS:
            return _SCALARS[field.type], False
        return field.type_name if self._normalize else self._source.name((*path, 6), field.type_name), False

    def _default(self, field: Any) -> str:
        if field.type == 9:
            return f'"{_escaped(field.default_value)}"'
        return f'"{field.default_value}"' if field.type == 12 else field.default_value

    def _has_explicit_json_name(self, field: Any, path: Path) -> bool:
        if self._has_text:
            return self._source.text((*path, 10)) is not None
        return bool(field.json_name) and field.json_name != _usual_json_name(field.name)

    def _group(self, field: Any, message: Any, path: Path, *, labelled: bool = True) -> list[str]:
        name = field.type_name.rpartition(".")[2]
        key = id(message)
        if key not in self._by_name:
            self._by_name[key] = {each.name: (index, each) for index, each in enumerate(message.nested_type)}
        inner = self._by_name[key].get(name)
        lines: list[str] = []
        if inner is not None:
            index, group = inner
            entries = {each.name: each for each in group.nested_type if each.options.map_entry}
            nested_path = (*path[:-2], 3, index)
            fields = self._by_number(list(enumerate(group.field)))
            lines = [line for at, each in fields for line in self._field(each, (*nested_path, 2, at), entries)]
        label = self._label(field) if labelled else ""
        return _braces(f"{label}group {name} = {field.number}", [lines])

    def _oneofs(self, message: Any, path: Path, members: dict[int, list[tuple[int, Any]]]) -> list[str]:
        made = []
        for index in sorted(members):
            inner = self._by_number(members[index])
            plain = [each for each in inner if each[1].type != _GROUP]
            groups = [each for each in inner if each[1].type == _GROUP]
            sections = [
                [f"option {each};" for each in self._options_at(message.oneof_decl[index], (*path, 8, index, 2))],
                [line for at, each in plain for line in self._field(each, (*path, 2, at), {}, labelled=False)],
                [line for at, each in groups for line in self._group(each, message, (*path, 2, at), labelled=False)],
            ]
            made.append((inner[0][1].number, _braces(f"oneof {message.oneof_decl[index].name}", sections)))
        if self._normalize:
            made.sort(key=lambda each: each[0])
        return [line for _, lines in made for line in lines]

    def _reserved(self, owner: Any, ranges: Path, names: Path, most: int, beyond: int) -> list[str]:
        """Return the `reserved` statements; `beyond` is 1 if the end of a range is exclusive (in messages)."""
        numbers = [(each.start, each.end - beyond) for each in owner.reserved_range]
        if self._normalize or not self._has_text:
            single = [f"reserved {_range(*each, most)};" for each in sorted(numbers)]
            return single + [f'reserved "{each}";' for each in _maybe_sorted(owner.reserved_name, self._normalize)]
        statements = self._grouped(ranges, [_range(*each, most) for each in numbers])
        statements += self._grouped(names, [f'"{each}"' for each in owner.reserved_name])
        return [f"reserved {', '.join(each)};" for _, each in sorted(statements)]

    def _grouped(self, path: Path, values: list[str]) -> list[tuple[Place, list[str]]]:
        """Return values grouped by the statements that contain them."""
        groups: dict[Place, list[str]] = {}
        statements = self._source.places(path)
        for index, value in enumerate(values):
            places = self._source.places((*path, index))
            groups.setdefault(_around(places[0] if places else (0, 0, 0, 0), statements), []).append(value)
        return list(groups.items())

    def _extension_ranges(self, message: Any, path: Path) -> list[str]:
        values = [_range(each.start, each.end - 1, _MAX_FIELD) for each in message.extension_range]
        if self._normalize or not self._has_text:
            numbered = sorted(message.extension_range, key=lambda each: each.start)
            return [f"extensions {_range(each.start, each.end - 1, _MAX_FIELD)};" for each in numbered]
        return [f"extensions {', '.join(each)};" for _, each in sorted(self._grouped(path, values))]

    def _extends(self, extensions: Any, path: Path, nested: Any) -> list[str]:
        blocks: dict[tuple[object, str], list[str]] = {}
        statements = self._source.places(path)
        owner = _Holder(nested)
        fields = list(enumerate(extensions))
        for index, field in fields:
            own = (*path, index)
            if self._normalize:
                key: tuple[object, str] = ("", field.extendee)
            else:
                places = self._source.places(own)
                around = _around(places[0], statements) if places else index
                key = (around, self._source.name((*own, 2), field.extendee))
            lines = self._group(field, owner, own) if field.type == _GROUP else self._field(field, own, {})
            blocks.setdefault(key, []).extend(lines)
        return [line for (_, name), lines in blocks.items() for line in _braces(f"extend {name}", [lines])]

    def _enum(self, enum: Any, path: Path) -> list[str]:
        reserved = self._reserved(enum, (*path, 4), (*path, 5), _MAX_ENUM + 1, 0)
        lines = reserved + [f"option {each};" for each in self._options_at(enum, (*path, 3))]
        values = list(enumerate(enum.value))
        if self._normalize:
            values.sort(key=lambda each: (each[1].number, each[1].name))
        for index, value in values:
            options = self._options.bracketed(self._options_at(value, (*path, 2, index, 3)))
            lines += f"{value.name} = {value.number}{options};".split("\n")
        return _braces(f"enum {enum.name}", [lines])

    def _service(self, service: Any, path: Path) -> list[str]:
        calls: list[str] = []
        for index, method in enumerate(service.method):
            at = (*path, 2, index)
            takes = method.input_type if self._normalize else self._source.name((*at, 2), method.input_type)
            gives = method.output_type if self._normalize else self._source.name((*at, 3), method.output_type)
            takes = f"stream {takes}" if method.client_streaming else takes
            gives = f"stream {gives}" if method.server_streaming else gives
            call = f"rpc {method.name} ({takes}) returns ({gives})"
            options = [f"option {each};" for each in self._options_at(method, (*at, 4))]
            if options:
                inner = [line for each in options for line in each.split("\n")]
                calls += [f"{call} {{", *(f"  {line}" for line in inner), "};"]
            else:
                calls.append(f"{call};")
        options = [f"option {each};" for each in self._options_at(service, (*path, 3))]
        return _braces(f"service {service.name}", [options, calls])


def _groups(fields: Iterable[Any]) -> set[str]:
    return {each.type_name.rpartition(".")[2] for each in fields if each.type == _GROUP}


def _around(spot: Place, statements: list[Place]) -> Place:
    """Return the statement that contains a place, or the place itself; `statements` are in the text's order."""
    at = bisect_right(statements, (*spot[:2], 1 << 40, 0)) - 1
    return statements[at] if at >= 0 and spot[2:] <= statements[at][2:] else spot


class _Holder:
    """Replaces the message in which the types of the groups of extensions are looked up."""

    def __init__(self, nested: Any) -> None:
        self.nested_type = nested


def _section(lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        for each in lines:
            yield from each.split("\n")


def _braces(head: str, sections: list[list[str]]) -> list[str]:
    """Return a block whose sections are separated by empty lines."""
    lines: list[str] = []
    for each in sections:
        if each:
            lines += [""] if lines else []
            # An empty line of an inner block is indented, as in Confluent's printer.
            lines += [f"  {line}" for one in each for line in one.split("\n")]
    return [f"{head} {{", *lines, "}"] if lines else [f"{head} {{}}"]


def _range(start: int, end: int, most: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end >= most - 1 else end}"


def _maybe_sorted(names: Iterable[str], wanted: bool) -> list[str]:
    return sorted(names) if wanted else list(names)


def _escaped(text: str) -> str:
    for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, written)
    return text


def _usual_json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)
