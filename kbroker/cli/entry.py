"""The entry point of the `kbroker` command, which imports nothing large.

Owns Ctrl-C during the imports of some tenths of a second: it ends the process at once. From then on main.py has it.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line and run it."""
    was = signal.getsignal(signal.SIGINT)
    if was is signal.default_int_handler:  # else it is ignored, as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kbroker.cli import main as command_line

    signal.signal(signal.SIGINT, was)
    command_line.main()
