"""Limits on the cost of a guide, and the checks that need only its text, before any library sees it.

`check_costs` counts what XGrammar expands. `check_chain` bounds how deep a library recurses, since a native stack
overflow ends the process. Each nesting level counts: an object within an object of a JSON schema, the target of a
reference, a rule that another rule names, a group within a group. Each part of a cycle counts once, because no library
enters one twice. So the chain is an upper bound of the recursion. It stays under 100 for all but a few of thousands of
real-world schemas. All checks take time linear in the text, and none of them recurses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft import _core
from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.schema import structure
from weft.grammar.tag_forms import depth_of_texts, tag_of


@dataclass(frozen=True)
class CompileLimits:
    """Limits on the cost of a guide.

    - `max_source_bytes`: bytes of its text. `max_depth`: nesting depth of brackets in JSON, and for XGrammar of groups
      in a regular expression or grammar.
    - `max_chain`: levels of nesting through references, rules and groups. Libraries recurse this deep.
    - Some limits are for XGrammar only, because its compile time grows with these counts:
      - `max_choices`: values in all enumerations, and alternatives in all regular expressions and grammars.
      - `max_properties`: properties in a whole schema. Those of an object with `minProperties` or `maxProperties` count
        that many times.
      - `max_repeat`: positions that a repeat (`maxLength`, `{n,m}`) expands to, including the repeats inside it.
      - `max_least_bytes`: bytes of the shortest text of each rule. XGrammar spells forced text up to its end.
    - LLGuidance has its own limits for a compile and for a mask. `time_s` and `memory_bytes` tighten them.
    - `time_s`: seconds of one compile. `memory_bytes`: size of the compiled guide.
    - Untrusted guides are tried first. In a trial `memory_bytes` also bounds the memory of the compile itself.
      `mask_time_s` bounds the CPU seconds of one mask fill and the accept after it. The trial measures these along
      walks of a few hundred tokens, and extrapolates to an answer of `answer_tokens`.
    - `max_abandoned`: compiles that may run on past their time, at most half of them from one client. At this number,
      new guides are refused. `max_waiting`: guides of one client that may wait to be compiled.
    """

    max_source_bytes: int = 1 << 20
    max_depth: int = 128
    max_chain: int = 2_000
    max_choices: int = 100_000
    max_properties: int = 5_000
    max_repeat: int = 1_000_000
    max_least_bytes: int = 1 << 20
    time_s: float = 30.0
    memory_bytes: int = 1 << 30
    mask_time_s: float = 1.0
    answer_tokens: int = 4_096
    max_abandoned: int = 4
    max_waiting: int = 100_000

    @classmethod
    def untrusted(cls) -> CompileLimits:
        """Limits for schemas and grammars from untrusted clients."""
        return cls(
            max_source_bytes=256 << 10,
            max_depth=64,
            max_chain=500,
            max_choices=5_000,
            max_properties=1_000,
            max_repeat=10_000,
            max_least_bytes=64 << 10,
            time_s=10.0,
            memory_bytes=512 << 20,
            mask_time_s=0.03,
            max_waiting=256,
        )


def check_size(text: str, limits: CompileLimits) -> None:
    """Raise `GuideError` if a text is too long or can't be encoded in UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GuideError(f"the guide is not text that UTF-8 can hold: {error.reason}") from None
    _check("has", size, "bytes", limits.max_source_bytes, "max_source_bytes")


def check_text(guide: Guide, limits: CompileLimits) -> None:
    """Raise `GuideError` if a guide's text is too long, can't be encoded in UTF-8, or is JSON that nests too deep."""
    check_size(guide.source, limits)
    depth = _core.json_depth(guide.source) if guide.kind in ("json_schema", "structural_tag") else 0
    _check("nests", depth, "deep", limits.max_depth, "max_depth")


