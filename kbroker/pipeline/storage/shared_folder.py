"""Whether the executors of a cluster write to the folder that the driver reads.

Owns the trial. A local folder that is not shared causes no error in Spark: each executor writes to its own disk, the
driver finds nothing, and assumes that there were no records.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.storage.files import Files

_TASKS_A_CORE: Final = 2


def require_shared(session: Any, files: Files, folder: str) -> None:
    """Have every core of a cluster write a file to a folder, and check them; raises PipelineError.

    The folder is deleted before and afterwards. Without a cluster, or without local paths, nothing is tried.
    """
    context = session.sparkContext
    if context.master.startswith("local") or not files.url().startswith("file:"):
        return
    tasks = _TASKS_A_CORE * max(context.defaultParallelism, 2)
    files.delete(folder)
    try:
        session.range(0, tasks, 1, tasks).selectExpr("cast(id as string)").write.text(files.url(folder))
        found = sum(each.name.rpartition("/")[2].startswith("part-") for each in files.walk(folder, hidden=True))
    except PipelineError:
        raise
    except Exception as err:
        raise PipelineError(f"the executors cannot write to {files.url()}: {first_line(err)}") from err
    finally:
        files.delete(folder)
    if found < tasks:
        raise PipelineError(
            f"{files.root} is a folder of this machine, and the executors write to another one of that name:"
            " on a cluster it must be shared"
        )
