"""Expands a goal, a conjunction of nodes, into alternatives without choices (a disjunctive normal form).

Some choices need no extra conditions, such as a `oneOf` with disjoint branches, or a negation that holds anyway. A
sketch can prove that. A sketch is a cheap over-approximation: it skips costly choices, so its alternatives have all
values of the goal and maybe others.
"""

from __future__ import annotations

from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.facts import Branch, Fork, needed_items, needed_properties
from weft.grammar.schema.late import decide, late_fork
from weft.grammar.schema.nodes import Node, NodeCache, TooMuch, key_of
from weft.grammar.schema.read import Reader

MAX_BRANCHES = (
    96  # alternatives of a goal; further choices stay an `anyOf` beside the branch (`Branch.unmade`)
)
MAX_SKETCHES = 16  # alternatives of a sketch; it skips further choices, and then proves less
MAX_SKETCH_DEPTH = (
    3  # how deep sketches look for required parts that can't exist; below, all parts count as possible
)
MAX_PAIRS = (
    400  # pairs of `oneOf` compared given the branch's facts, in one schema; others count as overlapping
)
MAX_COMPARED = (
    128  # branches of a `oneOf` compared in pairs; a longer one must list its values, else: `TooMuch`
)

Goal = list[Node]


class Alternatives:
    """Expands goals, with caches. Raises `TooMuch` if that takes too many steps, or a `oneOf` is too long."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open
        self._reader = Reader()
        self._sketches = NodeCache[list[Branch]]()
        self._void = NodeCache[bool]()
        self._pairs = 0
        self.narrows = False
        """Whether some expansion lost values: its alternatives accept fewer values than its goal."""

    def expand(self, goal: Goal) -> list[Branch]:
        """Expand a goal into its alternatives."""
        done: list[Branch] = []
        stack = [Branch(pending=list(goal))]
        while stack:
            branch = stack.pop()
            if not self._reader.settle(branch):
                continue
            fork = None if branch.is_choice else self._next(branch)
            if fork is None:
                done.append(branch)
                continue
            self.narrows |= fork.narrows
            choices = self.choices(branch, fork)
            if len(choices) > 1 and len(done) + len(stack) + len(choices) > MAX_BRANCHES:
                # Too many alternatives. Keep the choice as an `anyOf` beside the branch, which libraries may not
                # enforce.
                branch.unmade.append(choices)
                stack.append(branch)
                continue
            stack += branch.with_each(choices)
        return done

    def _sketched(self, start: Branch, depth: int = MAX_SKETCH_DEPTH) -> list[Branch]:
        """Expand `start` without its costly choices. The alternatives have all values of `start`, and maybe others."""
        done: list[Branch] = []
        stack = [start]
        while stack:
            branch = stack.pop()
            if not self._reader.settle(branch):
                continue
            forks = [fork for fork in branch.forks if not fork.exactly_one]
            fork = min(forks, key=lambda fork: len(fork.choices), default=None)
            if fork is None or len(done) + len(stack) + len(fork.choices) > MAX_SKETCHES:
                self._thin(branch, depth)
                done += [branch] if branch.types else []
                continue
            branch.forks = [other for other in forks if other is not fork]
            stack += branch.with_each(fork.choices)
        return done

    def _next(self, branch: Branch) -> Fork | None:
        """Take the next choice of a branch: the cheapest pending one, else a late one (`late.py`). None if there is
        none."""
        if branch.is_settled:
            return None
        if not branch.forks:
            fork = (
                decide(branch, lambda goal: self._is_void(goal, MAX_SKETCH_DEPTH)) if branch.residue else None
            )
            return fork or late_fork(branch, self._is_open, self._negative)
        fork = min(branch.forks, key=lambda fork: (fork.exactly_one, len(fork.choices)))
        branch.forks = [other for other in branch.forks if other is not fork]
        return fork

    def choices(self, branch: Branch, fork: Fork) -> list[list[Node]]:
        """The alternatives of a fork, each as a list of nodes that must all hold."""
        if fork.denied is not None and not branch.is_blank:
            return self._denials(branch, fork.denied, fork.choices)
        if not fork.exactly_one:
            return fork.choices
        nodes = [choice[0] for choice in fork.choices]
        if len(nodes) > MAX_COMPARED:
            return self._listed_apart(nodes)
        # Exactly one: each node with the negations of all others, except of those that are disjoint from it anyway.
        exclusive = []
        for i, node in enumerate(nodes):
            others = [
                other
                for j, other in enumerate(nodes)
                if j != i and not self._are_disjoint(branch, node, other)
            ]
            exclusive.append([node, *(self._negative(other) for other in others)])
        return exclusive

    def _listed_apart(self, nodes: list[Node]) -> list[list[Node]]:
        """Check that all nodes are enumerations without common values, so that the `oneOf` is an `anyOf`. Raises
        `TooMuch` if not."""
        seen: set[str] = set()
        for node in nodes:
            for branch in self._sketch(node) if isinstance(node, dict) else [Branch()] if node else []:
                keys = set(map(key_of, branch.values)) if branch.values is not None else None
                if keys is None or seen & keys:
                    raise TooMuch("a oneOf of too many schemas")
                seen |= keys
        return [[node] for node in nodes]

    def _denials(self, branch: Branch, node: Node, choices: list[list[Node]]) -> list[list[Node]]:
        """The alternatives for the negation of `node`. For types for which the node can't hold anyway, one alternative
        without conditions is enough."""
        # Find the types for which the node may hold, given the branch's facts.
        start = branch.facts([node])
        start.refused = {}  # otherwise the sketch would fail at once, because `node` is in `refused` here
        possible = {name for other in self._sketched(start) for name in other.types}
        free = tuple(name for name in branch.types if name not in possible)
        if not free:
            return choices
        denied_types = tuple(name for name in branch.types if name in possible)
        if not denied_types:
            return [[]]
        of_type: Node = {"type": denied_types}
        return [[{"type": free}], *([of_type, *choice] for choice in choices)]

    def _negative(self, node: Node) -> Node:
        if isinstance(node, bool):
            return not node
        return self._reader.make("not", node, made=lambda: {"not": node})

    def _are_disjoint(self, branch: Branch, first: Node, second: Node) -> bool:
        if first is False or second is False:
            return True
        if isinstance(first, bool) or isinstance(second, bool):
            return False
        first_sketch, second_sketch = self._sketch(first), self._sketch(second)
        if all(disjoint(a, b) for a in first_sketch for b in second_sketch):
            return True
        # The two may be disjoint given the branch's own facts. This check costs more, so only few pairs are tried.
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            return False
        return not self._sketched(branch.facts([first, second]))

    def _thin(self, branch: Branch, depth: int) -> None:
        """Drop the type object or array if a required property or item can't exist."""
        if depth == 0 or branch.values is not None:
            return
        goals = {"object": needed_properties(branch.objects), "array": needed_items(branch.arrays)}
        for name, parts in goals.items():
            if name in branch.types and any(self._is_void(part, depth - 1) for part in parts):
                branch.types = tuple(other for other in branch.types if other != name)

    def _is_void(self, goal: Goal, depth: int) -> bool:
        """Whether it is certain that no value satisfies a goal."""
        if False in goal or len(goal) < 2:
            return False in goal
        # The key has no depth: a verdict of a shallower look is kept, and only proves less.
        return self._void.get(goal, lambda: not self._sketched(Branch(pending=list(goal)), depth))

    def _sketch(self, node: Node) -> list[Branch]:
        """The sketch of one node, cached."""
        return self._sketches.get([node], lambda: self._sketched(Branch(pending=[node])))


