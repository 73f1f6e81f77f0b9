"""`kbroker start`: run a broker until SIGTERM or SIGINT.

Owns the process around a broker: signals, and the ready file. The first output shows how to reach the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.broker.base_node import Node
from kbroker.broker.garbage import GarbageCollection
from kbroker.broker.node import BrokerNode
from kbroker.cli.beside import Beside, MetricsPlace, http_options, metrics_option, places, traces_options
from kbroker.cli.log_output import log_options, name_broker, set_up_log
from kbroker.cli.systemd import Systemd
from kbroker.clock import Clock
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.network.loop_watch import new_event_loop
from kbroker.security.sasl.add_scram import ScramUser, parse_user
from kbroker.telemetry.instances import Receiver

if TYPE_CHECKING:
    from kbroker.log.directories.log_manager import LogManager
    from kbroker.metrics.server import MetricsServer


_NOTHING: Final = Beside()
DEV_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "listeners": "PLAINTEXT://127.0.0.1:9092"}
"""The settings of `--dev`: those that a developer would choose for a local broker."""


def _shortcuts(listen: str | None, data_dir: str | None, settings: Sequence[str], *, memory: bool = False) -> list[str]:
    """Convert the options that stand for config keys to settings.

    Raises ConfigError if --set also gives the key of such an option.
    """
    found = []
    given = {text.partition("=")[0].strip() for text in settings}
    for option, key, value in (
        ("--listen", "listeners", listen),
        ("--memory" if memory else "--data-dir", "log.dirs", data_dir),
    ):
        if value is not None and key in given:
            raise ConfigError(f"{option} and --set {key}=... exclude each other")
    if listen is not None:
        name, scheme, rest = listen.rpartition("://")
        if scheme and name.upper() != "PLAINTEXT":
            raise ConfigError(f"--listen takes HOST:PORT, not {listen!r}; for other listeners --set listeners=...")
        host, colon, port = rest.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(f"--listen takes HOST:PORT, not {listen!r}")
        found.append(f"listeners=PLAINTEXT://{host}:{port}")
    if data_dir is not None:
        found.append(f"log.dirs={data_dir}")
    return found


@click.command("start")
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False), help="A server.properties file.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key; overrides --config. Repeatable."
)
@click.option("--listen", metavar="HOST:PORT", help="The address of the broker. Port 0 chooses a free port.")
@click.option("--data-dir", metavar="DIR", help="The data directory; without this option, log.dirs or /tmp/kafka-logs.")
@click.option("--memory", is_flag=True, help="Use a temporary directory, and delete it at the stop.")
@click.option("--cluster-id", metavar="ID", help="The id of the cluster. Data of another cluster are refused.")
@click.option(
    "--add-scram",
    "scram_users",
    multiple=True,
    metavar="MECHANISM=[name=NAME,password=...]",
    help="Before the start, create a user with a password (SCRAM-SHA-256 or SCRAM-SHA-512).",
)
@click.option(
    "--ready-file",
    metavar="FILE",
    help="After the start, write the address to this file as JSON; the stop deletes the file.",
)
@click.option("--dev", is_flag=True, help=f"For development: {', '.join(f'{k}={v}' for k, v in DEV_SETTINGS.items())}.")
@metrics_option()
@traces_options
@http_options()
@click.option("--strict", is_flag=True, help="Refuse to start with unknown keys.")
@log_options()
def command(
    config_file: str | None,
    settings: tuple[str, ...],
    listen: str | None,
    data_dir: str | None,
    memory: bool,
    cluster_id: str | None,
    scram_users: tuple[str, ...],
    ready_file: str | None,
    dev: bool,
    strict: bool,
    log_format: str,
    log_levels: tuple[str, ...],
    **beside: Any,
) -> None:
    """Start a broker.

    Settings are read from the config file, then KAFKA_* environment variables, then --set; later ones override earlier
    ones, and all of them override --dev. Without --dev a new consumer group waits 3 s for more members, as in Apache
    Kafka.
    """
    set_up_log(sys.stderr, log_format, log_levels)
    if memory and data_dir is not None:
        raise click.UsageError("--memory and --data-dir exclude each other")
    if ready_file is not None:
        _remove_stale_ready_file(ready_file)
    private = tempfile.mkdtemp(prefix="kbroker-") if memory else None
    try:
        config = BrokerConfig.load(
            file=None if config_file is None else Path(config_file),
            environment=os.environ,
            overrides=[*settings, *_shortcuts(listen, private or data_dir, settings, memory=memory)],
            settings=DEV_SETTINGS if dev else None,
            strict=strict,
        )
        users = [parse_user(text) for text in scram_users]
        with places(config, **beside) as made:
            run(config, cluster_id, ready_file, partial(announce, kept=not memory, urls=made.urls), users, made)
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def announce(node: Node, *, kept: bool, urls: Mapping[str, str]) -> None:
    """Print the broker's addresses, data directories and example commands; data that is not `kept` is temporary.

    `urls` are the addresses of the broker's control API, metrics, web console and schema registry, as far as they
    exist.
    """
    where = node.bootstrap_servers
    directories = ", ".join(manager.directory for manager in node.logs.managers)
    # In a virtual environment that is not activated, the command is not on the PATH.
    command = "kbroker" if shutil.which("kbroker") or not sys.argv[0].endswith("/kbroker") else sys.argv[0]
    click.echo(
        f"kbroker serves at {where} (Ctrl-C stops it)\n"
        f"its data {f'lies in {directories}' if kept else 'goes when it stops'}\n"
    )
    listeners = node.config.listeners
    plain = ",".join(
        str(address)
        for listener, address in zip(listeners.bind, node.addresses, strict=True)
        if listeners.protocols[listener.name] == "PLAINTEXT"
    )
    if plain:  # for other listeners, verbs need settings that this function does not know
        click.echo(
            f"  {command} topic create hello --bootstrap {plain}\n"
            f"  echo 'hello, world' | {command} produce hello --bootstrap {plain}\n"
            f"  {command} consume hello --from-beginning --count 1 --bootstrap {plain}\n"
        )
    if "control" in urls:
        click.echo(
            f"its control API, with a page about it, is at {urls['control']}\n\n"
            f"  {command} requests --follow --control {urls['control'].removeprefix('http://')}\n"
        )
    if "metrics" in urls:
        click.echo(f"its metrics are at {urls['metrics']}/metrics; beside them /healthz and /readyz\n")
    if "console" in urls:
        click.echo(f"its web console is at {urls['console']}\n")
    if "registry" in urls:
        click.echo(f"its schema registry is at {urls['registry']}\n")
    sys.stdout.flush()


def run(
    config: BrokerConfig,
    cluster_id: str | None,
    ready_file: str | None,
    started: Callable[[Node], None],
    users: Sequence[ScramUser] = (),
    beside: Beside = _NOTHING,
) -> None:
    """Serve until a signal; call `started` when clients can connect and the `users` exist."""
    _raise_file_limit()
    if config.node_id >= 0:
        name_broker(config.node_id)
    for warning in config.warnings:
        logging.getLogger("kbroker").warning("%s", warning)
    loop = new_event_loop()
    try:
        clock = None if beside.control is None else beside.control.clock
        starting = partial(_starting, config, cluster_id, users, clock)
        serve = partial(_serve, starting, ready_file, started, beside)
        loop.run_until_complete(_seen(beside.metrics, serve, clock, alone=not config.in_cluster))
    finally:
        loop.close()


def _starting(
    config: BrokerConfig,
    cluster_id: str | None,
    users: Sequence[ScramUser],
    clock: Clock | None,
    receiver: Receiver | None,
    on_logs: Callable[[LogManager], None],
) -> Coroutine[Any, Any, Node]:
    if config.in_cluster:
        # Imported only here, because a single node does not need ZooKeeper's client, and starts faster without this
        # import.
        from kbroker.broker.cluster_node import ClusterNode

        return ClusterNode.start(config, cluster_id=cluster_id, users=users, on_logs=on_logs)
    return BrokerNode.start(config, clock, cluster_id=cluster_id, users=users, receiver=receiver, on_logs=on_logs)


def _raise_file_limit() -> None:
    """Raise the limit of open files, often 1024, to its maximum, because each connection and each segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems cap the limit below the reported maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _seen(
    metrics: MetricsPlace | None,
    serve: Callable[[MetricsServer | None, Systemd], Coroutine[Any, Any, None]],
    clock: Clock | None,
    *,
    alone: bool,
) -> None:
    """Serve; the metrics server starts before the broker and ends after it."""
    with contextlib.closing(Systemd(os.environ)) as systemd:
        if metrics is None:
            await serve(None, systemd)
        else:
            async with metrics.served(clock, takes_clients=alone) as seen:
                await serve(seen, systemd)


