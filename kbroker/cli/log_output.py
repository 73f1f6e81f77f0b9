"""The log output of a broker's process: lines of text or of JSON, and levels by logger.

Owns the formats and the options that choose them. The log contains names that clients choose, so this module makes sure
that no text in a log record can look like another record. Never decides the content of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import click

from kbroker.cli.output import Decorator, with_options
from kbroker.config.loggers import ROOT, parse_level, set_level

FORMATS: Final = ("text", "json")
_CONTINUED: Final = "\t"


def log_options(*, in_container: bool = False) -> Decorator:
    """Add --log-format and --log-level; in a container, environment variables can also set these options."""
    return with_options(
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default=FORMATS[0],
            show_default=True,
            envvar="KBROKER_LOG_FORMAT" if in_container else None,
            help="The format of log lines.",
        ),
        click.option(
            "--log-level",
            "log_levels",
            multiple=True,
            metavar="[LOGGER=]LEVEL",
            envvar="KBROKER_LOG_LEVEL" if in_container else None,
            callback=_checked,
            help="The lowest level that is logged: DEBUG, INFO (the default), WARN or ERROR. "
            "With a logger's name, such as kafka.request.logger=DEBUG, the level of this logger.",
        ),
    )


def _checked(_context: click.Context, _option: click.Parameter, levels: tuple[str, ...]) -> tuple[str, ...]:
    for each in levels:
        try:
            parse_level(each)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return levels


def set_up_log(stream: TextIO, log_format: str = "text", levels: Iterable[str] = ()) -> None:
    """Log to `stream`, one line per record; `levels` are as in --log-level, and the last level for a logger counts."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_json_lines() if log_format == "json" else TextLines())
    logging.basicConfig(level="INFO", handlers=[handler])
    # Set the root logger's level first: `--log-level WARN` must not override the level of a single logger.
    for name, level in sorted(map(parse_level, levels), key=lambda each: each[0] != ROOT):
        set_level(name, level)


def name_broker(node_id: int) -> None:
    """Add the broker's id to JSON lines from now on."""
    for handler in logging.root.handlers:
        set_broker = getattr(handler.formatter, "name_broker", None)
        if set_broker is not None:
            set_broker(node_id)


def utc_time(seconds: float) -> str:
    """Return a time in ISO 8601, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(text: str) -> str:
    """Return a text with unprintable characters escaped, including line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class TextLines(logging.Formatter):
    """Kafka's log pattern. The lines of an exception begin with a tab; a record never begins with a tab."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(levelname)s %(message)s (%(name)s)")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        lines = [one_line(self.formatMessage(record))]
        # Format the exception again: another handler's formatter may have left its own text in the record.
        if record.exc_info:
            lines += _continued(self.formatException(record.exc_info))
        if record.stack_info:
            lines += _continued(self.formatStack(record.stack_info))
        return "\n".join(lines)


def _continued(text: str) -> list[str]:
    return [_CONTINUED + one_line(line) for line in text.split("\n")]


def _json_lines() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter  # imported only here, because text output does not need it

    class JsonLines(JsonFormatter):
        """JSON with time, level, logger, message, broker, the exception if any, and the record's extra fields."""

        broker_id: int | None = None

        def name_broker(self, node_id: int) -> None:
            self.broker_id = node_id

        def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
            fields = {
                "time": utc_time(record.created),
                "level": record.levelname,
                "logger": record.name,
                "message": record.getMessage(),
                "broker_id": self.broker_id,
            }
            super().add_fields(log_data, record, {})
            for name in fields:  # extra fields never replace the standard fields
                log_data.pop(name, None)
            beside = dict(log_data)
            log_data.clear()
            log_data.update(fields)
            if "exc_info" in message_dict:
                log_data["exception"] = message_dict["exc_info"]
            if "stack_info" in message_dict:
                log_data["stack"] = message_dict["stack_info"]
            log_data.update(beside)

    return JsonLines()
