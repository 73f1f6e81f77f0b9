"""Compares every declared message with Kafka's own definitions, read from the kafka-clients jar.

Requests that only brokers on ZooKeeper send are compared with Apache Kafka 3.9.1, the last version that has them.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from kbroker.protocol.schema import Scalar, Versions

from .test_messages import MESSAGES

pytestmark = pytest.mark.java

# Deliberately declared narrower than the jar's range.
NARROWER = {
    "InitProducerId": "0-5",  # the top version there is not released (latestVersionUnstable)
    # From Apache Kafka 2.8 on, when topics got ids; brokers of later versions send no lower version.
    "LeaderAndIsr": "5-7",
    "StopReplica": "3-4",
    "UpdateMetadata": "7-8",
    "ControlledShutdown": "3",
}


def strip_comments(text):
    return "\n".join(re.sub(r"^\s*//.*$", "", line) for line in text.splitlines())


@pytest.fixture(scope="session")
def definitions(kafka_libs, kafka39_libs):
    found = {}
    modules = ("clients", "group-coordinator", "transaction-coordinator", "share-coordinator", "storage")
    for libs in (kafka39_libs, kafka_libs):
        for module in modules:
            for jar in Path(libs).glob(f"kafka-{module}-[0-9]*.jar"):
                with zipfile.ZipFile(jar) as archive:
                    for name in archive.namelist():
                        if name.startswith(("common/message/", "message/")) and name.endswith(".json"):
                            definition = json.loads(strip_comments(archive.read(name).decode()))
                            if definition["validVersions"] != "none":  # since 4.0 only the key is left
                                found[Path(name).stem] = definition
    return found


def snake(name):
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def kafka_default(field):
    kind, value = field["type"], field.get("default")
    if kind.startswith("[]"):
        return None if value == "null" else []
    if value == "null":
        return None
    if kind == "bool":
        return str(value).lower() == "true"
    if kind == "string":
        return value or ""
    if kind == "bytes":
        return b""
    if kind == "uuid":
        return bytes(16)
    if kind in ("records",) or kind[0].isupper():
        return None
    if kind == "float64":
        return float(value or 0)
    return int(str(value or 0), 0)


def clip(text, limits):
    versions = Versions.parse(text)
    return range(max(versions.low, limits.low), min(versions.high, limits.high) + 1)


OWN_TAGS_FROM = 1000
"""Tags from here on are kbroker's own: Kafka counts its tags from 0."""


def compare(cls, fields, common, limits, path):
    fields = [field for field in fields if clip(field.get("versions") or field["taggedVersions"], limits)]
    assert all(field.get("tag", 0) < OWN_TAGS_FROM for field in fields), path
    specs = [spec for spec in cls.SPECS if clip_spec(spec.versions, limits) and (spec.tag or 0) < OWN_TAGS_FROM]
    assert [s.name for s in specs] == [snake(field["name"]) for field in fields], path
    for spec, field in zip(specs, fields, strict=True):
        where = f"{path}.{spec.name}"
        kind = field["type"].removeprefix("[]")
        versions = field.get("versions") or field["taggedVersions"]
        same = {
            "versions": (
                clip_spec(spec.versions, limits),
                clip(versions, limits),
            ),
            "nullable": (clip_spec(spec.nullable, limits), clip(field.get("nullableVersions", "none"), limits)),
            "tag": (spec.tag, field.get("tag")),
            "tagged": (clip_spec(spec.tagged, limits), clip(field.get("taggedVersions", "none"), limits)),
            "array": (spec.array, field["type"].startswith("[]")),
            "default": (spec.default_value(), kafka_default(field)),
        }
        for what, (ours, theirs) in same.items():
            assert list(ours) == list(theirs) if isinstance(ours, range) else ours == theirs, (
                where,
                what,
                ours,
                theirs,
            )
        if "flexibleVersions" in field:
            assert spec.flexible == Versions.parse(field["flexibleVersions"]), where
        if isinstance(spec.kind, Scalar):
            assert spec.kind.name == kind, where
        else:
            compare(spec.kind, field.get("fields") or common[kind], common, limits, where)


def clip_spec(versions, limits):
    return range(max(versions.low, limits.low), min(versions.high, limits.high) + 1)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda c: c.__name__)
def test_declaration_equals_kafkas_definition(cls, definitions):
    theirs = definitions[cls.__name__]
    api = cls.__name__.removesuffix("Request").removesuffix("Response")
    assert Versions.parse(NARROWER.get(api, theirs["validVersions"])) == cls.VERSIONS
    if cls.KEY >= 0:
        assert theirs["apiKey"] == cls.KEY
    flexible = Versions.parse(theirs.get("flexibleVersions", "none"))
    assert clip_spec(cls.FLEXIBLE, cls.VERSIONS) == clip_spec(flexible, cls.VERSIONS)
    common = {s["name"]: s["fields"] for s in theirs.get("commonStructs", [])}
    compare(cls, theirs["fields"], common, cls.VERSIONS, cls.__name__)
