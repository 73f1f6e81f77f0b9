"""Protobuf: printed forms, refusals, what is built in, values by indexes."""

import base64
import textwrap

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from kbroker.schema_registry.formats import protobuf_compiler
from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import compatible, parse


def proto(text: str, references: dict[str, str] | None = None) -> Schema:
    return parse("PROTOBUF", text, references)


def proto3(body: str) -> Schema:
    return proto(f'syntax = "proto3"; {body}')


GIVEN = """
    syntax = 'proto3'  ;  // the version
    import "google/protobuf/timestamp.proto"; package a.b;
    option java_package="com" ".x";
    enum E { option allow_alias=true; Z=0; A = 1 [deprecated=true]; B = 1; reserved 5 to max, 3; reserved "Q"; }
    /* a message */ message M {
      reserved 100 to 200, 50; reserved "old" , 'older';
      oneof o { string s=3; N n=4; }
      optional int32 a = 1 [ deprecated=true , json_name="A" ];
      map < string , N > m = 2;
      google.protobuf.Timestamp ts = 6; .a.b.M self = 7; repeated E es = 8 [packed=false];
      message N { map<int32, .a.b.M.N> z = 1; enum F { X = 0; } }
    }
    service S {
      option deprecated = true; rpc Do(stream M) returns (M.N) { option deprecated = true; } rpc Be(M) returns(M);
    }
"""
CANONICAL = textwrap.dedent(
    """\
    syntax = "proto3";
    package a.b;

    import "google/protobuf/timestamp.proto";

    option java_package = "com.x";

    message M {
      reserved 100 to 200, 50;
      reserved "old", "older";

      optional int32 a = 1 [
        deprecated = true,
        json_name = "A"
      ];
      map<string, N> m = 2;
      google.protobuf.Timestamp ts = 6;
      .a.b.M self = 7;
      repeated E es = 8 [packed = false];

      oneof o {
        string s = 3;
        N n = 4;
      }

      message N {
        map<int32, .a.b.M.N> z = 1;
      BLANK
        enum F {
          X = 0;
        }
      }
    }
    enum E {
      reserved 5 to max, 3;
      reserved "Q";
      option allow_alias = true;
      Z = 0;
      A = 1 [deprecated = true];
      B = 1;
    }

    service S {
      option deprecated = true;

      rpc Do (stream M) returns (M.N) {
        option deprecated = true;
      };
      rpc Be (M) returns (M);
    }
    """
).replace("BLANK", "")
NORMALIZED = (
    CANONICAL.replace("reserved 100 to 200, 50;", "reserved 50;\n  reserved 100 to 200;")
    .replace('reserved "old", "older";', 'reserved "old";\n  reserved "older";')
    .replace("reserved 5 to max, 3;", "reserved 3;\n  reserved 5 to max;")
    .replace("map<string, N>", "map<string, .a.b.M.N>")
    .replace(" google.protobuf.Timestamp", " .google.protobuf.Timestamp")
    .replace("repeated E", "repeated .a.b.E")
    .replace(" N n", " .a.b.M.N n")
    .replace("stream M) returns (M.N)", "stream .a.b.M) returns (.a.b.M.N)")
    .replace("Be (M) returns (M)", "Be (.a.b.M) returns (.a.b.M)")
)


def test_printed() -> None:
    schema = proto(GIVEN)
    assert schema.canonical == CANONICAL
    assert schema.normalized == NORMALIZED
    assert proto(schema.canonical).canonical == CANONICAL
    assert proto(schema.normalized).normalized == NORMALIZED
    assert compatible(schema, proto(NORMALIZED)) == []
    assert (schema.name, schema.names) == ("a.b.M", ("a.b.M", "a.b.M.N"))
    assert schema.fields == frozenset(("a", "m", "ts", "self", "es", "s", "n"))


OPTIONS = """
    syntax = "proto2"; package a; import "google/protobuf/descriptor.proto";
    message Opt { optional int32 x = 1; repeated string y = 2; optional Opt o = 3; extensions 9; }
    extend Opt { optional int32 e = 9; }
    extend google.protobuf.FieldOptions { optional string s = 50001; optional Opt m = 50002; repeated int32 r = 50003; }
    message M {
      extensions 100 to 199, 300; extensions 1000 to max;
      required string f = 1 [default = "x\\n\\001'", (s) = 'he"y', (m).x = 5,
        (.a.m).o = {x:1 y:["c","d"] [a.e]: 7}, (r)=1, (a.r) = -2];
      optional group G = 2 { optional int32 g = 1; }
      optional double d = 3 [default = -inf];
    }
    extend M { optional int32 e1 = 100; }
"""


