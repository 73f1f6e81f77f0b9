"""The verbs of `kbroker log` that use a store: `restore`, and the part of `check` about remote segments.

Owns the options of the store, and the output. kbroker/restore/ restores and checks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict

import click

from kbroker.cli.client import warn
from kbroker.cli.output import Column, Facts, Output, Table, output_option
from kbroker.remote.store import open_store
from kbroker.remote.store_errors import StoreError, StoreSettingError
from kbroker.restore.check_store import CheckError, StoreChecked, check_store
from kbroker.restore.restoration import GAP, Choice, Restored, RestoreError
from kbroker.restore.restoration import restore as restore_directory
from kbroker.schedules.times import as_text

_NAMED = 20
"""The maximum number of missing objects that are named for a partition."""
_Verb = Callable[..., None]


def store_options(*, required: bool) -> Callable[[_Verb], _Verb]:
    """Add the options that name a store."""

    def add(verb: _Verb) -> _Verb:
        verb = click.option(
            "--option",
            "options",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of the store's client, as in remote.storage.options; repeatable.",
        )(verb)
        text = "The store, as in remote.storage.url."
        return click.option("--from", "url", required=required, metavar="URL", help=text)(verb)

    return add


def checked_store(directory: str, url: str, options: tuple[str, ...], *, deep: bool, sweep: bool) -> StoreChecked:
    """Check the remote segments of a directory; with `sweep`, delete the orphans if there is no fault."""

    async def run() -> StoreChecked:
        store = open_store(url, _pairs(options))
        try:
            return await check_store(store, directory, deep=deep, sweep=sweep)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (CheckError, StoreError, StoreSettingError) as error:
        raise click.ClickException(str(error)) from None


@click.command("restore", short_help="Restore a lost directory from remote storage.")
@click.argument("directory", type=click.Path(file_okay=False))
@store_options(required=True)
@click.option("--cluster-id", metavar="ID", help="The cluster, if the store has the state of several clusters.")
@click.option(
    "--directory-id", metavar="ID", help="The lost directory, if the store has the state of several directories."
)
@click.option(
    "--gap",
    type=click.IntRange(0, 1 << 40),
    default=GAP,
    show_default=True,
    metavar="N",
    help="The number of offsets that stay unused behind the last known offset of each partition.",
)
@output_option
def restore(
    directory: str,
    url: str,
    options: tuple[str, ...],
    cluster_id: str | None,
    directory_id: str | None,
    gap: int,
    output: Output,
) -> None:
    """Restore a data directory that was lost, from the store of a broker with tiered storage.

    DIRECTORY must be new or empty. The broker's newest state copy gives the topics, configs, users, group offsets and
    transactions. Topics with remote storage get all records that are in the store. Other topics become empty.

    The offsets of lost records are not used again: the next record of each partition gets an offset behind them.
    """
    try:
        choice = Choice(cluster_id, directory_id)
        done = asyncio.run(_restored(url, _pairs(options), directory.rstrip("/") or "/", choice, gap))
    except (RestoreError, StoreError, StoreSettingError) as error:
        raise click.ClickException(str(error)) from None
    for text in (*done.notes, *done.troubles):
        warn(text)
    for partition in done.partitions:
        for name in partition.missing[:_NAMED]:
            warn(f"{partition.topic}-{partition.partition}: {name} is missing or damaged")
    for topic in done.unknown_topics:
        warn(
            f"topic {topic.topic_id} has {topic.objects} objects, but the state does not name it: it is newer, or"
            " belongs to another cluster"
        )
    written = as_text(done.written_ms)
    partitions = [asdict(each) for each in done.partitions]
    document = {
        "cluster_id": done.cluster_id,
        "directory_id": done.directory_id,
        "node_id": done.broker_id,
        "written": written,
        "own_topics": done.own_topics,
        "partitions": partitions,
        "unknown_topics": [asdict(each) for each in done.unknown_topics],
        "notes": done.notes,
        "troubles": done.troubles,
    }
    columns = (
        "topic", "partition", "start", Column("remote end", "remote_end"), "end", "segments",
        Column("lost offsets", "lost_offsets"), "deleted",
        Column("missing", lambda row: len(row["missing"])),
    )  # fmt: skip
    output.show(
        document,
        Facts(
            [
                ("cluster", done.cluster_id),
                ("node", str(done.broker_id)),
                ("state of", written),
                ("own topics", ", ".join(done.own_topics) or "-"),
            ]
        ),
        Table(partitions, columns),
    )
    if done.troubles or any(each.missing for each in done.partitions):
        sys.exit(1)


async def _restored(url: str, options: dict[str, str], directory: str, choice: Choice, gap: int) -> Restored:
    store = open_store(url, options)
    try:
        return await restore_directory(store, directory, choice, gap=gap, progress=_shown)
    finally:
        await store.close()


def _shown(done: int, of: int) -> None:
    """Show the progress on a terminal."""
    if of and sys.stderr.isatty():
        click.echo(f"\rexamined {done} of {of} objects" + "\n" * (done == of), err=True, nl=False)


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of the store's client."""
    found = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign:
            raise click.UsageError(f"--option takes NAME=VALUE, not {name!r}")
        if "=" in value.partition(",")[2]:
            raise click.UsageError("--option takes one NAME=VALUE; give the option several times")
        found[name.strip()] = value.strip()
    return found
