"""The decisions of a registry, and what remains of them after a restart and after compaction."""

from __future__ import annotations

import pytest

from kbroker.coordination.encoding import record_batch
from kbroker.schema_registry.errors import RegistryError
from kbroker.schema_registry.records import Content, Reference
from kbroker.schema_registry.shard import LATEST, MOST_AT_ONCE, STALE, Checked, More
from kbroker.schema_registry.state import State
from tests.coordination.still import START_MS
from tests.schema_registry.context import Context


def code(reply: object) -> int:
    assert isinstance(reply, RegistryError), reply
    return reply.code


def seen(state: State) -> object:
    """Return everything that clients can see of a state."""
    names = sorted(state.subjects())
    return (
        {name: state.versions(name, deleted=True) for name in names},
        {name: [state.referrers(name, each.version, deleted=True) for each in state.versions(name)] for name in names},
        state.configs,
        state.modes,
        list(state.contexts),
    )


def test_ids_are_of_contents_and_versions_of_subjects():
    context = Context()
    first = context.register("a", "1")
    assert (first.id, first.version) == (1, 1)
    assert context.register("a", "1") == first
    assert len(context.log) == 1
    other = context.register("b", "1")
    assert (other.id, other.version) == (1, 1)
    second = context.register("a", "2")
    assert (second.id, second.version) == (2, 2)
    assert context.state.find_by_id(2) == second
    assert context.state.with_id(".", 1) == {"a": 1, "b": 1}
    assert seen(context.restarted().state) == seen(context.state)
    assert context.restarted().register("c", "3").id == 3


def test_a_content_is_also_its_references_and_metadata():
    context = Context()
    context.register("base", "b")
    ids = [
        context.register("a", "1").id,
        context.register("a", "1", references=[("base", 1)]).id,
        context.register("a", "1", metadata={"properties": {"owner": "me"}}).id,
    ]
    assert ids == [2, 3, 4]


def test_a_subject_that_has_changed_meanwhile_is_checked_again():
    context = Context()
    before = context.state.revision("a")
    context.register("a", "1")
    assert context.register("a", "2", revision=before) is STALE
    after = context.state.revision("a")
    context.register("b", "1")
    assert context.register("a", "2", revision=after).version == 2
    held = context.state.revision("a")
    context.configure(None, compatibilityLevel="NONE")
    assert context.register("a", "3", revision=held) is STALE


def test_what_is_incompatible_is_refused_and_names_the_reasons():
    context = Context()
    context.register("a", "1")
    refused = context.register("a", "2", incompatible=["one", "two"])
    assert code(refused) == 40901
    assert refused.status == 409
    assert refused.message.endswith('for subject "a", details: [one, two]')
    assert len(context.log) == 1


def test_a_version_that_means_the_same_is_returned():
    context = Context()
    first = context.register("a", "1")
    assert context.register("a", "1 ", same_as=1) == first


def test_a_version_may_be_asked_for_if_it_is_the_next_one():
    context = Context()
    context.register("a", "1")
    assert code(context.register("a", "2", version=3)) == 42201
    assert context.register("a", "2", version=2).version == 2
    assert context.register("a", "3", version=LATEST).version == 3


def test_soft_deletion_keeps_the_id_and_hides_the_version():
    context = Context()
    context.register("a", "1")
    assert context.delete("a", 1) == 1
    assert context.state.version("a", 1) is None
    assert context.state.find_by_id(1).content.schema == "1"
    assert not context.state.has_subject("a")
    assert code(context.delete("a", 1)) == 40406
    assert code(context.delete("a")) == 40404
    again = context.register("a", "1")
    assert (again.id, again.version) == (1, 2)
    assert [each.version for each in context.state.versions("a", deleted=True)] == [2], "the earlier one is replaced"


def test_permanent_deletion_comes_after_the_soft_one():
    context = Context()
    context.register("a", "1")
    context.register("a", "2")
    assert code(context.delete("a", 1, permanent=True)) == 40407
    assert code(context.delete("a", permanent=True)) == 40405
    assert context.delete("a") == [1, 2]
    assert context.delete("a", 1, permanent=True) == 1
    assert context.state.find_by_id(1) is None
    assert context.delete("a", permanent=True) == [2]
    assert code(context.delete("a")) == 40401
    assert context.register("a", "3").id == 3, "ids are not given again"


