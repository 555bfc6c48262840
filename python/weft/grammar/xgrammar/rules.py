"""Parses XGrammar's serialized grammars: to rules over bytes for shortest endings (`csrc/grammar/closing/grammar.h`),
and to find the shortest text of each rule (`check_least`).

The serialized form encodes expressions as integers. The printed EBNF is no substitute: it loses some characters.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import xgrammar as xgr

from weft.errors import GuideError
from weft.grammar.limits import CompileLimits
from weft.grammar.schema.characters import MAX_CODE, outside

VERSION = "v16"
"""The version of XGrammar's serialized form that this file can parse."""

(
    BYTES,
    CHARACTERS,
    CHARACTERS_STAR,
    EMPTY,
    RULE,
    SEQUENCE,
    CHOICES,
    TAG_DISPATCH,
    REPEAT,
) = range(9)
REGEX = 12
PLAIN = [-1, -1, "", False, None]
"""The last fields of a serialized rule that has no limits. The look-ahead is in the fields before them. It is ignored,
because it only speeds up masks."""

LITERAL, SET = -1, -2
"""Stand in an element's rule field: the element is a literal, or one byte of a set."""

UNBOUNDED = -1
"""Stands in an element's field for the largest number of repetitions, as in XGrammar."""

Element = tuple[int, bytes, int, int]
Alternative = list[Element]
Rule = list[Alternative]


def read_serialised(serialised: str) -> dict[str, Any]:
    """Parse a grammar in XGrammar's serialized form. Raises `GuideError` for another version of the form."""
    data: dict[str, Any] = json.loads(serialised)
    if data.get("__VERSION__") != VERSION:
        raise GuideError(
            f"XGrammar writes grammars as {data.get('__VERSION__')!r}; {VERSION!r} is what can be read"
        )
    return data


def regexes(serialised: str) -> Iterator[str]:
    """Yield the regular expressions of a grammar that XGrammar has not expanded to rules."""
    data = read_serialised(serialised)
    numbers = data["grammar_expr_data"]
    for start in data["grammar_expr_indptr"]:
        kind, length = numbers[start : start + 2]
        if kind == REGEX:
            text = numbers[start + 3 : start + 2 + length]
            yield bytes(byte & 0xFF for byte in text).decode(errors="replace")


def byte_rules(serialised: str) -> list[Rule]:
    """Convert a grammar to rules over bytes, the root first. Raises `GuideError` for a grammar with parts that are not
    text, such as special tokens, or with limits or stop texts."""
    data = read_serialised(serialised)
    if data["suffix_stop_infos"] or any(rule[4:] != PLAIN for rule in data["rules"]):
        raise GuideError("it has rules with limits or stop texts of their own")
    return _reachable(_Reader(data).rules)


def _reachable(rules: list[Rule]) -> list[Rule]:
    """The rules reachable from the first rule, renumbered. An unreachable rule would wrongly count as a position
    where a token may be accepted."""
    numbers, queue = {0: 0}, [0]
    for number in queue:  # the loop appends to it
        for alternative in rules[number]:
            for rule, *_ in alternative:
                if rule >= 0 and rule not in numbers:
                    numbers[rule] = len(queue)
                    queue.append(rule)
    return [
        [[(numbers.get(e[0], e[0]), e[1], e[2], e[3]) for e in alternative] for alternative in rules[number]]
        for number in queue
    ]


