"""The decoded columns of each topic of a job: the types of the columns, and their addition to a batch's records.

Owns the choice of the reader's schema: the latest version of the subject TOPIC-value (TOPIC-key) at the time when the
job first reads the topic. The job uses this schema until it ends. A topic without the subject, or with a schema that
defines no type, has no decoded columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kbroker.pipeline.decoding import spark_types as types
from kbroker.pipeline.decoding.columns import Reader
from kbroker.pipeline.decoding.records import Decoder, decoded
from kbroker.pipeline.decoding.registry import PATIENCE_S, Registry, Schemas, SchemaText, patiently
from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue


class _Column(NamedTuple):
    part: str
    decoder: Decoder
    type: types.SparkType


class DecodedTopics:
    """The parts ("key", "value") to decode with a registry. `say` gets a line for each topic without a column."""

    def __init__(
        self, registry: Registry, parts: Iterable[str], say: Callable[[str], object], patience_s: float = PATIENCE_S
    ) -> None:
        self._registry = registry
        self._parts = tuple(sorted(set(parts)))
        self._say = say
        self._patience_s = patience_s
        self._schemas: Schemas | None = None
        self._known: dict[str, tuple[_Column, ...]] = {}

    def prepare(self, topics: Iterable[str]) -> None:
        """Look up the types of topics before the job begins. Raises PipelineError if the registry does not answer."""
        for topic in sorted(topics):
            self._columns(topic, 0.0)
        self._opened(0.0)

    def fingerprint(self, topic: str) -> str:
        """Return a text that differs between topics whose columns have different types.

        Empty for a topic without decoded columns.
        """
        found = self._columns(topic, self._patience_s)
        return types.fingerprint(types.struct_type([(each.part, each.type) for each in found])) if found else ""

    @contextmanager
    def frames(self, frame: Any, topics: Iterable[str]) -> Iterator[list[Any]]:
        """Yield a batch's records as frames, each with one set of columns. The batch may have only these topics."""
        columns: dict[tuple[tuple[str, Decoder], ...], tuple[_Column, ...]] = {}
        named: defaultdict[tuple[tuple[str, Decoder], ...], list[str]] = defaultdict(list)
        for topic in sorted(topics):
            found = self._columns(topic, self._patience_s)
            key = tuple((each.part, each.decoder) for each in found)
            columns[key] = found
            named[key].append(topic)
        if len(columns) <= 1:
            yield [_with(frame, each) for each in columns.values()] or [frame]
            return
        kept = frame.persist()  # Spark then fetches the batch from the brokers only once
        try:
            yield [_with(kept.where(kept["topic"].isin(named[key])), each) for key, each in columns.items()]
        finally:
            kept.unpersist()

    def _columns(self, topic: str, patience_s: float) -> tuple[_Column, ...]:
        if topic not in self._known:
            found = (self._column(topic, part, patience_s) for part in self._parts)
            self._known[topic] = tuple(each for each in found if each is not None)
        return self._known[topic]

    def _column(self, topic: str, part: str, patience_s: float) -> _Column | None:
        subject = f"{topic}-{part}"
        schemas = self._opened(patience_s)
        schema = patiently(lambda: schemas.latest(subject), patience_s)
        if isinstance(schema, str):
            self._say(f"{topic} has no {part}_decoded: {schema}")
            return None
        try:
            kind = Reader(schema).column.type
        except (InvalidSchema, InvalidValue, RecursionError) as err:
            self._say(f"{topic} has no {part}_decoded: the schema of {subject} gives no column: {err}")
            return None
        return _Column(part, Decoder(self._registry, SchemaText.of(schema), self._patience_s), kind)

    def _opened(self, patience_s: float) -> Schemas:
        if self._schemas is None:
            schemas = patiently(self._registry.schemas, 0.0)
            patiently(schemas.check, patience_s)
            self._schemas = schemas
        return self._schemas


def _with(frame: Any, columns: tuple[_Column, ...]) -> Any:
    for each in columns:
        frame = decoded(frame, each.part, each.decoder, each.type)
    return frame
