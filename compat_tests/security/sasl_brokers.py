"""Both brokers with a SASL listener beside a PLAINTEXT one, and the same users on both.

Owns the settings. `bootstrap` is the listener with SASL, `open` the other one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from compat_tests.harness.brokers import CLUSTER_ID, HERE, ApacheKafka, BrokerFailed, BrokerProcess, KBroker, free_port
from compat_tests.harness.jvm import run_java

MODULES: Final = "org.apache.kafka.common.security"
PLAIN: Final = f"{MODULES}.plain.PlainLoginModule"
SCRAM: Final = f"{MODULES}.scram.ScramLoginModule"
OAUTH: Final = f"{MODULES}.oauthbearer.OAuthBearerLoginModule"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PREFIX: Final = "listener.name.sasl_plaintext"
SASL: Final = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    f"{_PREFIX}.plain.sasl.jaas.config": f'{PLAIN} required user_alice="secret";',
    f"{_PREFIX}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
    f"{_PREFIX}.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
    f"{_PREFIX}.oauthbearer.sasl.jaas.config": f'{OAUTH} required unsecuredLoginStringClaim_sub="broker";',
}


class ApacheWithSasl(ApacheKafka):
    """Apache Kafka 4.4.0 with both listeners."""

    open = ""

    def _command(self) -> list[str]:
        self._port, plain, controller = free_port(), free_port(), free_port()
        self.open = f"127.0.0.1:{plain}"
        addresses = f"SASL_PLAINTEXT://127.0.0.1:{self._port},PLAINTEXT://{self.open}"
        settings = {
            **self.settings,
            "process.roles": "broker,controller",
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.data_dir),
        }
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        status, out, err = run_java(self._libs, *command)
        if status:
            raise BrokerFailed(f"formatting Apache Kafka's storage failed:\n{out}{err}")
        return self._java(f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "kafka.Kafka", str(properties))


class KBrokerWithSasl(KBroker):
    """Kbroker with both listeners."""

    open = ""

    def _command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kbroker", "start", "--ready-file", str(self.ready_file), "--strict"]
        command += ["--data-dir", str(self.data_dir)]
        listeners = "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
        known = {key: value for key, value in self.settings.items() if not key.startswith("share.")}
        for key, value in {**known, "listeners": listeners}.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _ready(self) -> bool:
        try:
            addresses = json.loads(self.ready_file.read_text())["bootstrap_servers"].split(",")
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        self.bootstrap, self.open = addresses
        return True


def both(libs: Path, directory: Path, settings: dict[str, str]) -> tuple[ApacheWithSasl, KBrokerWithSasl]:
    """Return both brokers; they are not started."""
    return (
        ApacheWithSasl(libs, directory / "apache", settings),
        KBrokerWithSasl(directory / "kbroker", settings),
    )


def open_address(broker: BrokerProcess) -> str:
    """Return the address of the listener that needs no authentication."""
    assert isinstance(broker, (ApacheWithSasl, KBrokerWithSasl))
    return broker.open
