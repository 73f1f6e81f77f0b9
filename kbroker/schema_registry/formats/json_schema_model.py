"""JSON Schemas as the kinds of nodes that compatibility compares.

Confluent's registry compares schemas in the form of the library everit: one node for each family of keywords (object,
array, number, string), joined by `allOf` if a schema has several families; `type` with several names is an `anyOf`. The
results of the registry depend on this form, so this module builds it for all drafts: up to draft 7 `$ref` excludes
other keywords; from 2019-09 on it is a further part of the `allOf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urljoin

from kbroker.schema_registry.formats.common import InvalidSchema, to_json

_NUMBER: Final = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_STRING: Final = frozenset(("minLength", "maxLength", "pattern"))
_OBJECT: Final = frozenset(
    ("properties", "required", "minProperties", "maxProperties", "patternProperties", "additionalProperties")
)
_ARRAY: Final = frozenset(("items", "minItems", "maxItems", "uniqueItems"))
_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONAL: Final = ("if", "then", "else")
_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(eq=False, slots=True)
class Node:
    """A node. Its kind determines which attributes are used; `bounds` has numbers and texts by their keyword."""

    kind: str
    source: int = 0
    """A number that is equal for all nodes of the same JSON, so that equal members of a combination count once."""
    labels: dict[str, str] = field(default_factory=dict)
    """The values of id, title, description, default and connect.type, as JSON, if the schema has them."""
    bounds: dict[str, Any] = field(default_factory=dict)
    is_integer: bool = False
    is_unique: bool = False
    criterion: str = ""
    parts: list[Node] = field(default_factory=list)
    """The members of a combination, the schema of `not`, the items of a tuple, or the three parts of a conditional."""
    values: frozenset[str] = frozenset()
    """The values of an enum or a const, as JSON."""
    properties: dict[str, Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    patterns: dict[str, Node] = field(default_factory=dict)
    needed: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each property, the other properties that must be present if this property is present."""
    dependent: dict[str, Node] = field(default_factory=dict)
    """By property: the schema that must match if this property is present."""
    extra: bool = True
    """Whether any further properties or items are allowed."""
    extra_schema: Node | None = None
    unevaluated: Node | None = None
    all_items: Node | None = None
    reference: tuple[str, str] = ("", "")
    """The value of a `$ref`, and the address to which it is relative."""
    unseen: list[Node] = field(default_factory=list)
    """The schemas that affect values but not compatibility: `contains`, `propertyNames`."""


