"""Finds the incompatible changes of a JSON Schema, according to Confluent's registry.

`differences` finds the changes from the writer's schema (original) to the reader's (update), each with its kind and its
place; json_schema_changes.py lists the kinds that are compatible. The comparison of properties depends on the content
model: open (any further property), closed (`additionalProperties: false`), or partially open (a schema for further
properties, or patterns).

Schemas may contain themselves. A pair of nodes that occurs again within itself counts as compatible there. If the
comparison then finds the pair incompatible, the whole comparison is repeated with this result, until the results stay
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kbroker.schema_registry.formats.common import Incompatibility, InvalidSchema, Steps, java_order, run
from kbroker.schema_registry.formats.json_schema import MOST_BACKTRACKS, JsonSchema
from kbroker.schema_registry.formats.json_schema_changes import COMPATIBLE, TEXTS
from kbroker.schema_registry.formats.json_schema_model import Model, Node


@dataclass(frozen=True, slots=True)
class Difference:
    """A change and its place, relative to the pair of nodes between which it was found."""

    kind: str
    path: tuple[str, ...] = ()


def compatible(reader: JsonSchema, writer: JsonSchema) -> list[Incompatibility]:
    """Return the incompatible changes from the writer's schema to the reader's."""
    return [
        Incompatibility("JSON", each.kind, "#/" + "/".join(each.path), TEXTS.get(each.kind, ""))
        for each in differences(writer, reader)
        if each.kind not in COMPATIBLE
    ]


def differences(original: JsonSchema, update: JsonSchema) -> list[Difference]:
    """Return all changes from one schema to another. Raises InvalidSchema if they cannot be compared."""
    steps = Steps()
    refuted: dict[_Pair, list[Difference]] = {}
    try:
        while True:
            once = _Comparison(original.model, update.model, steps, refuted)
            found = run(once.of(original.model.root, update.model.root))
            now = once.incompatible_pairs()
            if not once.has_assumed or now.keys() <= refuted.keys():
                return found
            # Keep the first findings of a pair: later findings contain them, and would grow with each pass.
            refuted = now | refuted
    except RecursionError:
        raise InvalidSchema("these schemas are nested too deeply to be compared") from None


_Pair = tuple[int, int]
_Found = list[Difference]
_Work = Generator[Any, _Found, _Found]
"""A comparison that yields further comparisons and receives their findings (common.run)."""


def _is_compatible(found: Iterable[Difference]) -> bool:
    return all(each.kind in COMPATIBLE for each in found)


def _at(found: Iterable[Difference], *path: str) -> _Found:
    return [Difference(each.kind, (*path, *each.path)) for each in found]


class _Comparison:
    """One pass over two schemas."""

    def __init__(self, original: Model, update: Model, steps: Steps, refuted: dict[_Pair, _Found]) -> None:
        self._original = original
        self._update = update
        self._steps = steps
        self._refuted = refuted
        self._known: dict[_Pair, _Found] = {}
        self._open: set[_Pair] = set()
        self._keep: list[Node] = []
        self._turned = False
        self._matchers: dict[str, Callable[[str], bool]] = {}
        self.has_assumed = False
        """Whether this pass assumed that a pair is compatible, because the pair occurs within itself."""

    def incompatible_pairs(self) -> dict[_Pair, _Found]:
        """Return the pairs that this pass found to be incompatible."""
        return {pair: found for pair, found in self._known.items() if not _is_compatible(found)}

    def of(self, original: Node | None, update: Node | None) -> _Work:
        """Return the changes between two nodes; either node may be missing."""
        if original is None or update is None:
            if original is update:
                return []
            return [Difference("SCHEMA_ADDED" if original is None else "SCHEMA_REMOVED")]
        first, second = (self._update, self._original) if self._turned else (self._original, self._update)
        original, update = first.target(original), second.target(update)
        self._keep += [original, update]  # pairs are identified by id(), so keep the nodes
        pair = (id(original), id(update))
        if pair in self._known:
            self._steps.take(1 + len(self._known[pair]))
            return self._known[pair]
        if pair in self._open:
            if pair in self._refuted:
                return self._refuted[pair]
            self.has_assumed = True
            return []
        self._open.add(pair)
        found = yield self._of_kinds(original, update)
        self._open.discard(pair)
        self._steps.take(1 + len(found))
        self._known[pair] = found
        return found

    def _of_kinds(self, original: Node, update: Node) -> Generator[Any, Any, _Found]:
        found: _Found | None = yield self._of_one_and_many(original, update)
        if found is not None:
            return found
        if original.kind != update.kind:
            if original.kind == "false" or update.kind == "empty":
                return []
            if original.labels.get("connect.type") == update.labels.get("connect.type") == '"bytes"':
                return []  # Connect's decimals were texts earlier, and are numbers now
            return [Difference("TYPE_CHANGED")]
        changed = [
            Difference(f"{name.upper()}_CHANGED")
            for name in ("id", "title", "description", "default")
            if original.labels.get(name) != update.labels.get(name)
        ]
        compare = {
            "string": self._of_strings,
            "number": self._of_numbers,
            "object": self._of_objects,
            "array": self._of_arrays,
            "enum": self._of_enums,
            "const": self._of_enums,
            "combined": self._of_combined,
            "not": self._of_negations,
        }.get(original.kind)
        if compare is None:
            return changed
        inner = compare(original, update)
        return changed + (inner if isinstance(inner, list) else (yield inner))

    def _of_one_and_many(self, original: Node, update: Node) -> Generator[Any, _Found, _Found | None]:
        """Compare a schema with one alternative of a combination, or a part of a combination with a schema.

        Returns None if the two nodes must be compared as usual.
        """
        if original.kind != "combined" and update.kind == "combined":
            if len(update.parts) == 1 or update.criterion != "allOf":
                for each in update.parts:
                    found = yield self.of(original, each)
                    if _is_compatible(found):
                        return found if len(update.parts) == 1 else [*found, Difference("SUM_TYPE_EXTENDED")]
        elif (
            original.kind == "combined"
            and update.kind != "combined"
            and (len(original.parts) == 1 or original.criterion == "allOf")
        ):
            for each in original.parts:
                found = yield self.of(each, update)
                if _is_compatible(found):
                    return found if len(original.parts) == 1 else [*found, Difference("PRODUCT_TYPE_NARROWED")]
        return None

    def _of_strings(self, original: Node, update: Node) -> _Found:
        found = _of_bound("maxLength", "MAX_LENGTH", original, update)
        found += _of_bound("minLength", "MIN_LENGTH", original, update)
        before, after = original.bounds.get("pattern"), update.bounds.get("pattern")
        if before != after:
            change = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
            found.append(Difference(f"PATTERN_{change}", ("pattern",)))
        return found

    def _of_numbers(self, original: Node, update: Node) -> _Found:
        found: _Found = []
        for keyword, name in (
            ("maximum", "MAXIMUM"),
            ("minimum", "MINIMUM"),
            ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"),
            ("exclusiveMinimum", "EXCLUSIVE_MINIMUM"),
        ):
            found += _of_bound(keyword, name, original, update)
        before, after = original.bounds.get("multipleOf"), update.bounds.get("multipleOf")
        if before != after:
            found.append(Difference(f"MULTIPLE_OF_{_multiple(before, after)}", ("multipleOf",)))
        if original.is_integer != update.is_integer:
            found.append(Difference("TYPE_EXTENDED" if original.is_integer else "TYPE_NARROWED"))
        return found

    def _of_enums(self, original: Node, update: Node) -> _Found:
        before, after = original.values, update.values
        if before == after:
            return []
        if original.kind == "const":
            return [Difference("ENUM_ARRAY_CHANGED", ("const",))]
        change = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
        return [Difference(f"ENUM_ARRAY_{change}", ("enum",))]

    def _of_negations(self, original: Node, update: Node) -> _Work:
        # The schemas of `not` are compared in the opposite direction.
        self._turned = not self._turned
        found = yield self.of(update.parts[0], original.parts[0])
        self._turned = not self._turned
        return [Difference("NOT_TYPE_NARROWED" if _is_compatible(found) else "NOT_TYPE_EXTENDED", ("not",))]

    def _of_combined(self, original: Node, update: Node) -> _Work:
        found: _Found = []
        if original.criterion != update.criterion:
            was_single, is_single = len(original.parts) == 1, len(update.parts) == 1
            if not (
                update.criterion == "anyOf"
                or (was_single and is_single)
                or (was_single and update.criterion == "oneOf")
                or (is_single and original.criterion == "allOf")
            ):
                return [Difference("COMBINED_TYPE_CHANGED")]
            found.append(Difference("COMBINED_TYPE_EXTENDED"))
        before, after = _distinct(original.parts), _distinct(update.parts)
        if len(before) < len(after):
            found.append(Difference("PRODUCT_TYPE_EXTENDED" if update.criterion == "allOf" else "SUM_TYPE_EXTENDED"))
        elif len(before) > len(after):
            found.append(Difference("PRODUCT_TYPE_NARROWED" if original.criterion == "allOf" else "SUM_TYPE_NARROWED"))
        edges: list[dict[int, _Found]] = []
        for index, each in enumerate(before):
            edges.append({})
            for other, one in enumerate(after):
                compared = yield self.of(each, one)
                if _is_compatible(compared):
                    edges[index][other] = _at(compared, original.criterion, str(index))
        matched = _matching(edges, self._steps)
        for index, other in sorted(matched.items()):
            found += edges[index][other]
        if len(matched) < min(len(before), len(after)):
            found.append(Difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED"))
        return found

    def _of_objects(self, original: Node, update: Node) -> _Work:
        found: _Found = []
        for name in java_order(original.properties):
            if name in update.properties:
                before, after = name in original.required, name in update.required
                if before and not after:
                    found.append(Difference("REQUIRED_ATTRIBUTE_REMOVED", ("required", name)))
                elif after and not before:
                    with_default = "_WITH_DEFAULT" if "default" in update.properties[name].labels else ""
                    found.append(Difference(f"REQUIRED_ATTRIBUTE{with_default}_ADDED", ("required", name)))
        for name in java_order(original.properties, update.properties):
            found += _at((yield self._of_properties(name, original, update)), "properties", name)
        found += _at((yield self._of_dependencies(original, update)), "dependencies")
        found += _at((yield self._of_extra("PROPERTIES", original, update)), "additionalProperties")
        found += _at((yield self._of_unevaluated("PROPERTIES", original, update)), "unevaluatedProperties")
        found += _of_bound("maxProperties", "MAX_PROPERTIES", original, update)
        return found + _of_bound("minProperties", "MIN_PROPERTIES", original, update)

    def _of_properties(self, name: str, original: Node, update: Node) -> _Work:
        before, after = original.properties.get(name), update.properties.get(name)
        if before is not None and after is not None:
            return (yield self.of(before, after))
        if after is None:
            assert before is not None
            return (yield self._removed("PROPERTY", before, update, self._covering(update, name)))
        if _is_open(original):
            if after.kind == "empty":
                return [Difference("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL")]
            return [Difference(f"{_obligation(name, update)}_ADDED_TO_OPEN_CONTENT_MODEL")]
        found: _Found = []
        covering = self._covering(original, name)
        if covering is not None:
            found += yield self._added_to_partial("PROPERTY", covering, after)
        return [*found, Difference(f"{_obligation(name, update)}_ADDED_TO_UNOPEN_CONTENT_MODEL")]

    def _removed(self, what: str, before: Node, update: Node, covering: Node | None) -> _Work:
        if _is_open(update):
            return [Difference(f"{what}_REMOVED_FROM_OPEN_CONTENT_MODEL")]
        if covering is not None:
            found = yield self.of(before, covering)
            covered = "IS" if _is_compatible(found) else "NOT"
            return [*found, Difference(f"{what}_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")]
        with_false = "_WITH_FALSE" if before.kind == "false" else ""
        return [Difference(f"{what}{with_false}_REMOVED_FROM_CLOSED_CONTENT_MODEL")]

    def _added_to_partial(self, what: str, covering: Node, after: Node) -> _Work:
        found = yield self.of(covering, after)
        covered = "IS" if _is_compatible(found) else "NOT"
        return [*found, Difference(f"{what}_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")]

    def _covering(self, node: Node, name: str) -> Node | None:
        """Return the schema for a property that has no schema of its own.

        This is the schema of a matching pattern, or else the schema of further properties.
        """
        for pattern, each in node.patterns.items():
            if self._matches(pattern, name):
                return each
        return _partial(node)

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern not in self._matchers:
            self._matchers[pattern] = _matcher(pattern)
        self._steps.take(1 + len(name) // 100)
        return self._matchers[pattern](name)

    def _of_dependencies(self, original: Node, update: Node) -> _Work:
        found: _Found = []
        for name in java_order(original.needed, update.needed):
            before, after = original.needed.get(name), update.needed.get(name)
            if before == after:
                continue
            if after is None:
                change = "REMOVED"
            elif before is None:
                change = "ADDED"
            else:
                change = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
            found.append(Difference(f"DEPENDENCY_ARRAY_{change}", (name,)))
        for name in java_order(original.dependent, update.dependent):
            if name not in update.dependent:
                found.append(Difference("DEPENDENCY_SCHEMA_REMOVED", (name,)))
            elif name not in original.dependent:
                found.append(Difference("DEPENDENCY_SCHEMA_ADDED", (name,)))
            else:
                found += _at((yield self.of(original.dependent[name], update.dependent[name])), name)
        return found

    def _of_extra(self, what: str, original: Node, update: Node) -> _Work:
        if original.extra != update.extra:
            return [Difference(f"ADDITIONAL_{what}_{'ADDED' if update.extra else 'REMOVED'}")]
        if original.extra_schema is None and update.extra_schema is not None:
            return [Difference(f"ADDITIONAL_{what}_NARROWED")]
        if original.extra_schema is not None and update.extra_schema is None:
            return [Difference(f"ADDITIONAL_{what}_EXTENDED")]
        return (yield self.of(original.extra_schema, update.extra_schema))

    def _of_unevaluated(self, what: str, original: Node, update: Node) -> _Work:
        before, after = original.unevaluated, update.unevaluated
        if before is None and after is None:
            return []
        was = "empty" if before is None else before.kind
        will = "empty" if after is None else after.kind
        if before is not None and after is not None and (was == will or {was, will}.isdisjoint(("false", "empty"))):
            return (yield self.of(before, after))
        if will == "false":
            change = "REMOVED"
        elif was == "false":
            change = "ADDED"
        elif before is None or (after is not None and was == "empty"):
            change = "NARROWED"
        else:
            change = "EXTENDED"
        return [Difference(f"UNEVALUATED_{what}_{change}")]

    def _of_arrays(self, original: Node, update: Node) -> _Work:
        found = _at((yield self.of(original.all_items, update.all_items)), "items")
        for index in range(max(len(original.parts), len(update.parts))):
            found += _at((yield self._of_items(index, original, update)), f"items/{index}")
        found += _at((yield self._of_extra("ITEMS", original, update)), "additionalItems")
        found += _at((yield self._of_unevaluated("ITEMS", original, update)), "unevaluatedItems")
        found += _of_bound("maxItems", "MAX_ITEMS", original, update)
        found += _of_bound("minItems", "MIN_ITEMS", original, update)
        if original.is_unique != update.is_unique:
            change = "REMOVED" if original.is_unique else "ADDED"
            found.append(Difference(f"UNIQUE_ITEMS_{change}", ("uniqueItems",)))
        found += _of_bound("maxContains", "MAX_CONTAINS", original, update)
        return found + _of_bound("minContains", "MIN_CONTAINS", original, update)

    def _of_items(self, index: int, original: Node, update: Node) -> _Work:
        if index < len(original.parts) and index < len(update.parts):
            return (yield self.of(original.parts[index], update.parts[index]))
        if index < len(original.parts):
            return (yield self._removed("ITEM", original.parts[index], update, _partial(update)))
        after = update.parts[index]
        if _is_open(original):
            added = "ITEM_WITH_EMPTY_SCHEMA" if after.kind == "empty" else "ITEM"
            return [Difference(f"{added}_ADDED_TO_OPEN_CONTENT_MODEL")]
        covering = _partial(original)
        if covering is not None:
            return (yield self._added_to_partial("ITEM", covering, after))
        return [Difference("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL")]


def _of_bound(keyword: str, name: str, original: Node, update: Node) -> _Found:
    before, after = original.bounds.get(keyword), update.bounds.get(keyword)
    if before == after:
        return []
    if before is None:
        change = "ADDED"
    elif after is None:
        change = "REMOVED"
    else:
        change = "INCREASED" if before < after else "DECREASED"
    return [Difference(f"{name}_{change}", (keyword,))]


def _multiple(before: Any, after: Any) -> str:
    if before is None:
        return "ADDED"
    if after is None:
        return "REMOVED"
    if _divides(before, after):
        return "EXPANDED"
    return "REDUCED" if _divides(after, before) else "CHANGED"


def _divides(divisor: Any, number: Any) -> bool:
    small, large = Decimal(divisor), Decimal(number)
    if not small:
        return False
    numerator, denominator = large.as_integer_ratio()
    top, bottom = small.as_integer_ratio()
    return numerator * bottom % (denominator * top) == 0


def _obligation(name: str, update: Node) -> str:
    if name not in update.required:
        return "OPTIONAL_PROPERTY"
    return "REQUIRED_PROPERTY_WITH_DEFAULT" if "default" in update.properties[name].labels else "REQUIRED_PROPERTY"


def _is_open(node: Node) -> bool:
    """Whether a node allows any further property or item."""
    if not node.extra or node.extra_schema is not None or node.patterns:
        return False
    return node.unevaluated is None or node.unevaluated.kind == "empty"


def _partial(node: Node) -> Node | None:
    """Return the schema of a node's further properties or items, or None."""
    if node.extra_schema is not None:
        return node.extra_schema
    if node.extra and node.unevaluated is not None and node.unevaluated.kind not in ("false", "empty"):
        return node.unevaluated
    return None


