"""The number of drafts: measured times and acceptance, the choice, and when they are measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from weft import Speculation
from weft.engine.scheduler.draft_lengths import HOLD, MEASURED, WARM_UP, DraftLengths, Survival
from weft.errors import InputError

DENSE = {0: 1.0, 1: 1.02, 2: 1.04, 3: 1.06, 5: 1.1, 8: 1.15}
"""Seconds of an iteration by number of drafts, where another token costs little."""

MIXTURE = {0: 1.0, 1: 1.8, 2: 2.5, 3: 3.1, 5: 4.2, 8: 5.4}
"""The same where each token reads experts of its own."""

ROWS = 8
ALL, NONE, TWO = (ROWS,) * 8, (0,) * 8, (ROWS, ROWS, *(0,) * 6)
SOME = (6, 4, 3, 2, 2, 1, 1, 1)
"""Of 8 rows, how many accept the first j drafts: entry j - 1."""


def lengths(num_draft_tokens: int | Mapping[int, int] = 8, max_batch: int = ROWS) -> DraftLengths:
    return DraftLengths(Speculation.ngram(num_draft_tokens=num_draft_tokens, adaptive=True), max_batch)


def drive(
    draft: DraftLengths,
    iterations: int,
    seconds: Mapping[int, float],
    survive: Sequence[int],
    rows: int = ROWS,
) -> list[int]:
    """Run iterations. Returns their numbers of drafts."""
    used = []
    for _ in range(iterations):
        number = draft.choose(rows)
        used.append(number)
        accepted = [sum(row < count for count in survive[:number]) for row in range(rows)]
        is_changed = draft.note(rows, number, seconds[number], accepted if number else [])
        assert is_changed == (draft.choose(rows) != number)
    return used


TRIALS = 6 * (MEASURED + WARM_UP)


@pytest.mark.parametrize(
    ("seconds", "survive", "best"),
    [
        (DENSE, ALL, 8),
        (MIXTURE, ALL, 8),  # 9 tokens in 5.4 s
        (DENSE, TWO, 2),
        (MIXTURE, TWO, 2),  # 3 tokens in 2.5 s
        (DENSE, SOME, 8),
        (MIXTURE, SOME, 0),  # 1.75 tokens in 1.8 s, 3.5 in 5.4 s
        (DENSE, NONE, 0),
        (MIXTURE, NONE, 0),
    ],
)
def test_the_number_with_most_tokens_per_second_is_kept(
    seconds: dict[int, float], survive: tuple[int, ...], best: int
) -> None:
    draft = lengths()
    assert draft.decision(ROWS) is None
    used = drive(draft, TRIALS + 50, seconds, survive)
    assert set(used[:TRIALS]) == set(seconds)
    assert set(used[TRIALS:]) == {best}
    assert draft.decision(ROWS) == best
    assert draft.costs(ROWS) == seconds


def test_first_iterations_and_slow_ones_do_not_count() -> None:
    """A capture takes long, and the first iteration after a change verifies the drafts of the one before."""
    draft, before, run = lengths(), -1, 0
    for i in range(TRIALS):
        number = draft.choose(1)
        before, run = number, run + 1 if number == before else 0
        is_strange = run < WARM_UP or i % 7 == 0
        draft.note(1, number, 100.0 if is_strange else DENSE[number], [] if run < WARM_UP else [number])
    assert draft.costs(1) == DENSE
    assert draft.decision(1) == 8


def test_the_neighbours_of_a_choice_are_measured_again() -> None:
    draft = lengths()
    drive(draft, TRIALS, MIXTURE, TWO)
    assert draft.decision(ROWS) == 2
    used = drive(draft, HOLD + 3 * (MEASURED + WARM_UP), MIXTURE, TWO)
    assert set(used[:HOLD]) == {2}
    assert set(used) == {1, 2, 3}
    assert draft.decision(ROWS) == 2
    drive(draft, 3 * (HOLD + 3 * (MEASURED + WARM_UP)), MIXTURE, NONE)  # the text is another
    assert draft.decision(ROWS) == 0
    drive(draft, 6 * (HOLD + 3 * (MEASURED + WARM_UP)), DENSE, ALL)
    assert draft.decision(ROWS) == 8


def test_each_batch_size_has_costs_and_a_limit_of_its_own() -> None:
    draft = lengths({1: 5, 4: 2}, max_batch=8)
    assert [draft.choose(rows) for rows in range(1, 9)] == [5, 5, 5, 2, 2, 2, 2, 2]
    for _ in range(TRIALS):
        draft.note(1, draft.choose(1), DENSE[draft.choose(1)], [5])
    assert draft.decision(1) == 5
    assert draft.decision(4) is None
    assert draft.costs(4) == {}
    assert draft.choose(0) == 0


def test_a_batch_size_forgets_only_what_it_learned() -> None:
    """Small batches measure again while large ones, in which drafts don't pay, end their hold."""
    draft = lengths()
    drive(draft, TRIALS, DENSE, ALL, rows=1)
    assert draft.decision(1) == 8
    drive(draft, HOLD + WARM_UP, DENSE, ALL, rows=1)
    assert draft.choose(1) == 5
    drive(draft, TRIALS + HOLD, MIXTURE, NONE)
    assert draft.decision(ROWS) is None
    drive(draft, MEASURED + WARM_UP, DENSE, ALL, rows=1)
    assert draft.decision(1) == 8