def check_costs(guide: Guide, limits: CompileLimits) -> None:
    """Raise `GuideError` for a guide that XGrammar would take too long to compile. The message names the limit."""
    choices = properties = 0
    for cost, value in _costs(guide):
        if cost == "choices":
            choices += value
        elif cost == "properties":
            properties += value
        elif cost == "depth":
            _check("nests", value, "levels deep", limits.max_depth, "max_depth")
        else:
            _check("has a repeat that expands to", value, "positions", limits.max_repeat, "max_repeat")
    _check("has", choices, "choices", limits.max_choices, "max_choices")
    _check("has", properties, "properties", limits.max_properties, "max_properties")


def check_chain(guide: Guide, limits: CompileLimits) -> None:
    """Raise `GuideError` for a guide that would make a library recurse too deep."""
    if guide.kind == "structural_tag":
        _check("nests", depth_of_texts(guide.source), "deep", limits.max_depth, "max_depth")
    _check("has a chain of", chain_length(guide), "levels below one another", limits.max_chain, "max_chain")


def check_memory(num_bytes: int, limits: CompileLimits) -> None:
    """Raise `GuideError` for a compiled guide that holds too much memory."""
    _check("takes", num_bytes, "bytes of memory", limits.memory_bytes, "memory_bytes")


def _check(verb: str, value: int, unit: str, limit: int, name: str) -> None:
    if value > limit:
        raise GuideError(
            f"the guide {verb} {value} {unit}; at most {limit} are allowed (CompileLimits.{name})"
        )


def _costs(guide: Guide) -> Iterator[tuple[str, int]]:
    if guide.kind in ("json_schema", "structural_tag"):
        is_tag = guide.kind == "structural_tag"
        yield from _schema_costs(tag_of(guide.source) if is_tag else json.loads(guide.source))
    elif guide.kind == "choice":
        yield "choices", len(json.loads(guide.source))
    elif guide.kind in ("regex", "ebnf"):
        yield from _pattern_costs(guide.source, guide.kind == "ebnf")


BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
DATA = {"const", "default", "examples", "enum"}


