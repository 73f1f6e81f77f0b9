"""The entry point of the `kbroker` command, which imports no large module.

Owns the handling of Ctrl-C during the imports, which take some tenths of a second: Ctrl-C then ends the process
immediately. Afterwards main.py handles Ctrl-C.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line and run it."""
    was = signal.getsignal(signal.SIGINT)
    if was is signal.default_int_handler:  # otherwise the signal is ignored, for example under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kbroker.cli import main as command_line

    signal.signal(signal.SIGINT, was)
    command_line.main()
