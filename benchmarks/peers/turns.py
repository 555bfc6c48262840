"""Runs the engines in palindromic turns (A B B A), and computes the speeds of their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from .protocol import Answers

Name = TypeVar("Name")


@dataclass
class Round:
    """The two turns of an engine in a round."""

    tokens: int = 0
    seconds: float = 0.0
    user_speeds: list[float] = field(default_factory=list)
    turns: list[Answers] = field(default_factory=list)

    def add(self, turn: Answers) -> None:
        """Add the answers of a turn."""
        self.turns.append(turn)
        self.tokens += sum(answer.num_tokens for answer in turn.answers)
        self.seconds += turn.seconds
        for answer in turn.answers:
            if answer.num_tokens > 1 and answer.decode_s > 0:
                self.user_speeds.append((answer.num_tokens - 1) / answer.decode_s)

    @property
    def speed(self) -> float:
        """Tokens per second of all users together, from the first prompt to the last answer."""
        return self.tokens / self.seconds

    @property
    def user_speed(self) -> float:
        """Tokens per second of a single user after the first token, as the median over answers."""
        return median(self.user_speeds) if self.user_speeds else 0.0


def palindrome(names: Sequence[Name]) -> list[Name]:
    """Return the names in order, then in reverse order."""
    return [*names, *reversed(names)]


def take_turns(
    sides: Mapping[Name, Callable[[int], Answers]],
    rounds: int,
    failed: Callable[[Name, Exception], None],
    errors: type[Exception] = Exception,
    order: Callable[[Sequence[Name]], list[Name]] = palindrome,
) -> dict[Name, list[Round]]:
    """Let every engine answer each round, in palindromic or another order. If an engine raises one of `errors`, all
    of its rounds are dropped, and `failed` is called."""
    running = dict(sides)
    done: dict[Name, list[Round]] = {name: [] for name in running}
    for number in range(rounds):
        for rounds_of in done.values():
            rounds_of.append(Round())
        for name in order(list(running)):
            if name not in running:
                continue
            try:
                done[name][-1].add(running[name](number))
            except errors as error:
                failed(name, error)
                del running[name], done[name]
    return done


def paired_ratio(over: Iterable[float], under: Iterable[float]) -> float:
    """Return the median over rounds of the ratio of two speeds."""
    return median(a / b for a, b in zip(over, under, strict=True))
