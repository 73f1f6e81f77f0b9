"""Turns a declared message into straight-line decode and encode functions, one per (class, version), on first use.

Owns the generated code's shape: nested structs are written inline, a run of fixed-size fields (with the length prefix
that follows it) is one `struct` call, an array's claimed length is checked against the bytes that remain before
anything is allocated. Never does I/O and keeps no state but its caches. The generated source is registered with
`linecache`, so tracebacks show it.

Decoding takes any buffer that ends where the message ends; a memoryview makes `records` fields views on it.
Each comes in a divided form, too: a generator that yields once an element, for messages whose lists are long.
Encoding appends to a bytearray; a `records` value that is no bytes object, or a large one, is left out and noted in
`spill` as (position in the output, value), so that the transport can send it without a copy.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, TypeVar, cast

from kbroker.protocol.errors import Malformed
from kbroker.protocol.schema import FieldSpec, Scalar
from kbroker.protocol.wire import Buffer, read_uvarint, write_uvarint

Decoder = Callable[[Buffer], Any]
Spill = list[tuple[int, Any]]
Encoder = Callable[[Any, bytearray, Spill], None]
DividedDecoder = Callable[[Buffer, Callable[[int], None]], Generator[None, None, Any]]
"""Called with the buffer, and with what is told, before it is taken, how many bytes of memory a list takes."""
DividedEncoder = Callable[[Any, bytearray, Spill], Generator[None, None, None]]
_T = TypeVar("_T")

SPILL_BYTES = 2048
"""Records from this size on are sent by reference; below it one copy is cheaper than a gathered write."""

SHORT_LIST = 64
"""Elements of the longest list that a short decoder takes."""
_AT_ONCE = 10_000
"""Numbers that are decoded between two yields."""

MAX_STRING = 32_767
"""Bytes of the longest string in any message."""

_MEMORY_OF = {"string": 56, "bytes": 40, "uuid": 49, "records": 184, "bool": 0, "int8": 0}
_BAD_INPUT = (IndexError, struct.error, UnicodeDecodeError, Malformed)


@cache
def _codec(letters: str) -> struct.Struct:
    return struct.Struct(">" + letters)


def decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T]:
    """Return the function that decodes version `version` of `cls`; it raises Malformed on bad input."""
    return cast("Callable[[Buffer], _T]", _decoder(cast("Any", cls), version))


def encoder(cls: type[Any], version: int) -> Encoder:
    """Return the function that appends version `version` of a `cls` to a bytearray."""
    return _encoder(cast("Any", cls), version)


def short_decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T | None]:
    """Return a decoder that gives up (None) at the first list of more than SHORT_LIST elements."""
    return cast("Callable[[Buffer], _T | None]", _decoder(cast("Any", cls), version, "short"))


def divided_decoder(cls: type[Any], version: int) -> DividedDecoder:
    """Return the decoder as a generator; it raises Malformed, and whatever is raised where it tells of memory."""
    return cast("DividedDecoder", _decoder(cast("Any", cls), version, "divided"))


def divided_encoder(cls: type[Any], version: int) -> DividedEncoder:
    """Return the encoder as a generator."""
    return cast("DividedEncoder", _encoder(cast("Any", cls), version, "divided"))


def decode(cls: type[_T], version: int, buf: Buffer) -> _T:
    """Decode one message; raises Malformed."""
    return decoder(cls, version)(buf)


def encode(value: Any, version: int) -> bytes:
    """Encode one message whole, with its records copied in."""
    out = bytearray()
    spill: Spill = []
    _encoder(cast("Any", type(value)), version)(value, out, spill)
    if not spill:
        return bytes(out)
    parts, last = [], 0
    for pos, piece in spill:
        parts += [bytes(out[last:pos]), bytes(piece)]
        last = pos
    return b"".join([*parts, bytes(out[last:])])


@cache
def _decoder(cls: Any, version: int, form: str = "") -> Decoder:
    _check_version(cls, version)
    return cast("Decoder", _Decode(cls, version, form).build())


@cache
def _encoder(cls: Any, version: int, form: str = "") -> Encoder:
    _check_version(cls, version)
    return cast("Encoder", _Encode(cls, version, form).build())


def _check_version(cls: Any, version: int) -> None:
    if version not in cls.VERSIONS:
        raise ValueError(f"{cls.__name__} has no version {version}")


def _too_many(n: int, remaining: int) -> Malformed:
    return Malformed(f"an array claims {n} elements where {remaining} bytes remain")


def _memory_of(spec: FieldSpec) -> int:
    """Return what one element of a list takes in memory, by and large, with its place in the list."""
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


class _Source:
    """Lines of a function under construction, its constants, and fresh variable names."""

    def __init__(self, cls: Any, version: int, form: str, role: str, params: str) -> None:
        self.cls = cls
        self.version = version
        self.divided = form == "divided"
        self.short = form == "short"
        self.flexible: bool = version in cls.FLEXIBLE
        self.name = f"{role}_{cls.__name__}_v{version}{'_' + form if form else ''}"
        self.lines = [f"def {self.name}({params}):"]
        self.depth = 1
        self.names: dict[str, Any] = {
            "Malformed": Malformed, "read_uvarint": read_uvarint, "write_uvarint": write_uvarint,
            "too_many": _too_many, "bad_input": _BAD_INPUT, "structs": _codec,
        }  # fmt: skip
        self.counter = 0

    def fresh(self, prefix: str = "v") -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def const(self, value: Any, prefix: str = "k") -> str:
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def compile(self) -> Callable[..., Any]:
        filename = f"<kbroker schema {self.name}>"
        source = "\n".join(self.lines) + "\n"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), self.names)  # made of declared names only
        return cast("Callable[..., Any]", self.names[self.name])

    def live(self, cls: Any) -> tuple[list[FieldSpec], list[FieldSpec]]:
        """Return the fields of this version: those in order, and the tagged ones by tag."""
        present = [s for s in cls.SPECS if self.version in s.versions]
        tagged = [s for s in present if s.tag is not None and self.version in s.tagged]
        plain = [s for s in present if s not in tagged]
        return plain, sorted(tagged, key=lambda s: cast("int", s.tag))

    def is_flexible(self, spec: FieldSpec) -> bool:
        return self.flexible if spec.flexible is None else self.version in spec.flexible


class _Decode(_Source):
    """Builds decode(buf) -> message."""

    def __init__(self, cls: Any, version: int, form: str) -> None:
        super().__init__(cls, version, form, "decode", "buf, take" if form == "divided" else "buf")
        self.run: list[tuple[str, str]] = []

    def build(self) -> Callable[..., Any]:
        self.add("try:")
        self.depth += 1
        self.add("pos = 0")
        self.add("end = len(buf)")
        if self.divided:
            self.add("yield")
        result = self.struct(self.cls)
        self.flush()
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
        codec = _codec("".join(letter for letter, _ in self.run))
        targets = ", ".join(name for _, name in self.run)
        if codec.format in (">b", ">B") and self.run[0][0] == "B":
            self.add(f"{targets} = buf[pos]")
        else:
            self.add(
                f"{targets}{',' if len(self.run) == 1 else ''} = {self.const(codec.unpack_from, 'unpack')}(buf, pos)"
            )
        self.add(f"pos += {codec.size}")
        self.run = []

    def struct(self, cls: Any) -> str:
        """Write the decoding of a struct; return the expression that makes it."""
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
        """Write the reading of a length prefix; return the variable that holds it (negative for null).

        That of a string, which is named for the error, has a bound also where it is a varint.
        """
        n = self.fixed("B" if flexible else letter)
        self.flush()
        if flexible:
            self.add(f"if {n} > 127:")
            self.add(f"    {n}, pos = read_uvarint(buf, pos - 1)")
            if string:  # in here, short strings cost nothing more
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
        made = {"string": f"str({cut}, 'utf-8')", "bytes": f"bytes({cut})", "records": cut}[kind.name]
        self.add(f"    {value} = {made}")
        self.add(f"    pos = {stop}")
        if self.divided and kind.name == "string":
            self.add(f"    if {n} > 64 and not {value}.isascii():")
            self.add(f"        take(3 * {n})")  # one wide character makes all of them wide
        self.null_branch(name, value, nullable)
        return value

    def null_branch(self, name: str, value: str, nullable: bool) -> None:
        """Write what a negative length means, any one, as Kafka's generated readers have it (MessageDataGenerator)."""
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
            codec = self.fresh("c")
            self.add(f"{codec} = structs('{spec.kind.letter}' * {n})" if spec.kind.letter == "16s"
                     else f"{codec} = structs(f'{{{n}}}{spec.kind.letter}')")  # fmt: skip
            self.add(f"{value} = list({codec}.unpack_from(buf, pos))")
            self.add(f"pos += {codec}.size")
        else:
            self.add(f"{value} = []")
            self.add(f"for _ in range({n}):")
            self.depth += 1
            if isinstance(spec.kind, Scalar):
                element = self.variable(spec.name, spec.kind, False, flexible)
            else:
                element = self.struct(spec.kind)
            self.flush()
            self.add(f"{value}.append({element})")
            if self.divided:
                self.add("yield")
            self.depth -= 1
        self.depth -= 1
        self.null_branch(spec.name, value, nullable)
        return value

    def numbers(self, kind: Scalar, n: str, value: str) -> None:
        """Write the reading of a list of numbers in parts."""
        part, codec = self.fresh("part"), self.fresh("c")
        self.add(f"{value} = []")
        self.add(f"while len({value}) < {n}:")
        self.add(f"    {part} = min({n} - len({value}), {_AT_ONCE})")
        self.add(f"    {codec} = structs('{kind.letter}' * {part})" if kind.letter == "16s"
                 else f"    {codec} = structs(f'{{{part}}}{kind.letter}')")  # fmt: skip
        self.add(f"    {value} += {codec}.unpack_from(buf, pos)")
        self.add(f"    pos += {codec}.size")
        self.add("    yield")

    def tags(self, tagged: list[FieldSpec]) -> dict[str, str]:
        """Write the reading of a tag section; unknown tags are skipped, tags must ascend (TaggedFields)."""
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


