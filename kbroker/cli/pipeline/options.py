"""Shared by the verbs of `kbroker pipeline`: options for Spark, times, and checks of paths before Spark starts.

Owns --master, --conf and --jars. Never starts Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.cli.schema import VARIABLE, ca_option
from kbroker.pipeline.archive.opening import FORMATS, kind_at
from kbroker.pipeline.archive.store import FORMAT, MANIFEST
from kbroker.pipeline.errors import PipelineError, first_line, of_spark
from kbroker.pipeline.spark.connectors import BY_FORMAT, for_paths
from kbroker.pipeline.spark.session import SparkOptions
from kbroker.pipeline.storage.files import refuse_pattern
from kbroker.pipeline.visits.lookup import kind_of

Result = TypeVar("Result")

_UNITS: Final = {"s": ("seconds", 1_000), "m": ("minutes", 60_000), "h": ("hours", 3_600_000)}


def spark_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --master, --conf and --jars to a verb, pass it their values as `spark`, and report errors in one line."""

    @click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
    @click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Set a setting of Spark; repeatable.")
    @click.option(
        "--jars", metavar="A,B", help="The jars of the connectors; without this option, Spark downloads them."
    )
    @functools.wraps(function)
    def with_spark(*args: Any, master: str, conf: tuple[str, ...], jars: str | None, **kwargs: Any) -> Result:
        debug = bool(click.get_current_context().find_root().params.get("debug"))
        options = SparkOptions(master, _pairs(conf), tuple(filter(None, (jars or "").split(","))), debug=debug)
        try:
            return function(*args, spark=options, **kwargs)
        except PipelineError as err:
            raise click.ClickException(str(err)) from err
        except Exception as err:
            if not of_spark(err):
                raise
            raise click.ClickException(first_line(err)) from err

    return with_spark


def decoding_registry(*, variable: bool) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Add --registry and --ca to a verb. Its argument `registry` is a RegistryPlace, or None without an address.

    With `variable`, an environment variable may also set the address; this is for verbs that use a registry only on
    request.
    """

    def with_options(function: Callable[..., Result]) -> Callable[..., Result]:
        @click.option(
            "--registry",
            "url",
            metavar="URL",
            envvar=VARIABLE if variable else None,
            help="The address of a schema registry, with user:password@ if it needs a login.",
        )
        @ca_option
        @functools.wraps(function)
        def with_registry(*args: Any, url: str | None, ca: str | None, **kwargs: Any) -> Result:
            if url is None and ca is not None and not variable:
                raise click.UsageError("--ca is for a --registry")
            place = None if url is None else RegistryPlace(url, None if ca is None else str(Path(ca).absolute()))
            return function(*args, registry=place, **kwargs)

        return with_registry

    return with_options


def format_option(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --format to a verb that reads an archive. The verb receives the value, or None, as `file_format`."""
    return click.option(
        "--format", "file_format", type=click.Choice(FORMATS), help="The format of a table outside a local folder."
    )(function)


def require_archive(spark: SparkOptions, root: str, file_format: str | None = None) -> SparkOptions:
    """Return the options with which Spark reads an archive: with the connectors for the archive's format and path.

    Raises PipelineError if there is clearly no archive, because starting Spark takes seconds.
    """
    refuse_pattern(root)
    here = spark.local_path(root)
    found = None if here is None else kind_at(lambda name: (here / name).exists())
    if here is not None and found is None:
        raise PipelineError(f"{root} is no archive: it has no {MANIFEST}")
    return with_connectors(spark, found or file_format or FORMAT, root)


def with_connectors(spark: SparkOptions, file_format: str, *paths: str) -> SparkOptions:
    """Return the options for Spark with the connectors for a format and for the paths."""
    return replace(spark, connectors=(*filter(None, [BY_FORMAT.get(file_format)]), *for_paths(paths)))


def require_lookup(spark: SparkOptions, path: str) -> None:
    """Raise PipelineError if this path is clearly not a lookup."""
    kind_of(path)
    _require(spark, path, "", f"there is no lookup {path}")


def require_folder(spark: SparkOptions, path: str, what: str) -> None:
    """Raise PipelineError if the folder clearly does not exist."""
    _require(spark, path, "", f"there is no {what} {path}")


def _require(spark: SparkOptions, path: str, name: str, message: str) -> None:
    refuse_pattern(path)
    here = spark.local_path(path)
    if here is not None and not (here / name).exists():
        raise PipelineError(message)


def _pairs(conf: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in conf:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--conf takes KEY=VALUE, not {each!r}")
        found[key] = value
    return found


def interval(text: str | None) -> str | None:
    """Convert 30s, 1m or 2h to Spark's form. Raises UsageError."""
    if text is None:
        return None
    milliseconds(text, "--every")
    return f"{text[:-1]} {_UNITS[text[-1]][0]}"


def milliseconds(text: str, option: str) -> int:
    """Parse 30s, 1m or 2h; return it in ms. Raises UsageError."""
    if text[-1:] not in _UNITS or not text[:-1].isdecimal() or not int(text[:-1]):
        raise click.UsageError(f"{option} takes a time such as 30s, 1m or 2h, not {text!r}")
    return int(text[:-1]) * _UNITS[text[-1]][1]


def names_of(topics: str | None) -> tuple[str, ...]:
    """Parse A,B as names."""
    return tuple(name.strip() for name in (topics or "").split(",") if name.strip())
