"""Compiles Protobuf texts to descriptors with protox (protoxy). Owns the limits of its input and of the files it reads.

The compiler reads only the files of a new directory. This module writes the texts into the directory and deletes it
afterwards. This module refuses imports that could lead out of the directory (absolute, `..`, `//`). The types of Google
and of Confluent are built in, as in Confluent's registry.

The compiler recurses, so the nesting of a text is limited beforehand. The full name of a type is repeated in every
field of that type, so the length of names is limited, too. A text with many errors takes long to compile, so only small
texts are compiled in this process.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from kbroker.schema_registry.formats.common import InvalidSchema, check_nesting, need

DEEPEST: Final = 50
"""The maximum number of levels of nesting: a descriptor is readable up to 100 levels."""
LARGEST_NAMES: Final = 64 * 1024 * 1024
"""The maximum total length, in characters, of all names in the descriptor."""
LARGEST_HERE: Final = 4_000
"""The maximum length, in characters, of a text with its references that this process compiles.

The compilation takes at most 50 ms.
"""
MOST_SECONDS: Final = 20
"""The maximum time in seconds for which another process may compile."""
_LONGEST_PATH: Final = 500
_LONGEST_PART: Final = 200
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NOT_FOUND: Final = re.compile(r"import '([a-z_/]+\.proto)' not found\Z")
_GOOGLE_TYPES: Final = frozenset(
    (
        "calendar_period",
        "color",
        "date",
        "datetime",
        "dayofweek",
        "decimal",
        "expr",
        "fraction",
        "interval",
        "latlng",
        "localized_text",
        "money",
        "month",
        "phone_number",
        "postal_address",
        "quaternion",
        "timeofday",
    )
)
_CONFLUENT: Final = {
    "confluent/meta.proto": """
        syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        option java_package = "io.confluent.protobuf"; option java_outer_classname = "MetaProto";
        message Meta {
          string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4;
        }
        message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3"; package confluent.type; option java_package = "io.confluent.protobuf.type";
        option java_multiple_files = true; option java_outer_classname = "DecimalProto";
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/type/variant.proto": """
        syntax = "proto3"; package confluent.type; option java_package = "io.confluent.protobuf.type";
        option java_multiple_files = true; option java_outer_classname = "VariantProto";
        message Variant { bytes metadata = 1; bytes value = 2; }
    """,
}
"""Types that Confluent's serializers import. Only their fields are part of the interface."""


def compiled(text: str, references: Mapping[str, str]) -> tuple[Any, str]:
    """Return the file descriptors, imports first, and the name of the text's own file. Raises InvalidSchema."""
    need("protoxy")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    for each in (text, *references.values()):
        _check(each)
    for name in references:
        _check_path(name)
    own = "default.proto"
    while own in references:
        own = f"_{own}"
    with tempfile.TemporaryDirectory(prefix="kbroker-schema-") as directory:
        _write(directory, own, text)
        for name, each in references.items():
            _write(directory, name, each)
        size = len(text) + sum(map(len, references.values()))
        compiles = _here if size <= LARGEST_HERE else _elsewhere
        missing: set[str] = set()
        while True:
            try:
                data = compiles(directory, own)
                break
            except _CompilerError as error:
                built_in = _built_in_named_by(error.what)
                if built_in is None or built_in in missing:
                    raise InvalidSchema(f"{error.where}{error.what}") from None
                missing.add(built_in)
                _write(directory, built_in, _built_in(built_in))
    files = FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError:
        raise InvalidSchema("nested too deeply") from None
    return files, own


class _CompilerError(Exception):
    """The compiler's error, which begins with its place, such as "default.proto:3:5: "."""

    def __init__(self, what: str, details: str) -> None:
        found = re.search(r"\[([^\[\]\n]{1,300}:\d+:\d+)\]", details[:2_000])
        self.what = what[:500]
        self.where = f"{found.group(1)}: " if found else ""


def _here(directory: str, name: str) -> bytes:
    from protoxy import ProtoxyError, compile_bin

    try:
        return bytes(compile_bin([os.path.join(directory, name)], [directory]))
    except ProtoxyError as error:
        raise _CompilerError(str(error), error.details) from None
    except ValueError as error:
        raise _CompilerError(str(error), "") from None


def _elsewhere(directory: str, name: str) -> bytes:
    """Compile in another process, with limits of time and memory."""
    script = os.path.join(os.path.dirname(__file__), "protobuf_process.py")
    command = [sys.executable, "-I", script, directory, name]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        ended = None
    if ended is None or ended.returncode or not ended.stdout:
        raise InvalidSchema("the compiler did not end within its limits of time and memory")
    if ended.stdout[:1] == b"+":
        return ended.stdout[1:]
    details, _, what = ended.stdout[1:].decode().partition("\0")
    raise _CompilerError(what, details)


def _check(text: str) -> None:
    check_nesting(text, json_text=False, deepest=DEEPEST)
    longest = max(map(len, _IDENTIFIER.findall(text)), default=0)
    # In the worst case, each statement names a type whose full name consists of the longest name at each level.
    if longest * (2 + min(text.count("{"), DEEPEST)) * (text.count(";") + 1) > LARGEST_NAMES:
        raise InvalidSchema("the names are too long for so many fields")


def _check_path(name: str) -> None:
    parts = name.split("/")
    if (
        len(name.encode(errors="surrogatepass")) > _LONGEST_PATH
        or any(part in ("", ".", "..") or len(part.encode(errors="surrogatepass")) > _LONGEST_PART for part in parts)
        or "\\" in name
        or "\0" in name
    ):
        raise InvalidSchema(f"a reference's name is a relative path, not {name[:200]!r}")


def _write(directory: str, name: str, text: str) -> None:
    path = os.path.join(directory, *name.split("/"))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text.encode())
    except UnicodeEncodeError:
        raise InvalidSchema("the text is not Unicode") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise InvalidSchema(f"the name {name[:200]!r} is a folder of another reference") from None


def _built_in_named_by(message: str) -> str | None:
    """Return the name of the built-in file whose import the compiler did not find, or None for another error."""
    found = _NOT_FOUND.search(message)
    if found is None:
        return None
    name = found.group(1)
    if name in _CONFLUENT:
        return name
    folder, _, file = name.rpartition("/")
    return name if folder == "google/type" and file.removesuffix(".proto") in _GOOGLE_TYPES else None


def _built_in(name: str) -> str:
    if name in _CONFLUENT:
        return _CONFLUENT[name]
    from importlib.resources import files

    return files("google.type").joinpath(name.rpartition("/")[2]).read_text(encoding="utf-8")


def from_base64(text: str) -> Any:
    """Return the file descriptor that a text contains in base64 (`format=serialized`), or None."""
    if not is_serialized(text):
        return None
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError):
        return None
    for message in file.message_type:
        _complete(message)
    return file if file.ByteSize() else None


def is_serialized(text: str) -> bool:
    """Whether a text may be a file descriptor in base64. Such a text cannot be a schema's text."""
    return not len(text) % 4 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text) is not None


def _complete(message: Any) -> None:
    """Add the oneofs that compilers create for optional fields of proto3, if the writer has not added them."""
    known = {each.name: index for index, each in enumerate(message.oneof_decl)}
    for field in message.field:
        if field.proto3_optional and not field.HasField("oneof_index"):
            name = f"_{field.name}"
            if name not in known:
                known[name] = len(known)
                message.oneof_decl.add(name=name)
            field.oneof_index = known[name]
    for each in message.nested_type:
        _complete(each)
