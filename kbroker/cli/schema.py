"""`kbroker schema`: the schemas of a registry with Confluent's API."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.schemas import SchemaRegistry, pretty, reference_in
from kbroker.cli.output import Column, Facts, Output, Verbs, output_option, wide

Result = TypeVar("Result")
_DEFAULT: Final = "http://127.0.0.1:8081"
VARIABLE: Final = "KBROKER_REGISTRY"
"""The environment variable that contains a registry's address."""
_TYPES: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_LATEST: Final = "latest"
_ANY_CONTEXT: Final = ":*:"


@click.group("schema", cls=Verbs)
def command() -> None:
    """List, show, register, check, compare and delete schemas."""


ca_option: Final = click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    help="The PEM file of the authority that signed the registry's certificate.",
)


def registry_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options --registry and --ca to a verb. The verb receives a SchemaRegistry as `registry`."""

    @click.option(
        "--registry",
        "url",
        metavar="URL",
        default=_DEFAULT,
        envvar=VARIABLE,
        show_default=True,
        help="The address of the registry, with user:password@ if it needs a login.",
    )
    @ca_option
    @wraps(function)
    def with_registry(*args: Any, url: str, ca: str | None, **kwargs: Any) -> Result:
        return function(*args, registry=SchemaRegistry(url, ca), **kwargs)

    return with_registry


_subject: Final = click.argument("subject")
_version: Final = click.option(
    "--version", metavar="N", default=_LATEST, help="Use this version instead of the latest."
)


def _of_file(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options that describe a schema in a file to a verb, and pass it the request's `body`."""

    @click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
    @click.option(
        "--type",
        "kind",
        type=click.Choice(["AVRO", "JSON", "PROTOBUF"], case_sensitive=False),
        help="The type of the schema; without this option, the end of the file's name (.avsc, .proto, .json) decides.",
    )
    @click.option(
        "--reference",
        "references",
        metavar="NAME=SUBJECT:VERSION",
        multiple=True,
        help="A schema to which the new schema refers, with the name of the reference.",
    )
    @wraps(function)
    def with_body(*args: Any, file: Path, kind: str | None, references: tuple[str, ...], **kwargs: Any) -> Result:
        return function(*args, body=_request(file, kind, references), **kwargs)

    return with_body


def _request(file: Path, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    known = kind or _TYPES.get(file.suffix)
    if known is None:
        raise click.UsageError(f"{file} does not end with .avsc, .proto or .json: --type tells what it is")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"{file}: {error}") from None
    return {"schema": text, "schemaType": known.upper(), "references": [_reference(each) for each in references]}


def _reference(text: str) -> dict[str, Any]:
    reference = reference_in(text)
    if reference is None:
        raise click.UsageError(f"--reference takes NAME=SUBJECT:VERSION, not {text!r}")
    return reference


@command.command("list")
@click.option("--prefix", metavar="TEXT", default="", help="List only subjects with this prefix.")
@click.option("--deleted", is_flag=True, help="Also list subjects whose versions are all softly deleted.")
@output_option
@registry_options
def list_schemas(prefix: str, deleted: bool, output: Output, registry: SchemaRegistry) -> None:
    """List subjects with their latest schemas."""
    rows: list[dict[str, Any]] = []
    prefix = prefix or _ANY_CONTEXT
    while True:  # a registry returns at most 1,000
        found = registry.ask(
            "GET", "schemas", subjectPrefix=prefix, deleted=deleted, latestOnly=True, offset=len(rows), limit=1000
        )
        if rows and found[:1] == rows[:1]:
            break  # this registry ignores `offset`
        rows += found
        if len(found) < 1000:
            break
    for each in rows:
        each.setdefault("schemaType", "AVRO")
    output.rows(
        rows,
        "subject",
        "version",
        "id",
        Column("type", "schemaType"),
        wide("guid", lambda row: row.get("guid")),
        wide("references", lambda row: len(row.get("references") or ())),
    )


