"""The lock of a data directory: `.lock`, which is locked as long as a process uses the directory.

Owns locking with both kinds of lock: flock, which every kbroker uses, and the record lock that Apache Kafka uses
through Java. On Linux neither kind of lock conflicts with the other, so both are used. Never writes to the file.

A restore that has not ended leaves the folder RESTORE with files in it. Then the directory is incomplete, and only
another restore may lock it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

NAME = ".lock"
RESTORE = ".kbroker-restore"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length (0: to the end), pid


class LogDirError(Exception):
    """The log directory cannot be used; the text gives the reason in one line. The directory is unchanged."""


def lock_directory(directory: str, *, restores: bool = False) -> int:
    """Lock `directory` and return the descriptor that owns the lock. Raises LogDirError, OSError.

    Refuses a directory whose restore has not ended, unless the caller `restores` it.
    """
    fd = os.open(f"{directory}/{NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _lock_records(fd)
    except OSError as error:
        os.close(fd)
        raise in_use(directory) from error
    if not restores and is_restoring(directory):
        os.close(fd)
        raise LogDirError(f"{directory} is not completely restored: run `kbroker log restore` again")
    return fd


def is_restoring(directory: str) -> bool:
    """Whether a restore of `directory` has begun and not ended."""
    with contextlib.suppress(FileNotFoundError):
        return bool(os.listdir(f"{directory}/{RESTORE}"))
    return False


def in_use(directory: str) -> LogDirError:
    """Return the error for a locked directory. The error names the other process if the system reports it."""
    found = os.stat(f"{directory}/{NAME}")
    holder = _holder(found)
    which = f" (pid {holder})" if holder else ""
    return LogDirError(f"log directory {directory} is in use by another process{which}")


def _lock_records(fd: int) -> None:
    """Lock the file. Use a lock of the open file if the system has such locks.

    A lock of the process would end whenever the process closes the file.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(found: os.stat_result) -> int | None:
    """Return the process that owns a lock on a file, if the system reports it (Linux: /proc/locks).

    A line is "1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF", with device numbers in hex. The record lock of an open
    file shows no process (-1), and a lock from another pid namespace shows no process either (0). A waiting lock has
    "->" after the number.
    """
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except (OSError, UnicodeDecodeError):
        return None
    pids = [int(each[4]) for each in lines if len(each) > 5 and each[1] != "->" and each[5] == wanted]
    return next((pid for pid in pids if pid > 0), None)


def is_locked(directory: str) -> bool:
    """Whether a process uses `directory`; create no file in it."""
    try:
        fd = os.open(f"{directory}/{NAME}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _lock_records(fd)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
