"""Run a program that does not outlive its parent: `python tied.py PARENT PROGRAM ARGUMENT...`.

This process replaces itself with the program, and keeps its process id. The kernel kills the process when the thread
that started the process ends for any reason (prctl(2), PR_SET_PDEATHSIG). Only Linux can do this; on other systems the
program may outlive its parent. Imports nothing of the package, so that it costs only a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    """Replace this process with the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl, and for such an end the kernel sends no signal
            sys.exit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