def _distinct(nodes: list[Node]) -> list[Node]:
    """Return the nodes, but only one of several nodes with equal JSON. A node without JSON of its own always stays."""
    kept: dict[object, Node] = {}
    for each in nodes:
        kept.setdefault(each.source or id(each), each)
    return list(kept.values())


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches a text for a pattern, in bounded time.

    That function returns whether the pattern occurs.
    """
    import jsonschema_rs

    schema = {"pattern": pattern}
    try:
        found = jsonschema_rs.Draft7Validator(schema, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError:
        try:
            bounded = jsonschema_rs.FancyRegexOptions(backtrack_limit=MOST_BACKTRACKS)
            found = jsonschema_rs.Draft7Validator(schema, pattern_options=bounded)
        except jsonschema_rs.ValidationError:
            raise InvalidSchema(f"not a pattern: {pattern[:200]}") from None
    return found.is_valid


def _matching(edges: list[dict[int, _Found]], steps: Steps) -> dict[int, int]:
    """Return a maximum matching of a bipartite graph: for each matched node of the first side, its partner."""
    owners: dict[int, int] = {}
    for start in range(len(edges)):
        # Find, without recursion, the shortest path on which swapping the edges adds one match.
        came: dict[int, int] = {}
        waiting = [start]
        end: int | None = None
        while waiting and end is None:
            first = waiting.pop(0)
            steps.take(1 + len(edges[first]))
            for second in edges[first]:
                if second in came:
                    continue
                came[second] = first
                if second not in owners:
                    end = second
                    break
                waiting.append(owners[second])
        while end is not None:
            first = came[end]
            previous = next((second for second, owner in owners.items() if owner == first), None)
            owners[end] = first
            end = previous
            if first == start:
                break
    return {first: second for second, first in owners.items()}