def test_printed_options() -> None:
    schema = proto(OPTIONS)
    text = schema.canonical
    assert 'required string f = 1 [\n    (s) = "he\\"y",\n    (m).x = 5,\n    (.a.m).o = {\n      x: 1,\n' in text
    assert (
        '      y: [\n        "c",\n        "d"\n      ],\n      [a.e]: 7\n    },\n    (r) = 1,\n    (a.r) = -2,\n'
        in text
    )
    assert "optional double d = 3 [default = -inf];" in text
    assert "  optional group G = 2 {\n    optional int32 g = 1;\n  }\n" in text
    assert "  extensions 100 to 199, 300;\n  extensions 1000 to max;\n" in text
    assert "\nextend M {\n  optional int32 e1 = 100;\n}\n" in text
    assert proto(text).canonical == text
    normalized = schema.normalized
    assert "(a.m) = {\n      o: {\n        [a.e]: 7,\n        x: 1,\n" in normalized
    assert "(a.r) = 1,\n    (a.r) = -2,\n    (a.s) = " in normalized
    assert "\nextend .a.M {\n" in normalized
    assert proto(normalized).normalized == normalized
    assert proto(text).normalized == normalized


def test_serialized() -> None:
    """A descriptor in base64 is a schema, too: Confluent's Python client registers it so."""
    schema = proto(GIVEN)
    file = FileDescriptorProto.FromString(base64.b64decode(schema.serialized or ""))
    assert (file.name, file.package, [each.name for each in file.message_type]) == ("default", "a.b", ["M"])
    again = proto(schema.serialized or "")
    assert again.canonical == NORMALIZED
    assert compatible(schema, again) == compatible(again, schema) == []
    assert proto(again.serialized or "").serialized == again.serialized
    for text in ("", "abcd", "AAAA", base64.b64encode(b"\x0a\x01").decode()):
        with pytest.raises(InvalidSchema):
            proto(text) if text else proto("x")


def test_serialized_with_options_of_imports() -> None:
    """Tags of Confluent's rules are options that an import defines: they must not be lost."""
    schema = proto3(
        'import "confluent/meta.proto"; option java_package = "p\\"q"; message M { option (confluent.message_meta) = '
        '{doc: "d" params: {key: "k" value: "v"}}; string s = 1 [(confluent.field_meta) = {tags: ["PII", "X"]}]; }'
    )
    again = proto(schema.serialized or "")
    assert again.normalized == schema.normalized
    assert "    (confluent.field_meta) = {" not in again.canonical
    assert '"PII"' in again.canonical
    assert again.serialized == schema.serialized
    own = proto(OPTIONS)
    assert proto(own.serialized or "").normalized.replace(" ", "") == own.normalized.replace(" ", "")
    imported = proto('syntax = "proto3"; import "r.proto"; message M {}', {"r.proto": 'syntax = "proto3";'})
    with pytest.raises(InvalidSchema, match="not found"):
        proto(imported.serialized or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message M { foo a = 1; }", r"default.proto:1:32: name 'foo' is not defined"),
        ("message M { int32 a = 1 }", "expected ';'"),
        ("message M { int32 a = 1; int32 b = 1; }", "already used"),
        ("message M { int32 a = 0; }", "number"),
        ('import "x.proto"; message M {}', "'x.proto' not found"),
        ("message M {} message M {}", "defined twice"),
        ("enum E { A = 1; }", ""),
        ("message M { reserved 1; int32 a = 1; }", ""),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSchema, match=f"^Invalid schema of type PROTOBUF, details: .*{said}"):
        proto3(text)


