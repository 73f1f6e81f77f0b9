"""`kbroker perf latency`: measures the time of records from a producer to a consumer, one record at a time.

Owns the measured time: from the call that sends a record to the record's arrival at a waiting consumer. Each record is
sent only after the previous one has been acknowledged, received and verified.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any, Final

import click

from kbroker.admin.connection import Connection
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Output, output_option
from kbroker.cli.perf.figures import Run
from kbroker.cli.perf.live import Live, Stop, live, stopping
from kbroker.cli.perf.options import measuring_options, show
from kbroker.cli.perf.receivers import Receiver, open_receiver, partitions_of
from kbroker.cli.perf.senders import Sender, open_sender
from kbroker.cli.produce import ACKS

_MARK: Final = 16
"""The number of bytes that identify a record."""
_SLICE_S: Final = 0.1
_FETCH_BYTES: Final = 1024 * 1024


@click.command("latency", short_help="Measure the time from a producer to a consumer.")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--records", "--num-records", "records", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--record-size", type=click.IntRange(_MARK), default=100, show_default=True, metavar="BYTES")
@click.option(
    "--acks",
    type=click.Choice(["1", "all"]),
    default="all",
    show_default=True,
    help="The replicas that must acknowledge a record.",
)
@click.option(
    "--warmup-records",
    type=click.IntRange(0),
    default=0,
    help="The number of records at the start that the figures leave out.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1),
    default=60_000,
    show_default=True,
    metavar="MS",
    help="The maximum time for one record.",
)
@measuring_options
@output_option
@client_options
def latency(
    topic: str,
    records: int,
    record_size: int,
    acks: str,
    warmup_records: int,
    timeout: int,
    client: str,
    reporting_interval: int,
    output: Output,
    connection: Connection,
) -> None:
    """Send one record at a time, and measure the time until a consumer receives it.

    A record of another producer in the topic, or a lost record, ends the measurement.
    """
    if warmup_records >= records:
        raise click.UsageError("--warmup-records leaves nothing to measure: it must be less than --records")
    partitions = partitions_of(connection, topic)
    receiver = open_receiver(
        connection, client, group=None, from_latest=True, fetch_size=max(_FETCH_BYTES, 2 * record_size), hasty=True
    )
    run = Run(time.perf_counter())
    with stopping() as stop, ExitStack() as ends:
        ends.callback(receiver.close)
        receiver.read_from_end(topic, partitions)
        sender = open_sender(connection, client, topic, stop, acks=ACKS[acks], compression="none", linger_ms=0)
        ends.callback(sender.close)
        with live("latency", records, reporting_interval) as shown:
            for number in range(records):
                if number == warmup_records:
                    run.began = time.perf_counter()
                value = os.urandom(_MARK).ljust(record_size, b".")
                took = _there_and_back(sender, receiver, value, timeout / 1000, stop)
                if took is None:
                    break
                if number >= warmup_records:
                    run.times.add(took)
                    run.records += 1
                    run.octets += record_size
                    run.ended = time.perf_counter()
                _report(shown, run, number + 1, record_size)
    show({"client": sender.client, "topic": topic, **_document(run, warmup_records)}, output)
    if stop:
        sys.exit(stop.status)


def _there_and_back(sender: Sender, receiver: Receiver, value: bytes, timeout_s: float, stop: Stop) -> float | None:
    """Return the seconds from sending a record to its arrival; None after a stop."""
    failures: list[str] = []
    began = time.perf_counter()
    sender.send(value, lambda _seconds, error: failures.append(error) if error is not None else None)
    sender.flush()
    if failures:
        raise click.ClickException(f"a record failed: {failures[0]}")
    while not (taken := receiver.take(1, _SLICE_S)):
        if stop:
            return None
        if time.perf_counter() - began > timeout_s:
            raise click.ClickException(f"an acknowledged record did not arrive in {timeout_s:g} s")
    took = time.perf_counter() - began
    if taken != [value]:
        raise click.ClickException("a record arrived that was not sent here: does another producer write to the topic?")
    return took


def _report(shown: Live, run: Run, number: int, size: int) -> None:
    now = time.perf_counter()
    if now >= shown.due:
        shown.report(
            now, number, number * size, f"p50 {run.times.percentile(0.5) * 1000:.2f} ms" if run.records else ""
        )


def _document(run: Run, warmup: int) -> dict[str, Any]:
    warm = {"warmup_records": warmup} if warmup else {}
    return {**run.rates(), **warm, "latency_ms": run.times.summary_ms()}
