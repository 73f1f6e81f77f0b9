"""`kbroker man`: manual pages in roff, generated from the command line itself: one for `kbroker`, one for each verb.

Owns the form of a command's page. The pages are in `man/`, which wheels install to share/man/man1; `make docs`
regenerates them, and `make check` reports stale ones. Never sends a request.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from kbroker.cli.main import EXITS, VERBS, cli

_PROGRAM: Final = "kbroker"
_SEVERAL: Final = 2
_FILES: Final = (
    ("~/.config/kbroker/profiles/NAME.properties", "The settings that --profile NAME takes."),
    ("KBROKER_BOOTSTRAP, KAFKA_BOOTSTRAP_SERVERS", "The address of a broker, without --bootstrap."),
    ("KBROKER_PROFILE", "The profile, without --profile."),
    ("KBROKER_CONTROL", "The address of a control API, without --control."),
)
Records = dict[str, str]
"""Options in their written form, each with its help."""


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    context = click.Context(cli, info_name=_PROGRAM, **cli.context_settings)
    found = {f"{_PROGRAM}.1": _page_of_all(context)}
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        below = click.Context(command, info_name=verb, parent=context)
        found[f"{_PROGRAM}-{verb}.1"] = _page(command, below, VERBS[verb])
    return found


def write(directory: Path) -> list[Path]:
    """Write all pages to a directory, and create it if it is missing.

    Remove pages of removed verbs. Return the files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in directory.glob(f"{_PROGRAM}*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in made]


def _page_of_all(context: click.Context) -> str:
    lines = [*_head(_PROGRAM, str(cli.help))]
    lines += [".SH SYNOPSIS", f".B {_PROGRAM}", "[\\fB\\-\\-debug\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"]
    lines += [".SH DESCRIPTION", *_prose(str(cli.help))]
    lines += [".SH COMMANDS"]
    for verb, text in VERBS.items():
        lines += [".TP", f"\\fB{_text(f'{_PROGRAM}-{verb}')}\\fR(1)", _line(text)]
    lines += [".SH OPTIONS", *_options(_records(cli, context))]
    lines += [".SH EXIT STATUS", *_pairs(EXITS), ".SH FILES AND ENVIRONMENT", *_pairs(_FILES)]
    return "\n".join(lines) + "\n"


def _page(command: click.Command, context: click.Context, summary: str) -> str:
    name = f"{_PROGRAM}-{context.info_name}"
    lines = [*_head(name, summary), ".SH SYNOPSIS"]
    below = _below(command, context)
    for each, its in below or [(command, context)]:
        lines += [f".B {_text(its.command_path)}", f"{_usage(each, its)}", ".br"]
    lines += [".SH DESCRIPTION", *_prose(command.help or summary)]
    if below:
        shared = _shared([_records(each, its) for each, its in below])
        lines += [".SH COMMANDS"]
        for each, its in below:
            lines += [f".SS {_text(str(its.info_name))}", *_prose(each.help or "")]
            records = _records(each, its)
            lines += _options({option: text for option, text in records.items() if shared.get(option) != text})
            also = [option.split(" ")[0].rstrip(",") for option, text in records.items() if shared.get(option) == text]
            if also:
                lines += [".PP", f"Also: {', '.join(f'{_bold(option)}' for option in also)}."]
        lines += [".SH OPTIONS OF SEVERAL COMMANDS", *_options(shared)] if shared else []
    else:
        lines += [".SH OPTIONS", *_options(_records(command, context)), *_prose(command.epilog or "")]
    lines += [".SH SEE ALSO", f".BR {_PROGRAM} (1)"]
    return "\n".join(lines) + "\n"


def _below(command: click.Command, context: click.Context) -> list[tuple[click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        return []
    found = []
    for name in command.list_commands(context):
        each = command.get_command(context, name)
        assert each is not None
        found.append((each, click.Context(each, info_name=name, parent=context)))
    return found


def _head(name: str, summary: str) -> list[str]:
    return [
        '.\\" Made by `make docs` from the command line; not to be edited.',
        f'.TH "{_text(name.upper())}" 1 "" "{_PROGRAM}" "{_PROGRAM}"',
        ".ad l",
        ".nh",
        ".SH NAME",
        f"{_text(name)} \\- {_text(' '.join(summary.split()).rstrip('.'))}",
    ]


def _usage(command: click.Command, context: click.Context) -> str:
    return " ".join(f"\\fI{_text(each)}\\fR" for each in command.collect_usage_pieces(context))


def _records(command: click.Command, context: click.Context) -> Records:
    found = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            found[record[0]] = record[1]
    # Do not use click's own help option: a command caches the option of its first context, and this context may lack
    # the parents.
    return found | {"-h, --help": "Show this message and exit."}


def _shared(of_all: Sequence[Records]) -> Records:
    """Return the options that several commands share."""
    counts = Counter((option, text) for records in of_all for option, text in records.items())
    return {option: text for (option, text), count in counts.items() if count >= _SEVERAL}


def _options(records: Mapping[str, str]) -> list[str]:
    lines = []
    for option, text in records.items():
        lines += [".TP", _bold(option), _line(text) if text else "\\&"]
    return lines


def _pairs(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, text in pairs:
        yield from (".TP", _bold(name), _line(text))


def _prose(text: str) -> Iterator[str]:
    """Return paragraphs; a paragraph after a line with only a backspace is not wrapped, as in click."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0] == "\b" or paragraph.lstrip(" ").startswith("\b"):
            kept = paragraph.replace("\b", "").splitlines()
            yield from (".PP", ".nf", *(_line(line) for line in kept if line.strip()), ".fi")
        else:
            yield from (".PP", _line(" ".join(lines)))


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _line(text: str) -> str:
    """Return a line of text, escaped if it looks like a roff request."""
    escaped = _text(text)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    escaped = escaped.replace("^", "\\(ha").replace("~", "\\(ti").replace('"', "\\(dq")
    return escaped.replace("|", "|\\:")  # lets a long list of choices be wrapped


@click.command("man")
@click.argument("directory", metavar="[DIR]", default="man", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Write the manual pages into DIR, by default ./man.

    A wheel has already installed them in share/man/man1 of its environment. Pages in DIR are read with man -l
    DIR/kbroker-topic.1, and man kbroker-topic finds pages in ~/.local/share/man/man1.
    """
    try:
        files = write(directory)
    except OSError as error:
        raise click.ClickException(f"{directory}: {error.strerror}") from None
    click.echo(f"{len(files)} pages in {directory}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