def test_what_is_built_in() -> None:
    names = ["confluent/meta.proto", "confluent/type/decimal.proto", "confluent/type/variant.proto"]
    names += [f"google/type/{each}.proto" for each in sorted(protobuf_compiler._GOOGLE_TYPES)]
    names += [
        f"google/protobuf/{each}.proto"
        for each in ("any", "api", "descriptor", "duration", "empty", "struct", "timestamp", "type", "wrappers")
    ]
    imports = "".join(f'import "{each}"; ' for each in names)
    schema = proto3(
        imports + "message M { google.type.Money a = 1; confluent.type.Decimal b = 2 "
        "[(confluent.field_meta).tags = 'PII']; }"
    )
    assert '[(confluent.field_meta).tags = "PII"]' in schema.canonical
    schema.check_value(b"\x00")
    for name in ("google/api/http.proto", "google/type/nothing.proto", "confluent/other.proto"):
        with pytest.raises(InvalidSchema, match="not found"):
            proto3(f'import "{name}"; message M {{}}')


def test_large_texts_are_compiled_elsewhere() -> None:
    """The same comes of a text, in this process or another: the schema, what is built in, the complaint."""
    filler = "/*" + "x" * protobuf_compiler.LARGEST_HERE + "*/"
    body = 'import "google/type/money.proto"; import "r.proto"; message M { google.type.Money m = 1; R r = 2; }'
    references = {"r.proto": 'syntax = "proto3"; message R {}'}
    small, large = (proto(f'syntax = "proto3"; {body} {more}', references) for more in ("", filler))
    assert small.canonical == large.canonical
    assert small.serialized == large.serialized
    messages = []
    for more in ("", filler):
        with pytest.raises(InvalidSchema) as refused:
            proto3("message M { X x = 1; } " + more)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_values() -> None:
    schema = proto3(
        "package p; message A { int32 a = 1; message B { map<int32, int32> m = 1; message C {} } } "
        "message D { string s = 1; }"
    )
    for fine in (
        b"\x00",  # the short form of [0]
        b"\x02\x00",
        b"\x02\x00\x08\x05",
        b"\x02\x02\x0a\x01x",
        b"\x04\x00\x00\x0a\x04\x08\x01\x10\x02",
        b"\x06\x00\x00\x00",
    ):
        schema.check_value(fine)
    for wrong in (
        b"",
        b"\x02",
        b"\x02\x04",
        b"\x02\x01",
        b"\x01",
        b"\x02\x02\x0a\x05x",
        b"\x06\x00\x00\x02",
        b"\x80\x80\x80\x80\x80\x80",
        b"\xfe\xff\xff\xff\x0f" + b"\x00" * 100,
    ):
        with pytest.raises(InvalidValue):
            schema.check_value(wrong)
    required = proto('syntax = "proto2"; message M { required int32 a = 1; }')
    required.check_value(b"\x00\x08\x01")
    with pytest.raises(InvalidValue, match="required"):
        required.check_value(b"\x00")


def test_two_schemas_with_the_same_names_do_not_meet() -> None:
    """No pool of descriptors is shared: a name may mean another message in another schema."""
    one, other = proto3("message M { string a = 1; }"), proto3("message M { int32 a = 1; }")
    for _ in range(2):
        one.check_value(b"\x00\x0a\x01x")
        other.check_value(b"\x00\x08\x01")
        with pytest.raises(InvalidValue):
            one.check_value(b"\x00\x0a\x01\xff")


def test_a_descriptor_that_others_have_made() -> None:
    """Names that are relative, and optional fields without the oneof that a compiler makes for them."""
    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="x.proto", package="test", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="M")
    for number, (name, kind, of) in enumerate(
        [
            ("own", kinds.TYPE_ENUM, "E"),
            ("whole", kinds.TYPE_ENUM, "test.E"),
            ("inner", kinds.TYPE_MESSAGE, "Outer.Inner"),
            ("at", kinds.TYPE_MESSAGE, "google.protobuf.Timestamp"),
        ],
        1,
    ):
        message.field.add(name=name, number=number, type=kind, type_name=of, label=1, proto3_optional=True)
    message.oneof_decl.add(name="_own")
    file.message_type.add(name="Outer").nested_type.add(name="Inner")
    file.enum_type.add(name="E").value.add(name="NONE", number=0)
    made = proto(base64.b64encode(file.SerializeToString()).decode())
    assert "optional Outer.Inner inner = 3;" in made.canonical.replace(".test.", "").replace("test.", "")
    made.check_value(b"\0\x08\x00\x22\x02\x08\x07")
    assert proto(made.canonical).serialized == made.serialized
