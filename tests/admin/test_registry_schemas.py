"""Schemas of a registry by id: which requests are sent once, and which are not retried immediately."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from kbroker.admin.errors import AdminError, Unreachable
from kbroker.admin.registry_schemas import RegistryPlace, RegistrySchemas
from kbroker.admin.schemas import Refused, SchemaRegistry, Unknown


class Registry:
    """Gives the answers that the test sets, and counts requests."""

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


def test_a_token_names_a_schema_or_has_a_reason() -> None:
    asked: list[tuple[object, ...]] = []

    def answer(path: tuple[object, ...]) -> Any:
        asked.append(path)
        if path[-1] == 7:
            raise Refused("denied (40301)")
        if path[-1] == 8:
            return {"schema": "{"}
        if path[-1] == 9:
            raise Unreachable("gone")
        return {"schema": '"int"'}

    schemas, _ = schemas_of(answer, [0.0])
    assert not isinstance(schemas.of_token(b"\0\0\0\0\1"), str)
    assert not isinstance(schemas.of_token(b"\1" + bytes(range(16))), str)
    assert asked == [("schemas", "ids", 1), ("schemas", "guids", "00010203-0405-0607-0809-0a0b0c0d0e0f")]
    assert schemas.of_token(b"{") == "begins with the byte 123, not with the id of a schema"
    for _ in range(2):  # the second answer comes from memory
        assert schemas.of_token(b"\0\0\0\0\7") == "id 7: denied (40301)"
        assert str(schemas.of_token(b"\0\0\0\0\x08")).startswith("id 8: Invalid schema of type AVRO")
    for _ in range(2):
        with pytest.raises(Unreachable, match="gone"):
            schemas.of_token(b"\0\0\0\0\x09")


def test_the_latest_schema_of_a_subject() -> None:
    schemas, _ = schemas_of({"schema": '"int"'}, [0.0])
    assert not isinstance(schemas.latest("s"), str)
    none, _ = schemas_of(Unknown("none"), [0.0])
    assert none.latest("s") == "the registry has no subject s"
    broken, _ = schemas_of({"schema": "{"}, [0.0])
    assert "Invalid schema of type AVRO" in str(broken.latest("s"))
    with pytest.raises(Unknown):
        none.check()


def test_where_a_registry_is_shows_no_password() -> None:
    place = RegistryPlace("http://user:secret@127.0.0.1:1")
    assert "secret" not in repr(place)
    assert place == RegistryPlace("http://user:secret@127.0.0.1:1")


def test_a_server_that_speaks_no_http_is_no_registry() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-none\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AdminError, match="is no schema registry"):
            SchemaRegistry(f"http://127.0.0.1:{listening.getsockname()[1]}").ask("GET", "subjects")
        thread.join(10)
