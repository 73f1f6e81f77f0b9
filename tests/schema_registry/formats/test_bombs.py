"""Hostile schemas and values soon end in InvalidSchema or InvalidValue, use little memory, and read nothing outside."""

import http.server
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue
from kbroker.schema_registry.formats.parsing import compatible, parse
from tests.tries import FORM

SOON = 20.0
"""CPU seconds: more than any of these takes, far less than an unbounded one takes."""
MEGABYTE = 1024 * 1024


def worked() -> float:
    """Return how long this process and those that it has ended have worked: others may keep the machine busy."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes long, or lets the process grow by more than 500 MB."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, worked()
    yield
    assert worked() - start < SOON
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def proto3(body: str) -> str:
    return f'syntax = "proto3"; {body}'


def nested_messages(levels: int) -> str:
    return proto3("".join(f"message M{level} {{ " for level in range(levels)) + "}" * levels)


DEEP: list[tuple[str, str, str]] = [
    ("JSON", "not", '{"not":' * 10_000 + "{}" + "}" * 10_000),
    ("JSON", "items", '{"items":' * 10_000 + "{}" + "}" * 10_000),
    ("JSON", "lists", "[" * 500_000),
    ("JSON", "enum", '{"enum":' + "[" * 10_000 + "]" * 10_000 + "}"),
    ("AVRO", "arrays", '{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000),
    ("AVRO", "unions", "[" * 10_000 + '"int"' + "]" * 10_000),
    (
        "AVRO",
        "records",
        "".join(f'{{"type":"record","name":"R{level}","fields":[{{"name":"f","type":' for level in range(10_000))
        + '"int"'
        + "}]}" * 10_000,
    ),
    ("AVRO", "defaults", '{"type":"map","values":"int","x":' + "[" * 10_000 + "]" * 10_000 + "}"),
    ("PROTOBUF", "messages", nested_messages(10_000)),
    ("PROTOBUF", "messages, many", nested_messages(60_000)),
    ("PROTOBUF", "options", proto3("option (x) = " + "{a:" * 10_000 + "1" + "}" * 10_000 + ";")),
    ("PROTOBUF", "options in angles", proto3("option (x) = {" + "a<" * 10_000 + ">" * 10_000 + "};")),
    (
        "PROTOBUF",
        "groups",
        'syntax = "proto2"; message M {'
        + "".join(f"optional group G{level} = 1 {{" for level in range(10_000))
        + "}" * 10_001,
    ),
    # Where a string or a comment ends decides what the guard counts.
    ("PROTOBUF", "behind a quote in a comment", proto3("// '\n" + nested_messages(10_000)[20:])),
    ("PROTOBUF", "behind an escaped quote", proto3('option java_package = "a\\"";') + nested_messages(10_000)[20:]),
    ("PROTOBUF", "behind a comment in a string", proto3('option java_package = "/*";') + nested_messages(10_000)[20:]),
]


@pytest.mark.parametrize(("kind", "what", "text"), DEEP, ids=lambda each: each[:20])
def test_ten_thousand_levels(kind: str, what: str, text: str) -> None:
    with bounded(), pytest.raises(InvalidSchema):
        parse(kind, text)


def test_as_deep_as_it_may_be() -> None:
    deep = '{"items":' * 199 + '{"type":"string"}' + "}" * 199
    other = deep.replace("string", "number")
    with bounded():
        found = compatible(parse("JSON", deep), parse("JSON", other))
        assert [each.error_type for each in found] == ["TYPE_CHANGED"]
        assert found[0].path == "#/" + "/".join(["items"] * 199)
    arrays = '{"type":"array","items":' * 199 + '"string"' + "}" * 199
    with bounded():
        assert compatible(parse("AVRO", arrays), parse("AVRO", arrays.replace("string", "int")))
    messages = nested_messages(50)
    with bounded():
        schema = parse("PROTOBUF", messages)
        assert parse("PROTOBUF", schema.canonical).canonical == schema.canonical
        assert not compatible(schema, schema)


def filled(text: str, piece: Callable[[int], str], most: int = MEGABYTE) -> str:
    """Return a text of nearly the size limit: `text` with as many pieces as fit in the place of @."""
    pieces: list[str] = []
    size = len(text)
    while size + len(one := piece(len(pieces))) < most:
        pieces.append(one)
        size += len(one)
    return text.replace("@", "".join(pieces))


SLOW = MEGABYTE if FORM == "long" else 250_000
"""The size of inputs that take five seconds and more for each megabyte."""
LARGE: list[tuple[str, str, str]] = [
    ("JSON", "properties", filled('{"properties":{@"z":{}}}', lambda each: f'"p{each}":{{"type":"string"}},', SLOW)),
    ("JSON", "enum", filled('{"enum":[@0]}', lambda each: f'"v{each}",')),
    ("JSON", "anyOf", filled('{"anyOf":[@{}]}', lambda each: f'{{"maxLength":{each}}},', SLOW)),
    (
        "JSON",
        "references in a row",
        filled('{"definitions":{@"z":{}}}', lambda each: f'"{each}":{{"$ref":"#/definitions/{each + 1}"}},', 200_000),
    ),
    ("JSON", "pattern", filled('{"pattern":"@"}', lambda each: "(a|b)*")),
    ("JSON", "patterns", filled('{"patternProperties":{@"z":{}}}', lambda each: f'"(a+)+{each}$":{{}},', 100_000)),
    ("AVRO", "symbols", filled('{"type":"enum","name":"E","symbols":[@"Z"]}', lambda each: f'"S{each}",')),
    (
        "AVRO",
        "union of records",
        filled('[@"int"]', lambda each: f'{{"type":"record","name":"R{each}","fields":[]}},', SLOW),
    ),
    ("AVRO", "a long name", filled('{"type":"fixed","size":1,"name":"@Z"}', lambda each: "a")),
    ("PROTOBUF", "fields", filled(proto3("message M {@}"), lambda each: f"int32 f{each} = {each + 1};", 300_000)),
    ("PROTOBUF", "messages", filled(proto3("@"), lambda each: f"message M{each} {{}}", SLOW)),
    ("PROTOBUF", "a comment", filled(proto3("/*@*/message M {}"), lambda each: "comment {{{ ")),
    ("PROTOBUF", "a long name", filled(proto3("message @ {}"), lambda each: "a")),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "what", "text"), LARGE, ids=lambda each: each[:20])
def test_a_megabyte(kind: str, what: str, text: str) -> None:
    """A schema of the largest size is parsed, printed and compared, or refused; in any case it ends."""
    with bounded():
        try:
            schema = parse(kind, text)
            assert schema.canonical
            assert schema.normalized
            assert not compatible(schema, schema)
        except InvalidSchema:
            pass


@pytest.mark.parametrize("kind", ["JSON", "AVRO", "PROTOBUF"])
def test_beyond_a_megabyte(kind: str) -> None:
    with bounded(), pytest.raises(InvalidSchema, match="characters"):
        parse(kind, " " * (MEGABYTE + 1))
    with bounded(), pytest.raises(InvalidSchema, match="characters"):
        parse(kind, "{}", {"a": " " * MEGABYTE})


def test_names_that_multiply() -> None:
    """Each field of a type has the type's full name: together they may be far larger than the text."""
    package = ".".join(["p" * 250] * 400)
    fields = "".join(f"M f{each} = {each + 1};" for each in range(20_000))
    with bounded(), pytest.raises(InvalidSchema, match="names"):
        parse("PROTOBUF", proto3(f"package {package}; message M {{ {fields} }}"))


