"""`kbroker profile`: list, show, create and remove the named settings for `--profile`.

Owns the form of a profile's file. Never shows a password.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import click

from kbroker.admin.client_properties import normal, read_file
from kbroker.admin.profiles import existing, file_of, is_secret, names
from kbroker.cli.output import Column, Facts, Output, Verbs, output_option

_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HIDDEN: Final = "(secret)"


@click.group("profile", cls=Verbs)
def command() -> None:
    """List, show, add and remove the named settings for --profile."""


@command.command("list")
@output_option
def list_profiles(output: Output) -> None:
    """List profiles, and their bootstrap addresses."""
    found = [_listed(name) for name in names()]
    output.rows(found, "name", Column("bootstrap", "bootstrap_servers"), Column("protocol", "security_protocol"))


def _listed(name: str) -> dict[str, str | None]:
    settings = {normal(key): text for key, text in read_file(existing(name), "profile").items()}
    return {
        "name": name,
        "bootstrap_servers": settings.get("bootstrap_servers"),
        "security_protocol": settings.get("security_protocol"),
    }


@command.command("show")
@click.argument("name")
@output_option
def show(name: str, output: Output) -> None:
    """Show the settings of a profile, except passwords."""
    settings = read_file(existing(name), "profile")
    shown = {key: _HIDDEN if is_secret(key) and "${" not in text else text for key, text in settings.items()}
    output.show(shown, Facts(list(shown.items())))


@command.command("add")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE...]")
@click.option("-b", "--bootstrap", metavar="HOST:PORT,...", help="The addresses of brokers (bootstrap.servers).")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="KEY",
    help="Ask for the value of this setting, or read it from a line of standard input.",
)
@click.option("--replace", is_flag=True, help="Replace an existing profile.")
def add(name: str, pairs: tuple[str, ...], bootstrap: str | None, secrets: tuple[str, ...], replace: bool) -> None:
    """Create a profile of client settings, such as security.protocol=SASL_SSL; only you can read it.

    Prefer a prompt for secret values: --secret sasl.jaas.config.
    """
    path = file_of(name)
    if path.exists() and not replace:
        raise click.ClickException(f"there is a profile {name}: {path}; --replace replaces it")
    settings = {} if bootstrap is None else {"bootstrap.servers": bootstrap}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"KEY=VALUE, not {pair!r}")
        settings[_key(key)] = _value(key, value.strip())
    for key in secrets:
        settings[_key(key)] = _value(key, _prompt(key))
    if not settings:
        raise click.UsageError("say at least where brokers are: --bootstrap HOST:PORT")
    _write(path, "".join(f"{key}={value}\n" for key, value in settings.items()))
    click.echo(f"{path}")


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a profile."""
    path = existing(name)
    path.unlink()
    click.echo(f"{path} is removed")


def _key(text: str) -> str:
    key = text.strip()
    if _KEY.fullmatch(key) is None:
        raise click.UsageError(f"{text!r} is no name of a setting")
    return key


def _value(key: str, text: str) -> str:
    """Return a value in the file's form. Double each backslash: a single one would escape the next character."""
    if "\n" in text or "\r" in text:
        raise click.UsageError(f"{key}: a value is one line")
    return text.replace("\\", "\\\\")


def _prompt(key: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(key, hide_input=True, err=True)).strip()
    text = sys.stdin.readline().strip()
    if not text:
        raise click.UsageError(f"--secret {key}: standard input has no line for it")
    return text


def _write(path: Path, text: str) -> None:
    """Write the file atomically; only its owner may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