def _schema_costs(root: Any) -> Iterator[tuple[str, int]]:
    """Yield the costs of every JSON object in a schema. Any of them may be the target of a reference."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        if not isinstance(node, dict):
            continue
        pending += [value for key, value in node.items() if key not in DATA or isinstance(value, dict)]
        yield from (("repeat", int(node[key])) for key in BOUNDS if _is_count(node.get(key)))
        if isinstance(node.get("enum"), list):
            yield "choices", len(node["enum"])
        named = [node[key] for key in ("properties", "patternProperties") if isinstance(node.get(key), dict)]
        # To count properties, XGrammar makes a rule for each pair of a property and a count.
        counts = [int(node[key]) for key in ("minProperties", "maxProperties") if _is_count(node.get(key))]
        total = sum(map(len, named))
        yield "properties", total * max([1, *(min(count, total) for count in counts)])
        patterns = list(node["patternProperties"]) if isinstance(node.get("patternProperties"), dict) else []
        for pattern in (node.get("pattern"), *patterns):
            if isinstance(pattern, str):
                yield from _pattern_costs(pattern, is_ebnf=False)
        if isinstance(node.get("grammar"), str):
            yield from _pattern_costs(node["grammar"], is_ebnf=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


# Tokens of a regular expression and of a grammar: classes, escapes, and in grammars strings, names and comments. The
# quantifiers are possessive, so the regex never backtracks and the scan is linear in the text.
REPEAT = r"(?P<repeat>\{\s*+(?P<low>\d*+)\s*+,?\s*+(?P<high>\d*+)\s*+\})"
REGEX_PARTS = re.compile(
    REPEAT
    + r"|(?P<open>\()|(?P<close>\))|(?P<or>\|)|[*+?]++|(?P<plain>[^\\\[(){|*+?]++)"
    + r"|(?P<atom>\\.|\[(?:[^\]\\]++|\\.)*+\]?|.)",
    re.DOTALL,
)
EBNF_PARTS = re.compile(
    REPEAT + r"|(?P<open>\()|(?P<close>\))|(?P<or>\|)|[*+?\s]++|\#[^\n]*+|::=|(?P<plain>(?!))"
    r'|(?P<atom>"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\]++|\\.)*+\]?|[\w.-]++|.)',
    re.DOTALL,
)


MAX_COUNTED = 10**18
"""Cap for the size of nested repeats. Without it the integers would grow with the text and make the scan quadratic."""


def _pattern_costs(text: str, is_ebnf: bool) -> Iterator[tuple[str, int]]:
    """Yield the number of alternatives, the depth of groups, and the positions that the largest repeat expands to."""
    # sizes: positions so far in each open group. last_size: positions of the last part, which a repeat multiplies.
    sizes, last_size = [0], 0
    choices, depth, largest = 1, 0, 0
    for part in (EBNF_PARTS if is_ebnf else REGEX_PARTS).finditer(text):
        kind = part.lastgroup
        if part["repeat"] is not None:
            count = max(_number(part["high"]), _number(part["low"]))
            sizes[-1] = min(sizes[-1] + last_size * max(count - 1, 0), MAX_COUNTED)
            last_size = min(last_size * max(count, 1), MAX_COUNTED)
            largest = max(largest, last_size)
        elif kind == "open":
            sizes.append(0)
            depth = max(depth, len(sizes) - 1)
        elif kind == "close" and len(sizes) > 1:
            last_size = sizes.pop()
            sizes[-1] = min(sizes[-1] + last_size, MAX_COUNTED)
        elif kind == "or":
            choices += 1
        elif kind == "plain":
            last_size = 1
            sizes[-1] += len(part[0])
        elif kind == "atom":
            last_size = max(len(part[0]) - 2, 1) if part[0][0] == '"' else 1
            sizes[-1] += last_size
    yield from (("choices", choices), ("depth", depth), ("repeat", largest))


def _number(digits: str) -> int:
    return 0 if not digits else int(digits) if len(digits) < 10 else 10**9


REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
UNVISITED = -1


@dataclass
class _Node:
    """A reference target, as a node of the reference graph. `height` is its own nesting depth. An edge is a reference
    inside it: the target, and the depth at which the reference stands."""

    height: int = 1
    edges: list[tuple[_Node, int]] = field(default_factory=list)
    number: int = UNVISITED  # the order of discovery
    lowest: int = UNVISITED  # the lowest number of a node on the path that it is known to reach
    length: int = 0  # the longest chain that starts here, once its cycle is visited

    def refer(self, target: _Node, depth: int) -> None:
        self.edges.append((target, depth))


def chain_length(guide: Guide) -> int:
    """The length of the longest chain of nesting levels; 0 for a guide without schemas, grammars and regular
    expressions."""
    return max((_text_chain(kind, text) for kind, text in _texts(guide)), default=0)


def _texts(guide: Guide) -> Iterator[tuple[str, Any]]:
    """Yield the guide's schemas (as data), grammars and regular expressions, each with its kind."""
    if guide.kind in ("ebnf", "lark", "regex"):
        yield guide.kind, guide.source
    elif guide.kind == "json_schema":
        yield "schema", json.loads(guide.source)
    elif guide.kind == "structural_tag":
        # A schema inside a tag can refer only to parts of itself, and `max_depth` bounds the tag around it.
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


# Chains of JSON schemas


def _schema_nodes(root: Any) -> list[_Node]:
    names = {
        prefix + node[key]: node
        for node in _objects(root)
        for key, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#"))
        if isinstance(node.get(key), str)
    }
    targets: dict[int, _Node] = {id(root): _Node()}  # by the identity of their schema objects
    resolved: dict[str, Any] = {}
    for node in _objects(root):
        for key in REFERENCES:
            reference = node.get(key)
            if isinstance(reference, str) and reference not in resolved:
                resolved[reference] = names.get(reference, _pointed(root, reference))
                if isinstance(resolved[reference], dict):
                    targets.setdefault(id(resolved[reference]), _Node())
    pending: list[tuple[Any, _Node, int]] = [(root, targets[id(root)], 0)]
    while pending:
        value, owner, depth = pending.pop()
        if isinstance(value, list):
            pending += [(item, owner, depth) for item in value]
        if not isinstance(value, dict):
            continue
        inner, depth = targets.get(id(value)), depth + 1
        if inner is not None and inner is not owner:
            owner.refer(inner, depth)
            owner, depth = inner, 1
        owner.height = max(owner.height, depth)
        for key in REFERENCES:
            target = resolved.get(value[key]) if isinstance(value.get(key), str) else None
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
    """The target of a reference within the schema, or None."""
    if not reference.startswith("#"):
        return None
    try:
        return structure.pointed(root, reference[1:].split("/")[1:])
    except KeyError:
        return None


