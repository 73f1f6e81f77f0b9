"""Error responses to a request that failed completely, for APIs in which each element has its own error.

Owns the derivation of the response, and of a single element, from the schema. The response has one element for each
element of the request, with its name, id or index, and the error code in the schema's field for it. Knows no API: the
caller passes the other values of a response. (Kafka implements AbstractRequest.getErrorResponse for each API.)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from kbroker.long_work import turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.protocol.schema import FieldSpec, Scalar

_Answer = TypeVar("_Answer")
_NAMES: Final = frozenset(
    {
        "name", "topic", "topic_name", "topic_id", "index", "partition", "partition_index", "partition_id", "group_id",
        "transactional_id", "resource_type", "resource_name", "entity", "key",
    }
)  # fmt: skip
"""The fields that identify an element. A response repeats only these fields of the request."""


def mirrored(
    response: type[_Answer], asked: str = "topics", *, default_message: bool = False, **fields: Any
) -> Callable[[Any, int, str | None], Coroutine[Any, Any, _Answer]]:
    """Return a function that builds an error response with one element for each element of the list `asked`.

    With `default_message`, the error message is Kafka's text for the code, not the text of the failure. `fields` are
    the values of further fields of every element.
    """
    answers = answers_of(response)

    async def on_error(request: Any, code: int, message: str | None) -> _Answer:
        text = DEFAULT_MESSAGES.get(ErrorCode(code)) if default_message else message
        answer = response()
        if hasattr(answer, "error_code"):
            answer.error_code = code
        values = {"error_message": text, **fields}
        setattr(answer, answers.name, await _elements(answers.kind, getattr(request, asked) or (), code, values))
        return answer

    return on_error


def answers_of(response: type[Any]) -> FieldSpec:
    """Return the response's list that has one element, with an error, for each element of the request."""
    specs: list[FieldSpec] = response.SPECS
    (answers,) = (spec for spec in specs if _has_code(spec))
    return answers


async def failed(cls: type[_Answer], source: Any, code: int, **fields: Any) -> _Answer:
    """Return an element of class `cls` for a response: the result of one element of the request, with an error."""
    (made,) = await _elements(cls, (source,), code, fields)
    answer: _Answer = made
    return answer


async def _elements(cls: type[Any], sources: Iterable[Any], code: int, fields: dict[str, Any]) -> list[Any]:
    made = []
    for source in sources:
        element = _named(cls, source)
        if hasattr(element, "error_code"):
            element.error_code = code
        else:
            (inner,) = (spec for spec in cls.SPECS if _has_code(spec))
            (asked,) = (spec.name for spec in source.SPECS if spec.array)
            setattr(element, inner.name, await _elements(inner.kind, getattr(source, asked), code, fields))
        for name, value in fields.items():
            if hasattr(element, name):
                setattr(element, name, value)
        made.append(element)
        await turn
    return made


def _named(cls: type[Any], source: Any) -> Any:
    """Return an element with the names of its source. The source is an element of the request, or only a name."""
    names = [spec.name for spec in cls.SPECS if spec.name in _NAMES]
    if not hasattr(source, "SPECS"):
        return cls(**{names[0]: source}) if names else cls()
    values = {name: getattr(source, name, None) for name in names}
    # Replace a null name with the field's default, because not every version of the response allows null.
    return cls(**{name: value for name, value in values.items() if value is not None})


def _has_code(spec: FieldSpec) -> bool:
    """Whether a field is a list of structs that contain an error code, directly or in lists within the structs."""
    if not spec.array or isinstance(spec.kind, Scalar):
        return False
    return any(each.name == "error_code" or _has_code(each) for each in spec.kind.SPECS)
