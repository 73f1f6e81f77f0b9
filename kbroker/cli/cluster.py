"""`kbroker cluster`: a cluster of brokers on this machine, for experiments.

Owns the options and the output. kbroker/launcher does the work: `up` starts the processes and keeps running; the other
verbs send requests to the `up` that runs in the same directory.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kbroker.cli.log_output import log_options
from kbroker.cli.output import Output, Verbs, output_option, print_table
from kbroker.launcher.child import LauncherError, wait_until
from kbroker.launcher.control import ControlSocket, ask_launcher, launcher_runs
from kbroker.launcher.description import ClusterDescription, read_description
from kbroker.launcher.plan import make_plan, parse_listen, parse_settings, with_metrics, with_registries
from kbroker.launcher.signals import Stopped, StopSignals
from kbroker.launcher.start_and_stop import LocalCluster, ask_brokers
from kbroker.launcher.watch import Supervisor
from kbroker.local_http import REGISTRY, parse

DEFAULT_DIR = "kbroker-cluster"
DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_METRICS = "127.0.0.1:9404"
_PATIENCE_S = 400.0
_NO_LOGIN = "everybody could register and delete schemas; `kbroker start` has registries with logins and TLS"

_dir_option = click.option(
    "--data-dir", metavar="DIR", default=DEFAULT_DIR, show_default=True, help="The directory of the cluster's data."
)


@click.group("cluster", cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run several brokers on this machine as one cluster.

    `up` stays in the foreground; `status`, `stop`, `kill` and `restart` are for another terminal.
    """


@command.command("up")
@click.option("-n", "count", type=click.IntRange(1, 100), default=3, show_default=True, help="The number of brokers.")
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Use this running ZooKeeper; without this option, one is started."
)
@_dir_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="The address of the first broker. The others use the next ports. Port 0 chooses free ports.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key for all brokers.")
@click.option(
    "--metrics",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=DEFAULT_METRICS,
    help=f"Each broker serves /metrics: the first at this address, by default {DEFAULT_METRICS}, the others on the"
    " next ports. Port 0 chooses free ports.",
)
@click.option(
    "--registry",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=REGISTRY.default,
    help=f"Each broker serves a schema registry: the first at this address, by default {REGISTRY.default}, the others"
    " on the next ports. Port 0 chooses free ports. A registry needs no login, so only this machine may reach it.",
)
@click.option(
    "--ready-file",
    metavar="FILE",
    help="After the start, write the addresses and process ids to this file as JSON; the stop deletes the file.",
)
@log_options()
def up(
    count: int,
    zookeeper: str | None,
    data_dir: str,
    listen: str,
    settings: tuple[str, ...],
    metrics: str | None,
    registry: str | None,
    ready_file: str | None,
    log_format: str,
    log_levels: tuple[str, ...],
) -> None:
    """Start a cluster, and stop it on Ctrl-C.

    Without --zookeeper it starts its own ZooKeeper, which needs Java and, the first time, Maven. The stored data is
    used again by the next start in the same directory with the same number of brokers.
    """
    plan = make_plan(Path(data_dir), count, parse_listen(listen), zookeeper, parse_settings(settings))
    plan = replace(plan, options=("--log-format", log_format, *(f"--log-level={each}" for each in log_levels)))
    if metrics is not None:
        plan = with_metrics(plan, parse_listen(metrics, "--metrics"))
    if registry is not None:
        REGISTRY.require("--registry")
        host, port = parse(registry, "--registry", REGISTRY.default)
        REGISTRY.listening(host, port, "--registry", public=False, not_public=_NO_LOGIN).close()
        plan = with_registries(plan, (host, port))
    plan.directory.mkdir(parents=True, exist_ok=True)
    ready = None if ready_file is None else Path(ready_file).absolute()
    with ControlSocket(plan.directory) as control, StopSignals() as signals:
        cluster = LocalCluster(plan, signals.pause, report=_print)
        supervisor = Supervisor(cluster, control, signals, ready, _print)
        try:
            supervisor.start()
            _announce(cluster, data_dir)
            supervisor.run()
        except Stopped:
            pass  # stopped during the start
        finally:
            _stop(cluster, signals)


def _stop(cluster: LocalCluster, signals: StopSignals) -> None:
    """Stop all brokers gracefully, or immediately after a second signal."""
    signals.forget()
    if not cluster.began:
        return
    try:
        for name in cluster.stop():
            _print(f"{name} did not stop in time and was killed")
        _print("stopped")
    except Stopped:
        _print("killed")


@command.command("status")
@_dir_option
@output_option
def status(data_dir: str, output: Output) -> None:
    """Show which brokers run."""
    description = _running(data_dir)
    rows = [_status_row(description, number) for number in range(len(description.brokers))]
    if output.is_document:
        names = ("state", "is_controller")
        brokers = [
            {**fields, **dict(zip(names, row, strict=True))}
            for fields, row in zip(description.as_json()["brokers"], rows, strict=True)
        ]
        output.show({**description.as_json(), "brokers": brokers})
        return
    _print_brokers(description, [(state, "yes" if is_controller else None) for state, is_controller in rows])
    for each in description.brokers:
        if each.ended is not None:
            _print(f"broker {each.node_id} has ended: {each.ended}")


