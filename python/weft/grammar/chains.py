"""How deep a library descends in a guide, which is what its native stack must bear: `chain_length`.

Each level of a guide counts: an object within an object of a JSON schema and a reference's target, a rule that a rule
names, a group within a group. Every part of what stands within itself counts once, as libraries enter none twice. So
the number is never too low, and an honest guide's is small: under 100 for all but a few of thousands of schemas that
people wrote. All is found in a time that grows with the text, and without recursion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.grammar.guide import Guide
from weft.grammar.tag_forms import tag_of

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass
class _Node:
    """What can be referred to: how deep it goes by itself, and how deep in it its references stand."""

    height: int = 1
    edges: list[tuple[_Node, int]] = field(default_factory=list)
    number: int = -1  # in the order of discovery
    lowest: int = -1  # the first of its ring
    length: int = -1  # the longest chain from here on

    def refer(self, target: _Node, depth: int) -> None:
        self.edges.append((target, depth))


def chain_length(guide: Guide) -> int:
    """How many levels lie below one another, at most. Parts that can't be read count for nothing: no library descends
    in them."""
    return max((_text_chain(kind, text) for kind, text in _texts(guide)), default=0)


def _texts(guide: Guide) -> Iterator[tuple[str, Any]]:
    """The guide's schemas (as data), grammars and regular expressions."""
    if guide.kind in ("ebnf", "lark", "regex"):
        yield guide.kind, guide.source
    elif guide.kind == "json_schema":
        yield "schema", json.loads(guide.source)
    elif guide.kind == "structural_tag":
        # Each schema within refers to itself; what is around it is not deep (`max_depth`).
        for node in _objects(tag_of(guide.source)):
            for key, kind in (("json_schema", "schema"), ("grammar", "ebnf"), ("pattern", "regex")):
                if isinstance(node.get(key), str if kind != "schema" else dict):
                    yield kind, node[key]


def _text_chain(kind: str, text: Any) -> int:
    if kind == "schema":
        return _longest(_schema_nodes(text))
    if kind == "regex":
        return _group_depth(text)
    return _longest(_rule_nodes(text, is_lark=kind == "lark"))


def _objects(root: Any) -> Iterator[dict[str, Any]]:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


# --- JSON schemas


def _schema_nodes(root: Any) -> list[_Node]:
    names = {
        prefix + node[key]: node
        for node in _objects(root)
        for key, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#"))
        if isinstance(node.get(key), str)
    }
    targets: dict[int, _Node] = {id(root): _Node()}  # by the identity of their objects
    found: dict[str, Any] = {}
    for node in _objects(root):
        for key in REFERENCES:
            reference = node.get(key)
            if isinstance(reference, str) and reference not in found:
                found[reference] = names.get(reference, _pointed(root, reference))
                if isinstance(found[reference], dict):
                    targets.setdefault(id(found[reference]), _Node())
    pending: list[tuple[Any, _Node, int]] = [(root, targets[id(root)], 0)]
    while pending:
        value, owner, depth = pending.pop()
        if isinstance(value, list):
            pending += [(item, owner, depth) for item in value]
        if not isinstance(value, dict):
            continue
        own, depth = targets.get(id(value)), depth + 1
        if own is not None and own is not owner:
            owner.refer(own, depth)
            owner, depth = own, 1
        owner.height = max(owner.height, depth)
        for key in REFERENCES:
            target = found.get(value[key]) if isinstance(value.get(key), str) else None
            if isinstance(target, dict):
                owner.refer(targets[id(target)], depth)
        for pattern in (value.get("pattern"), *_keys(value.get("patternProperties"))):
            if isinstance(pattern, str):
                owner.height = max(owner.height, depth + _group_depth(pattern))
        pending += [(item, owner, depth) for item in value.values()]
    return list(targets.values())


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _pointed(root: Any, reference: str) -> Any:
    """What a JSON pointer leads to, or None."""
    if not reference.startswith("#"):
        return None
    target = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and len(name) < 8 and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


# --- Grammars and regular expressions

