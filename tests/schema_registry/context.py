"""A registry's shard under the real runtime, and requests to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kbroker.coordination.shard import CoordinatorRecord, Outcome
from kbroker.schema_registry.records import Content, Reference
from kbroker.schema_registry.shard import Checked, RegistryShard
from kbroker.schema_registry.state import State
from tests.coordination.still import Still


class Context(Still[RegistryShard]):
    """One registry."""

    def __init__(self, log: Sequence[CoordinatorRecord] = ()) -> None:
        super().__init__(lambda _partition: RegistryShard(), log)

    @property
    def state(self) -> State:
        return self.shard.state

    def restarted(self) -> Context:
        return Context(self.log)

    def compacted(self) -> Context:
        """Return a registry that replays only the newest record of each key, as after compaction."""
        newest = {record.key: at for at, record in enumerate(self.log)}
        return Context([record for at, record in enumerate(self.log) if newest[record.key] == at])

    def decided(self, decide: Callable[[RegistryShard], Outcome]) -> Any:
        return self.ask(lambda shard, _now: decide(shard))

    def register(self, subject: str, schema: str, **more: Any) -> Any:
        """Register a schema that is compatible; `references` are (subject, version)."""
        references = tuple(Reference(name, name, version) for name, version in more.pop("references", ()))
        content = Content(schema, more.pop("schema_type", "AVRO"), references, more.pop("metadata", None))
        revision = more.pop("revision", self.state.revision(subject))
        return self.decided(lambda shard: shard.register(Checked(subject, content, revision=revision, **more)))

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> Any:
        if version is None:
            return self.decided(lambda shard: shard.delete_subject(subject, permanent=permanent))
        return self.decided(lambda shard: shard.delete_version(subject, version, permanent=permanent))

    def configure(self, subject: str | None, **changes: Any) -> Any:
        return self.decided(lambda shard: shard.change_config(subject, changes))

    def set_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> Any:
        return self.decided(lambda shard: shard.set_mode(subject, mode, force=force))