def test_texts_that_end_in_the_middle_of_a_string() -> None:
    for kind in ("JSON", "AVRO", "PROTOBUF"):
        for text in ('"' + '\\"' * 400_000, '"' * 900_000, "/*" * 400_000, "\\" * 900_000, "'" + "\\'" * 400_000):
            with bounded(), pytest.raises(InvalidSchema):
                parse(kind, text)


def test_numbers_that_are_long() -> None:
    for number in ("1" * 900_000, "1." + "1" * 900_000, "1e999999999", "-1e-999999999"):
        for text in (f'{{"multipleOf":{number}}}', f'{{"type":"number","maximum":{number},"multipleOf":3}}'):
            with bounded():
                try:
                    schema = parse("JSON", text)
                    assert schema.canonical
                    compatible(schema, parse("JSON", '{"type":"number","multipleOf":7,"maximum":1}'))
                    compatible(parse("JSON", '{"type":"number","multipleOf":7,"maximum":1}'), schema)
                except InvalidSchema:
                    pass
    with bounded(), pytest.raises(InvalidSchema):
        parse("AVRO", '{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":1e999999999}]}')


def doubling(levels: int, leaf: str) -> str:
    """Return a schema in which each definition contains the next one twice: 2^levels paths lead to the leaf."""
    definitions = {
        f"d{each}": {"properties": {name: {"$ref": f"#/definitions/d{each + 1}"} for name in ("a", "b")}}
        for each in range(levels)
    }
    return json.dumps(
        {"$ref": "#/definitions/d0", "definitions": {**definitions, f"d{levels}": {"type": leaf}}},
    )


