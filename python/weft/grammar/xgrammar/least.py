"""Bounds on the shortest text of each rule of an XGrammar grammar, since forced text may be as long.

XGrammar spells forced text to its end, in memory and time without a bound: that of rules that double forty times, or of
one that never ends, would take all there is. A text can't be forced for longer than the shortest text to its end.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from weft.errors import GuideError
from weft.grammar.limits import CompileLimits
from weft.grammar.xgrammar.rules import BYTES, CHARACTERS, CHOICES, REPEAT, RULE, SEQUENCE, read_serialised

Node = tuple[str, int]
"""A rule or an expression, by its number."""


def check_least(serialised: str, limits: CompileLimits) -> None:
    """Raises `GuideError` for a serialised grammar with a part whose texts are all longer than
    `limits.max_least_bytes`, or with a rule that has none, since it never ends.
    """
    data = read_serialised(serialised)
    graph = _Graph(
        data["grammar_expr_data"], data["grammar_expr_indptr"], [rule[1] for rule in data["rules"]]
    )
    least = graph.least(("rule", data["root_rule_id"]))
    endless = [number for kind, number in graph.seen if kind == "rule" and (kind, number) not in least]
    if endless:
        raise GuideError(f"the guide can't be met: its rule {data['rules'][min(endless)][0]} never ends")
    size = max(least.values())
    if size > limits.max_least_bytes:
        raise GuideError(
            f"the shortest text of a part of it has {size} bytes; at most {limits.max_least_bytes} are allowed "
            "(CompileLimits.max_least_bytes)"
        )


class _Graph:
    """Expressions over one another: some add up, of others one is chosen."""

    def __init__(self, data: list[int], starts: list[int], bodies: list[int]) -> None:
        self._data = data
        self._starts = starts
        self._bodies = bodies
        self.seen: set[Node] = set()

    def least(self, root: Node) -> dict[Node, int]:
        """The bytes of the shortest text of each node below `root`, where it has one: Knuth's generalisation of
        Dijkstra's algorithm, whose nodes are done in the order of their values.
        """
        parents: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        missing: dict[Node, int] = {}
        sums: dict[Node, int] = {}
        ready: list[tuple[int, Node]] = []
        self.seen, pending = {root}, [root]
        while pending:
            node = pending.pop()
            own, children, is_choice = self._parts(node)
            sums[node], missing[node] = own, 1 if is_choice else len(children)
            for child, times in children:
                parents[child].append((node, times))
                if child not in self.seen:
                    self.seen.add(child)
                    pending.append(child)
            if not children and not is_choice:
                heapq.heappush(ready, (own, node))
        done: dict[Node, int] = {}
        while ready:
            size, node = heapq.heappop(ready)
            if node in done:
                continue
            done[node] = size
            for parent, times in parents[node]:
                missing[parent] -= 1
                sums[parent] += size * times
                if missing[parent] == 0:
                    heapq.heappush(ready, (sums[parent], parent))
        return done

    def _parts(self, node: Node) -> tuple[int, list[tuple[Node, int]], bool]:
        """Bytes of its own, nodes below and how often each, and whether one of them is chosen."""
        kind, number = node
        if kind == "rule":
            return 0, [(("expression", self._bodies[number]), 1)], False
        start = self._starts[number]
        what, length = self._data[start : start + 2]
        parts = self._data[start + 2 : start + 2 + length]
        if what == RULE:
            return 0, [(("rule", parts[0]), 1)], False
        if what == REPEAT:
            return 0, [(("rule", parts[0]), parts[1])], False
        if what in (SEQUENCE, CHOICES):
            return 0, [(("expression", part), 1) for part in parts], what == CHOICES
        return (len(parts) if what == BYTES else 1 if what == CHARACTERS else 0), [], False