@command.command("stop")
@click.argument("node_id", type=int, required=False)
@_dir_option
def stop(node_id: int | None, data_dir: str) -> None:
    """Stop the cluster, or the broker NODE_ID, gracefully."""
    directory = Path(data_dir).absolute()
    ask_launcher(directory, {"do": "stop", "node_id": node_id}, _PATIENCE_S)
    if node_id is None and not wait_until(lambda: not launcher_runs(directory), _PATIENCE_S):
        raise click.ClickException(f"the cluster still runs after {_PATIENCE_S:.0f} s")


@command.command("kill")
@click.argument("node_id", type=int)
@_dir_option
def kill(node_id: int, data_dir: str) -> None:
    """End the broker NODE_ID immediately, like a crash (SIGKILL)."""
    ask_launcher(Path(data_dir).absolute(), {"do": "kill", "node_id": node_id}, _PATIENCE_S)


@command.command("restart")
@click.argument("node_id", type=int)
@_dir_option
def restart(node_id: int, data_dir: str) -> None:
    """Start the broker NODE_ID, after stopping it if it runs; return when the cluster knows it."""
    ask_launcher(Path(data_dir).absolute(), {"do": "restart", "node_id": node_id}, _PATIENCE_S)


def _running(data_dir: str) -> ClusterDescription:
    """Return the running cluster of a directory. Raises LauncherError if no cluster runs there."""
    directory = Path(data_dir).absolute()
    description = read_description(directory)
    if not launcher_runs(directory):
        raise LauncherError(f"no cluster runs in {directory}")
    return description


def _status_row(description: ClusterDescription, number: int) -> tuple[str, bool]:
    """Return a broker's state, and whether it considers itself the controller."""
    broker = description.brokers[number]
    if broker.pid is None:
        return "down", False
    known = ask_brokers((broker.host, broker.port))
    if known is None:
        return "does not answer", False
    return "serves", known.controller == broker.node_id


def _announce(cluster: LocalCluster, data_dir: str) -> None:
    """Print the cluster and example commands; each line can be pasted."""
    description, where = cluster.describe(), cluster.bootstrap_servers
    controller = cluster.controller()
    rows = [("serves", "yes" if each.node_id == controller else None) for each in description.brokers]
    _print_brokers(description, rows)
    kbroker = "kbroker" if shutil.which("kbroker") or not sys.argv[0].endswith("/kbroker") else sys.argv[0]
    replicas = min(len(description.brokers), 3)
    place = "" if data_dir == DEFAULT_DIR else f" --data-dir {data_dir}"
    create = f"--partitions 3 --replication-factor {replicas}"
    click.echo(
        f"\nZooKeeper at {description.zookeeper}; data in {cluster.plan.directory}; Ctrl-C stops all\n\n"
        f"  {kbroker} topic create hello {create} --bootstrap {where}\n"
        f"  echo 'hello, world' | {kbroker} produce hello --bootstrap {where}\n"
        f"  {kbroker} consume hello --from-beginning --count 1 --bootstrap {where}\n"
        f"  {kbroker} cluster kill 1{place}\n"
        f"  {kbroker} topic describe hello --bootstrap {where}\n"
        f"  {kbroker} cluster restart 1{place}\n\n"
        "(a broker that was killed is missed after some seconds: then others lead)\n\n"
        "with Apache Kafka's own tools:\n\n"
        f"  kafka-topics.sh --create --topic tools {create} --bootstrap-server {where}\n"
        f"  echo 'hello, world' | kafka-console-producer.sh --topic tools --bootstrap-server {where}\n"
        f"  kafka-console-consumer.sh --topic tools --from-beginning --max-messages 1 --bootstrap-server {where}\n"
        f"  kafka-topics.sh --describe --topic tools --bootstrap-server {where}\n"
    )
    sys.stdout.flush()


def _print_brokers(description: ClusterDescription, states: list[tuple[str, str | None]]) -> None:
    rows: list[list[Any]] = [
        [each.node_id, f"{each.host}:{each.port}", each.pid, state, controller, os.path.relpath(each.data_dir)]
        for each, (state, controller) in zip(description.brokers, states, strict=True)
    ]
    names = ["broker", "address", "pid", "state", "controller", "data"]
    if any(each.metrics for each in description.brokers):
        names.append("metrics")
        for row, each in zip(rows, description.brokers, strict=True):
            row.append(f"http://{each.metrics}/metrics")
    if any(each.registry for each in description.brokers):
        names.append("registry")
        for row, each in zip(rows, description.brokers, strict=True):
            row.append(each.registry)
    print_table(names, rows)


def _print(text: str) -> None:
    click.echo(f"kbroker: {text}", err=True)