@pytest.mark.long
def test_differences_that_multiply() -> None:
    one, other = parse("JSON", doubling(60, "string")), parse("JSON", doubling(60, "number"))
    with bounded():
        assert not compatible(one, one)
    with bounded(), pytest.raises(InvalidSchema, match="too complex"):
        compatible(one, other)


@pytest.mark.long
def test_alternatives_that_multiply() -> None:
    many = [{"properties": {"a": {"maxLength": each}, "b": {"minLength": each}}} for each in range(4_000)]
    schema = parse("JSON", json.dumps({"anyOf": many}))
    with bounded(), pytest.raises(InvalidSchema, match="too complex"):
        compatible(schema, parse("JSON", json.dumps({"anyOf": [*many[::-1], {"type": "string"}]})))


def test_avro_records_that_multiply() -> None:
    def chain(leaf: str) -> str:
        inner: object = leaf
        for level in range(40):
            fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}" if level else leaf}]
            inner = {"type": "record", "name": f"R{level}", "fields": fields}
        return json.dumps(inner)

    with bounded(), pytest.raises(InvalidSchema, match="too complex"):
        compatible(parse("AVRO", chain("int")), parse("AVRO", chain("string")))


@pytest.mark.long
def test_chains_of_references() -> None:
    """Two thousand types, each of which contains the next: far deeper than Python's stack, but still compared."""
    many = 2_000
    definitions = {f"d{each}": {"properties": {"a": {"$ref": f"#/definitions/d{each + 1}"}}} for each in range(many)}

    def chain(leaf: str) -> str:
        return json.dumps({"$ref": "#/definitions/d0", "definitions": {**definitions, f"d{many}": {"type": leaf}}})

    with bounded():
        (found,) = compatible(parse("JSON", chain("string")), parse("JSON", chain("number")))
        assert found.path == "#/" + "/".join(["properties/a"] * many)
        parse("JSON", chain("string")).check_value(b'{"a":{"a":1}}')
    in_a_row = {f"d{each}": {"$ref": f"#/definitions/d{each + 1}"} for each in range(many)}
    row = json.dumps({"allOf": [{"$ref": "#/definitions/d0"}], "definitions": {**in_a_row, f"d{many}": False}})
    with bounded(), pytest.raises(InvalidValue):
        parse("JSON", row).check_value(b"1")

    def records(leaf: str) -> tuple[str, dict[str, str]]:
        def one(name: str, kind: str) -> str:
            return f'{{"type":"record","name":"{name}","fields":[{{"name":"f","type":"{kind}"}}]}}'

        return one("Root", f"R{many - 1}"), {
            f"r{each}": one(f"R{each}", f"R{each - 1}" if each else leaf) for each in range(many)
        }

    with bounded():
        one, other = parse("AVRO", *records("int")), parse("AVRO", *records("string"))
        assert len(compatible(one, other)) == 1
        assert compatible(one, one) == []
        with suppress(InvalidValue):
            one.check_value(b"\x02")
    many = 400  # each level of a Protobuf message adds a difference to those below
    messages = "".join(f"message M{each} {{ M{each + 1} m = 1; }} " for each in range(many))
    text = 'syntax = "proto3"; import "i.proto"; message Root { M0 m = 1; }'
    with bounded():
        one, other = (
            parse("PROTOBUF", text, {"i.proto": proto3(f"{messages} message M{many} {{ {leaf} a = 1; }}")})
            for leaf in ("int32", "string")
        )
        assert compatible(one, one) == []
        assert "FIELD_SCALAR_KIND_CHANGED" in [each.error_type for each in compatible(one, other)]


