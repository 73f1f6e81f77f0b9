"""The organisations of visitors: a lookup file that people maintain.

Reads the file, reports errors in it, and defines the organisation of a visitor who is not in it. The file's name shows
its format: CSV with a header, JSON lines or Parquet.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.storage.files import Files

UNKNOWN: Final = "unknown"
"""The organisation of a visitor who is not in the lookup file."""
_COLUMNS: Final = ("visitor", "organisation")
_STRICT: Final = {
    # As in RFC 4180, a quote within quotes is doubled, and a quoted field may continue in the next line.
    "csv": {"header": "true", "escape": '"', "multiLine": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}
"""The options of the reader, by format. An invalid line must not count as a visitor without an organisation."""


def read_lookup(session: Any, path: str) -> Any:
    """Return (visitor, organisation), with each visitor once. Raises PipelineError."""
    kind = kind_of(path)
    if not Files(session, path).exists(""):
        raise PipelineError(f"there is no lookup {path}")
    session.catalog.refreshByPath(path)  # without this call, the session would use cached content
    reader = session.read
    try:
        found = getattr(reader.options(**_STRICT.get(kind, {})), kind)(path)
        if missing := [name for name in _COLUMNS if name not in found.columns]:
            raise PipelineError(f"the lookup {path} has no column {missing[0]}")
        rows = found.selectExpr("cast(visitor as string) visitor", "cast(organisation as string) organisation")
        rows = rows.where("visitor is not null and organisation is not null").distinct().cache()
        twice = rows.groupBy("visitor").count().where("count > 1").limit(1).collect()
    except PipelineError:
        raise
    except Exception as err:
        malformed = "MALFORMED_" in str(err)
        reason = "a line of it is not what the others are" if malformed else first_line(err)
        raise PipelineError(f"cannot read the lookup {path}: {reason}") from err
    if twice:
        raise PipelineError(f"the lookup {path} gives {twice[0]['visitor']} two organisations")
    return rows


def with_organisation(found: Any, lookup: Any) -> Any:
    """Add a column `organisation` to rows with a visitor."""
    from pyspark.sql import functions as f

    joined = found.join(lookup, "visitor", "left")
    return joined.withColumn("organisation", f.coalesce("organisation", f.lit(UNKNOWN)))


def kind_of(path: str) -> str:
    """Return the format csv, json or parquet. Raises PipelineError."""
    kind = path.rpartition(".")[2].lower()
    if kind not in ("csv", "json", "parquet"):
        raise PipelineError(f"a lookup is a .csv, .json or .parquet file, not {path}")
    return kind


def fingerprint(lookup: Any) -> str:
    """Return a hash of a lookup's content. Two lookups with the same answers have the same hash."""
    from pyspark.sql import functions as f

    row = lookup.agg(
        f.count("*").alias("n"), f.sum(f.xxhash64("visitor", "organisation").cast("decimal(20,0)")).alias("s")
    )
    found = row.collect()[0]
    return f"{found['n']}-{int(found['s'] or 0) % (1 << 64):016x}"
