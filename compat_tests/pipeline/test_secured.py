"""The jobs on a broker that authenticates: by a password over TLS, or by a certificate whose key is encrypted.

Each job has the rights that docs/pipeline.md names, and no others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from compat_tests.pipeline.jobs import Jobs
from compat_tests.pipeline.processes import ended, start_verb
from compat_tests.pipeline.topics import create, put, records
from kbroker import Acl, Broker
from kbroker.admin.client_properties import settings_of
from kbroker.security.tls import development
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "orders"
RECORDS = 40
KEY_PASSWORD = "key-secret"
ADMIN = {"super.users": "User:ANONYMOUS"}
"""The user of connections to the PLAINTEXT listener, which the tests themselves use."""


def rights(principal: str) -> list[Acl]:
    """Return the rights that archive, verify and replay need according to docs/pipeline.md."""
    return [
        Acl(allow_principal=principal, topic=TOPIC, operation=["Read", "DescribeConfigs"]),
        Acl(allow_principal=principal, group="kbroker-archive", operation="Read"),
        Acl(
            allow_principal=principal,
            topic="again",
            resource_pattern_type="prefixed",
            operation=["Create", "Write", "Read", "DescribeConfigs"],
        ),
    ]


@contextmanager
def by_password(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the addresses of PLAINTEXT and of SASL_SSL, and a settings file for SASL_SSL."""
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"}
    users = {"spark": 'a "secret"'}
    with Broker({**listeners, **ADMIN}, tls=True, users=users, acls=rights("User:spark")) as broker:
        settings = broker.client_settings("spark").java
        file = folder / "client.properties"
        # Two backslashes stand for one in such a file, as for Kafka's tools.
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()).replace("\\", "\\\\"))
        yield broker.bootstrap_servers.split(",")[0], settings["bootstrap.servers"], file


@contextmanager
def by_certificate(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the same for SSL with a certificate, whose key is encrypted in its PEM file."""
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", "ssl.client.auth": "required"}
    authority = development.authority()
    pem = folder / "spark.pem"
    pem.write_bytes(development.sign(authority, "spark").pem(KEY_PASSWORD))
    trusted = folder / "clients.crt"
    trusted.write_bytes(authority.certificates_pem())
    config = {**listeners, **ADMIN, "ssl.truststore.location": str(trusted)}
    with Broker(config, tls=True, acls=rights("User:CN=spark")) as broker:
        settings = broker.client_settings().java | {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pem),
            "ssl.key.password": KEY_PASSWORD,
        }
        file = folder / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        yield broker.bootstrap_servers.split(",")[0], settings["bootstrap.servers"], file


slow = pytest.mark.skipif(FORM != "long", reason="a verb logs in by certificate below: only with KBROKER_TESTS=long")


@pytest.mark.parametrize("secured", [by_password, pytest.param(by_certificate, marks=slow)])
def test_archive_verify_and_replay(
    secured: Callable[[Path], AbstractContextManager[tuple[str, str, Path]]], tmp_path: Path
) -> None:
    with secured(tmp_path) as (plain, address, file), tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        create(plain, TOPIC)
        put(plain, TOPIC, 0, RECORDS)
        jobs = Jobs(address, Path(folder), settings=settings_of(str(file), print))
        assert sum(jobs.archive(TOPIC, "archive")) == RECORDS
        assert jobs.verify("archive")["faults"] == []
        expected = records(plain, TOPIC)
        assert jobs.replay("archive", "again-1", exactly_once=True) == RECORDS
        assert records(plain, "again-1", timestamps=False) == [
            [[key, value, None, headers] for key, value, _, headers in part] for part in expected
        ]
        assert jobs.replay("archive", "again-2", keep_timestamps=True) == RECORDS
        assert records(plain, "again-2") == expected


def test_a_verb_with_a_file_of_settings(tmp_path: Path) -> None:
    with by_certificate(tmp_path) as (plain, address, file):
        create(plain, TOPIC)
        put(plain, TOPIC, 0, RECORDS)
        to, checkpoint = str(tmp_path / "archive"), str(tmp_path / "checkpoint")
        arguments = ["archive", "--topics", TOPIC, "--to", to, "--checkpoint", checkpoint, "--bootstrap", address]
        with tempfile.TemporaryFile("w+") as errors:
            process = start_verb(
                *arguments, "--command-config", str(file), stderr=errors, environment={}, compiled=True
            )
            status, _ = ended(process)
            errors.seek(0)
            said = errors.read()
        assert status == 0, said
        assert f"archived {RECORDS} records" in said
        assert KEY_PASSWORD not in said