def test_defaults_that_fit_many_branches() -> None:
    """Each level of the default may be a value of either record: 2^60 ways to see that the innermost is wrong."""
    union = '["A","B"]'
    value = '{"f":' * 60 + "1" + "}" * 60
    text = (
        '{"type":"record","name":"Root","fields":[{"name":"a","type":{"type":"record","name":"A","fields":['
        '{"name":"f","type":["null","A",{"type":"record","name":"B","fields":[{"name":"f","type":' + union + "}]}]}]}},"
        '{"name":"d","type":' + union + ',"default":' + value + "}]}"
    )
    with bounded(), pytest.raises(InvalidSchema, match="Invalid default for field d"):
        parse("AVRO", text)


REFERENCES_TO_THEMSELVES = [
    '{"$ref":"#"}',
    '{"allOf":[{"$ref":"#"}]}',
    '{"anyOf":[{"$ref":"#"},{"type":"string"}]}',
    '{"not":{"$ref":"#"}}',
    '{"$ref":"#/definitions/a","definitions":{"a":{"$ref":"#/definitions/b"},"b":{"$ref":"#/definitions/a"}}}',
    '{"properties":{"a":{"$ref":"#"}},"additionalProperties":{"$ref":"#"}}',
    '{"minLength":0,"allOf":[{"$ref":"#/definitions/d"},{"$ref":"#"}],"definitions":{"d":{"$ref":"#/definitions/d"}}}',
    '{"$schema":"https://json-schema.org/draft/2020-12/schema","$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}',
]


@pytest.mark.parametrize("text", REFERENCES_TO_THEMSELVES)
def test_references_in_a_circle(text: str) -> None:
    with bounded():
        schema = parse("JSON", text)
        other = parse("JSON", '{"type":"object","properties":{"a":{"type":"string"}}}')
        for reader, writer in ((schema, schema), (schema, other), (other, schema)):
            compatible(reader, writer)
        assert compatible(schema, schema) == []
        for value in (b"1", b'{"a":{"a":{}}}', b"[[[]]]"):
            with suppress(InvalidValue):
                schema.check_value(value)


def test_patterns_that_explode() -> None:
    value = json.dumps("a" * 100_000 + "!").encode()
    # The second needs a look-ahead, so it runs in the engine that goes back, with a bound.
    for pattern in ("^(a+)+$", "^(?=(a+)+$)(a|aa)+$", "(a*)*b", "^(a|a)*$"):
        with bounded(), pytest.raises(InvalidValue):
            parse("JSON", json.dumps({"type": "string", "pattern": pattern})).check_value(value)
    with bounded(), pytest.raises(InvalidSchema):
        parse("JSON", '{"pattern":"((a{1000}){1000}){1000}"}')
    with bounded(), pytest.raises(InvalidSchema):
        parse("JSON", '{"pattern":"("}')


