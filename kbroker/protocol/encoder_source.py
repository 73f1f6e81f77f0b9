"""Writes the source of an encoder: one function for one version of a declared message.

Owns the shape of the generated code. Nested structs are written inline. A run of fixed-size fields (with the length
prefix that follows it) is one `struct` call. A `records` value that is large or is not a bytes object is omitted from
the output and added to `spill`. Never encodes anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.protocol.function_source import FunctionSource, codec
from kbroker.protocol.schema import FieldSpec, Scalar
from kbroker.protocol.wire import write_uvarint

SPILL_BYTES = 2048
"""Records of at least this size are sent by reference. Below this size, one copy is cheaper than a gathered write."""


class EncoderSource(FunctionSource):
    """Builds the function encode(message, out, spill)."""

    def __init__(self, cls: Any, version: int, form: str) -> None:
        super().__init__(cls, version, form, "encode", "m, out, spill")
        self.names["write_uvarint"] = write_uvarint
        self.run: list[tuple[str, str]] = []

    def build(self) -> Callable[..., Any]:
        self.struct(self.cls, "m")
        self.flush()
        if len(self.lines) == 1:
            self.add("pass")
        return self.compile()

    def flush(self) -> None:
        if not self.run:
            return
        if all(letter == "B" and expression == "0" for letter, expression in self.run):
            self.add(f"out += {bytes(len(self.run))!r}")
        else:
            pack = self.const(codec("".join(letter for letter, _ in self.run)).pack, "pack")
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
        """Write a length prefix. `n` is an expression for a length that is not null."""
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
            number = self.fresh("i")
            self.add(
                f"for {number}, {element} in enumerate({local}):" if self.divided else f"for {element} in {local}:"
            )
            self.depth += 1
            if isinstance(spec.kind, Scalar):
                self.variable(spec.kind, element, False, flexible)
            else:
                self.struct(spec.kind, element)
            self.flush()
            if self.divided:
                self.yield_turn(number)
            self.depth -= 1
        if nullable:
            self.depth -= 1

    def tags(self, tagged: list[FieldSpec], value: str) -> None:
        """Write the tag section. A field that is equal to its default is omitted."""
        if not tagged:
            self.run.append(("B", "0"))
            return
        self.flush()
        count = self.fresh("count")
        conditions = []
        for spec in tagged:
            held = f"{value}.{spec.name}"
            if not isinstance(spec.kind, Scalar) and not spec.array:
                # In Kafka the default of a nullable struct is an empty struct, so null has to be written.
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