# Chains of grammars and regular expressions

# The quantifiers are possessive, so the regex never backtracks and the scan is linear in the text.
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
    """A node for each rule. Text before the first rule goes to an extra node, which is dropped."""
    nodes: dict[str, _Node] = {}
    owner, depth = _Node(), 1
    pending_name = ""  # the last name read: the next rule's if "::=" follows, else a reference

    def flush() -> None:
        nonlocal pending_name
        if pending_name:
            owner.refer(nodes.setdefault(pending_name, _Node()), depth)
        pending_name = ""

    position = 0
    pattern = LARK if is_lark else EBNF
    while position < len(text):
        part = pattern.match(text, position)
        assert part is not None  # the patterns end with a dot, which matches any character
        position, kind = part.end(), part.lastgroup
        if kind == "is" and pending_name and depth == 1:
            owner, pending_name = nodes.setdefault(pending_name, _Node()), ""
        elif kind == "open":
            depth += 1
            owner.height = max(owner.height, depth)
        elif kind == "close":
            depth = max(1, depth - 1)
        elif kind == "name" and depth == 1:
            flush()
            pending_name = part[0]
        elif kind == "name":
            owner.refer(nodes.setdefault(part[0], _Node()), depth)
        elif kind == "or":
            flush()
        elif kind == "json":
            flush()
            position, levels = _json_chain(text, position)
            owner.height = max(owner.height, depth + levels)
    flush()
    return list(nodes.values())


def _json_chain(text: str, position: int) -> tuple[int, int]:
    """Read the JSON schema that begins at a position. Returns its end and the length of its longest chain. If it
    can't be parsed, or nests too deep for that, the length is its bracket depth."""
    begin = depth = deepest = 0
    while position < len(text):
        part = JSON_PARTS.match(text, position)
        if part is None:
            break
        if part.lastgroup == "open":
            begin, depth = (position, 1) if depth == 0 else (begin, depth + 1)
            deepest = max(deepest, depth)
        elif part.lastgroup == "close":
            depth -= 1
        position = part.end()
        if part.lastgroup == "close" and depth <= 0:
            break
    if deepest > MAX_JSON_DEPTH:
        return position, deepest
    try:
        return position, _longest(_schema_nodes(json.loads(text[begin:position])))
    except ValueError:
        return position, deepest


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


# The longest chain


def _longest(nodes: list[_Node]) -> int:
    """The length of the longest chain. In a cycle the depths of all nodes add up."""
    # Tarjan's algorithm yields a component after those it leads to, so the lengths of its targets are known.
    for cycle in _cycles(nodes):
        inside = {id(node) for node in cycle}
        # A library enters each node of a cycle at most once, so the deepest reference of each counts once.
        within = sum(
            max((depth for target, depth in node.edges if id(target) in inside), default=0) for node in cycle
        )
        beyond = max(
            max([node.height, *(d + target.length for target, d in node.edges if id(target) not in inside)])
            for node in cycle
        )
        for node in cycle:
            node.length = within + beyond
    return max((node.length for node in nodes), default=0)


def _cycles(nodes: list[_Node]) -> Iterator[list[_Node]]:
    """The strongly connected components, each after those it leads to: Tarjan's algorithm with an explicit stack."""
    count = 0
    path: list[_Node] = []
    on_path: set[int] = set()
    for root in nodes:
        if root.number != UNVISITED:
            continue
        work: list[
            tuple[_Node, Iterator[tuple[_Node, int]]]
        ] = []  # the call stack of the recursive algorithm
        entering: _Node | None = root  # the argument of its next call
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
                if target.number == UNVISITED:
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
                begin = next(i for i in range(len(path) - 1, -1, -1) if path[i] is node)
                component, path[begin:] = path[begin:], []
                on_path.difference_update(map(id, component))
                yield component
