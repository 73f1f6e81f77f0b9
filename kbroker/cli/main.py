"""The `kbroker` command: its verbs, the messages about errors, and the exit status.

Owns the entry point. An expected failure is one line on stderr; `--debug` shows the traceback. The status is 0 for
success, 1 for a failure, 2 for wrong usage, 130 and 143 for signals. Some verbs have further statuses.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from kbroker.admin.errors import AdminError, WrongInput

EXITS: Final = (
    ("0", "Success."),
    ("1", "Failure. A line on standard error names it, and a remedy if one is known."),
    ("2", "The command line is wrong."),
    ("130", "The command was interrupted."),
)
"""The exit statuses, with texts for the manual pages."""


def of_signal(number: int) -> int:
    """Return the exit status of a process that a signal ends, as in shells."""
    return 128 + number


def exit_status(error: BaseException) -> int:
    """Return the exit status of a process that an error ends."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.UsageError):
        return 2
    return 130 if isinstance(error, click.Abort | KeyboardInterrupt) else 1


GROUPS = {
    "Brokers": {
        "start": "Start a broker.",
        "cluster": "Start several brokers and a ZooKeeper on this machine, and stop, kill and restart them.",
        "console": "Show and administer any Kafka in a browser.",
        "registry": "Serve a schema registry with Confluent's API beside any Kafka.",
    },
    "Records": {
        "produce": "Write lines of standard input to a topic.",
        "consume": "Print the records of topics.",
        "record": "Find records, and delete the records before an offset.",
        "retry-tiers": "Create and list the topics that deliver failed records again after a delay.",
        "schedule": "List, show and cancel records that a schedule topic delivers later.",
        "deadletter": "List, show, replay and purge dead letters.",
        "schema": "List, show, register, check, compare and delete schemas of a registry.",
        "perf": "Measure the speed of producing and consuming, and the latency.",
    },
    "Topics, groups and transactions": {
        "topic": "Create, describe, alter, move and delete topics.",
        "group": "List, describe, reset and delete groups of every type.",
        "transaction": "List, describe and end transactions, and find hanging ones.",
    },
    "The cluster": {
        "broker": "List, describe and drain the brokers of a cluster.",
        "config": "List, describe, set and unset configs of topics, brokers, loggers and groups.",
        "feature": "List the levels of features, and raise, lower and disable them.",
        "quota": "Set, list and remove limits of users, client ids and addresses.",
        "client-metrics": "Create, list, describe, alter and delete subscriptions to clients' metrics.",
    },
    "Who may do what": {
        "user": "Add, list and remove users with SCRAM passwords.",
        "acl": "Add, list and remove access control lists.",
        "token": "Create, list, renew and expire delegation tokens.",
        "cert": "Make certificates for development.",
    },
    "Files and archives": {
        "log": "Check, dump, repair and adopt the files of a data directory.",
        "pipeline": "Archive, replay and count the records of topics, on Apache Spark.",
    },
    "Tests, with a broker that runs with --control": {
        "fault": "Set faults in a broker that runs with --control, for tests.",
        "clock": "Show and move the time of a broker that runs with --control.",
        "requests": "Show the requests to a broker that runs with --control.",
        "reset": "Return a broker that runs with --control to its state at the start.",
    },
    "This command line": {
        "profile": "List, show, add and remove named settings for --profile.",
        "completion": "Print a script by which bash, zsh or fish completes verbs and options.",
        "man": "Write the manual pages.",
    },
}
"""The verbs by group, each with a line for `--help`."""
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}
HIDDEN = ("container",)
"""Verbs that only the image's entrypoint uses."""


class _Lazy(click.Group):
    """Imports a verb's module on first use, so that `kbroker start` does not import a Kafka client."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS and cmd_name not in HIDDEN:
            return None
        module = import_module(f"kbroker.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb; for an unknown one, suggest a similar name."""
        name = args[0]
        if not (name in VERBS or name in HIDDEN or name.startswith("-") or ctx.resilient_parsing):
            import difflib

            near = difflib.get_close_matches(name, VERBS, 1)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb, or an option, without importing the verbs' modules."""
        verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; end silently if the reader of its output has closed the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_output()
            ctx.exit(0)
        except WrongInput as err:
            raise click.UsageError(str(err)) from err

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, VERBS))  # this aligns the texts of all groups
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(width), text) for verb, text in verbs.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.version_option(package_name="kbroker", prog_name="kbroker")
def cli(debug: bool) -> None:
    """An event-streaming broker that speaks Apache Kafka's wire protocol."""


def main(args: list[str] | None = None) -> Any:
    """Run the command line; this ends the process."""
    arguments = _debug_first(sys.argv[1:] if args is None else args)
    try:
        cli.main(args=arguments, prog_name="kbroker", standalone_mode=False)
    except click.UsageError as err:
        err.show()
        sys.exit(exit_status(err))
    except (click.exceptions.Exit, click.Abort, KeyboardInterrupt) as err:
        sys.exit(exit_status(err))
    except Exception as err:
        if arguments[:1] == ["--debug"]:
            raise
        # in some steps of an import, Python converts a KeyboardInterrupt to an error
        if isinstance(err.__cause__, KeyboardInterrupt):
            sys.exit(exit_status(err.__cause__))
        click.echo(f"kbroker: {_one_line(err, arguments)}", err=True)
        sys.exit(exit_status(err))


def _debug_first(arguments: list[str]) -> list[str]:
    """Move --debug to the front, so that users may also write it after the verb."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" not in arguments[:end]:
        return arguments
    return ["--debug", *(a for a in arguments[:end] if a != "--debug"), *arguments[end:]]


def _forget_output() -> None:
    """Redirect the interpreter's last flush to the null device, because the reader of the output has closed it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _one_line(err: Exception, arguments: list[str]) -> str:
    """Return the failure, with a remedy if one is known."""
    if isinstance(err, click.ClickException | AdminError):
        from kbroker.cli.remedies import with_remedy

        return with_remedy(err.format_message() if isinstance(err, click.ClickException) else str(err), arguments)
    text = " ".join(str(err).split())
    return text or type(err).__name__
