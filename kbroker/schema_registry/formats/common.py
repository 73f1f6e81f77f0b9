"""What the three formats have in common: the interface, the limits, JSON as Java's libraries write it.

Owns the limits of hostile texts. The parsers below the formats recurse, some of them in C or Rust, where a deep text
ends the process; therefore a text's depth is measured before any parser sees it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeVar

from kbroker.extras import how_to_install

LARGEST: Final = 1024 * 1024
"""The most characters of a schema with all its references."""
DEEPEST: Final = 200
"""The most levels of nesting in a text: braces, brackets, parentheses."""
LONGEST_NUMBER: Final = 1_000
"""The most characters of a number, as Jackson has it, and the most digits that its exponent stands for."""
MOST_STEPS: Final = 300_000
"""The most steps of one comparison; a step is a pair of types compared, or a difference copied."""


class InvalidSchema(Exception):  # noqa: N818 - what it says of the text
    """A text that is no schema of its type, or that goes beyond a limit; the message is for the client (42201)."""


class InvalidValue(ValueError):  # noqa: N818 - what it says of the bytes
    """Bytes that are no value of a schema."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a reader's schema cannot read what a writer's schema wrote.

    `text` describes it as Confluent does, with `{path}`, `{info}`, `{reader}` and `{writer}`; the last two become "new"
    and "old", as the direction has it. `form` is the type of schema, which decides about quotes and fields.
    """

    form: str
    error_type: str
    path: str
    text: str
    additional_info: str = ""

    def description(self, reader: str = "new", writer: str = "old") -> str:
        """Return the sentence; `reader` and `writer` name the two schemas in it."""
        return self.text.format(path=self.path, info=self.additional_info, reader=reader, writer=writer)

    def message(self, reader: str = "new", writer: str = "old") -> str:
        """Return the entry as the verbose messages of Confluent's registry have it; quotes differ by type."""
        said = self.description(reader, writer)
        if self.form == "AVRO":
            return f"{{errorType:'{self.error_type}', description:'{said}', additionalInfo:'{self.additional_info}'}}"
        end = "'}" if self.form == "JSON" else '"}'
        return f'{{errorType:"{self.error_type}", description:"{said}{end}'


@dataclass(frozen=True)
class Schema(ABC):
    """A parsed schema. Immutable; what is derived from it is made when first asked for, and kept."""

    schema_type: str = field(init=False, default="")
    text: str
    references: Mapping[str, str]
    """The texts of what the schema refers to, by the names under which it does, each after those that it needs."""

    @property
    @abstractmethod
    def canonical(self) -> str:
        """The text that the registry stores and returns."""

    @property
    @abstractmethod
    def normalized(self) -> str:
        """The text that it stores with `normalize=true`: the same for schemas that differ in form only."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The full name of the record, the title, or the full name of the first message (RecordNameStrategy)."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All names that values may have: a record's name or a title; each message of a Protobuf file, nested too."""

    @property
    @abstractmethod
    def fields(self) -> frozenset[str]:
        """The names of the fields at the top: of the record, the object, the first message."""

    @property
    def resolved(self) -> str | None:
        """The text with all that it refers to within itself (`format=resolved`), for Avro only."""
        return None

    @property
    def serialized(self) -> str | None:
        """The file descriptor in base64 (`format=serialized`), for Protobuf only."""
        return None

    @abstractmethod
    def check_value(self, data: bytes) -> None:
        """Raise InvalidValue unless these bytes are a value: those after the magic byte and the id.

        For Protobuf they begin with the indexes of the message.
        """

    @abstractmethod
    def value_of(self, data: bytes) -> Any:
        """Return the value of these bytes, which are those of `check_value`; raises InvalidValue.

        What JSON lacks is left as the format's library has it: bytes, decimals, dates.
        """

    @abstractmethod
    def data_of(self, text: str) -> bytes:
        """Return the bytes of a value in JSON, those of `value_of`; raises InvalidValue.

        Avro: a branch of a union as {"type": value}, or just the value. Protobuf: its JSON form of the first message.
        """


