"""A group of verbs whose help describes each verb in a complete sentence.

Owns that list. click's own list cuts each sentence at the end of its line.
"""

from __future__ import annotations

import click

_LONGEST = 400


class Verbs(click.Group):
    """A group of verbs."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, each with the first sentence of its help, wrapped if it is long."""
        below = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, each.get_short_help_str(_LONGEST)) for name, each in below.items() if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
