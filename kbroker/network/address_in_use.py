"""Finds the process of this machine that listens on a port, so that an error can name it.

Owns reading /proc, if it exists. Never fails: an unknown process is None.
"""

from __future__ import annotations

import glob
import os

_LISTEN = "0A"


def process_on(port: int) -> str | None:
    """Return "process 12 (java -jar x.jar)" for the process that listens on a TCP port, or None if it is unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) not in sockets:
                continue
            pid = link.split("/")[2]
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = " ".join(file.read(200).decode("utf-8", "replace").split("\0")).strip()
        except OSError:
            continue  # not readable for us, or gone
        return f"process {pid} ({''.join(c if c.isprintable() else '?' for c in command)})"
    return None


def _listening(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        found += [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
    return found
