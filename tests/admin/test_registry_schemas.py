"""Schemas of a registry by id: what is asked once, and what is not asked again at once."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.admin.errors import AdminError, Unreachable
from kbroker.admin.registry_schemas import RegistrySchemas
from kbroker.admin.schemas import Unknown


class Registry:
    """Answers as it is told, and counts."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def ask(self, _method: str, *path: object, **_query: object) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(path) if callable(self.answer) else self.answer


def schemas_of(answer: Any, now: list[float]) -> tuple[RegistrySchemas, Registry]:
    registry = Registry(answer)
    return RegistrySchemas(registry, lambda: now[0]), registry  # type: ignore[arg-type]


def test_a_schema_is_asked_for_once() -> None:
    schemas, registry = schemas_of({"schema": '"int"'}, [0.0])
    assert schemas.of_id(1) is schemas.of_id(1)
    assert registry.asked == 1


def test_an_unknown_id_is_asked_for_again_later() -> None:
    now = [0.0]
    schemas, registry = schemas_of(Unknown("none"), now)
    for number in (1, 1, 2):
        with pytest.raises(AdminError, match="none"):
            schemas.of_id(number)
    assert registry.asked == 2
    now[0] = 11.0
    with pytest.raises(AdminError):
        schemas.of_id(1)
    assert registry.asked == 3


def test_a_registry_that_does_not_answer_is_not_asked_for_each_id() -> None:
    schemas, registry = schemas_of(Unreachable("gone"), [0.0])
    for number in range(50):
        with pytest.raises(AdminError, match="gone"):
            schemas.of_id(number)
    assert registry.asked == 1


def test_references_that_are_nested_too_deeply_are_an_error() -> None:
    def deeper(path: tuple[object, ...]) -> dict[str, Any]:
        number = int(str(path[-1])) + 1
        refers = {"name": f"n{number}", "subject": "s", "version": number}
        return {"schema": '"int"', "references": [refers]}

    schemas, _ = schemas_of(deeper, [0.0])
    with pytest.raises(AdminError, match=r"nested too deeply|more than"):
        schemas.of_id(0)
