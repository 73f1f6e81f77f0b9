"""`kbroker perf consume`: measures the rate at which the records of topics arrive.

Owns the start and the end of the measurement: the subscription, and the arrival of the last requested record.
"""

from __future__ import annotations

import sys
import time
import uuid
from contextlib import suppress
from typing import Any, Final

import click
from kafka.errors import KafkaError

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Output, output_option
from kbroker.cli.perf.figures import MB, Run
from kbroker.cli.perf.live import Live, Stop, live, stopping
from kbroker.cli.perf.options import measuring_options, show
from kbroker.cli.perf.receivers import Receiver, open_receiver, partitions_of

_FETCH_BYTES: Final = 1024 * 1024
_POLL_S: Final = 0.1


@click.command("consume", short_help="Measure the speed of consuming.")
@click.argument("topics", nargs=-1, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "--include", metavar="REGEX", help="Read all topics whose name begins with a match, instead of named topics."
)
@click.option(
    "--records",
    "--num-records",
    "records",
    type=click.IntRange(1),
    required=True,
    help="The number of records to read.",
)
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    help="Read as a member of this group; without this option, of a group with a random name.",
)
@click.option("--from-latest", is_flag=True, help="Without committed offsets, start with new records.")
@click.option("--fetch-size", type=click.IntRange(1), default=_FETCH_BYTES, show_default=True, metavar="BYTES")
@click.option(
    "--timeout",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    metavar="MS",
    help="End with an error when no record arrives for this time.",
)
@measuring_options
@output_option
@client_options
def consume(
    topics: tuple[str, ...],
    include: str | None,
    records: int,
    group: str | None,
    from_latest: bool,
    fetch_size: int,
    timeout: int,
    client: str,
    reporting_interval: int,
    output: Output,
    connection: Connection,
) -> None:
    """Read records as a member of a group without committing, and measure records and MB a second.

    The time until partitions are assigned is printed separately, as rebalance. The rates without this time are also
    printed, as fetching.
    """
    if bool(topics) == (include is not None):
        raise click.UsageError("give either topics or --include")
    for topic in topics:
        partitions_of(connection, topic)
    member_of = group or f"kbroker-perf-{uuid.uuid4()}"
    receiver = open_receiver(connection, client, group=member_of, from_latest=from_latest, fetch_size=fetch_size)
    run = Run(time.perf_counter())
    with stopping() as stop:
        try:
            with live("consume", records, reporting_interval) as shown:
                receiver.subscribe(topics if include is None else [f"^{include.removeprefix('^')}"])
                _read(receiver, records, timeout / 1000, run, shown, stop)
        finally:
            receiver.close()
            if group is None:
                _forget(connection, member_of)
    show({"client": receiver.client, **_document(run, receiver)}, output)
    if stop:
        sys.exit(stop.status)
    if run.records < records:
        raise click.ClickException(f"no record arrived for {timeout} ms; {run.records} of {records} were read")


def _forget(connection: Connection, group: str) -> None:
    """Delete the group of this run; if this fails, the group expires by itself, because it has committed nothing."""
    with suppress(KafkaError, AdminError), connection.admin() as admin:
        admin.delete_groups([group])


def _read(receiver: Receiver, wanted: int, timeout_s: float, run: Run, shown: Live, stop: Stop) -> None:
    """Read until `wanted` records have arrived, or until no record has arrived for a while."""
    last_record = time.perf_counter()
    while run.records < wanted and not stop:
        taken = len(receiver.take(wanted - run.records, _POLL_S))
        now = time.perf_counter()
        if taken:
            run.records += taken
            run.octets = receiver.taken_octets()
            run.ended = last_record = now
        elif now - last_record > timeout_s:
            return
        if now >= shown.due:
            shown.report(now, run.records, run.octets)


def _document(run: Run, receiver: Receiver) -> dict[str, Any]:
    found: dict[str, Any] = dict(run.rates())
    if receiver.assigned_at is not None and run.ended > receiver.assigned_at:
        fetching = run.ended - receiver.assigned_at
        found["rebalance_ms"] = round((receiver.assigned_at - run.began) * 1000, 1)
        found["fetch_seconds"] = round(fetching, 3)
        found["fetch_records_per_s"] = round(run.records / fetching, 1)
        found["fetch_mb_per_s"] = round(run.octets / MB / fetching, 3)
    return found
