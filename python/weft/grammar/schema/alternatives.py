"""The alternatives of nodes that hold together: every choice is made, in all ways.

Some choices need no conditions: a `oneOf` whose branches exclude each other, and a negation that holds anyway. A
sketch shows that. It is a cheap superset: alternatives that skip the costly choices, and so have all values and maybe
more.
"""

from __future__ import annotations

from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.facts import Branch, Fork, needed_items, needed_properties
from weft.grammar.schema.late import decide, late_fork
from weft.grammar.schema.nodes import Node, TooMuch, key_of
from weft.grammar.schema.read import Reader

MAX_BRANCHES = 96
MAX_SKETCHES = 16
MAX_SKETCH_DEPTH = 3
MAX_PAIRS = 400
MAX_COMPARED = 128

Goal = list[Node]


class Alternatives:
    """Makes choices, with caches. Raises `TooMuch` where the alternatives are too many."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open
        self._reader = Reader()
        self._sketches: dict[int, list[Branch]] = {}
        self._void: dict[frozenset[int], bool] = {}
        self._kept: list[Goal] = []  # keeps nodes alive whose identities are keys of the caches
        self._pairs = 0
        self.narrows = False
        """Whether some values of a goal are in none of its alternatives."""

    def expand(self, goal: Goal) -> list[Branch]:
        """The alternatives of a goal."""
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
                # Too many: the choice is written as an anyOf beside the branch, which libraries may not enforce.
                branch.unmade.append(choices)
                stack.append(branch)
                continue
            stack += branch.with_each(choices)
        return done

    def _sketched(self, start: Branch, depth: int = MAX_SKETCH_DEPTH) -> list[Branch]:
        """Alternatives that have all values of `start`, and maybe others: costly choices are skipped."""
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
        """The next choice of a branch, or None: the cheapest pending one, then those that show late."""
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
        """The alternatives of a fork, each as the nodes that hold in it."""
        if fork.denied is not None and not branch.is_blank:
            return self._denials(branch, fork.denied, fork.choices)
        if not fork.exactly_one:
            return fork.choices
        nodes = [choice[0] for choice in fork.choices]
        if len(nodes) > MAX_COMPARED:
            return self._listed_apart(nodes)
        # Exactly one: each node with the negations of all others, except those that it excludes anyway.
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
        """Alternatives that list values, each value in one of them only. Raises `TooMuch` for other alternatives."""
        seen: set[str] = set()
        for node in nodes:
            for branch in self._sketch(node) if isinstance(node, dict) else [Branch()] if node else []:
                keys = set(map(key_of, branch.values)) if branch.values is not None else None
                if keys is None or seen & keys:
                    raise TooMuch("a oneOf of too many schemas")
                seen |= keys
        return [[node] for node in nodes]

    def _denials(self, branch: Branch, node: Node, choices: list[list[Node]]) -> list[list[Node]]:
        """Alternatives to a node, left out for types of values for which the node can't hold anyway."""
        # The types for which the node may hold, together with the branch's facts.
        start = branch.facts([node])
        start.refused = {}  # or else the node, which must not hold here, would end the sketch
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
        # Together with the branch's own facts the two may exclude each other. Trying costs more, so few pairs are
        # tried.
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            return False
        return not self._sketched(branch.facts([first, second]))

    def _thin(self, branch: Branch, depth: int) -> None:
        """Drop the types object and array where a required part can't exist."""
        if depth == 0 or branch.values is not None:
            return
        goals = {"object": needed_properties(branch.objects), "array": needed_items(branch.arrays)}
        for name, parts in goals.items():
            if name in branch.types and any(self._is_void(part, depth - 1) for part in parts):
                branch.types = tuple(other for other in branch.types if other != name)

    def _is_void(self, goal: Goal, depth: int) -> bool:
        """Whether certainly no value satisfies all nodes of a goal."""
        if False in goal or len(goal) < 2:
            return False in goal
        key = frozenset(map(id, goal))
        if key not in self._void:
            self._kept.append(goal)
            self._void[key] = not self._sketched(Branch(pending=list(goal)), depth)
        return self._void[key]

    def _sketch(self, node: Node) -> list[Branch]:
        """The sketched alternatives of one node alone."""
        if id(node) not in self._sketches:
            self._sketches[id(node)] = self._sketched(Branch(pending=[node]))
        return self._sketches[id(node)]


def disjoint(first: Branch, second: Branch) -> bool:
    """Whether certainly no value is in both branches, by the facts that were read."""
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
    """Whether a required property of either branch can't have a value that both allow."""
    return any(
        _exclude(_property_nodes(first, name), _property_nodes(second, name))
        for name in {**first.objects.required, **second.objects.required}
    )


def _property_nodes(branch: Branch, name: str) -> list[Node]:
    """Nodes that a property certainly satisfies; False for one that the object can't have."""
    nodes: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            nodes.append(layer.first[name])
        elif layer.rest is False and not layer.patterns:
            nodes.append(False)
    return nodes


def _exclude(first: list[Node], second: list[Node]) -> bool:
    """Whether some node of one list excludes a node of the other, as far as enumerations and types show."""
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
