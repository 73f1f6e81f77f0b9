"""`kbroker log`: check, dump, repair and adopt the files of a data directory, without a broker.

Owns the output of findings and dumps. kbroker.log and kbroker.controller decide which files are checked, cut or
recorded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import click

from kbroker.cli.log_store import checked_store, restore, store_options
from kbroker.cli.output import Output, Verbs, output_option
from kbroker.cluster_state import TopicState
from kbroker.log.directories.dir_lock import in_use, is_locked
from kbroker.log.offline.audit import Checked, Finding, Progress
from kbroker.log.offline.check import audit, data_dir_of, log_bytes, partitions_of
from kbroker.log.offline.dump import dump as dump_file
from kbroker.log.offline.dump import dump_order
from kbroker.log.offline.repair import NoSuchRecord
from kbroker.log.offline.repair import repair as repair_directory
from kbroker.protocol.wire import uuid_text

_BAR_FROM_BYTES = 1 << 24
_PAUSE_S = 0.5
_DIRECTORY = click.Path(exists=True, file_okay=False)


@click.group("log", cls=Verbs)
def command() -> None:
    """Check, dump, repair and adopt a data directory, without a broker."""


@contextmanager
def _progress(what: str, total: int) -> Iterator[Progress]:
    """Show a progress bar on a terminal during a long job."""
    if total < _BAR_FROM_BYTES or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, advance=count)


def _finding(finding: Finding) -> dict[str, object]:
    kind = "recovery" if finding.recovery else "fault"
    return {"file": finding.path, "position": finding.position, "kind": kind, "what": finding.what}


@command.command("check", short_help="Check every file, and change none.")
@click.argument("directory", type=_DIRECTORY)
@store_options(required=False)
@click.option("--deep", is_flag=True, help="With --from: read all bytes of the remote segments.")
@click.option(
    "--delete-orphans",
    is_flag=True,
    help="With --from: delete the objects that nobody needs and that are older than a day; implies --deep.",
)
@output_option
def check(
    directory: str, url: str | None, options: tuple[str, ...], deep: bool, delete_orphans: bool, output: Output
) -> None:
    """Check every file of a data directory, or of one partition. No file is changed.

    Prints one line for each finding and exits with 1 if there is a finding; otherwise prints one line about the checked
    files. A broker may use the directory: then an apparent fault is checked three times, and reported only if it
    persists.

    With --from, also compares the records about remote segments with the objects in the store. An object is an orphan
    if no record names it, and if its records are deleted, or in other segments.
    """
    directory = directory.rstrip("/") or "/"
    if url is None and (options or deep or delete_orphans):
        raise click.UsageError("--option, --deep and --delete-orphans need --from")
    if url is not None and directory in partitions_of(directory):
        raise click.UsageError("--from takes a data directory, not a partition's directory")
    pause = None
    if is_locked(data_dir_of(directory, partitions_of(directory))):
        click.echo("kbroker: a broker uses this directory: each finding is checked a second time", err=True)
        pause = partial(time.sleep, _PAUSE_S)
    found = []
    checked = Checked()
    with _progress("checking", log_bytes(directory)) as progress:
        for finding in audit(directory, progress, checked=checked, pause=pause):
            found.append(_finding(finding))
            if not output.is_document:
                click.echo(str(finding))
    store = None
    if url is not None:
        store = checked_store(directory, url, options, deep=deep, sweep=delete_orphans and not found)
        for each in store.deleted:
            click.echo(f"deleted {each.name}: {each.what}", err=True)
        has_faults = bool(found or store.faults)
        if delete_orphans and has_faults and not store.deleted:
            click.echo("kbroker: nothing was deleted, because there are faults", err=True)
        lines = [("fault", each.name, each.what) for each in store.faults]
        young = ", and it is younger than a day" if delete_orphans and not has_faults else ""
        lines += [("orphan", each.name, f"{each.what}{young}") for each in store.orphans]
        for kind, name, what in lines:
            found.append({"file": name, "position": None, "kind": kind, "what": what})
            if not output.is_document:
                click.echo(f"{name}: {what}")
        for topic_id, number in store.strangers.items():
            click.echo(f"kbroker: not checked: {_count(number, 'object')} of the unknown topic {topic_id}", err=True)
    if output.is_document:
        output.show(found)
    elif not found:
        counts = [
            _count(checked.partitions, "partition"),
            _count(checked.files, "file"),
            _count(checked.batches, "batch", "batches"),
            _count(checked.records, "record"),
            *([] if store is None else [f"{_count(store.segments, 'remote segment')} of {store.size} bytes"]),
        ]
        click.echo(f"checked {', '.join(counts)}: all is well")
    if found:
        sys.exit(1)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or f'{one}s'}"


@command.command("dump", short_help="Print files as kafka-dump-log does.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True), metavar="FILE|DIRECTORY...")
@click.option("--deep-iteration", is_flag=True, help="Also print each record of a .log file.")
@click.option("--print-data-log", is_flag=True, help="Also print the keys and values of records.")
def dump(paths: tuple[str, ...], deep_iteration: bool, print_data_log: bool) -> None:
    """Print .log, .index, .timeindex, .txnindex, .snapshot files as Kafka's kafka-dump-log does.

    For a partition's DIRECTORY, all files are printed, segment by segment.

    Checkpoints and the metadata journal (__metadata.journal, __metadata.snapshot) are printed entry by entry.
    """
    from kbroker.controller.journal_dump import FILES, dump_journal

    for path in (file for each in paths for file in (dump_order(each) if os.path.isdir(each) else [each])):
        if os.path.basename(path) in FILES:
            lines = dump_journal(path)
        else:
            lines = dump_file(path, deep=deep_iteration, contents=print_data_log)
        for line in lines:
            click.echo(line)


@command.command("repair", short_help="Cut and index logs as after a crash.")
@click.argument("directory", type=_DIRECTORY)
@click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")
@click.option(
    "--drop",
    "dropped",
    type=click.IntRange(0),
    multiple=True,
    metavar="OFFSET",
    help="Remove the record at this offset; needs the directory of a partition. Repeatable.",
)
@output_option
def repair(directory: str, yes: bool, dropped: tuple[int, ...], output: Output) -> None:
    """Cut each log where recovery would cut it, and rebuild its indexes.

    A broker does the same when it starts after a crash. Records below a log's recovery point are never changed. Exits
    with 1 if a fault remains that recovery does not repair.

    A record that a coordinator cannot read prevents a partition of __consumer_offsets from being served; the broker's
    log contains its offset. --drop deletes the record for good: use it on each replica.
    """
    directory = directory.rstrip("/") or "/"
    above = data_dir_of(directory, partitions := partitions_of(directory))
    if dropped and (len(partitions) != 1 or above == directory):
        raise click.UsageError("--drop takes a partition's directory")
    if is_locked(above):
        raise in_use(above)
    if not yes:
        with _progress("checking", log_bytes(directory)) as progress:
            findings = list(audit(directory, progress, before_recovery=True))
        for finding in findings:
            click.echo(str(finding), err=output.is_document)
        for offset in dropped:
            click.echo(f"the record at offset {offset} will be removed", err=output.is_document)
        if not findings and not dropped:
            click.echo("nothing to repair", err=output.is_document)
            return
        sure = False
        with suppress(click.Abort):
            sure = click.confirm("cut and rebuild as recovery does?", err=True)
        if not sys.stdin.isatty():
            click.echo(err=True)  # end the line of the question
        if not sure:
            raise click.ClickException("nothing was changed; --yes does it without asking")
    try:
        done = repair_directory(directory, int(time.time() * 1000), dropped)
    except NoSuchRecord as error:
        raise click.ClickException(str(error)) from None
    with _progress("checking", log_bytes(directory)) as progress:
        left = list(audit(directory, progress))
    if output.is_document:
        output.show({"partitions": [each._asdict() for each in done], "left": [_finding(each) for each in left]})
    else:
        for each in done:
            if each.removed_records:
                records = _count(each.removed_records, "record")
                click.echo(f"{each.path}: {records} removed; the log ends at {each.log_end_offset}")
            if each.cut_bytes or each.removed_segments:
                click.echo(
                    f"{each.path}: cut {each.cut_bytes} bytes, {each.removed_segments} segments removed; "
                    f"the log ends at {each.log_end_offset}"
                )
        click.echo(f"recovered {len(done)} partitions")
        for finding in left:
            click.echo(f"remains: {finding}")
    if left:
        sys.exit(1)


def _configs(pairs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for pair in pairs:
        topic, colon, setting = pair.partition(":")
        key, equals, value = setting.partition("=")
        if not colon or not equals or not topic or not key.strip():
            raise click.UsageError(f"--config takes TOPIC:KEY=VALUE, not {pair!r}")
        found.setdefault(topic, {})[key.strip()] = value.strip()
    return found


@command.command("adopt", short_help="Take over topics of Apache Kafka.")
@click.argument("directory", type=_DIRECTORY)
@click.option("-c", "--config", "configs", multiple=True, metavar="TOPIC:KEY=VALUE", help="Set a config of a topic.")
@output_option
def adopt(directory: str, configs: tuple[str, ...], output: Output) -> None:
    """Record the topics of a data directory that Apache Kafka wrote, so that kbroker serves them.

    The files do not contain the topics' configs: a topic gets the configs of --config, and the broker's defaults for
    the rest. With the defaults, retention may delete old segments when the broker starts. The files themselves are not
    changed.
    """
    from kbroker.controller.adopt import adopt as adopt_directory

    found = adopt_directory(directory, _configs(configs))
    if output.is_document:
        output.show([_topic(topic) for topic in found])
        return
    for topic in found:
        count = len(topic.partitions)
        listed = ", ".join(f"{key}={value}" for key, value in topic.configs.items()) or "no configs"
        click.echo(f"adopted {topic.name}: {count} partition{'s' * (count != 1)}, {listed}")
    if not found:
        click.echo("nothing to adopt")


def _topic(topic: TopicState) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": uuid_text(topic.topic_id),
        "leader_epochs": [partition.leader_epoch for partition in topic.partitions],
        "configs": dict(topic.configs),
    }


command.add_command(restore)
