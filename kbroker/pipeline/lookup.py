"""Which organisation a visitor belongs to: a file that people keep.

Owns its reading and what is wrong with it. CSV with a header, JSON lines or Parquet, by the file's name.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.files import Files

_COLUMNS: Final = ("visitor", "organisation")


def read_lookup(session: Any, path: str) -> Any:
    """Return (visitor, organisation), each visitor once; raises PipelineError."""
    if not Files(session, path).exists(""):
        raise PipelineError(f"there is no lookup {path}")
    session.catalog.refreshByPath(path)  # a session that read it before would go on with what it read
    reader = session.read.option("header", "true")
    kind = path.rpartition(".")[2].lower()
    if kind not in ("csv", "json", "parquet"):
        raise PipelineError(f"a lookup is a .csv, .json or .parquet file, not {path}")
    try:
        found = getattr(reader, kind)(path)
        if missing := [name for name in _COLUMNS if name not in found.columns]:
            raise PipelineError(f"the lookup {path} has no column {missing[0]}")
        rows = found.selectExpr("cast(visitor as string) visitor", "cast(organisation as string) organisation")
        rows = rows.where("visitor is not null and organisation is not null").distinct().cache()
        twice = rows.groupBy("visitor").count().where("count > 1").limit(1).collect()
    except PipelineError:
        raise
    except Exception as err:
        raise PipelineError(f"cannot read the lookup {path}: {first_line(err)}") from err
    if twice:
        raise PipelineError(f"the lookup {path} gives {twice[0]['visitor']} two organisations")
    return rows


def fingerprint(lookup: Any) -> str:
    """Return a hash of what a lookup says: two lookups with the same answers have the same."""
    from pyspark.sql import functions as f

    row = lookup.agg(
        f.count("*").alias("n"), f.sum(f.xxhash64("visitor", "organisation").cast("decimal(20,0)")).alias("s")
    )
    found = row.collect()[0]
    return f"{found['n']}-{int(found['s'] or 0) % (1 << 64):016x}"
