"""A DataFrame of few rows that the driver has.

Owns its creation. `createDataFrame` would need the executors' Python, which a cluster need not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def small_frame(session: Any, rows: Sequence[Mapping[str, Any]], schema: str) -> Any:
    """Return rows of JSON's types as a DataFrame with a schema such as `name string, number bigint`."""
    from pyspark.sql import functions as f

    found = f.from_json(f.lit(json.dumps(list(rows))), f"array<struct<{schema}>>")
    return session.range(1).select(f.explode(found).alias("row")).select("row.*")
