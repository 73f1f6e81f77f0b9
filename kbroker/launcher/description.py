"""The description of the running cluster as JSON, in the cluster's directory and in the file of --ready-file.

Owns the format of the description:

    {"bootstrap_servers": "h:p,h:p", "zookeeper": "h:p/chroot", "pid": launcher, "zookeeper_pid": pid or null,
     "brokers": [{"node_id": 1, "host": "h", "port": p, "pid": pid or null, "data_dir": "...",
                  "metrics": "h:p" or null, "ended": "how it ended, and what it printed last" or null,
                  "registry": "http://h:p" or null}]}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from kbroker.launcher.child import LauncherError

FILE_NAME: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker. `pid` is None while it does not run; `ended` is None while it runs."""

    node_id: int
    host: str
    port: int
    pid: int | None
    data_dir: str
    metrics: str | None = None
    ended: str | None = None
    registry: str | None = None
    """The URL of the broker's schema registry."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster. `pid` is the launcher's; `zookeeper_pid` is None if the launcher did not start ZooKeeper."""

    bootstrap_servers: str
    zookeeper: str
    pid: int
    zookeeper_pid: int | None
    brokers: list[BrokerDescription] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the description as values for JSON."""
        return asdict(self)


def write_description(description: ClusterDescription, path: Path) -> None:
    """Write the file atomically, because a waiting program may read it immediately."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(description.as_json()) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise LauncherError(f"{path}: {error.strerror}") from error


def read_description(directory: Path) -> ClusterDescription:
    """Read the file of a launcher in a cluster's directory. Raises LauncherError."""
    path = directory / FILE_NAME
    try:
        return _parsed(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise LauncherError(f"no cluster has been started in {directory}; --data-dir names another place") from None
    except OSError as error:
        raise LauncherError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise LauncherError(f"{path} is not the file of a launcher") from None


def remove_stale(path: Path) -> None:
    """Remove an earlier launcher's file, because a program could mistake it for this launcher's file.

    Keep the file of a running launcher.
    """
    try:
        pid = _parsed(json.loads(path.read_bytes())).pid
        if pid > 0 and pid != os.getpid():
            os.kill(pid, 0)
            return
    except FileNotFoundError:
        return
    except (ValueError, TypeError, KeyError, ProcessLookupError):
        pass
    except OSError:
        return  # an unreadable file is reported when the launcher writes it
    with contextlib.suppress(OSError):
        path.unlink()


def _parsed(fields: Mapping[str, Any]) -> ClusterDescription:
    return ClusterDescription(
        bootstrap_servers=str(fields["bootstrap_servers"]),
        zookeeper=str(fields["zookeeper"]),
        pid=int(fields["pid"]),
        zookeeper_pid=_optional(fields["zookeeper_pid"]),
        brokers=[
            BrokerDescription(
                int(each["node_id"]),
                str(each["host"]),
                int(each["port"]),
                _optional(each["pid"]),
                str(each["data_dir"]),
                *(None if each.get(name) is None else str(each[name]) for name in ("metrics", "ended", "registry")),
            )
            for each in fields["brokers"]
        ],
    )


def _optional(value: int | None) -> int | None:
    return None if value is None else int(value)