def test_no_number_is_tried_while_prompts_are_read() -> None:
    draft = lengths()
    numbers = set()
    for _ in range(TRIALS):
        numbers.add(draft.choose(ROWS))
        assert draft.choose(ROWS, reads_prompts=True) == 8  # nothing was chosen yet
        drive(draft, 1, MIXTURE, TWO)
    assert numbers == set(MIXTURE)
    for _ in range(2 * HOLD):  # in which 1 and 3 are tried
        assert draft.choose(ROWS, reads_prompts=True) == 2
        drive(draft, 1, MIXTURE, TWO)
    assert draft.choose(0, reads_prompts=True) == 0
    fixed = DraftLengths(Speculation.ngram(num_draft_tokens=3), ROWS)
    assert fixed.choose(ROWS, reads_prompts=True) == 3


def test_drafts_that_the_iteration_before_did_not_make_are_not_refused() -> None:
    """While a third draft is tried, every other iteration comes after one with prompts, which made two."""
    draft, seconds = lengths(), {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.2, 5: 3.0, 8: 5.0}
    drive(draft, TRIALS, seconds, TWO)
    drive(draft, HOLD + WARM_UP, seconds, TWO)
    assert draft.choose(ROWS) == 3
    for i in range(MEASURED + WARM_UP):
        if i % 2:
            draft.pass_over(2)
        drive(draft, 1, seconds, TWO if i % 2 else ALL)
    assert draft.choose(ROWS) == 1
    drive(draft, MEASURED + WARM_UP, seconds, ALL)
    assert draft.decision(ROWS) == 3


def test_iterations_of_other_numbers_do_not_count() -> None:
    draft = lengths()
    for _ in range(1000):
        assert not draft.note(1, 3, 0.1, [3])
    assert draft.costs(1) == {}


def test_without_adaptive_the_setting_holds() -> None:
    draft = DraftLengths(Speculation.ngram(num_draft_tokens={1: 5, 3: 2}), 4)
    assert [draft.choose(rows) for rows in range(5)] == [0, 5, 5, 2, 2]
    for _ in range(1000):
        assert not draft.note(1, 5, 1.0, [])
    assert draft.choose(1) == 5


def test_survival_is_of_rows_that_verified_so_many() -> None:
    survival = Survival(5)
    assert survival.tokens(3) == 1.0
    survival.note(4, 3, [3, 1, 0])  # a row had no drafts
    assert survival.tokens(1) == pytest.approx(1 + 2 / 4)
    assert survival.tokens(3) == pytest.approx(1 + 2 / 4 + 1 / 4 + 1 / 4)
    assert survival.tokens(5) == survival.tokens(3)
    for _ in range(2000):
        survival.note(2, 1, [1, 1])
    assert survival.tokens(1) == pytest.approx(2.0)
    assert survival.tokens(3) == pytest.approx(2.5)


def test_the_numbers_to_choose_from() -> None:
    assert Speculation.eagle3(num_draft_tokens=5, adaptive=True).draft_numbers(1) == (0, 1, 2, 3, 5)
    assert Speculation.eagle3(num_draft_tokens={1: 4, 8: 0}, adaptive=True).draft_numbers(8) == (0,)
    assert Speculation.eagle3(num_draft_tokens=4).draft_numbers(2) == (4,)
    then = Speculation.forced(Speculation.ngram(adaptive=True))
    assert then.adaptive
    assert Speculation.given(adaptive=True).draft_numbers(1)[-1] == 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: Speculation.ngram(adaptive=1),  # type: ignore[arg-type]
        lambda: replace(Speculation.none(), adaptive=True),
        lambda: replace(Speculation.lookahead(), adaptive=True),
    ],
)
def test_what_can_not_be_adaptive_is_refused(make: Any) -> None:
    with pytest.raises(InputError, match="adaptive"):
        make()