class Model:
    """The nodes of a schema and of all documents that it references."""

    def __init__(self, documents: Mapping[str, Any], draft: int) -> None:
        self._draft = draft
        self._modern = draft >= 2019
        self._id = "id" if draft == 4 else "$id"
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._nodes: dict[tuple[int, str], Node] = {}
        self._unfilled: list[tuple[Node, dict[str, Any], str]] = []
        self._anything = Node("empty")
        self._numbers: dict[object, int] = {}
        self._numbered: dict[int, int] = {}
        for address, document in documents.items():
            self._resources.setdefault(address, document)
            self._index(document, address)
        self._root = next(iter(documents))
        self._keep = documents  # nodes are identified by the id() of their JSON

    @cached_property
    def root(self) -> Node:
        """The schema's own node."""
        return self._filled(self._node(self._resources[self._root], self._root))

    @cached_property
    def costs(self) -> Costs:
        """The numbers of evaluations that a validator needs for the parts of values."""
        return Costs(self)

    def _index(self, document: Any, base: str) -> None:
        waiting = [(document, base)]
        while waiting:
            here, base = waiting.pop()
            if isinstance(here, list):
                waiting += [(each, base) for each in here]
            elif isinstance(here, dict):
                base = self._base(here, base)
                self._resources.setdefault(base, here)
                for anchor in (here.get("$anchor"), here.get("$dynamicAnchor"), _old_anchor(here.get(self._id))):
                    if isinstance(anchor, str):
                        self._anchors.setdefault((base, anchor), here)
                waiting += [(each, base) for each in here.values()]

    def _base(self, schema: Mapping[str, Any], base: str) -> str:
        own = schema.get(self._id)
        if not isinstance(own, str) or (not self._modern and "$ref" in schema):
            return base
        joined = urljoin(base, own).partition("#")[0]
        return joined or base

    def target(self, node: Node) -> Node:
        """Follow references from a node; return the node at their end, or an empty node if they form a cycle."""
        seen = set()
        while node.kind == "reference":
            if id(node) in seen:
                return self._anything
            seen.add(id(node))
            node = self._resolved(*node.reference)
        return node

    def _resolved(self, ref: str, base: str) -> Node:
        address, _, fragment = urljoin(base, ref).partition("#") if ref else (base, "", "")
        if ref.startswith("#"):
            address, fragment = base, ref[1:]
        if address not in self._resources:
            raise InvalidSchema(f"Unresolved $ref '{ref[:200]}'")
        here = self._resources[address]
        if fragment.startswith("/"):
            here, address = self._pointed(here, address, fragment, ref)
        elif fragment:
            key = (address, unquote(fragment))
            if key not in self._anchors:
                raise InvalidSchema(f"Unresolved $ref '{ref[:200]}'")
            here = self._anchors[key]
        return self._filled(self._node(here, address))

    def _pointed(self, here: Any, base: str, pointer: str, ref: str) -> tuple[Any, str]:
        for token in pointer[1:].split("/"):
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdigit() and len(key) < 10 and int(key) < len(here):
                here = here[int(key)]
            else:
                raise InvalidSchema(f"Unresolved $ref '{ref[:200]}'")
            if isinstance(here, dict):
                base = self._base(here, base)
        return here, base

    def _node(self, schema: Any, base: str) -> Node:
        """Return the node of a schema within a document.

        The node is created once and filled later, because schemas may be deep.
        """
        if isinstance(schema, bool):
            return Node("empty" if schema else "false", source=-1 - schema)
        if not isinstance(schema, dict):
            raise InvalidSchema("a schema is an object or a boolean")
        base = self._base(schema, base)
        key = (id(schema), base)
        if key not in self._nodes:
            self._nodes[key] = Node("", source=self._number(schema))
            self._unfilled.append((self._nodes[key], schema, base))
        return self._nodes[key]

    def _filled(self, node: Node) -> Node:
        while self._unfilled:
            self._fill(*self._unfilled.pop())
        return node

    def _number(self, value: Any) -> int:
        """Return a number that identifies a JSON value; the order of keys has no effect."""
        known = self._numbered.get(id(value))
        if known is not None:
            return known
        key: object
        if isinstance(value, dict):
            key = ("{", *((name, self._number(value[name])) for name in sorted(value)))
        elif isinstance(value, list):
            key = ("[", *map(self._number, value))
        else:
            return self._numbers.setdefault((type(value), value), len(self._numbers) + 1)
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._numbered[id(value)] = number
        return number

    def _fill(self, node: Node, schema: dict[str, Any], base: str) -> None:
        parts = self._parts(schema, base)
        if len(parts) == 1:
            for name in Node.__slots__:
                if name != "source":
                    setattr(node, name, getattr(parts[0], name))
        elif parts:
            node.kind, node.criterion, node.parts = "combined", "allOf", parts
        else:
            node.kind = "empty"
        labels = (("id", self._id), *((name, name) for name in ("title", "description", "default", "connect.type")))
        node.labels = {name: to_json(schema[key]) for name, key in labels if key in schema}

    def _parts(self, schema: dict[str, Any], base: str) -> list[Node]:
        if "$ref" in schema and not self._modern:
            return [Node("reference", reference=(str(schema["$ref"]), base))]
        parts: list[Node] = []
        if "enum" in schema:
            parts.append(Node("enum", values=frozenset(_value(each) for each in _list(schema["enum"]))))
        for word in _COMBINED:
            if word in schema:
                members = [self._node(each, base) for each in _list(schema[word])]
                parts.append(Node("combined", criterion=word, parts=members))
        if "not" in schema:
            parts.append(Node("not", parts=[self._node(schema["not"], base)]))
        if "const" in schema and self._draft > 4:
            parts.append(Node("const", values=frozenset((_value(schema["const"]),))))
        parts += self._by_type(schema, base)
        if self._draft >= 7 and any(word in schema for word in _CONDITIONAL):
            three = [self._node(schema[word], base) if word in schema else Node("empty") for word in _CONDITIONAL]
            parts.append(Node("conditional", parts=three))
        parts += [
            Node("reference", reference=(str(schema[word]), base)) for word in _REFS if self._modern and word in schema
        ]
        return parts

    def _by_type(self, schema: dict[str, Any], base: str) -> list[Node]:
        said = schema.get("type")
        names = [said] if isinstance(said, str) else _list(said) if said is not None else []
        typed = [self._typed(str(name), schema, base) for name in names]
        parts = typed if isinstance(said, str) or not typed else [Node("combined", criterion="anyOf", parts=typed)]
        kinds = {each.kind for each in typed}
        parts += [
            self._typed(name, schema, base)
            for name in ("array", "object", "number", "string")
            if name not in kinds and self._has(name, schema)
        ]
        return parts

    def _has(self, family: str, schema: dict[str, Any]) -> bool:
        """Whether a schema has any keyword of a family of keywords."""
        words = {"array": _ARRAY, "object": _OBJECT, "number": _NUMBER, "string": _STRING}[family] & schema.keys()
        if family == "array" and self._draft > 4:
            words |= {"contains"} & schema.keys()
        if self._modern:
            words |= {
                "array": {"prefixItems", "unevaluatedItems"},
                "object": {"dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties"},
            }.get(family, set()) & schema.keys()
            # An empty `properties` or `patternProperties` counts as missing.
            words -= {word for word in ("properties", "patternProperties") if not schema.get(word)}
        else:
            older = {"array": {"additionalItems"}, "object": {"dependencies"}, "string": {"format"}}.get(family, set())
            words |= older & schema.keys()
            if family == "object" and self._draft > 4:
                words |= {"propertyNames"} & schema.keys()
        return bool(words)

    def _typed(self, name: str, schema: dict[str, Any], base: str) -> Node:
        if name in ("number", "integer"):
            made = Node("number", is_integer=name == "integer")
            made.bounds = {word: schema[word] for word in _NUMBER & schema.keys() if _is_number(schema[word])}
        elif name == "string":
            made = Node("string", bounds={word: schema[word] for word in _STRING & schema.keys()})
        elif name == "object":
            made = self._object(schema, base)
        elif name == "array":
            made = self._array(schema, base)
        else:
            made = Node(name)
        return made

    def _object(self, schema: dict[str, Any], base: str) -> Node:
        made = Node("object")
        made.bounds = {word: schema[word] for word in ("minProperties", "maxProperties") if word in schema}
        made.properties = {name: self._node(each, base) for name, each in _dict(schema.get("properties")).items()}
        made.required = frozenset(str(each) for each in _list(schema.get("required", [])))
        made.patterns = {name: self._node(each, base) for name, each in _dict(schema.get("patternProperties")).items()}
        self._take_extra(made, schema.get("additionalProperties"), base)
        for word in ("dependentRequired", "dependentSchemas") if self._modern else ("dependencies",):
            for name, each in _dict(schema.get(word)).items():
                if isinstance(each, list):
                    made.needed[name] = frozenset(map(str, each))
                else:
                    made.dependent[name] = self._node(each, base)
        if self._modern and "unevaluatedProperties" in schema:
            made.unevaluated = self._node(schema["unevaluatedProperties"], base)
        if "propertyNames" in schema:
            made.unseen.append(self._node(schema["propertyNames"], base))
        return made

    def _array(self, schema: dict[str, Any], base: str) -> Node:
        made = Node("array", is_unique=schema.get("uniqueItems") is True)
        words = ["minItems", "maxItems"]
        if not self._modern or "contains" in schema:
            words += ["minContains", "maxContains"]
        made.bounds = {word: schema[word] for word in words if word in schema}
        if "contains" in schema:
            made.unseen.append(self._node(schema["contains"], base))
            if self._modern:
                made.bounds.setdefault("minContains", 1)
        items = schema.get("items")
        prefix = items if isinstance(items, list) else schema.get("prefixItems", []) if self._modern else []
        made.parts = [self._node(each, base) for each in _list(prefix)]
        if not self._modern:
            if items is not None and not isinstance(items, list):
                made.all_items = self._node(items, base)
            self._take_extra(made, schema.get("additionalItems"), base)
        elif isinstance(items, list):
            self._take_extra(made, schema.get("additionalItems"), base)
        elif prefix or isinstance(items, bool):
            self._take_extra(made, items, base)
        elif items is not None:
            made.all_items = self._node(items, base)
        if self._modern and "unevaluatedItems" in schema:
            made.unevaluated = self._node(schema["unevaluatedItems"], base)
        return made

    def _take_extra(self, made: Node, said: Any, base: str) -> None:
        if isinstance(said, bool):
            made.extra = said
        elif said is not None:
            made.extra_schema = self._node(said, base)


