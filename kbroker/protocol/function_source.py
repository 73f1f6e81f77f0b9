"""A generated function during its construction: its lines, its constants, and its compilation.

Owns the common parts of decoders and encoders: names, indentation, and the fields of a version. Never interprets the
lines. The source is registered with `linecache`, so tracebacks show it.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from kbroker.long_work import turn
from kbroker.protocol.schema import FieldSpec


@cache
def codec(letters: str) -> struct.Struct:
    """Return the big-endian `struct` for these format characters."""
    return struct.Struct(">" + letters)


class FunctionSource:
    """The lines of a function that is being built, its constants, and new variable names."""

    def __init__(self, cls: Any, version: int, form: str, role: str, params: str) -> None:
        self.cls = cls
        self.version = version
        self.divided = form == "divided"
        self.short = form == "short"
        self.flexible: bool = version in cls.FLEXIBLE
        self.name = f"{role}_{cls.__name__}_v{version}{'_' + form if form else ''}"
        self.lines = [f"{'async ' if self.divided else ''}def {self.name}({params}):"]
        self.depth = 1
        self.names: dict[str, Any] = {"structs": codec, "turn": turn}
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

    def yield_turn(self, number: str) -> None:
        """Write a yield before each eighth element of a list. `number` is the variable that counts the elements."""
        self.add(f"if not {number} & 7:")
        self.add("    await turn")

    def compile(self) -> Callable[..., Any]:
        filename = f"<kbroker schema {self.name}>"
        source = "\n".join(self.lines) + "\n"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), self.names)  # the source contains only declared names
        return cast("Callable[..., Any]", self.names[self.name])

    def live(self, cls: Any) -> tuple[list[FieldSpec], list[FieldSpec]]:
        """Return the fields of this version: the ordered fields, and the tagged fields by tag."""
        present = [s for s in cls.SPECS if self.version in s.versions]
        tagged = [s for s in present if s.tag is not None and self.version in s.tagged]
        plain = [s for s in present if s not in tagged]
        return plain, sorted(tagged, key=lambda s: cast("int", s.tag))

    def is_flexible(self, spec: FieldSpec) -> bool:
        return self.flexible if spec.flexible is None else self.version in spec.flexible