def test_patterns_that_explode_on_names() -> None:
    name = "a" * 50_000 + "!"
    one = parse("JSON", json.dumps({"patternProperties": {"^(?=(a+)+$)b": {}, "^(a+)+$": {}}}))
    other = parse("JSON", json.dumps({"properties": {name: {"type": "string"}}}))
    with bounded():
        compatible(one, other)
        compatible(other, one)


def test_values_that_are_deep() -> None:
    tree = parse("JSON", '{"additionalProperties":{"$ref":"#"}}')
    with bounded(), pytest.raises(InvalidValue, match="deeply"):
        tree.check_value(b'{"a":' * 10_000 + b"{}" + b"}" * 10_000)
    tree.check_value(b'{"a":' * 150 + b"{}" + b"}" * 150)
    listed = parse("AVRO", '{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}')
    with bounded(), pytest.raises(InvalidValue):
        listed.check_value(b"\x02" * 1_000_000)
    recursive = parse("PROTOBUF", proto3("message M { M m = 1; }"))
    data = b""
    for _ in range(10_000):
        size = len(data)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        data = b"\x0a" + bytes(length) + bytes([size]) + data
        if len(data) > 60_000:
            break
    with bounded(), pytest.raises(InvalidValue):
        recursive.check_value(b"\x00" + data)


def test_values_that_claim_much() -> None:
    with bounded(), pytest.raises(InvalidValue):
        parse("AVRO", '{"type":"array","items":"null"}').check_value(b"\xfe\xff\xff\xff\x0f\x00")
    with bounded(), pytest.raises(InvalidValue):
        parse("AVRO", '"bytes"').check_value(b"\xfe\xff\xff\xff\x0f")


def test_alternatives_within_each_other_of_a_value() -> None:
    """Each level of the value doubles the work of the validator: 2^60 looks at the innermost."""
    text = json.dumps({"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": [need]} for need in ("b", "c")]})
    schema = parse("JSON", text)
    with bounded(), pytest.raises(InvalidValue, match="too many alternatives"):
        schema.check_value(b'{"a":' * 60 + b"{}" + b"}" * 60)
    with bounded(), pytest.raises(InvalidValue, match="does not match"):
        schema.check_value(b'{"a":{"a":{}}}')
    within = {f"d{each}": {"allOf": [{"$ref": f"#/definitions/d{each + 1}"}] * 2} for each in range(60)}
    with bounded(), pytest.raises(InvalidValue, match="too many alternatives"):
        parse(
            "JSON", json.dumps({"$ref": "#/definitions/d0", "definitions": {**within, "d60": {"type": "string"}}})
        ).check_value(b"1")


def test_a_tree_costs_no_more_than_its_size() -> None:
    text = '{"properties":{"left":{"$ref":"#"},"right":{"$ref":"#"},"v":{"type":"integer"}}}'
    value: object = {"v": 1}
    for _ in range(12):
        value = {"left": value, "right": value}
    with bounded():
        parse("JSON", text).check_value(json.dumps(value).encode())