def test_a_permanent_deletion_takes_the_config_and_the_mode_with_it():
    context = Context()
    context.register("a", "1")
    context.configure("a", compatibilityLevel="FULL")
    context.delete("a", LATEST)
    context.set_mode("a", "READONLY")
    assert code(context.delete("a", 1, permanent=True)) == 42205
    context.set_mode("a", "READWRITE")
    context.delete("a", 1, permanent=True)
    assert context.state.config("a") is None
    assert context.state.mode("a") is None


@pytest.mark.parametrize("permanent", [False, True])
def test_what_a_schema_refers_to_is_not_deleted(permanent):
    context = Context()
    context.register("base", "b")
    context.register("a", "1", references=[("base", 1)])
    if permanent:
        context.delete("a", 1)
        assert context.delete("base", 1) == 1, "a softly deleted schema protects nothing from a soft deletion"
        assert code(context.delete("base", 1, permanent=True)) == 42206
        context.delete("a", 1, permanent=True)
        assert context.delete("base", 1, permanent=True) == 1
    else:
        assert code(context.delete("base", 1)) == 42206
        assert code(context.delete("base")) == 42206
        assert context.state.referrers("base", 1, deleted=False) == [(".", 2)]
        context.delete("a")
        assert context.delete("base") == [1]


def test_a_reference_is_looked_for_in_the_context_of_the_schema():
    context = Context()
    context.register(":.blue:base", "b")
    context.register(":.blue:a", "1", references=[("base", 1)])
    assert context.state.referrers(":.blue:base", 1, deleted=False) == [(".blue", 2)]
    assert context.state.referrers("base", 1, deleted=False) == []


def test_contexts_have_ids_of_their_own():
    context = Context()
    context.register("a", "1")
    blue = context.register(":.blue:a", "2")
    assert (blue.id, list(context.state.contexts)) == (1, [".blue"])
    assert context.state.get_by_id(1, ":.blue:") == blue
    assert context.state.find_by_id(1, "a").content.schema == "1"
    assert context.state.find_by_id(1).content.schema == "1"
    assert code(context.decided(lambda shard: shard.delete_context(":.blue:"))) == 42211
    context.delete(":.blue:a")
    context.delete(":.blue:a", permanent=True)
    context.decided(lambda shard: shard.delete_context(":.blue:"))
    assert list(context.restarted().state.contexts) == []


def test_modes_and_configs_are_inherited():
    context = Context()
    state = context.state
    assert state.config_in_scope("a") == {"compatibilityLevel": "BACKWARD"}
    context.configure(":.__GLOBAL:", compatibilityLevel="NONE")
    assert state.config_in_scope("a")["compatibilityLevel"] == "NONE"
    context.configure(None, compatibilityLevel="FULL", normalize=True)
    assert state.config_in_scope("a") == {"compatibilityLevel": "FULL", "normalize": True}
    assert state.config_in_scope(":.blue:a")["compatibilityLevel"] == "NONE"
    context.configure(":.blue:", compatibilityLevel="FORWARD")
    assert state.config_in_scope(":.blue:a")["compatibilityLevel"] == "FORWARD"
    context.configure("a", compatibilityGroup="major")
    assert state.config_in_scope("a") == {
        "compatibilityLevel": "BACKWARD",
        "compatibilityGroup": "major",
        "normalize": True,
    }
    context.configure("a", compatibilityGroup=None, compatibilityLevel="NONE")
    assert state.config("a") == {"compatibilityLevel": "NONE"}
    assert context.decided(lambda shard: shard.delete_config("a")) == {"compatibilityLevel": "NONE"}
    assert code(context.decided(lambda shard: shard.delete_config("a"))) == 40401
    context.set_mode(None, "READONLY")
    assert state.mode_in_scope("a") == "READONLY"
    assert code(context.register("a", "1")) == 42205
    context.set_mode("a", "READWRITE")
    assert context.register("a", "1").version == 1
    assert context.decided(lambda shard: shard.delete_mode(None, recursive=True)) == "READONLY"
    assert state.mode("a") is None


