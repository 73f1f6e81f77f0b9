"""`kbroker perf produce`: measures the rate at which a topic accepts records, and the times until acknowledgements.

Owns the records and the limit of their rate. A record counts when it is acknowledged, never when it is sent.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from kbroker.admin.connection import Connection
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Output, output_option
from kbroker.cli.perf.figures import Run
from kbroker.cli.perf.live import Live, Stop, live, stopping
from kbroker.cli.perf.options import measuring_options, show
from kbroker.cli.perf.receivers import partitions_of
from kbroker.cli.perf.senders import Sender, open_sender
from kbroker.cli.produce import ACKS, CODECS
from kbroker.cli.record_format import unescape

_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SPARE: Final = 65_536
_SHORTEST_PAUSE_S: Final = 0.002
_TRANSACTION_MS: Final = 3_000


@click.command("produce", short_help="Measure the speed of producing.")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--records",
    "--num-records",
    "records",
    type=click.IntRange(1),
    required=True,
    help="The number of records to send.",
)
@click.option(
    "--record-size", type=click.IntRange(0), metavar="BYTES", help="The size of each value, in random letters."
)
@click.option("--payload-file", type=click.File("rb"), help="A file of values to choose from at random, one per line.")
@click.option(
    "--payload-delimiter", default="\\n", show_default=True, help="The separator between values in --payload-file."
)
@click.option("--payload-monotonic", is_flag=True, help="Use increasing numbers as values.")
@click.option(
    "--throughput",
    type=float,
    default=-1,
    show_default=True,
    help="The maximum number of records per second; -1 means no limit.",
)
@click.option(
    "--acks",
    type=click.Choice(list(ACKS)),
    default="all",
    show_default=True,
    help="The replicas that must acknowledge a record.",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("-p", "--partition", type=click.IntRange(0), help="Write only to this partition.")
@click.option(
    "--warmup-records",
    type=click.IntRange(0),
    default=0,
    help="The number of records at the start that the figures leave out.",
)
@click.option("--transactional-id", metavar="ID", help="Send the records in transactions with this id.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(1),
    metavar="MS",
    help="Commit each transaction after this time; 3000 with --transactional-id.",
)
@measuring_options
@output_option
@client_options
def produce(
    topic: str,
    records: int,
    record_size: int | None,
    payload_file: Any,
    payload_delimiter: str,
    payload_monotonic: bool,
    throughput: float,
    acks: str,
    compression: str,
    partition: int | None,
    warmup_records: int,
    transactional_id: str | None,
    transaction_duration_ms: int | None,
    client: str,
    reporting_interval: int,
    output: Output,
    connection: Connection,
) -> None:
    """Send records and measure: records and MB (of 1,048,576 bytes) a second, and times to the acknowledgement.

    A record's time begins when the record is passed to the client, even if the client has no room for it yet. Ctrl-C
    ends the measurement early, and prints the figures so far.
    """
    if sum([record_size is not None, payload_file is not None, payload_monotonic]) != 1:
        raise click.UsageError("give one of --record-size, --payload-file and --payload-monotonic")
    if warmup_records >= records:
        raise click.UsageError("--warmup-records leaves nothing to measure: it must be less than --records")
    if throughput == 0:
        raise click.UsageError("--throughput 0 would send nothing")
    in_transactions = transactional_id is not None or transaction_duration_ms is not None
    if in_transactions and ACKS[acks] != -1:
        raise click.UsageError("transactions need --acks all")
    values = _values(record_size, payload_file, payload_delimiter)
    known = partitions_of(connection, topic)
    if partition is not None and partition not in known:
        raise click.ClickException(f"topic {topic} has no partition {partition}; it has {len(known)}, from 0 on")
    with stopping() as stop:
        sender = open_sender(
            connection,
            client,
            topic,
            stop,
            acks=ACKS[acks],
            compression=compression,
            partition=partition,
            transactional_id=(transactional_id or f"kbroker-perf-{uuid.uuid4()}") if in_transactions else None,
        )
        measured = _Measured(warmup_records)
        commit_s = (transaction_duration_ms or _TRANSACTION_MS) / 1000 if in_transactions else None
        try:
            with live("produce", records, reporting_interval) as shown:
                _send(sender, itertools.islice(values, records), throughput, commit_s, measured, shown, stop)
        finally:
            sender.close()
    show({"client": sender.client, "topic": topic, **measured.document()}, output)
    if stop:
        sys.exit(stop.status)
    if measured.run.failed:
        raise click.ClickException(f"{measured.run.failed} records failed: {measured.error}")


def _values(size: int | None, file: Any, delimiter: str) -> Iterator[bytes]:
    """Yield values endlessly."""
    if size is not None:
        letters = bytes(random.choices(_LETTERS, k=size + _SPARE))
        while True:
            at = random.randrange(_SPARE)
            yield letters[at : at + size]
    if file is not None:
        choices = [each for each in file.read().split(unescape(delimiter)) if each]
        if not choices:
            raise click.UsageError("--payload-file is empty")
        while True:
            yield random.choice(choices)
    yield from (str(number).encode() for number in itertools.count())


class _Measured:
    """The results of records; the client may report them from its own thread."""

    def __init__(self, warmup: int) -> None:
        self.run = Run(time.perf_counter())
        self.error: str | None = None
        self.done = 0
        """The number of finished records, including those of the warmup."""
        self._warmup = warmup
        self._warmup_seconds = 0.0
        self._begin = self.run.began
        self._lock = threading.Lock()

    def expect(self, number: int, size: int) -> Callable[[float | None, str | None], None]:
        """Return the callback for the record with this number; the first number is 0."""
        if number == self._warmup and number:
            self.run.began = time.perf_counter()
            self._warmup_seconds = self.run.began - self._begin
        counts = number >= self._warmup

        def acknowledged(seconds: float | None, error: str | None) -> None:
            with self._lock:
                self.done += 1
                if seconds is None:
                    self.run.failed += 1
                    self.error = self.error or error
                elif counts:
                    self.run.records += 1
                    self.run.octets += size
                    self.run.times.add(seconds)
                    self.run.ended = time.perf_counter()

        return acknowledged

    def document(self) -> dict[str, Any]:
        warm = {"warmup_records": self._warmup, "warmup_seconds": round(self._warmup_seconds, 3)}
        found = {**self.run.rates(), "failed": self.run.failed, **(warm if self._warmup else {})}
        return {**found, "latency_ms": self.run.times.summary_ms()}


def _send(
    sender: Sender,
    values: Iterator[bytes],
    throughput: float,
    commit_s: float | None,
    measured: _Measured,
    shown: Live,
    stop: Stop,
) -> None:
    begin = opened = time.perf_counter()
    octets = 0
    if commit_s is not None:
        sender.begin()
    for number, value in enumerate(values):
        if throughput > 0:
            _wait_until(begin + number / throughput, sender, stop)
        sender.send(value, measured.expect(number, len(value)))
        octets += len(value)
        now = time.perf_counter()
        if commit_s is not None and now - opened > commit_s:
            sender.commit()
            sender.begin()
            opened = now
        if now >= shown.due:
            shown.report(now, number + 1, octets, f"{number + 1 - measured.done:,} on their way")
        if measured.error is not None or stop:
            break
    sender.flush()
    if commit_s is not None:
        sender.commit()


def _wait_until(when: float, sender: Sender, stop: Stop) -> None:
    """Process reports until the next record is due."""
    while not stop and (left := when - time.perf_counter()) > _SHORTEST_PAUSE_S:
        sender.serve(left)