async def _serve(
    starting: Callable[[Receiver | None, Callable[[LogManager], None]], Coroutine[Any, Any, Node]],
    ready_file: str | None,
    started: Callable[[Node], None],
    services: Beside,
    seen: MetricsServer | None,
    systemd: Systemd,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    node: Node | None = None

    def on_signal() -> None:
        if stop.is_set() and node is not None:
            node.skip_controlled_shutdown()
        stop.set()

    def on_logs(logs: LogManager) -> None:
        if seen is not None:
            seen.logs = logs

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    node = await _unless_stopped(starting(None if seen is None else seen.pushed, on_logs), stop)
    if node is None:
        return
    name_broker(node.node_id)
    garbage = GarbageCollection(loop)
    control = None
    beside = contextlib.AsyncExitStack()
    try:
        if services.traces is not None:
            await beside.enter_async_context(services.traces.of(node))
        control = None if services.control is None else services.control.serve(node)
        if services.console is not None:
            await beside.enter_async_context(services.console.served(node))
        if services.registry is not None:
            await beside.enter_async_context(services.registry.served(node))
        if seen is not None:
            seen.node = node
        started(node)
        if ready_file is not None:
            _write_ready_file(node, ready_file, services.urls)
        garbage.begin()
        systemd.ready(loop)
        if not await _stopped_or_failed(node, stop):
            raise click.ClickException(node.failed.result())
    finally:
        systemd.stopping()
        if seen is not None:
            seen.stopping = True
        garbage.close()
        await beside.aclose()
        if control is not None:  # in a thread, because running requests may wait for this loop
            await asyncio.to_thread(control.stop)
        if ready_file is not None:
            with contextlib.suppress(OSError):
                os.unlink(ready_file)
        logging.getLogger("kbroker").info("[KafkaServer id=%d] shutting down", node.config.node_id)
        await node.stop()


async def _unless_stopped(starting: Coroutine[Any, Any, Node], stop: asyncio.Event) -> Node | None:
    """Return the result of a start; None if a signal stopped the start while logs were being read."""
    start = asyncio.ensure_future(starting)
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
    start.cancel()
    stopping.cancel()
    try:
        return await start
    except asyncio.CancelledError:
        logging.getLogger("kbroker").info("stopped while reading the logs; the next start reads them again")
        return None


async def _stopped_or_failed(node: Node, stop: asyncio.Event) -> bool:
    """Wait for a stop signal (return True) or for the broker's own end (return False)."""
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopping, node.failed}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return not node.failed.done()