class _Counting(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type":"string"}')

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a local HTTP server, and the requests that it received."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Counting)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


_watched: list[list[str]] = []
"""Lists to which what is opened now is appended: an audit hook cannot be taken away."""


def _watch(event: str, args: tuple[object, ...]) -> None:
    if _watched and event in ("open", "socket.connect", "socket.getaddrinfo", "urllib.Request"):
        _watched[-1].append(f"{event} {args[0]}")


sys.addaudithook(_watch)


def test_no_address_is_asked(address: tuple[str, list[str]]) -> None:
    url, asked = address
    for text in (
        f'{{"$ref":"{url}/a"}}',
        f'{{"properties":{{"a":{{"$ref":"{url}/a#/x"}}}}}}',
        f'{{"$id":"{url}/root","$ref":"other"}}',
        f'{{"$schema":"https://json-schema.org/draft/2020-12/schema","$ref":"{url}/a"}}',
        f'{{"$schema":"https://json-schema.org/draft/2020-12/schema","$dynamicRef":"{url}/a#x"}}',
    ):
        with pytest.raises(InvalidSchema):
            parse("JSON", text)
    # An unknown draft counts as draft 7, as in Confluent's registry: its address is not requested either.
    for text in (f'{{"$schema":"{url}/schema","type":"string"}}', f'{{"properties":{{"a":{{"$schema":"{url}/s"}}}}}}'):
        schema = parse("JSON", text)
        assert not compatible(schema, schema)
    with pytest.raises(InvalidSchema):
        parse("JSON", '{"$ref":"a.json"}', {"a.json": f'{{"$ref":"{url}/b"}}'})
    with pytest.raises(InvalidSchema):
        parse("PROTOBUF", proto3(f'import "{url}/x.proto"; message M {{}}'))
    with pytest.raises(InvalidSchema):
        parse("AVRO", json.dumps(f"{url}/x"))
    assert asked == []


def test_no_file_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.proto"
    secret.write_text(proto3("message Secret {}"), encoding="utf-8")
    (tmp_path / "secret.json").write_text('{"type":"string"}', encoding="utf-8")
    relative = os.path.relpath(secret, "/tmp")
    parse("PROTOBUF", proto3("message M {}"))  # so that the libraries are loaded
    parse("JSON", "{}")
    refused = [
        ("JSON", f'{{"$ref":"file://{tmp_path}/secret.json"}}'),
        ("JSON", f'{{"$ref":"{tmp_path}/secret.json"}}'),
        ("JSON", f'{{"$id":"file://{tmp_path}/root.json","$ref":"secret.json"}}'),
        ("AVRO", f'"{tmp_path}/secret.json"'),
        *(
            ("PROTOBUF", proto3(f'import "{path}"; message M {{ Secret s = 1; }}'))
            for path in (
                secret,
                f"file://{secret}",
                f"../{relative}",
                f"../../../../../../..{secret}",
                f"/{secret}",
                str(secret).lstrip("/"),
                f"./{secret}",
                str(secret).replace("/", "\\\\"),
                str(secret).replace("/", "\\057"),
            )
        ),
    ]
    seen: list[str] = []
    _watched.append(seen)
    try:
        for kind, text in refused:
            with pytest.raises(InvalidSchema):
                parse(kind, text)
    finally:
        _watched.pop()
    assert [each for each in seen if "default.proto" in each]
    assert not [each for each in seen if "secret" in each or "socket" in each]
    for name in (str(secret), "../x.proto", "a/../../x.proto", "a//b", "a\\b", "", ".", "a\0b", "a/" * 300 + "b"):
        with pytest.raises(InvalidSchema):
            parse("PROTOBUF", proto3("message M {}"), {name: proto3("message N {}")})
    assert secret.read_text(encoding="utf-8") == proto3("message Secret {}")


def test_names_with_slashes_and_unicode() -> None:
    for name in ("ä/ö ü.proto", "a.b/c-d.proto", "😀.proto"):
        text = proto3(f'import "{name}"; message M {{ N n = 1; }}')
        schema = parse("PROTOBUF", text, {name: proto3("message N { string s = 1; }")})
        assert f'import "{name}";' in schema.canonical
    for name in ("ä ö.json", "a/b.json", "com.acme.Thing", "😀", "x?y=1"):
        if name in ("ä ö.json", "😀"):
            from urllib.parse import quote

            schema = parse("JSON", json.dumps({"$ref": quote(name)}), {name: '{"type":"string"}'})
        else:
            schema = parse("JSON", json.dumps({"$ref": name}), {name: '{"type":"string"}'})
        schema.check_value(b'"a"')
        with pytest.raises(InvalidValue):
            schema.check_value(b"1")
    for text in ('{"title":"\ud800"}', '"\ud800"', proto3("message \ud800 {}")):
        for kind in ("JSON", "AVRO", "PROTOBUF"):
            with suppress(InvalidSchema):
                parse(kind, text)
