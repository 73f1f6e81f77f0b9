"""`kbroker container`: run a broker in a container with the conventions of the apache/kafka image.

Owns the conversion of the image's environment to settings, so that a setup for that image works after a change of only
the image's name. KAFKA_* variables override a mounted server.properties. If neither exists, clients reach the broker
at localhost:9092. If `listeners` is not set, the broker listens on every interface, with the names and ports of
`advertised.listeners`. The config keys of a KRaft node are accepted; there is no separate controller. The image's
variables also set the log levels.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from kbroker.broker.base_node import Node
from kbroker.cli.beside import http_options, metrics_option, places
from kbroker.cli.log_output import log_options, set_up_log
from kbroker.cli.start import run
from kbroker.config.listeners import Endpoint, parse_endpoint
from kbroker.config.loggers import parse_level
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.config.sources import parse_properties, settings_from_environment
from kbroker.log.directories.meta_properties import META_PROPERTIES, read_properties

MOUNTED: Final = "/mnt/shared/config/server.properties"
DATA_DIR: Final = "/var/lib/kbroker/data"
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""The cluster id that the apache/kafka image uses when CLUSTER_ID is not set."""

_EVERYWHERE: Final = ("", "0.0.0.0", "::")
_HOST: Final = re.compile(r"://(?:\[[^\]]*\]|[^:]*):")
_ROOT_LEVEL: Final = "KAFKA_LOG4J_ROOT_LOGLEVEL"
_LEVELS: Final = "KAFKA_LOG4J_LOGGERS"
_IGNORED: Final = re.compile(
    r"KAFKA_((?!LOG4J_(?:ROOT_LOGLEVEL|LOGGERS)$)LOG4J_.*|JMX_.*|HEAP_OPTS|JVM_PERFORMANCE_OPTS|GC_LOG_OPTS)"
)

log = logging.getLogger("kbroker")


@click.command("container", hidden=True)
@click.option("--config", "mounted", default=MOUNTED, show_default=True, help="A server.properties file, if it exists.")
@click.option("--data-dir", default=DATA_DIR, show_default=True, help="The data directory, unless log.dirs is set.")
@click.option("--ready-file", metavar="FILE", help="The same as in `kbroker start`.")
@metrics_option(in_container=True)
@log_options(in_container=True)
@http_options(in_container=True)
def command(
    mounted: str,
    data_dir: str,
    ready_file: str | None,
    log_format: str,
    log_levels: tuple[str, ...],
    **beside: Any,
) -> None:
    """Run a broker with the conventions of the apache/kafka image."""
    levels, unknown = image_levels(os.environ)
    set_up_log(sys.stdout, log_format, [*levels, *log_levels])
    for text in unknown:
        log.info("%s has no effect", text)
    for name in sorted(filter(_IGNORED.fullmatch, os.environ)):
        log.info("%s is for a JVM and has no effect", name)
    file = Path(mounted)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    config = BrokerConfig(container_settings(os.environ, text, data_dir, socket.gethostname()))
    for name in ("metrics", "control", "console", "registry"):
        beside[name] = beside[name] or None  # an empty variable counts as unset
    with places(config, **beside) as made:
        for name, label in (("control", "control API"), ("console", "console")):
            if name in made.urls:
                log.info("the %s will be at %s", label, made.urls[name])
        run(config, _cluster_id(os.environ, config), ready_file, _log_started, (), made)


def image_levels(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the levels that the image's variables set, and the unknown loggers or levels in these variables."""
    texts = [(_ROOT_LEVEL, environment.get(_ROOT_LEVEL, ""))]
    texts += [(_LEVELS, each) for each in environment.get(_LEVELS, "").split(",")]
    levels, unknown = [], []
    for variable, text in texts:
        if not text.strip():
            continue
        try:
            parse_level(text)
        except ValueError:
            unknown.append(f"{variable}: {text.strip()}")
        else:
            levels.append(text)
    return levels, unknown


def container_settings(environment: Mapping[str, str], file: str, data_dir: str, hostname: str) -> dict[str, str]:
    """Return the settings from environment variables and the text of a mounted file."""
    variables = settings_from_environment(environment)
    # The image's scripts treat an empty variable like an unset variable.
    variables = {key: value for key, value in variables.items() if value or not key.endswith("listeners")}
    advertised = variables.get("advertised.listeners")
    if advertised and "listeners" not in variables:
        variables["listeners"] = _HOST.sub("://0.0.0.0:", advertised)
    settings = {**parse_properties(file), **variables}
    roles = [role.strip() for role in settings.get("process.roles", "").split(",")]
    if roles == ["controller"]:
        raise ConfigError("process.roles is controller: kbroker has no separate controllers, its brokers do that work")
    if "log.dirs" not in settings:
        settings["log.dirs"] = settings.get("log.dir", data_dir)
    if "listeners" not in settings and "advertised.listeners" not in settings:
        settings["listeners"] = "PLAINTEXT://0.0.0.0:9092"
        settings["advertised.listeners"] = "PLAINTEXT://localhost:9092"
    elif "advertised.listeners" not in settings:
        settings["advertised.listeners"] = _advertised(settings, hostname)
    return settings


def _advertised(settings: Mapping[str, str], hostname: str) -> str:
    """Return the container's name: the advertised address of listeners on every interface."""
    controllers = {name.strip().upper() for name in settings.get("controller.listener.names", "").split(",")}
    endpoints = [parse_endpoint("listeners", text) for text in settings["listeners"].split(",")]
    return ",".join(_address(each, hostname) for each in endpoints if each.name not in controllers)


def _address(endpoint: Endpoint, hostname: str) -> str:
    host = hostname if endpoint.host in _EVERYWHERE else endpoint.host
    return f"{endpoint.name}://{f'[{host}]' if ':' in host else host}:{endpoint.port}"


def _cluster_id(environment: Mapping[str, str], config: BrokerConfig) -> str | None:
    """Return CLUSTER_ID. Return None if it is unset and an existing data directory has its own cluster id."""
    given = environment.get("CLUSTER_ID")
    if given:
        return given
    known = read_properties(os.path.join(config.log_dirs[0], META_PROPERTIES)) or {}
    return None if known.get("cluster.id") else CLUSTER_ID


def _log_started(node: Node) -> None:
    """Log the lines that Testcontainers' modules wait for, after the broker's own `[KafkaServer id=N] started`."""
    log.info("[BrokerLifecycleManager id=%d] The broker serves. Transitioning from RECOVERY to RUNNING.", node.node_id)
    log.info("Kafka Server started")
    log.info("clients connect to %s", node.bootstrap_servers)