def test_an_import_gives_ids_and_versions():
    context = Context()
    context.register("a", "1")
    assert code(context.register("a", "2", id=7)) == 42205
    assert code(context.set_mode(None, "IMPORT")) == 42205
    context.delete("a")
    context.set_mode(None, "IMPORT")
    assert list(context.state.subjects()) == [], "what was deleted softly is forgotten"
    imported = context.register("a", "x", id=7, version=5)
    assert (imported.id, imported.version) == (7, 5)
    assert code(context.register("b", "y", id=7, version=1)) == 42205
    assert code(context.register("b", "y")) == 42205
    assert seen(context.compacted().state) == seen(context.state)
    context.set_mode(None, "READWRITE")
    assert context.register("b", "y").id == 8


def test_a_record_that_cannot_be_read_is_an_error_and_changes_nothing():
    context = Context()
    context.register("a", "1")
    for key in (
        b"",
        b"[]",
        b"{}",
        b'{"keytype":"SCHEMA","subject":"a"}',
        b'{"keytype":"SCHEMA","subject":1,"version":1}',
    ):
        with pytest.raises(ValueError):
            context.shard.replay(1, -1, key, None)
    for value in (b"7", b"{}", b'{"subject":"a","version":1,"id":"x","schema":"1"}', b"[" * 100_000):
        with pytest.raises(ValueError):
            context.shard.replay(1, -1, b'{"keytype":"SCHEMA","subject":"a","version":2,"magic":1}', value)
    context.shard.replay(1, -1, b'{"keytype":"ASSOC","magic":0}', b"{}")
    context.shard.replay(1, -1, b'{"keytype":"NOOP","magic":0}', None)
    assert [each.version for each in context.state.versions("a")] == [1]


def test_a_second_schema_with_an_id_is_ignored():
    """A registry that was cut off from its topic for a while has assigned an id twice."""
    context = Context()
    context.register("a", "1")
    value = b'{"subject":"b","version":1,"id":1,"schema":"2","deleted":false}'
    context.shard.replay(1, -1, b'{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}', value)
    assert not context.state.has_subject("b")
    assert context.state.find_by_id(1).subject == "a"


def test_what_others_write_into_the_topic_is_caught_up_with():
    context, elsewhere = Context(), Context()
    context.register("a", "1")
    elsewhere.register("a", "1")
    elsewhere.register("b", "2")
    context.writer.append(0, record_batch(elsewhere.log[1:], 0, None, START_MS), START_MS)
    assert not context.state.has_subject("b")
    with context.loop.running():
        context.runtime.catch_up(0)
    assert context.state.find_by_id(2).subject == "b"
    assert context.register("c", "3").id == 3
    with context.loop.running():
        context.runtime.catch_up(0)
    assert context.runtime.is_loaded


def test_a_version_that_an_import_replaces_leaves_its_old_id():
    context = Context()
    context.set_mode("a", "IMPORT")
    context.register("a", "x", id=7, version=1)
    context.register("a", "y", id=8, version=1)
    for each in (context, context.restarted(), context.compacted()):
        assert each.state.find_by_id(7) is None
        assert each.state.find_by_id(8).content.schema == "y"


def test_a_content_with_two_ids_keeps_the_other_one():
    context = Context()
    context.set_mode(None, "IMPORT")
    context.register("a", "x", id=7, version=1)
    context.register("b", "x", id=8, version=1)
    context.set_mode(None, "READWRITE")
    for subject in ("b", "a"):
        context.delete(subject)
        context.delete(subject, permanent=True)
        assert context.restarted().register("c", "x").id == (7 if subject == "b" else 9)


def test_of_two_versions_with_one_id_the_newest_counts_and_then_the_other():
    context = Context()
    context.set_mode("a", "IMPORT")
    context.register("a", "x", id=7, version=1)
    context.register("a", "x", id=7, version=2)
    context.delete("a", 1)
    assert context.state.with_id(".", 7) == {"a": 2}
    context.delete("a", 2)
    context.delete("a", 2, permanent=True)
    assert context.state.with_id(".", 7) == {"a": 1}
    context.delete("a", 1, permanent=True)
    assert context.state.find_by_id(7) is None


