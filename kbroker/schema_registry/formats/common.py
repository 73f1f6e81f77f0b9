"""Common parts of the three formats: the interface, the limits, JSON as Java's libraries write it.

Owns the limits of hostile texts. The parsers that the formats use recurse, some of them in C or Rust, where a deeply
nested text crashes the process. So the depth of a text is checked before any parser reads it.
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
"""The maximum number of characters of a schema with all its references."""
DEEPEST: Final = 200
"""The maximum number of levels of nesting in a text: braces, brackets, parentheses."""
LONGEST_NUMBER: Final = 1_000
"""The maximum number of characters of a number (Jackson's limit), also when it is written without its exponent."""
MOST_STEPS: Final = 300_000
"""The maximum number of steps of one comparison; a step compares a pair of types, or copies a difference."""


class InvalidSchema(Exception):  # noqa: N818 - what it says of the text
    """The text is no schema of its type, or exceeds a limit; the message is for the client (42201)."""


class InvalidValue(ValueError):  # noqa: N818 - what it says of the bytes
    """The bytes are no value of a schema."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a reader's schema cannot read the data of a writer's schema.

    `text` has Confluent's words, with `{path}`, `{info}`, `{reader}` and `{writer}`. Depending on
    the direction of the check, `{reader}` becomes "new" and `{writer}` "old", or the reverse. `form` is the type of
    schema, which determines quotes and fields.
    """

    form: str
    error_type: str
    path: str
    text: str
    additional_info: str = ""

    def description(self, reader: str = "new", writer: str = "old") -> str:
        """Return the description as a sentence; `reader` and `writer` name the two schemas in it."""
        return self.text.format(path=self.path, info=self.additional_info, reader=reader, writer=writer)

    def message(self, reader: str = "new", writer: str = "old") -> str:
        """Return the reason in the form of Confluent's verbose messages; the quotes differ by type of schema."""
        said = self.description(reader, writer)
        if self.form == "AVRO":
            return f"{{errorType:'{self.error_type}', description:'{said}', additionalInfo:'{self.additional_info}'}}"
        end = "'}" if self.form == "JSON" else '"}'
        return f'{{errorType:"{self.error_type}", description:"{said}{end}'


@dataclass(frozen=True)
class Schema(ABC):
    """A parsed schema. Immutable; derived properties are computed when first used, and kept."""

    schema_type: str = field(init=False, default="")
    text: str
    references: Mapping[str, str]
    """The texts of all referenced schemas, by the names in the references.

    Each text follows the texts that it needs.
    """

    @property
    @abstractmethod
    def canonical(self) -> str:
        """The text that the registry stores and returns."""

    @property
    @abstractmethod
    def normalized(self) -> str:
        """The text that the registry stores with `normalize=true`: equal for schemas that differ only in form."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name for RecordNameStrategy: the record's full name, the title, or the first message's full name."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All names that values may use: a record's name, a title, or all message names of a Protobuf file."""

    @property
    @abstractmethod
    def fields(self) -> frozenset[str]:
        """The names of the top-level fields: of the record, the object, or the first message."""

    @property
    def resolved(self) -> str | None:
        """The text that contains all schemas that it references (`format=resolved`); for Avro only."""
        return None

    @property
    def serialized(self) -> str | None:
        """The file descriptor in base64 (`format=serialized`); for Protobuf only."""
        return None

    @abstractmethod
    def check_value(self, data: bytes) -> None:
        """Raise InvalidValue unless the bytes after the magic byte and the id are a value of this schema.

        For Protobuf the bytes begin with the indexes of the message.
        """

    @abstractmethod
    def value_of(self, data: bytes) -> Any:
        """Return the value of bytes as in `check_value`. Raises InvalidValue.

        Bytes, decimals and dates, which JSON lacks, keep the form of the format's library.
        """

    @abstractmethod
    def data_of(self, text: str) -> bytes:
        """Encode a value in JSON; return bytes as in `value_of`. Raises InvalidValue.

        Avro: a union's value is {"type": value}, or only the value. Protobuf: the JSON form of the first message.
        """


def need(module: str) -> None:
    """Raise ImportError if a library is missing; its text describes how to install the extra."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package of the module is missing
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
    """Raise InvalidSchema if the text and its references together are larger than the limit."""
    if len(text) + sum(map(len, references.values())) > LARGEST:
        raise InvalidSchema(f"the schema and its references have more than {LARGEST} characters")


def check_nesting(text: str, *, json_text: bool, deepest: int = DEEPEST) -> None:
    """Raise InvalidSchema if braces and brackets, outside of strings and comments, are nested too deeply."""
    if json_text and text.count("{") + text.count("[") <= deepest:
        return  # true for nearly every value
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
            # The compiler would report each such comment.
            raise InvalidSchema('"/*" inside of a comment')


def value_in(text: str, what: str) -> Any:
    """Parse a value in JSON; raises InvalidValue, whose message contains `what`, the expected kind of text."""
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
    """Parse a JSON text, with fractions as Decimal. Raises InvalidSchema."""
    check_nesting(text, json_text=True)
    try:
        return json.loads(text, parse_float=_fraction, parse_int=_whole, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from None


def to_json(value: Any, *, sort_keys: bool = False, java_doubles: bool = False) -> str:
    """Return compact JSON as Jackson writes it; a Decimal keeps its digits, or is written like a Java double."""
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
    """Return a number's text as Java's Double.toString writes it: 1.0E10, not 10000000000.0."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def java_order(*names: Iterable[str | int]) -> list[Any]:
    """Return names in the order of a Java HashSet that was created from one collection, then extended with others.

    The lists in Confluent's messages have this order.
    """
    first, *others = [list(each) for each in names]
    # Compute the number of buckets of `new HashSet<>(collection)`, and double it as Java does when further names are
    # added.
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
    """Run work without recursion, because types that refer to each other nest deeper than Python's stack."""
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
    """Counts the steps of one comparison; raises InvalidSchema when they exceed the limit."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self._left = most

    def take(self, steps: int = 1) -> None:
        """Count further steps."""
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema("these schemas are too complex to be compared")
