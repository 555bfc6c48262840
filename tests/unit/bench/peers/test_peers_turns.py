"""Turns, and the figures of their rounds."""

from __future__ import annotations

import pytest

from peers.protocol import Answer, Answers
from peers.turns import Round, paired_ratio, palindrome, take_turns


def answers(seconds: float, *counts: int, decode_s: float = 1.0) -> Answers:
    return Answers(seconds, [Answer(count, "", decode_s, True) for count in counts])


def test_a_round_counts_both_of_its_turns() -> None:
    one = Round()
    one.add(answers(2.0, 11, 21, decode_s=2.0))
    one.add(answers(4.0, 31, 1, decode_s=2.0))
    assert one.tokens == 64 and one.speed == 64 / 6
    assert one.user_speed == 10.0  # of 5, 10 and 15; an answer of one token has no speed


def test_turns_are_a_palindrome_in_every_round() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str) -> object:
        def answer(number: int) -> Answers:
            order.append((name, number))
            return answers(1.0, 2)

        return answer

    done = take_turns({name: side(name) for name in "abc"}, 2, lambda *_: None)  # type: ignore[misc]
    assert order == [(name, number) for number in range(2) for name in "abccba"]
    assert {name: len(rounds) for name, rounds in done.items()} == {"a": 2, "b": 2, "c": 2}
    assert all(len(each.turns) == 2 for rounds in done.values() for each in rounds)
    assert palindrome([1, 2]) == [1, 2, 2, 1]


def test_who_fails_is_out_and_the_others_go_on() -> None:
    failed: list[str] = []

    def bad(number: int) -> Answers:
        if number == 1:
            raise KeyError("broken")
        return answers(1.0, 2)

    sides = {"good": lambda _: answers(1.0, 2), "bad": bad}
    done = take_turns(sides, 3, lambda name, error: failed.append(f"{name} {error!r}"))
    assert failed == ["bad KeyError('broken')"]
    assert list(done) == ["good"] and len(done["good"]) == 3
    with pytest.raises(KeyError):
        take_turns(sides, 3, lambda *_: None, errors=OSError)


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that becomes slower changes both sides alike."""
    assert paired_ratio([100.0, 10.0, 1.0], [50.0, 5.0, 0.25]) == 2.0
    with pytest.raises(ValueError, match="longer"):
        paired_ratio([1.0], [1.0, 2.0])
