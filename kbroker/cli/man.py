"""`kbroker man`: the manual pages, written to where `man` finds them. Owns the verb alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("man")
@click.argument("directory", metavar="[DIR]", default="man", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Write the manual pages into DIR, ./man without it.

    A wheel has installed them already, under share/man/man1 of its environment. Those that were written here are read
    by man -l DIR/kbroker-topic.1, and man kbroker-topic finds them in ~/.local/share/man/man1.
    """
    from kbroker.cli.manual import write

    try:
        files = write(directory)
    except OSError as error:
        raise click.ClickException(f"{directory}: {error.strerror}") from None
    click.echo(f"{len(files)} pages in {directory}")