def test_what_a_schema_refers_to_may_vanish_before_the_decision():
    context = Context()
    context.register("base", "b")
    before = context.state.revision("a")
    context.delete("base")
    context.delete("base", permanent=True)
    assert context.register("a", "1", references=[("base", 1)], revision=before) is STALE
    assert not context.state.has_subject("a")


def test_ids_and_versions_end_at_31_bits():
    context = Context()
    context.set_mode(None, "IMPORT")
    context.register("a", "x", id=2**31 - 1, version=2**31 - 1)
    context.set_mode(None, "READWRITE")
    assert code(context.register("b", "y")) == 42205
    assert code(context.register("a", "x", version=LATEST)) == 42205
    assert len(context.log) == len(context.restarted().log)


def test_what_is_there_is_found_in_every_mode():
    context = Context()
    first = context.register("a", "1")
    given = first.content
    for mode in ("READONLY", "IMPORT"):
        context.set_mode("a", mode, force=True)
        assert context.register("a", "1", given=given) == first
        assert context.register("a", "1", given=given, id=1) == first
        assert code(context.register("a", "2")) == 42205


@pytest.mark.parametrize("subject", ["", ":.blue:"])
@pytest.mark.parametrize("permanent", [False, True])
def test_a_context_is_no_subject_to_delete(subject, permanent):
    context = Context()
    context.register(subject + "a", "1")
    assert code(context.delete(subject, permanent=permanent)) == 40401


def test_contexts_are_listed_in_order():
    context = Context()
    for name in ("c", "a", "b"):
        context.register(f":.{name}:s", "1")
    assert context.state.contexts == context.compacted().state.contexts == [".a", ".b", ".c"]
    assert context.state.elsewhere("s") == [":.a:s", ":.b:s", ":.c:s"]
    context.delete(":.b:s")
    context.delete(":.b:s", permanent=True)
    assert context.state.elsewhere("s") == [":.a:s", ":.c:s"]


def test_a_long_deletion_is_decided_in_parts():
    context = Context()
    for number in range(MOST_AT_ONCE + 5):
        context.register("a", str(number))
    context.configure("a", compatibilityLevel="NONE")
    assert len(context.delete("a")) == MOST_AT_ONCE + 5
    first = context.delete("a", permanent=True)
    assert isinstance(first, More)
    assert first.done == list(range(6, MOST_AT_ONCE + 6))
    assert context.state.config("a") is not None
    rest = context.decided(lambda shard: shard.delete_subject("a", permanent=True, goes_on=True))
    assert rest == [1, 2, 3, 4, 5]
    assert context.state.config("a") is None
    assert context.decided(lambda shard: shard.delete_subject("a", permanent=True, goes_on=True)) == []
    assert not context.restarted().state.subjects()


def test_an_import_forgets_many_schemas_in_parts():
    context = Context()
    for number in range(MOST_AT_ONCE + 5):
        context.register("a", str(number))
    context.delete("a")
    assert isinstance(context.set_mode(None, "IMPORT"), More)
    assert context.state.mode(None) == "READWRITE"
    assert context.set_mode(None, "IMPORT") == "IMPORT"
    assert context.state.subjects() == []


def test_contents_that_differ_are_two_schemas_even_with_one_digest():
    context = Context()
    for name in ("ab", "a"):
        context.register(name, name)
    one, two = (Content("x", references=(Reference(*each, 1),)) for each in (("bc", "ab"), ("bca", "b")))
    assert one.digest() == two.digest()
    context.register("b", "b")
    ids = []
    for content in (one, two):
        checked = Checked("s", content, revision=context.state.revision("s"), given=content)
        ids.append(context.decided(lambda shard, checked=checked: shard.register(checked)).id)
    assert ids == [4, 5]


def test_many_modes_are_deleted_in_parts():
    context = Context()
    for number in range(MOST_AT_ONCE + 5):
        context.set_mode(f"s{number}", "READONLY")
    context.set_mode(None, "IMPORT")
    reply = context.decided(lambda shard: shard.delete_mode(None, recursive=True))
    assert reply == More("IMPORT")
    assert context.decided(lambda shard: shard.delete_mode(None, recursive=True)) == "READWRITE"
    assert context.state.modes == {}