class _Encode(_Source):
    """Builds encode(message, out, spill)."""

    def __init__(self, cls: Any, version: int, form: str) -> None:
        super().__init__(cls, version, form, "encode", "m, out, spill")
        self.run: list[tuple[str, str]] = []

    def build(self) -> Callable[..., Any]:
        self.struct(self.cls, "m")
        self.flush()
        if self.divided:
            self.add("yield")
        elif len(self.lines) == 1:
            self.add("pass")
        return self.compile()

    def flush(self) -> None:
        if not self.run:
            return
        if all(letter == "B" and expression == "0" for letter, expression in self.run):
            self.add(f"out += {bytes(len(self.run))!r}")
        else:
            pack = self.const(_codec("".join(letter for letter, _ in self.run)).pack, "pack")
            self.add(f"out += {pack}({', '.join(expression for _, expression in self.run)})")
        self.run = []

    def struct(self, cls: Any, value: str) -> None:
        plain, tagged = self.live(cls)
        for spec in plain:
            self.field(spec, f"{value}.{spec.name}")
        if self.flexible:
            self.tags(tagged, value)

    def field(self, spec: FieldSpec, value: str) -> None:
        nullable = self.version in spec.nullable
        flexible = self.is_flexible(spec)
        if spec.array:
            self.array(spec, value, nullable, flexible)
        elif not isinstance(spec.kind, Scalar):
            self.nested(spec, value, nullable)
        elif spec.kind.letter:
            self.run.append((spec.kind.letter, value))
        else:
            self.variable(spec.kind, value, nullable, flexible)

    def nested(self, spec: FieldSpec, value: str, nullable: bool) -> None:
        local = self.fresh("n")
        self.flush()
        self.add(f"{local} = {value}")
        if not nullable:
            self.add(f"if {local} is None:")
            self.add(f"    {local} = {self.const(spec.kind, spec.kind.__name__)}()")
            self.struct(spec.kind, local)
            return
        self.add(f"if {local} is None:")
        self.add("    out += b'\\xff'" if spec.tag is None else "    out += b'\\0'")
        self.add("else:")
        self.depth += 1
        self.add("out += b'\\x01'")
        self.struct(spec.kind, local)
        self.flush()
        self.depth -= 1

    def length(self, letter: str, n: str, flexible: bool) -> None:
        """Write a length prefix; `n` is an expression of a length that is not null."""
        if not flexible:
            self.run.append((letter, n))
            self.flush()
            return
        self.flush()
        self.add(f"if {n} < 127:")
        self.add(f"    out.append({n} + 1)")
        self.add("else:")
        self.add(f"    write_uvarint(out, {n} + 1)")

    def null(self, letter: str, flexible: bool) -> None:
        self.run.append(("B", "0") if flexible else (letter, "-1"))
        self.flush()

    def variable(self, kind: Scalar, value: str, nullable: bool, flexible: bool) -> None:
        letter = "h" if kind.name == "string" else "i"
        local, n = self.fresh(), self.fresh("n")
        if nullable:
            self.flush()
            self.add(f"{local} = {value}")
            self.add(f"if {local} is None:")
            self.depth += 1
            self.null(letter, flexible)
            self.depth -= 1
            self.add("else:")
            self.depth += 1
            value = local
        self.add(f"{local} = {value}.encode()" if kind.name == "string" else f"{local} = {value}")
        self.add(f"{n} = len({local})")
        self.length(letter, n, flexible)
        if kind.name == "records":
            self.add(f"if {n} >= {SPILL_BYTES} or {local}.__class__ is not bytes:")
            self.add(f"    if {n}:")
            self.add(f"        spill.append((len(out), {local}))")
            self.add("else:")
            self.add(f"    out += {local}")
        else:
            self.add(f"out += {local}")
        if nullable:
            self.depth -= 1

    def array(self, spec: FieldSpec, value: str, nullable: bool, flexible: bool) -> None:
        local, n = self.fresh("l"), self.fresh("n")
        if nullable:
            self.flush()
        self.add(f"{local} = {value}")
        if nullable:
            self.add(f"if {local} is None:")
            self.depth += 1
            self.null("i", flexible)
            self.depth -= 1
            self.add("else:")
            self.depth += 1
        self.add(f"{n} = len({local})")
        self.length("i", n, flexible)
        if isinstance(spec.kind, Scalar) and spec.kind.letter:
            letters = f"'{spec.kind.letter}' * {n}" if spec.kind.letter == "16s" else f"f'{{{n}}}{spec.kind.letter}'"
            self.add(f"out += structs({letters}).pack(*{local})")
        else:
            element = self.fresh("e")
            self.add(f"for {element} in {local}:")
            self.depth += 1
            if isinstance(spec.kind, Scalar):
                self.variable(spec.kind, element, False, flexible)
            else:
                self.struct(spec.kind, element)
            self.flush()
            if self.divided:
                self.add("yield")
            self.depth -= 1
        if nullable:
            self.depth -= 1

    def tags(self, tagged: list[FieldSpec], value: str) -> None:
        """Write the tag section: a field equal to its default is left out."""
        if not tagged:
            self.run.append(("B", "0"))
            return
        self.flush()
        count = self.fresh("count")
        conditions = []
        for spec in tagged:
            held = f"{value}.{spec.name}"
            if not isinstance(spec.kind, Scalar) and not spec.array:
                # One that may be null has an empty struct for its default in Kafka, and null is written.
                conditions.append("True" if self.version in spec.nullable else f"{held} is not None")
            elif spec.array and spec.default is not None:
                conditions.append(f"{held} is None or len({held}) > 0")
            elif spec.default is None:
                conditions.append(f"{held} is not None")
            else:
                conditions.append(f"{held} != {self.const(spec.default, 'd')}")
        self.add(f"{count} = {' + '.join(f'({c})' for c in conditions)}")
        self.add(f"if not {count}:")
        self.add("    out += b'\\0'")
        self.add("else:")
        self.depth += 1
        self.add(f"write_uvarint(out, {count})")
        for spec, condition in zip(tagged, conditions, strict=True):
            self.add(f"if {condition}:")
            self.depth += 1
            outer = self.fresh("outer")
            self.add(f"{outer}, out = out, bytearray()")
            self.field(spec, f"{value}.{spec.name}")
            self.flush()
            inner = self.fresh("inner")
            self.add(f"{inner}, out = out, {outer}")
            self.add(f"write_uvarint(out, {spec.tag})")
            self.add(f"write_uvarint(out, len({inner}))")
            self.add(f"out += {inner}")
            self.depth -= 1
        self.depth -= 1