# No part can be tried in two ways, so that a text is read in a time that grows with its length.
TEXT = r'"(?:\\.|[^"\\\n])*+"?'
GROUPS = r"(?P<open>[(\[{])|(?P<close>[)\]}])"
EBNF = re.compile(
    rf"\#[^\n]*+|{TEXT}|\[(?:\\.|[^\]\\])*+\]?|(?P<is>::=)|{GROUPS}|(?P<name>[\w.-]++)|(?P<or>\|)|\s++|.",
    re.DOTALL,
)
LARK = re.compile(
    rf"(?:\#|//)[^\n]*+|{TEXT}|/(?:\\.|[^/\\])*+/?|(?P<json>%json\b)|(?P<parameter>::\s*+[\w-]*+)|(?P<is>:)"
    rf"|{GROUPS}|(?P<name>[\w-]++)|(?P<or>\|)|\s++|.",
    re.DOTALL,
)
REGEX_GROUPS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|(?P<open>\()|(?P<close>\))|[^\\\[()]++|.", re.DOTALL)
JSON_PARTS = re.compile(r'"(?:\\.|[^"\\])*+"?|(?P<open>[\[{])|(?P<close>[\]}])|[^"\[\]{}]++', re.DOTALL)


def _rule_nodes(text: str, is_lark: bool) -> list[_Node]:
    """A node for each rule. What stands before the first belongs to none."""
    nodes: dict[str, _Node] = {}
    owner, depth = _Node(), 1
    held = ""  # a name that may yet be that of the next rule

    def flush() -> None:
        nonlocal held
        if held:
            owner.refer(nodes.setdefault(held, _Node()), depth)
        held = ""

    at = 0
    pattern = LARK if is_lark else EBNF
    while at < len(text):
        part = pattern.match(text, at)
        assert part is not None  # a dot takes whatever else there is
        at, kind = part.end(), part.lastgroup
        if kind == "is" and held and depth == 1:
            owner, held = nodes.setdefault(held, _Node()), ""
        elif kind == "open":
            depth += 1
            owner.height = max(owner.height, depth)
        elif kind == "close":
            depth = max(1, depth - 1)
        elif kind == "name" and depth == 1:
            flush()
            held = part[0]
        elif kind == "name":
            owner.refer(nodes.setdefault(part[0], _Node()), depth)
        elif kind == "or":
            flush()
        elif kind == "json":
            flush()
            at, levels = _json_chain(text, at)
            owner.height = max(owner.height, depth + levels)
    flush()
    return list(nodes.values())


def _json_chain(text: str, at: int) -> tuple[int, int]:
    """Where JSON that begins at a place ends, and the chain of the schema that it is."""
    begin = depth = deepest = 0
    while at < len(text):
        part = JSON_PARTS.match(text, at)
        if part is None:
            break
        if part.lastgroup == "open":
            begin, depth = (at, 1) if depth == 0 else (begin, depth + 1)
            deepest = max(deepest, depth)
        elif part.lastgroup == "close":
            depth -= 1
        at = part.end()
        if part.lastgroup == "close" and depth <= 0:
            break
    if deepest > MAX_JSON_DEPTH:
        return at, deepest
    try:
        return at, _longest(_schema_nodes(json.loads(text[begin:at])))
    except ValueError:
        return at, deepest


MAX_JSON_DEPTH = 400  # Python's parser recurses


def _group_depth(pattern: str) -> int:
    if pattern.count("(") < 2:
        return 1
    depth = deepest = 1
    for part in REGEX_GROUPS.finditer(pattern):
        if part.lastgroup == "open":
            depth += 1
            deepest = max(deepest, depth)
        elif part.lastgroup == "close":
            depth -= 1
    return deepest


# --- The longest chain


def _longest(nodes: list[_Node]) -> int:
    """The longest chain among nodes. Of a ring the depths of all its nodes count together."""
    for ring in _rings(nodes):
        inside = {id(node) for node in ring}
        within = sum(
            max((depth for target, depth in node.edges if id(target) in inside), default=0) for node in ring
        )
        beyond = max(
            max([node.height, *(d + target.length for target, d in node.edges if id(target) not in inside)])
            for node in ring
        )
        for node in ring:
            node.length = within + beyond
    return max((node.length for node in nodes), default=0)


def _rings(nodes: list[_Node]) -> Iterator[list[_Node]]:
    """The strongly connected parts (Tarjan's), each after those that it leads to."""
    count = 0
    path: list[_Node] = []
    on_path: set[int] = set()
    for root in nodes:
        if root.number >= 0:
            continue
        work: list[tuple[_Node, Iterator[tuple[_Node, int]]]] = []
        entering: _Node | None = root
        while entering is not None or work:
            if entering is not None:
                entering.number = entering.lowest = count
                count += 1
                path.append(entering)
                on_path.add(id(entering))
                work.append((entering, iter(entering.edges)))
                entering = None
            node, edges = work[-1]
            for target, _ in edges:
                if target.number < 0:
                    entering = target
                    break
                if id(target) in on_path:
                    node.lowest = min(node.lowest, target.number)
            if entering is not None:
                continue
            work.pop()
            if work:
                parent = work[-1][0]
                parent.lowest = min(parent.lowest, node.lowest)
            if node.lowest == node.number:
                at = next(i for i in range(len(path) - 1, -1, -1) if path[i] is node)
                ring, path[at:] = path[at:], []
                on_path.difference_update(map(id, ring))
                yield ring
