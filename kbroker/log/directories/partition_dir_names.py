"""The directories of partitions in a log directory, by name.

Owns the path of a partition's directory, the kinds of directories (in use, moving, deleted or set aside), and the check
of the topic to which a directory belongs. Names are read from other brokers' requests, ZooKeeper and files. An invalid
topic name never becomes a path, and links are not followed. So only files inside the log directory are opened, renamed
or deleted. Never reads a log.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import uuid
from typing import Final, NamedTuple

from kbroker.log import checkpoints
from kbroker.log.disk_errors import UnplacedError
from kbroker.log.files import LOG_SUFFIX, SEGMENT_SUFFIXES, offset_name, open_descriptor
from kbroker.topic_names import partition_fault, topic_name_fault

DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
STRAY_SUFFIX: Final = "-stray"

Key = tuple[str, int]

logger = logging.getLogger(__name__)


class Entries(NamedTuple):
    """The entries of a log directory: their paths, and the (topic, partition) if the name contains both."""

    partitions: list[tuple[Key, str]]
    futures: list[tuple[Key, str]]
    deleted: list[str]


def entries_of(directory: str) -> Entries:
    """Return the partitions of a directory in the order of their names. Raises OSError."""
    found = Entries([], [], [])
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        if not os.path.isdir(path):
            continue
        if os.path.islink(path):
            logger.warning("%s is a link to a directory, and is left as it is", path)
            continue
        if name.endswith(DELETE_SUFFIX):
            found.deleted.append(path)
        elif name.endswith(FUTURE_SUFFIX):
            if (key := partition_of(name.rpartition(".")[0])) is not None:
                found.futures.append((key, path))
        elif (key := partition_of(name)) is not None:
            found.partitions.append((key, path))
    return found


def partition_of(name: str) -> Key | None:
    """Return the (topic, partition) in a directory's name; None if it is not the name of a partition."""
    topic, dash, number = name.rpartition("-")
    if not dash or topic_name_fault(topic) or not number.isascii() or not number.isdigit():
        return None
    with contextlib.suppress(ValueError):
        return topic, int(number)
    return None


def partition_path(directory: str, topic: str, partition: int) -> str:
    """Return the path of a partition's directory, whether or not it exists.

    Raise UnplacedError for an invalid topic name (Apache Kafka: Topic.validate), for a negative partition, and for a
    path that is a link.
    """
    fault = partition_fault(topic, partition)
    if fault is not None:
        raise UnplacedError(errno.EINVAL, fault)
    path = f"{directory}/{topic}-{partition}"
    if os.path.islink(path):
        raise UnplacedError(errno.ELOOP, f"{path} is a link, which is not followed")
    return path


def holds_other(path: str, topic_id: uuid.UUID) -> bool:
    """Whether a directory contains another topic's data: its topic id differs, or it contains data but no topic id."""
    if not os.path.isdir(path):
        return False
    found = checkpoints.read_topic_id(path)
    if found is not None:
        return found != topic_id
    return any(entry.name.endswith(LOG_SUFFIX) and entry.stat().st_size > 0 for entry in os.scandir(path))


def new_name(topic: str, partition: int, suffix: str) -> str:
    """Return a new name for a partition's directory, in Kafka's format and within the file system's limit."""
    tail = f".{uuid.uuid4().hex}{suffix}"
    return f"{topic}-{partition}"[: 255 - len(tail)] + tail


class NewPartition(NamedTuple):
    """A partition that does not exist yet."""

    key: Key
    topic_id: uuid.UUID | None


class MadeAhead(NamedTuple):
    """The files of an empty log at `path`. Until the log is used, `path` has the name of a deleted partition."""

    new: NewPartition
    directory: str
    path: str


def make_ahead(directory: str, new: NewPartition) -> MadeAhead | None:
    """Create a directory with an empty log's files, for a later rename; return None if the partition exists.

    Any thread may call this. After an OSError no file is left.
    """
    topic, partition = new.key
    if os.path.exists(partition_path(directory, topic, partition)):
        return None
    path = f"{directory}/{new_name(topic, partition, DELETE_SUFFIX)}"
    try:
        os.mkdir(path)
        for suffix in SEGMENT_SUFFIXES:
            os.close(open_descriptor(offset_name(path, 0, suffix), os.O_WRONLY | os.O_CREAT))
        if new.topic_id is not None:
            checkpoints.write_topic_id(path, new.topic_id)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return MadeAhead(new, directory, path)
