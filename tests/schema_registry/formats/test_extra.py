"""Without the extra `registry` the broker runs, and the first schema says how to install it."""

import subprocess
import sys

import pytest

LIBRARIES = ("avro", "fastavro", "protoxy", "google.protobuf", "jsonschema_rs")


def in_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_importing_loads_no_library() -> None:
    modules = "avro common json_schema json_schema_compatibility levels protobuf protobuf_compatibility rules"
    imports = "; ".join(f"import kbroker.schema_registry.formats.{each}" for each in modules.split())
    assert in_python(f"import sys; {imports}; print([each for each in {LIBRARIES} if each in sys.modules])") == "[]"


@pytest.mark.parametrize(
    ("kind", "missing", "text"),
    [
        ("AVRO", "avro", '"int"'),
        ("JSON", "jsonschema_rs", "{}"),
        ("PROTOBUF", "protoxy", 'syntax = "proto3";'),
        ("PROTOBUF", "google", 'syntax = "proto3";'),
    ],
)
def test_a_library_that_is_missing(kind: str, missing: str, text: str) -> None:
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from kbroker.schema_registry.formats.parsing import parse
try:
    parse({kind!r}, {text!r})
except ImportError as error:
    print(error)
"""
    said = in_python(code)
    assert said.startswith("the schema registry needs ")
    assert "install '.[registry]'" in said