class _Reader:
    def __init__(self, data: dict[str, Any]) -> None:
        self._data: list[int] = data["grammar_expr_data"]
        self._starts: list[int] = data["grammar_expr_indptr"]
        root, bodies = data["root_rule_id"], [rule[1] for rule in data["rules"]]
        # The root comes first; the others keep their order.
        order = [root, *(i for i in range(len(bodies)) if i != root)]
        self._numbers = {old: new for new, old in enumerate(order)}
        self.rules: list[Rule] = [[] for _ in order]
        self._classes: dict[tuple[int, ...], int] = {}
        for old in order:
            self.rules[self._numbers[old]] = self._alternatives(bodies[old])
        for number in range(len(order)):
            self._unroll(number)

    def _expression(self, number: int) -> tuple[int, list[int]]:
        start = self._starts[number]
        kind, length = self._data[start : start + 2]
        return kind, self._data[start + 2 : start + 2 + length]

    def _alternatives(self, number: int) -> Rule:
        kind, parts = self._expression(number)
        if kind == CHOICES:
            return [alternative for part in parts for alternative in self._alternatives(part)]
        if kind == SEQUENCE:
            return [[element for part in parts for element in self._element(part)]]
        return [self._element(number)]

    def _element(self, number: int) -> list[Element]:
        kind, parts = self._expression(number)
        if kind == EMPTY:
            return []
        if kind == BYTES:
            return [(LITERAL, bytes(byte & 0xFF for byte in parts), 1, 1)] if parts else []
        if kind in (CHARACTERS, CHARACTERS_STAR):
            return [self._characters(tuple(parts), kind == CHARACTERS_STAR)]
        if kind == RULE:
            return [(self._numbers[parts[0]], b"", 1, 1)]
        if kind == REPEAT:
            return [(self._numbers[parts[0]], b"", parts[1], parts[2])]
        if kind == REGEX:
            return [(self._regex(bytes(parts[1:]).decode(), bool(parts[0])), b"", 1, 1)]
        if kind in (SEQUENCE, CHOICES):
            self.rules.append(self._alternatives(number))
            return [(len(self.rules) - 1, b"", 1, 1)]
        raise GuideError("it has tags or tokens that begin something else, not only text")

    def _characters(self, parts: tuple[int, ...], is_star: bool) -> Element:
        """An element for one character of a class (with `is_star`, for any number of them)."""
        pairs = list(zip(parts[1::2], parts[2::2], strict=True))
        ranges = outside(pairs) if parts[0] else pairs
        if not is_star and all(high < 0x80 for _, high in ranges):
            return (SET, byte_set(ranges), 1, 1)
        key = tuple(bound for pair in ranges for bound in pair)
        if key not in self._classes:
            self._classes[key] = len(self.rules)
            self.rules.append(_character_rule(ranges))
        return (self._classes[key], b"", 0 if is_star else 1, UNBOUNDED if is_star else 1)

    def _regex(self, pattern: str, in_json: bool) -> int:
        """Add a rule for each state of a regular expression's automaton. Returns the start state's rule."""
        automaton, start, ends = _automaton(pattern, in_json)
        starts, edges, base = automaton["indptr_"], automaton["data_"], len(self.rules)
        for state in range(len(starts) - 1):
            rule: Rule = [[]] if state in ends else []
            for low, high, target in edges[starts[state] : starts[state + 1]]:
                if low < -1:
                    raise GuideError("it has a regular expression with parts that are not text")
                byte: Alternative = [(SET, byte_set([(low, high)]), 1, 1)] if low >= 0 else []
                rule.append([*byte, (base + target, b"", 1, 1)])
            self.rules.append(rule)
        return base + start

    def _unroll(self, number: int) -> None:
        """Remove left recursion from a rule: A ::= A x | y becomes A ::= y x*."""
        alternatives = self.rules[number]
        repeated = [a[1:] for a in alternatives if a and a[0] == (number, b"", 1, 1)]
        if not any(repeated):
            return
        start_rule, repeat_rule = len(self.rules), len(self.rules) + 1
        self.rules.append([a for a in alternatives if not a or a[0] != (number, b"", 1, 1)])
        self.rules.append([a for a in repeated if a])
        self.rules[number] = [[(start_rule, b"", 1, 1), (repeat_rule, b"", 0, UNBOUNDED)]]


def _automaton(pattern: str, in_json: bool) -> tuple[dict[str, Any], int, list[int]]:
    """XGrammar's automaton for a regular expression: its edges (first byte, last byte, target state; byte -1 is an
    epsilon edge), its start state, and its final states."""
    macro = f"root ::= Regex({json.dumps(pattern)}, json_string={'true' if in_json else 'false'})"
    info = xgr.TokenizerInfo([b"", b"a"], vocab_type=xgr.VocabType.RAW, vocab_size=2, stop_token_ids=[0])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    try:
        compiled = compiler.compile_grammar(xgr.Grammar.from_ebnf(macro))
    except RuntimeError as error:
        raise GuideError("it has a regular expression that can't be read by itself") from error
    data = json.loads(compiled.grammar.serialize_json())
    (fsm, start, ends, *_), *_ = data["per_rule_fsms"][data["root_rule_id"]]
    return fsm["edges"], start, ends


def _character_rule(ranges: list[tuple[int, int]]) -> Rule:
    single = [(low, min(high, 0x7F)) for low, high in ranges if low < 0x80]
    rule: Rule = [[(SET, byte_set(single), 1, 1)]] if single else []
    for low, high in ranges:
        for sequence in utf8_sequences(max(low, 0x80), high) if high >= 0x80 else ():
            rule.append([(SET, byte_set([byte]), 1, 1) for byte in sequence])
    return rule


Node = tuple[str, int]
"""A rule or an expression, by kind and number."""


def check_least(serialised: str, limits: CompileLimits) -> None:
    """Raise `GuideError` for a serialized grammar with a rule that matches no finite text, or with a part whose
    shortest text exceeds `limits.max_least_bytes`.

    XGrammar computes forced text up to its end, without a limit of memory or time. Rules that double forty times, or
    one that never ends, would exhaust both. Forced text is never longer than the shortest text of its rule, so a bound
    on that is enough.
    """
    data = read_serialised(serialised)
    graph = _Graph(
        data["grammar_expr_data"], data["grammar_expr_indptr"], [rule[1] for rule in data["rules"]]
    )
    shortest = graph.least(("rule", data["root_rule_id"]))
    endless = [number for kind, number in graph.seen if kind == "rule" and (kind, number) not in shortest]
    if endless:
        raise GuideError(f"the guide can't be met: its rule {data['rules'][min(endless)][0]} never ends")
    size = max(shortest.values())
    if size > limits.max_least_bytes:
        raise GuideError(
            f"the shortest text of a part of it has {size} bytes; at most {limits.max_least_bytes} are allowed "
            "(CompileLimits.max_least_bytes)"
        )