def _write_ready_file(node: Node, path: str, others: Mapping[str, str]) -> None:
    """Write the file atomically, because a waiting program may read it immediately."""
    content = {
        "bootstrap_servers": node.bootstrap_servers,
        "node_id": node.node_id,
        "cluster_id": node.cluster_id,
        "pid": os.getpid(),
        "data_dir": node.logs.directory,
    }
    content |= others
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(content) + "\n")
        temporary.replace(target)
    except OSError as error:
        raise _no_ready_file(path, error) from error


def _no_ready_file(path: str, error: OSError) -> click.ClickException:
    return click.ClickException(f"ready file {path}: {error.strerror}")


def _remove_stale_ready_file(path: str) -> None:
    """Remove an earlier broker's file, because a program could mistake it for this broker's file.

    Keep a running broker's file.
    """
    try:
        try:
            pid = json.loads(Path(path).read_bytes())["pid"]
            if isinstance(pid, int) and pid > 0 and _runs(pid):
                return
        except (ValueError, TypeError, KeyError):
            pass
        Path(path).unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _no_ready_file(path, error) from error
    # Check the directory before the broker serves: if the directory is missing, a program would wait in vain.
    if not Path(path).absolute().parent.is_dir():
        raise _no_ready_file(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return pid != os.getpid()  # an earlier broker may have had the same pid: in containers it is often 1
