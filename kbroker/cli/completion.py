"""`kbroker completion`: the scripts for shells to complete verbs, options and their choices.

Owns the verb alone: the scripts, and their requests to this command, are click's.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "kbroker"
VARIABLE = "_KBROKER_COMPLETE"
"""The variable that the scripts set; click derives it from the program's name."""


_HELP = """Print what lets a shell complete verbs and options.

\b
bash, in ~/.bashrc (4.4 or newer):    eval "$(kbroker completion bash)"
zsh, in ~/.zshrc, behind compinit:    eval "$(kbroker completion zsh)"
fish, once:                           kbroker completion fish > ~/.config/fish/completions/kbroker.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script of a shell."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