class Costs:
    """The number of evaluations of a part of a value in the worst case, by the depth of the value.

    Nested alternatives multiply this number at each level; without a limit, the validation of a short value could take
    years.
    """

    _MOST: Final = 10**9

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[int] = set()
        self._until = -1

    def of(self, depth: int) -> int:
        """Return the number of evaluations that a value of this depth may need, at most a billion."""
        if self._until < depth:
            nodes = self._reached()
            for level in range(self._until + 1, depth + 1):
                for node in nodes:
                    self._cost(node, level)
            self._until = depth
        return max(self._known.get((id(self._model.root), level), 1) for level in range(depth + 1))

    def _reached(self) -> list[Node]:
        """Return all nodes; each node comes after the nodes that it contains, if there is no cycle."""
        found: list[Node] = []
        seen: set[int] = set()
        waiting = [(self._model.root, False)]
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                found.append(node)
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting.append((node, True))
            here, below = self._inner(node)
            waiting += [(each, False) for each in here + [one for group in below for one in group]]
        return found

    def _inner(self, node: Node) -> tuple[list[Node], list[list[Node]]]:
        """Return the nodes that evaluate the same value as `node`, and groups of nodes for the parts of the value.

        A part is an item or a property. Only one node of each group evaluates it.
        """
        if node.kind == "reference":
            return [self._model.target(node)], []
        if node.kind == "array":
            rest = [each for each in (node.all_items, node.extra_schema, node.unevaluated) if each is not None]
            return [], [node.parts, *([each] for each in rest + node.unseen)]
        if node.kind == "object":
            rest = [each for each in (node.extra_schema, node.unevaluated) if each is not None]
            below = [list(node.properties.values()), *([each] for each in [*node.patterns.values(), *rest])]
            return list(node.dependent.values()), below
        return node.parts, []

    def _cost(self, node: Node, level: int) -> int:
        key = (id(node), level)
        if key in self._known:
            return self._known[key]
        if id(node) in self._open:
            return 1  # a cycle within the same part: the validator breaks it
        here, below = self._inner(node)
        self._open.add(id(node))
        cost = 1 if level == 0 else 0
        cost += sum(self._cost(each, level) for each in here)
        if level > 0:
            cost += sum(
                max((self._known.get((id(each), level - 1), 1) for each in group), default=0) for group in below
            )
        self._open.discard(id(node))
        self._known[key] = min(cost, self._MOST)
        return self._known[key]


def _value(value: Any) -> str:
    return to_json(value, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidSchema("a keyword of the schema is not a list")
    return value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _old_anchor(value: Any) -> str | None:
    return value[1:] if isinstance(value, str) and value.startswith("#") else None
