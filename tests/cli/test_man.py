"""The manual pages: as current as the command line, complete, and without a fault that groff or mandoc finds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from kbroker.cli.main import VERBS, cli
from kbroker.cli.man import pages
from tests.cli.conftest import CommandLine

MAN = Path(__file__).parents[2] / "man"


def test_they_are_as_the_command_line_is():
    """If they are not: make docs."""
    there = {file.name: file.read_text(encoding="utf-8") for file in MAN.iterdir()}
    assert there == pages()


def test_every_verb_and_every_option_has_its_place():
    context = click.Context(cli, info_name="kbroker")
    for verb in VERBS:
        page = (MAN / f"kbroker-{verb}.1").read_text(encoding="utf-8").replace("\\-", "-")
        command = cli.get_command(context, verb)
        assert command is not None
        assert command.help is not None
        below = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for each in below:
            assert each.name is not None
            assert each.name in page
            for parameter in each.params:
                for option in parameter.opts if isinstance(parameter, click.Option) else ():
                    assert option in page, f"{verb} {each.name} {option}"
        assert f"kbroker-{verb}" in (MAN / "kbroker.1").read_text(encoding="utf-8").replace("\\-", "-")


@pytest.mark.parametrize("page", sorted(each.name for each in MAN.iterdir()))
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_nothing_to_say(page):
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", str(MAN / page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_finds_no_fault():
    """Below faults, mandoc has style remarks: for example, that a page has no date."""
    command = ["mandoc", "-T", "lint", "-W", "error", *map(str, sorted(MAN.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_shows_one(tmp_path):
    made = CommandLine("").ok("man", str(tmp_path / "pages"))
    assert made.text == f"{len(VERBS) + 1} pages in {tmp_path / 'pages'}\n"
    command = ["man", "-l", str(tmp_path / "pages" / "kbroker-topic.1")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"},
    )
    shown = done.stdout.replace("\u2010", "-")
    assert "kbroker topic create [OPTIONS] NAME..." in shown
    assert "--replica-assignment" in shown
    assert "OPTIONS OF SEVERAL COMMANDS" in shown


def test_pages_cannot_be_written_into_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    said = CommandLine("").fails("man", str(tmp_path / "file" / "below"))
    assert said.startswith(f"{tmp_path / 'file' / 'below'}: ")
