"""Writes the source of a decoder: one function for one version of a declared message.

Owns the shape of the generated code. Nested structs are written inline. A run of fixed-size fields (with the length
prefix that follows it) is one `struct` call. An array's claimed length is compared with the remaining bytes before
anything is allocated. Never decodes anything itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kbroker.protocol.errors import Malformed
from kbroker.protocol.function_source import FunctionSource, codec
from kbroker.protocol.schema import FieldSpec, Scalar
from kbroker.protocol.wire import read_uvarint

SHORT_LIST = 64
"""The maximum number of elements of a list that a short decoder accepts."""
_AT_ONCE = 10_000
"""After a decoder has read this many numbers, other tasks get a turn."""

MAX_STRING = 32_767
"""The maximum length in bytes of a string in any message."""

_MEMORY_OF = {"string": 56, "bytes": 40, "uuid": 49, "records": 184, "bool": 0, "int8": 0}
_BAD_INPUT = (IndexError, struct.error, UnicodeDecodeError, Malformed)


class DecoderSource(FunctionSource):
    """Builds the function decode(buf) -> message."""

    def __init__(self, cls: Any, version: int, form: str) -> None:
        super().__init__(cls, version, form, "decode", "buf, take" if form == "divided" else "buf")
        self.names |= {
            "Malformed": Malformed, "bad_input": _BAD_INPUT, "read_uvarint": read_uvarint, "too_many": _too_many
        }  # fmt: skip
        self.run: list[tuple[str, str]] = []
        self.exact = form == "exact"
        self.on_error = ", 'replace'" if form in ("stored", "exact") else ""

    def build(self) -> Callable[..., Any]:
        self.add("try:")
        self.depth += 1
        self.add("pos = 0")
        self.add("end = len(buf)")
        result = self.struct(self.cls)
        self.flush()
        if self.exact:
            self.add("if pos != end:")
            self.add("    raise Malformed(f'{end - pos} bytes after the message')")
        self.add(f"return {result}")
        self.depth -= 1
        self.add("except bad_input as err:")
        self.add(f"    raise Malformed('{self.cls.__name__} v{self.version}: ' + str(err)) from err")
        return self.compile()

    def fixed(self, letter: str) -> str:
        name = self.fresh()
        self.run.append((letter, name))
        return name

    def flush(self) -> None:
        if not self.run:
            return
        fields = codec("".join(letter for letter, _ in self.run))
        targets = ", ".join(name for _, name in self.run)
        if fields.format in (">b", ">B") and self.run[0][0] == "B":
            self.add(f"{targets} = buf[pos]")
        else:
            self.add(
                f"{targets}{',' if len(self.run) == 1 else ''} = {self.const(fields.unpack_from, 'unpack')}(buf, pos)"
            )
        self.add(f"pos += {fields.size}")
        self.run = []

    def struct(self, cls: Any) -> str:
        """Write the decoding of a struct. Return the expression that creates the struct."""
        plain, tagged = self.live(cls)
        values = {spec.name: self.field(spec) for spec in plain}
        if self.flexible:
            values |= self.tags(tagged)
        arguments = []
        positional = True
        for spec in cls.SPECS:
            if spec.name in values:
                arguments.append(values[spec.name] if positional else f"{spec.name}={values[spec.name]}")
            else:
                positional = False
        made = self.fresh("s")
        self.flush()
        self.add(f"{made} = {self.const(cls, cls.__name__)}({', '.join(arguments)})")
        return made

    def field(self, spec: FieldSpec) -> str:
        nullable = self.version in spec.nullable
        flexible = self.is_flexible(spec)
        if spec.array:
            return self.array(spec, nullable, flexible)
        if not isinstance(spec.kind, Scalar):
            return self.nested(spec, nullable)
        if spec.kind.letter:
            return self.fixed(spec.kind.letter)
        return self.variable(spec.name, spec.kind, nullable, flexible)

    def nested(self, spec: FieldSpec, nullable: bool) -> str:
        if not nullable:
            return self.struct(spec.kind)
        marker = self.fixed("b")
        self.flush()
        target = self.fresh()
        self.add(f"if {marker} < {0 if spec.tag is None else 1}:")  # in a tag the marker is a varint, 0 for null
        self.add(f"    {target} = None")
        self.add("else:")
        self.depth += 1
        self.add(f"{target} = {self.struct(spec.kind)}")
        self.depth -= 1
        return target

    def length(self, letter: str, flexible: bool, string: str = "") -> str:
        """Write the code that reads a length prefix. Return the name of the variable with the length.

        A negative length means null. A string's length has a limit even if the length is a varint; `string` is the
        string's name in the error message.
        """
        n = self.fixed("B" if flexible else letter)
        self.flush()
        if flexible:
            self.add(f"if {n} > 127:")
            self.add(f"    {n}, pos = read_uvarint(buf, pos - 1)")
            if string:  # check the limit here, so that short strings need no check
                self.add(f"    if {n} > {MAX_STRING + 1}:")
                self.add(f"        raise Malformed('{string} is longer than {MAX_STRING} bytes')")
            self.add(f"{n} -= 1")
        return n

    def variable(self, name: str, kind: Scalar, nullable: bool, flexible: bool) -> str:
        n = self.length("h", flexible, name) if kind.name == "string" else self.length("i", flexible)
        value = self.fresh()
        self.add(f"if {n} >= 0:")
        stop = self.fresh("e")
        self.add(f"    {stop} = pos + {n}")
        self.add(f"    if {stop} > end:")
        self.add(f"        raise Malformed('{name} claims more bytes than remain')")
        cut = f"buf[pos:{stop}]"
        made = {"string": f"str({cut}, 'utf-8'{self.on_error})", "bytes": f"bytes({cut})", "records": cut}[kind.name]
        self.add(f"    {value} = {made}")
        self.add(f"    pos = {stop}")
        if self.divided and kind.name == "string":
            self.add(f"    if {n} > 64 and not {value}.isascii():")
            self.add(f"        take(3 * {n})")  # one wide character makes all characters of a string wide
        self.null_branch(name, value, nullable)
        return value

    def null_branch(self, name: str, value: str, nullable: bool) -> None:
        """Write the branch for null, which is any negative length, as in Kafka's readers (MessageDataGenerator)."""
        self.add("else:")
        if nullable:
            self.add(f"    {value} = None")
        else:
            self.add(f"    raise Malformed('non-nullable field {name} was serialized as null')")

    def array(self, spec: FieldSpec, nullable: bool, flexible: bool) -> str:
        n = self.length("i", flexible)
        value = self.fresh("l")
        self.add(f"if {n} >= 0:")
        self.depth += 1
        self.add(f"if {n} > end - pos:")
        self.add(f"    raise too_many({n}, end - pos)")
        if self.short:
            self.add(f"if {n} > {SHORT_LIST}:")
            self.add("    return None")
        if self.divided:
            self.add(f"take({n} * {_memory_of(spec)})")
        if isinstance(spec.kind, Scalar) and spec.kind.letter and self.divided:
            self.numbers(spec.kind, n, value)
        elif isinstance(spec.kind, Scalar) and spec.kind.letter:
            numbers = self.fresh("c")
            self.add(f"{numbers} = structs('{spec.kind.letter}' * {n})" if spec.kind.letter == "16s"
                     else f"{numbers} = structs(f'{{{n}}}{spec.kind.letter}')")  # fmt: skip
            self.add(f"{value} = list({numbers}.unpack_from(buf, pos))")
            self.add(f"pos += {numbers}.size")
        else:
            self.add(f"{value} = []")
            number = self.fresh("i")
            self.add(f"for {number} in range({n}):")
            self.depth += 1
            if isinstance(spec.kind, Scalar):
                element = self.variable(spec.name, spec.kind, False, flexible)
            else:
                element = self.struct(spec.kind)
            self.flush()
            self.add(f"{value}.append({element})")
            if self.divided:
                self.yield_turn(number)
            self.depth -= 1
        self.depth -= 1
        self.null_branch(spec.name, value, nullable)
        return value

    def numbers(self, kind: Scalar, n: str, value: str) -> None:
        """Write the code that reads a list of numbers, in parts."""
        part, numbers = self.fresh("part"), self.fresh("c")
        self.add(f"{value} = []")
        self.add(f"while len({value}) < {n}:")
        self.add(f"    {part} = min({n} - len({value}), {_AT_ONCE})")
        self.add(f"    {numbers} = structs('{kind.letter}' * {part})" if kind.letter == "16s"
                 else f"    {numbers} = structs(f'{{{part}}}{kind.letter}')")  # fmt: skip
        self.add(f"    {value} += {numbers}.unpack_from(buf, pos)")
        self.add(f"    pos += {numbers}.size")
        self.add("    await turn")

    def tags(self, tagged: list[FieldSpec]) -> dict[str, str]:
        """Write the code that reads a tag section. The code skips unknown tags. Tags must ascend (TaggedFields)."""
        count = self.fixed("B")
        self.flush()
        values = {}
        for spec in tagged:
            values[spec.name] = self.fresh("t")
            default = "[]" if spec.array and spec.default is not None else self.const(spec.default, "d")
            self.add(f"{values[spec.name]} = {default}")
        self.add(f"if {count}:")
        self.depth += 1
        self.add(f"{count}, pos = read_uvarint(buf, pos - 1)")
        last, tag, size, stop = self.fresh("last"), self.fresh("tag"), self.fresh("size"), self.fresh("stop")
        self.add(f"if {count} > end - pos:")
        self.add(f"    raise too_many({count}, end - pos)")
        self.add(f"{last} = -1")
        self.add(f"for _ in range({count}):")
        self.depth += 1
        self.add(f"{tag}, pos = read_uvarint(buf, pos)")
        self.add(f"if {tag} <= {last}:")
        self.add("    raise Malformed('tags out of order')")
        self.add(f"{last} = {tag}")
        self.add(f"{size}, pos = read_uvarint(buf, pos)")
        self.add(f"{stop} = pos + {size}")
        self.add(f"if {stop} > end:")
        self.add("    raise Malformed('a tagged field claims more bytes than remain')")
        for spec in tagged:
            self.add(f"if {tag} == {spec.tag}:")
            self.depth += 1
            element = self.field(spec)
            self.flush()
            self.add(f"{values[spec.name]} = {element}")
            self.depth -= 1
        self.add(f"pos = {stop}")
        self.depth -= 2
        return values


def _too_many(n: int, remaining: int) -> Malformed:
    return Malformed(f"an array claims {n} elements where {remaining} bytes remain")


def _memory_of(spec: FieldSpec) -> int:
    """Return the approximate size in memory of one element of a list, including its slot in the list."""
    if not isinstance(spec.kind, Scalar):
        return 8 + _memory_of_struct(spec.kind)
    return 8 + _MEMORY_OF.get(spec.kind.name, 32)


def _memory_of_struct(cls: Any) -> int:
    size = 48
    for spec in cls.SPECS:
        if spec.array:
            size += 8 + 56
        elif isinstance(spec.kind, Scalar):
            size += 8 + _MEMORY_OF.get(spec.kind.name, 32)
        else:
            size += 8 + _memory_of_struct(spec.kind)
    return size