def disjoint(first: Branch, second: Branch) -> bool:
    """Whether the facts of two branches prove that no value is in both."""
    types = set(first.types) & set(second.types)
    if not types:
        return True
    if first.values is not None and second.values is not None:
        return not {key_of(value) for value in first.values} & {key_of(value) for value in second.values}
    for listing, other in ((first, second), (second, first)):
        if listing.values is not None:
            return all(
                any(holds(value, node) is False for node in other.read.values()) for value in listing.values
            )
    return types == {"object"} and _objects_disjoint(first, second)


def _objects_disjoint(first: Branch, second: Branch) -> bool:
    """Whether some required property has no value that both branches allow."""
    return any(
        _exclude(_property_nodes(first, name), _property_nodes(second, name))
        for name in {**first.objects.required, **second.objects.required}
    )


def _property_nodes(branch: Branch, name: str) -> list[Node]:
    """The nodes that a property must satisfy, as far as they are known. False if the object can't have it."""
    nodes: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            nodes.append(layer.first[name])
        elif layer.rest is False and not layer.patterns:
            nodes.append(False)
    return nodes


def _exclude(first: list[Node], second: list[Node]) -> bool:
    """Whether enumerations or types prove that a node of one list is disjoint from a node of the other."""
    if False in first or False in second:
        return True
    for node in first:
        for other in second:
            if isinstance(node, dict) and isinstance(other, dict):
                if "enum" in node and all(holds(value, other) is False for value in node["enum"]):
                    return True
                if "enum" in other and all(holds(value, node) is False for value in other["enum"]):
                    return True
                if "type" in node and "type" in other and not _types(node) & _types(other):
                    return True
    return False


def _types(node: dict[str, object]) -> set[object]:
    names = node["type"]
    assert isinstance(names, tuple)
    return {"number" if name == "integer" else name for name in names}
