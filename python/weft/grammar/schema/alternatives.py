"""The alternatives of nodes that hold together: every choice is made, in all ways.

Where branches of a `oneOf` exclude each other, or where what is denied can't be anyway, nothing needs to be said of it.
A sketch tells: alternatives without the costly choices, which have all values and maybe more.
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
    """Makes choices, and remembers what it found. Raises `TooMuch` where they are too many."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open
        self._reader = Reader()
        self._sketches: dict[int, list[Branch]] = {}
        self._void: dict[frozenset[int], bool] = {}
        self._kept: list[Goal] = []  # so that no other node gets the identity of one that is remembered
        self._pairs = 0
        self.narrows = False
        """Whether some values that satisfy a goal are in none of its alternatives."""

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
                branch.kept.append(choices)
                stack.append(branch)
                continue
            stack += branch.with_each(choices)
        return done

    def _sketched(self, start: Branch, depth: int = MAX_SKETCH_DEPTH) -> list[Branch]:
        """Alternatives that have all values of `start`, and maybe others: some choices are not looked at."""
        done: list[Branch] = []
        stack = [start]
        while stack:
            branch = stack.pop()
            if not self._reader.settle(branch):
                continue
            forks = [fork for fork in branch.forks if not fork.is_one]
            fork = min(forks, key=lambda fork: len(fork.choices), default=None)
            if fork is None or len(done) + len(stack) + len(fork.choices) > MAX_SKETCHES:
                self._thin(branch, depth)
                done += [branch] if branch.types else []
                continue
            branch.forks = [other for other in forks if other is not fork]
            stack += branch.with_each(fork.choices)
        return done

    def _next(self, branch: Branch) -> Fork | None:
        if branch.is_settled:
            return None
        if not branch.forks:
            fork = (
                decide(branch, lambda goal: self._is_void(goal, MAX_SKETCH_DEPTH)) if branch.residue else None
            )
            return fork or late_fork(branch, self._is_open, self._negative)
        fork = min(branch.forks, key=lambda fork: (fork.is_one, len(fork.choices)))
        branch.forks = [other for other in branch.forks if other is not fork]
        return fork

    def choices(self, branch: Branch, fork: Fork) -> list[list[Node]]:
        """A fork's alternatives, each as what holds in it."""
        if fork.denied is not None and not branch.is_blank:
            return self._denials(branch, fork.denied, fork.choices)
        if not fork.is_one:
            return fork.choices
        nodes = [choice[0] for choice in fork.choices]
        if len(nodes) > MAX_COMPARED:
            return self._listed_apart(nodes)
        found = []
        for i, node in enumerate(nodes):
            others = [
                other for j, other in enumerate(nodes) if j != i and not self._are_apart(branch, node, other)
            ]
            found.append([node, *(self._negative(other) for other in others)])
        return found

    def _listed_apart(self, nodes: list[Node]) -> list[list[Node]]:
        """Alternatives that list values, each in one of them only. Raises `TooMuch` where they are others."""
        seen: set[str] = set()
        for node in nodes:
            for branch in self._sketch(node) if isinstance(node, dict) else [Branch()] if node else []:
                keys = set(map(key_of, branch.values)) if branch.values is not None else None
                if keys is None or seen & keys:
                    raise TooMuch("a oneOf of too many schemas")
                seen |= keys
        return [[node] for node in nodes]

    def _denials(self, branch: Branch, node: Node, choices: list[list[Node]]) -> list[list[Node]]:
        """Alternatives to a node, which are left out for the types of values for which it can't hold anyway."""
        start = branch.facts([node])
        start.refused = {}
        taken = {name for other in self._sketched(start) for name in other.types}
        free = tuple(name for name in branch.types if name not in taken)
        if not free:
            return choices
        kept = tuple(name for name in branch.types if name in taken)
        if not kept:
            return [[]]
        held: Node = {"type": kept}
        return [[{"type": free}], *([held, *choice] for choice in choices)]

    def _negative(self, node: Node) -> Node:
        if isinstance(node, bool):
            return not node
        return self._reader.make("not", node, made=lambda: {"not": node})

    def _are_apart(self, branch: Branch, one: Node, other: Node) -> bool:
        if one is False or other is False:
            return True
        if isinstance(one, bool) or isinstance(other, bool):
            return False
        ones, others = self._sketch(one), self._sketch(other)
        if all(apart(a, b) for a in ones for b in others):
            return True
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            return False
        return not self._sketched(branch.facts([one, other]))

    def _thin(self, branch: Branch, depth: int) -> None:
        """Drops objects and arrays of which a part can't be."""
        if depth == 0 or branch.values is not None:
            return
        goals = {"object": needed_properties(branch.objects), "array": needed_items(branch.arrays)}
        for name, parts in goals.items():
            if name in branch.types and any(self._is_void(part, depth - 1) for part in parts):
                branch.types = tuple(other for other in branch.types if other != name)

    def _is_void(self, goal: Goal, depth: int) -> bool:
        """Whether certainly no value satisfies all of these."""
        if False in goal or len(goal) < 2:
            return False in goal
        key = frozenset(map(id, goal))
        if key not in self._void:
            self._kept.append(goal)
            self._void[key] = not self._sketched(Branch(pending=list(goal)), depth)
        return self._void[key]

    def _sketch(self, node: Node) -> list[Branch]:
        """The alternatives of one node alone."""
        if id(node) not in self._sketches:
            self._sketches[id(node)] = self._sketched(Branch(pending=[node]))
        return self._sketches[id(node)]


def apart(one: Branch, other: Branch) -> bool:
    """Whether no value is of both."""
    types = set(one.types) & set(other.types)
    if not types:
        return True
    if one.values is not None and other.values is not None:
        return not {key_of(value) for value in one.values} & {key_of(value) for value in other.values}
    for listed, free in ((one, other), (other, one)):
        if listed.values is not None:
            return all(
                any(holds(value, node) is False for node in free.read.values()) for value in listed.values
            )
    return types == {"object"} and _objects_apart(one, other)


def _objects_apart(one: Branch, other: Branch) -> bool:
    """A property that one needs and the other can't have, or that has other values in each."""
    return any(
        _differ(_of(one, name), _of(other, name))
        for name in {**one.objects.required, **other.objects.required}
    )


def _of(branch: Branch, name: str) -> list[Node]:
    found: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            found.append(layer.first[name])
        elif layer.rest is False and not layer.patterns:
            found.append(False)
    return found


def _differ(ones: list[Node], others: list[Node]) -> bool:
    if False in ones or False in others:
        return True
    for one in ones:
        for other in others:
            if isinstance(one, dict) and isinstance(other, dict):
                if "enum" in one and all(holds(value, other) is False for value in one["enum"]):
                    return True
                if "enum" in other and all(holds(value, one) is False for value in other["enum"]):
                    return True
                if "type" in one and "type" in other and not _types(one) & _types(other):
                    return True
    return False


def _types(node: dict[str, object]) -> set[object]:
    names = node["type"]
    assert isinstance(names, tuple)
    return {"number" if name == "integer" else name for name in names}
