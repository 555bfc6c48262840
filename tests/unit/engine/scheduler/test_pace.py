"""How many prompt tokens a step reads while other sequences decode."""

from __future__ import annotations

import pytest

from weft.engine.scheduler.pace import MIN_TOKENS, Pace

BUDGET = 2048


def measured(max_stall: float | None, token_s: float = 0.001) -> Pace:
    """A pace that knows steps of up to 4 sequences of 0.1 s, and the time of a prompt token."""
    pace = Pace(max_stall)
    for num_decoding in (1, 2, 4):
        pace.note(num_decoding, 0, 0, 0.1)
    pace.note(4, 0, 100, 0.1 + 100 * token_s)
    return pace


def test_a_step_takes_at_most_a_multiple_of_its_time_without_prompts() -> None:
    pace = measured(4.0)
    assert pace.max_tokens(3, 0, BUDGET) == pytest.approx(300, abs=1)  # 0.3 s of prompts beside 0.1 s
    assert pace.max_tokens(3, 0, 200) == 200
    assert measured(1.0).max_tokens(3, 0, BUDGET) == MIN_TOKENS
    assert measured(4.0, token_s=0.1).max_tokens(3, 0, BUDGET) == MIN_TOKENS


def test_without_a_bound_or_without_decoding_the_budget_is_all() -> None:
    assert measured(None).max_tokens(3, 0, BUDGET) == BUDGET
    assert measured(4.0).max_tokens(0, 0, BUDGET) == BUDGET


def test_a_size_that_was_not_measured_gets_a_step_without_prompts() -> None:
    pace = measured(4.0)
    assert pace.max_tokens(5, 0, BUDGET) == 0
    pace.note(5, 0, 0, 0.2)
    assert pace.max_tokens(8, 0, BUDGET) == pytest.approx(600, abs=1)


def test_a_step_with_more_drafts_is_measured_by_itself() -> None:
    pace = measured(4.0)
    assert pace.max_tokens(3, 5, BUDGET) == 0
    pace.note(3, 5, 0, 0.3)
    assert pace.max_tokens(3, 5, BUDGET) == pytest.approx(900, abs=1)
    assert pace.max_tokens(3, 0, BUDGET) == pytest.approx(300, abs=1)


def test_a_slow_step_changes_nothing() -> None:
    pace = measured(4.0)
    for _ in range(4):
        pace.note(4, 0, 0, 0.1)
        pace.note(4, 0, 100, 0.2)
    expected = pace.max_tokens(4, 0, BUDGET)
    pace.note(4, 0, 0, 60.0)
    pace.note(4, 0, 100, 60.0)
    assert pace.max_tokens(4, 0, BUDGET) == expected


def test_the_time_of_a_prompt_token_is_found_out_with_few() -> None:
    pace = Pace(4.0)
    pace.note(1, 0, 0, 0.1)
    assert pace.max_tokens(1, 0, BUDGET) == MIN_TOKENS