def need(module: str) -> None:
    """Raise ImportError with the way to install the extra if a library is missing."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of the package around it
        found = None
    if found is None:
        raise ImportError(f"the schema registry needs {module}: {how_to_install('registry')}")


_JSON_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_PROTOBUF_NESTING = re.compile(
    r"//[^\n]*+|/\*.*?(?:\*/|\Z)|\"(?:[^\"\\\n]++|\\.)*+\"?|'(?:[^'\\\n]++|\\.)*+'?|[\[{(<]|[\]})>]", re.DOTALL
)
_OPEN: Final = frozenset("[{(<")
_CLOSE: Final = frozenset("]})>")


def check_size(text: str, references: Mapping[str, str]) -> None:
    """Raise InvalidSchema if the texts are together larger than the limit."""
    if len(text) + sum(map(len, references.values())) > LARGEST:
        raise InvalidSchema(f"the schema and its references have more than {LARGEST} characters")


def check_nesting(text: str, *, json_text: bool, deepest: int = DEEPEST) -> None:
    """Raise InvalidSchema if a text is nested too deeply: braces and brackets outside of strings and comments."""
    if json_text and text.count("{") + text.count("[") <= deepest:
        return  # nearly every value
    depth = 0
    for found in (_JSON_NESTING if json_text else _PROTOBUF_NESTING).finditer(text):
        token = found.group()
        if token in _OPEN:
            depth += 1
            if depth > deepest:
                raise InvalidSchema(f"the schema is nested more than {deepest} levels deep")
        elif token in _CLOSE:
            depth -= 1
        elif not json_text and token.startswith("/*") and "/*" in token[2:]:
            # The compiler would tell of each.
            raise InvalidSchema('"/*" inside of a comment')


def value_in(text: str, what: str) -> Any:
    """Return a value in JSON; raises InvalidValue, which says that it is not `what`."""
    try:
        check_nesting(text, json_text=True)
        return json.loads(text)
    except (InvalidSchema, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, (InvalidSchema, RecursionError)) else "not JSON"
        raise InvalidValue(f"does not match the {what}: {reason}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number has at most {LONGEST_NUMBER} characters")
    return int(text)


def _fraction(text: str) -> Decimal:
    number = Decimal(text) if len(text) <= LONGEST_NUMBER else Decimal("Infinity")
    if not number.is_finite() or abs(number.adjusted()) > LONGEST_NUMBER:
        raise ValueError(f"a number has at most {LONGEST_NUMBER} digits")
    return number


def from_json(text: str) -> Any:
    """Return what a JSON text says, fractions as Decimal; raises InvalidSchema."""
    check_nesting(text, json_text=True)
    try:
        return json.loads(text, parse_float=_fraction, parse_int=_whole, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from None


def to_json(value: Any, *, sort_keys: bool = False, java_doubles: bool = False) -> str:
    """Return compact JSON as Jackson writes it; a Decimal keeps its digits, or is written as a Java double is."""
    pieces: list[str] = []
    _write_json(value, pieces, sort_keys, java_doubles)
    return "".join(pieces)


def _write_json(value: Any, pieces: list[str], sort_keys: bool, java_doubles: bool) -> None:
    if isinstance(value, dict):
        before = "{"
        for key in sorted(value) if sort_keys else value:
            pieces.append(f"{before}{json.dumps(key, ensure_ascii=False)}:")
            _write_json(value[key], pieces, sort_keys, java_doubles)
            before = ","
        pieces.append("}" if value else "{}")
    elif isinstance(value, list):
        before = "["
        for each in value:
            pieces.append(before)
            _write_json(each, pieces, sort_keys, java_doubles)
            before = ","
        pieces.append("]" if value else "[]")
    elif isinstance(value, Decimal):
        pieces.append(java_double(float(value)) if java_doubles else str(value))
    else:
        pieces.append(json.dumps(value, ensure_ascii=False))


def java_double(number: float) -> str:
    """Return a number as Java's Double.toString does: 1.0E10, not 10000000000.0."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def java_order(*names: Iterable[str | int]) -> list[Any]:
    """Return names in the order in which Java's HashSet has them: first filled with one collection, then with others.

    The order of Confluent's messages follows from it.
    """
    first, *others = [list(each) for each in names]
    # How many buckets `new HashSet<>(collection)` has, and how they double while others are added.
    buckets = 16
    while buckets < len(first) / 0.75 + 1:
        buckets *= 2
    distinct = dict.fromkeys(first)
    for more in others:
        distinct.update(dict.fromkeys(more))
    while len(distinct) > buckets * 0.75:
        buckets *= 2
    placed = [(_bucket(each) & (buckets - 1), each) for each in distinct]
    placed.sort(key=lambda each: each[0])
    return [each for _, each in placed]


def _bucket(value: str | int) -> int:
    if isinstance(value, int):
        code = value & 0xFFFFFFFF
    else:
        code = 0
        data = value.encode("utf-16-be", "surrogatepass")
        for high, low in zip(data[::2], data[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16


_T = TypeVar("_T")


def run(work: Generator[Any, Any, _T]) -> _T:
    """Run work without recursion: types that refer to each other lead deeper than Python's stack goes."""
    stack: list[Generator[Any, Any, Any]] = [work]
    value: Any = None
    while stack:
        try:
            inner = stack[-1].send(value)
        except StopIteration as end:
            stack.pop()
            value = end.value
        else:
            stack.append(inner)
            value = None
    result: _T = value
    return result


class Steps:
    """Counts the steps of one comparison; raises InvalidSchema beyond the limit."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self._left = most

    def take(self, steps: int = 1) -> None:
        """Count steps."""
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema("these schemas are too complex to be compared")