class _Graph:
    """The graph of rules and expressions, to find shortest texts: a sequence is the sum of its parts, and a choice is
    the minimum."""

    def __init__(self, data: list[int], starts: list[int], bodies: list[int]) -> None:
        self._data = data
        self._starts = starts
        self._bodies = bodies
        self.seen: set[Node] = set()

    def least(self, root: Node) -> dict[Node, int]:
        """The length in bytes of the shortest text of each node below `root`. Nodes without a finite text are left
        out. A character counts 1 byte and a regular expression 0, so a length is a lower bound. This is Knuth's
        generalization of Dijkstra's algorithm: nodes are settled in the order of their lengths."""
        parents: dict[Node, list[tuple[Node, int]]] = defaultdict(list)  # with the repetitions of the child
        missing: dict[
            Node, int
        ] = {}  # children to settle before the node: all of a sequence, one of a choice
        sums: dict[Node, int] = {}
        ready: list[tuple[int, Node]] = []  # a heap of nodes whose value is known
        self.seen, pending = {root}, [root]
        while pending:
            node = pending.pop()
            num_bytes, children, is_choice = self._parts(node)
            sums[node], missing[node] = num_bytes, 1 if is_choice else len(children)
            for child, times in children:
                parents[child].append((node, times))
                if child not in self.seen:
                    self.seen.add(child)
                    pending.append(child)
            if not children and not is_choice:
                heapq.heappush(ready, (num_bytes, node))
        settled: dict[Node, int] = {}
        while ready:
            size, node = heapq.heappop(ready)
            if node in settled:
                continue
            settled[node] = size
            for parent, times in parents[node]:
                missing[parent] -= 1
                sums[parent] += size * times
                if missing[parent] == 0:
                    heapq.heappush(ready, (sums[parent], parent))
        return settled

    def _parts(self, node: Node) -> tuple[int, list[tuple[Node, int]], bool]:
        """A node's own bytes, its children with their repetitions, and whether the node is a choice."""
        kind, number = node
        if kind == "rule":
            return 0, [(("expression", self._bodies[number]), 1)], False
        start = self._starts[number]
        code, length = self._data[start : start + 2]
        parts = self._data[start + 2 : start + 2 + length]
        if code == RULE:
            return 0, [(("rule", parts[0]), 1)], False
        if code == REPEAT:
            return 0, [(("rule", parts[0]), parts[1])], False
        if code in (SEQUENCE, CHOICES):
            return 0, [(("expression", part), 1) for part in parts], code == CHOICES
        return (len(parts) if code == BYTES else 1 if code == CHARACTERS else 0), [], False


_LENGTHS = ((0x7F, 1), (0x7FF, 2), (0xFFFF, 3), (MAX_CODE, 4))
"""The last character of each UTF-8 length."""

ByteRange = tuple[int, int]


def utf8_sequences(low: int, high: int) -> Iterator[list[ByteRange]]:
    """Yield sequences of byte ranges that together match the UTF-8 encodings of the characters `low` to `high`."""
    begin = low
    for last, length in _LENGTHS:
        if begin <= min(high, last):
            yield from _split(_encode(begin, length), _encode(min(high, last), length))
        begin = max(begin, last + 1)


def byte_set(ranges: Iterable[ByteRange]) -> bytes:
    """A set of bytes as a 256-bit set in 32 bytes, the lowest bit first."""
    bits = 0
    for low, high in ranges:
        bits |= ((1 << (high - low + 1)) - 1) << low
    return bits.to_bytes(32, "little")


def _encode(code_point: int, length: int) -> bytes:
    # Not `str.encode`: it refuses surrogates, and grammar libraries accept their bytes.
    if length == 1:
        return bytes([code_point])
    tail = []
    for _ in range(length - 1):
        tail.append(0x80 | code_point & 0x3F)
        code_point >>= 6
    return bytes([(0xF00 >> length & 0xFF) | code_point, *reversed(tail)])


def _split(low: bytes, high: bytes) -> Iterator[list[ByteRange]]:
    """Yield sequences of byte ranges for the encodings from `low` to `high`, which have one length."""
    if len(low) == 1:
        yield [(low[0], high[0])]
        return
    first, last = low[0], high[0]
    if first == last:
        yield from ([(first, first), *rest] for rest in _split(low[1:], high[1:]))
        return
    lowest, highest = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    if low[1:] != lowest:
        yield from ([(first, first), *rest] for rest in _split(low[1:], highest))
        first += 1
    end = [] if high[1:] == highest else [[(last, last), *rest] for rest in _split(lowest, high[1:])]
    last -= bool(end)
    if first <= last:
        yield [(first, last), *[(0x80, 0xBF)] * (len(low) - 1)]
    yield from end
