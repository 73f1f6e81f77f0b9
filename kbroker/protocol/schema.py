"""The language in which messages are declared. One class serves every version of a message.

    @message(key=0, versions="3-13", flexible="9+")
    class ProduceRequest:
        transactional_id: str | None = f("3+", nullable="3+")
        acks: i16 = f()

Owns the decorators, the field types, and the description of a field (`FieldSpec`). Never reads or writes bytes:
compiler.py converts a declaration to code. Every field has a default (Kafka's, or zero / empty / false), so an absent
field has the same value as in Kafka. An absent tagged struct is None.

Classes are built without the dataclass machinery, because four hundred dataclasses would delay a broker's start by 100
ms. `__init__` is compiled when a class is first instantiated.
"""

import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, dataclass_transform

from kbroker.protocol.wire import ZERO_UUID


@dataclass(frozen=True, slots=True)
class Scalar:
    """A wire type: Kafka's name, and the format character for `struct` if the size is fixed."""

    name: str
    letter: str = ""


i8 = Annotated[int, Scalar("int8", "b")]
i16 = Annotated[int, Scalar("int16", "h")]
u16 = Annotated[int, Scalar("uint16", "H")]
i32 = Annotated[int, Scalar("int32", "i")]
u32 = Annotated[int, Scalar("uint32", "I")]
i64 = Annotated[int, Scalar("int64", "q")]
f64 = Annotated[float, Scalar("float64", "d")]
Uuid = Annotated[bytes, Scalar("uuid", "16s")]


class Sized(Protocol):
    """The value of a `records` field: bytes, or a part of a file that only the transport converts to bytes."""

    def __len__(self) -> int: ...


Records = Annotated[Any, Scalar("records")]
"""A set of record batches. It is decoded as a memoryview on the input (no copy), and encoded from anything `Sized`."""

_BUILTIN = {str: Scalar("string"), bytes: Scalar("bytes"), bool: Scalar("bool", "?")}
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions. It is empty if low > high."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> "Versions":
        """Read Kafka's notation: "3-13", "9+", "4", "none"."""
        if text is None or text == "none":
            return cls(0, -1)
        low, dash, high = text.partition("-")
        if text.endswith("+"):
            return cls(int(text[:-1]), 32767)
        return cls(int(low), int(high) if dash else int(low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


@dataclass(slots=True)
class FieldSpec:
    """The declaration of one field.

    `kind` is a Scalar or a struct class. With `array` it is the kind of the elements.
    """

    name: str
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: Any
    kind: Any = None
    array: bool = False
    flexible: Versions | None = None

    def default_value(self) -> Any:
        """Return a new default value, which an absent field has."""
        return [] if self.default is _EMPTY_LIST else self.default


_EMPTY_LIST: Any = object()


def f(
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    default: Any = _MISSING,
    flexible: str | None = None,
) -> Any:
    """Declare a field: the versions that contain it, the versions in which it may be null, its tag, and its default.

    `flexible` overrides the message's own flexible versions for this field (the request header's client id).
    """
    tagged_versions = Versions.parse(tagged or versions) if tag is not None else Versions(0, -1)
    return FieldSpec(
        name="",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        tag=tag,
        tagged=tagged_versions,
        default=default,
        flexible=None if flexible is None else Versions.parse(flexible),
    )


def _kind_of(hint: Any) -> tuple[Any, bool, bool]:
    """Return (kind, whether it is an array, whether it may be None) for an annotation."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        kind, array, _ = _kind_of(inner[0])
        return kind, array, True
    if typing.get_origin(hint) is list:
        return _kind_of(typing.get_args(hint)[0])[0], True, False
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[1], False, False
    return _BUILTIN.get(hint, hint), False, False


def _implicit_default(spec: FieldSpec) -> Any:
    if spec.array:
        return _EMPTY_LIST
    if not isinstance(spec.kind, Scalar):
        return None
    if spec.kind.name == "records":
        return None
    zero: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "float64": 0.0, "uuid": ZERO_UUID}
    return zero.get(spec.kind.name, 0)


class MessageBase:
    """The common base of declared classes: constructor with fields by keyword, equality, and a readable repr."""

    __slots__ = ()
    SPECS: ClassVar[tuple[FieldSpec, ...]]
    KEY: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, s.name) == getattr(other, s.name) for s in self.SPECS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inner = ", ".join(f"{s.name}={getattr(self, s.name)!r}" for s in self.SPECS)
        return f"{type(self).__name__}({inner})"


def _compile_init(cls: type[MessageBase]) -> Callable[..., None]:
    names: dict[str, Any] = {}
    params, body = [], []
    for i, spec in enumerate(cls.SPECS):
        if spec.default is _EMPTY_LIST:
            params.append(f"{spec.name}=_E")
            body.append(f"    self.{spec.name} = [] if {spec.name} is _E else {spec.name}")
        else:
            names[f"_d{i}"] = spec.default
            params.append(f"{spec.name}=_d{i}")
            body.append(f"    self.{spec.name} = {spec.name}")
    names["_E"] = _EMPTY_LIST
    source = f"def __init__(self, {', '.join(params)}):\n" + "\n".join(body or ["    pass"])
    exec(source, names)  # the source contains only declared names
    init: Callable[..., None] = names["__init__"]
    return init


_T = TypeVar("_T")


def _build(cls: type[_T]) -> type[_T]:
    specs = []
    for name, hint in cls.__annotations__.items():
        spec: FieldSpec = cls.__dict__[name]
        spec.name = name
        spec.kind, spec.array, _ = _kind_of(hint)
        if spec.default is _MISSING:
            spec.default = _implicit_default(spec)
        specs.append(spec)
    dropped = {*cls.__annotations__, "__dict__", "__weakref__"}
    body = {k: v for k, v in cls.__dict__.items() if k not in dropped}
    body["__slots__"] = tuple(s.name for s in specs)
    body["SPECS"] = tuple(specs)
    return typing.cast("type[_T]", type(cls.__name__, (MessageBase,), body))


@dataclass_transform()
def struct(cls: type[_T]) -> type[_T]:
    """Declare a struct nested in messages."""
    return _build(cls)


@dataclass_transform()
def message(*, key: int, versions: str, flexible: str = "none") -> Callable[[type[_T]], type[_T]]:
    """Declare a message: its API key (or record type), its versions, and its flexible versions."""

    def wrap(cls: type[_T]) -> type[_T]:
        built: Any = _build(cls)
        built.KEY = key
        built.VERSIONS = Versions.parse(versions)
        built.FLEXIBLE = Versions.parse(flexible)
        return typing.cast("type[_T]", built)

    return wrap


def structs_of(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield `cls` and every struct class that it contains, at any level."""
    yield cls
    for spec in cls.SPECS:
        if not isinstance(spec.kind, Scalar):
            yield from structs_of(spec.kind)
