"""Variables in settings on both brokers: how config providers resolve them, and what DescribeConfigs shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from compat_tests.harness.brokers import ApacheKafka, KBroker

pytestmark = pytest.mark.java

PATIENCE_S = 30
PACKAGE = "org.apache.kafka.common.config.provider"
DYNAMIC = "listener.name.other.ssl.keystore.location"
ASKED = ("message.max.bytes", "num.partitions", "broker.rack", "log.retention.ms", "sasl.login.class")


def settings(secrets: Path) -> dict[str, str]:
    (secrets / "some.properties").write_text("bytes=19092\nmore : 20000\nretention=5000\npassword=file-secret\n")
    (secrets / "partitions").write_text("3\n")
    return {
        "config.providers": "file,directory,env",
        "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(secrets),
        "config.providers.directory.class": f"{PACKAGE}.DirectoryConfigProvider",
        "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "PAT.*",
        "message.max.bytes": f"${{file:{secrets}/some.properties:bytes}}",
        "num.partitions": f"${{directory:{secrets}:partitions}}",
        "broker.rack": "${env:PATH}-${other:x}",
        "log.retention.ms": f"${{file:{secrets}/some.properties:retention}}",
        "ssl.key.password": f"${{file:{secrets}/some.properties:password}}",
    }


def told(bootstrap: str) -> Mapping[str, Any]:
    asked = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found: Mapping[str, Any] = admin.describe_configs([asked])[asked].result(PATIENCE_S)
    return found


def set_by(bootstrap: str, name: str, text: str) -> None:
    change = ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def observed(bootstrap: str, secrets: Path) -> dict[str, Any]:
    first = told(bootstrap)
    found: dict[str, Any] = {name: first[name].value for name in (*ASKED, "ssl.key.password")}
    set_by(bootstrap, DYNAMIC, f"${{file:{secrets}/some.properties:more}}")
    deadline = time.monotonic() + PATIENCE_S
    while DYNAMIC not in (now := told(bootstrap)):  # Apache Kafka learns of it a moment later
        assert time.monotonic() < deadline
    found["dynamic"] = now[DYNAMIC].value
    said = []
    for name, text in (
        ("message.max.bytes", f"${{file:{secrets}/some.properties:more}}"),
        ("message.max.bytes", f"${{file:{secrets}/some.properties:password}}"),
        (DYNAMIC, f"${{file:{secrets}/none.properties:x}}"),
        (DYNAMIC, f"${{file:{secrets}/some.properties:none}}"),
        (DYNAMIC, "${file:/etc/hosts:x}"),
    ):
        try:
            set_by(bootstrap, name, text)
        except KafkaException as error:
            found[f"{name}={text}"] = error.args[0].name()
            said.append(error.args[0].str())
        else:
            found[f"{name}={text}"] = "done"
    assert "file-secret" not in "".join(said)
    return found


def test_what_both_make_of_variables(kafka_libs: Path, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    common = settings(secrets)
    with ApacheKafka(kafka_libs, tmp_path / "apache", common) as apache:
        theirs = observed(apache.bootstrap, secrets)
    with KBroker(tmp_path / "kbroker", common) as kbroker:
        ours = observed(kbroker.bootstrap, secrets)
        assert "file-secret" not in kbroker.log_tail()
    # Declared in FINDINGS.md: the value that a provider gives a dynamic config is not shown, and a variable that no
    # provider resolves is refused.
    assert theirs.pop("dynamic") == "20000"
    assert ours.pop("dynamic") == f"${{file:{secrets}/some.properties:more}}"
    for name in (f"{secrets}/some.properties:none", f"{secrets}/none.properties:x", "/etc/hosts:x"):
        unknown = f"${{file:{name}}}"
        assert theirs.pop(f"{DYNAMIC}={unknown}") == "done"
        assert ours.pop(f"{DYNAMIC}={unknown}") == "INVALID_REQUEST"
    assert ours == theirs
    assert ours["message.max.bytes"] == "19092"
    assert ours["num.partitions"] == "3"
    assert ours["broker.rack"].endswith("-${other:x}")
    assert ours["ssl.key.password"] is None