@command.command("show")
@_subject
@_version
@click.option("--deleted", is_flag=True, help="Also show softly deleted versions.")
@output_option
@registry_options
def show(subject: str, version: str, deleted: bool, output: Output, registry: SchemaRegistry) -> None:
    """Show a version of a subject."""
    found = registry.ask("GET", "subjects", subject, "versions", version, deleted=deleted)
    level = registry.level(subject)
    versions = registry.ask("GET", "subjects", subject, "versions", deleted=deleted)
    if output.is_document:
        output.show({**found, "versions": versions, "compatibilityLevel": level})
        return
    output.show(
        found,
        Facts(
            [
                ("subject", found["subject"]),
                ("version", f"{found['version']} of {', '.join(map(str, versions))}"),
                ("id", found["id"]),
                ("type", found.get("schemaType", "AVRO")),
                ("compatibility", level),
                *((f"reference {each['name']}", _shown(each)) for each in found.get("references") or ()),
            ]
        ),
    )
    click.echo()
    click.echo(pretty(found))


def _shown(reference: dict[str, Any]) -> str:
    return f"{reference['subject']} version {reference['version']}"


@command.command("register")
@_subject
@_of_file
@click.option(
    "--normalize", is_flag=True, help="Store the normal form, which is equal for schemas that differ only in form."
)
@output_option
@registry_options
def register(subject: str, body: dict[str, Any], normalize: bool, output: Output, registry: SchemaRegistry) -> None:
    """Register a schema; an already registered schema keeps its id and version."""
    found = registry.ask("POST", "subjects", subject, "versions", body=body, normalize=normalize)
    if "version" not in found:  # in the answer of an older registry
        found["version"] = registry.ask("POST", "subjects", subject, body=body, normalize=normalize)["version"]
    told = {"subject": subject, "version": found["version"], "id": found["id"]}
    output.show(told, Facts(list(told.items())))


@command.command("check")
@_subject
@_of_file
@click.option(
    "--version",
    metavar="N",
    help="Compare only with this version or `latest`, not with the versions of the compatibility level.",
)
@registry_options
def check(subject: str, body: dict[str, Any], version: str | None, registry: SchemaRegistry) -> None:
    """Check whether a schema may become a subject's next version; exit with 1 if not."""
    path = ["compatibility", "subjects", subject, "versions", *([version] if version else [])]
    found = registry.ask("POST", *path, body=body, verbose=True)
    if not found["is_compatible"]:
        for message in found.get("messages") or ():
            click.echo(message, err=True)
        raise AdminError(f"the schema is not compatible with subject {subject}")
    click.echo("compatible")


@command.command("diff")
@_subject
@click.argument("old", metavar="VERSION")
@click.argument("new", metavar="[VERSION]", default=_LATEST)
@registry_options
def diff(subject: str, old: str, new: str, registry: SchemaRegistry) -> None:
    """Show the changes from one version of a subject to another, or to the latest."""
    before, after = (registry.ask("GET", "subjects", subject, "versions", each, deleted=True) for each in (old, new))
    lines = difflib.unified_diff(
        pretty(before).splitlines(),
        pretty(after).splitlines(),
        f"{subject} version {before['version']}",
        f"{subject} version {after['version']}",
        lineterm="",
    )
    for line in lines:
        click.echo(line)


@command.command("delete")
@_subject
@click.option("--version", metavar="N", help="Delete only this version; without this option, all versions.")
@click.option("--permanent", is_flag=True, help="Delete softly deleted versions permanently.")
@registry_options
def delete(subject: str, version: str | None, permanent: bool, registry: SchemaRegistry) -> None:
    """Delete a subject, or a version of it. A schema stays readable by its id until it is deleted with --permanent."""
    path = ["subjects", subject, *(["versions", version] if version else [])]
    found = registry.ask("DELETE", *path, permanent=permanent)
    numbers = found if isinstance(found, list) else [found]
    click.echo(f"deleted {', '.join(map(str, numbers))} of {subject}")
