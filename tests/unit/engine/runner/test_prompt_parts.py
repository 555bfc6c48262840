"""Which parts of prompts are read together."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
from weft.engine.runner.prefill import guarded, pack_parts

from weft.engine.runner.in_flight import PromptInputs


def prompt(slot: int, length: int, first: int = 0) -> PromptInputs:
    numbers: Any = SimpleNamespace()
    return PromptInputs((slot,), np.arange(length), (), numbers, first)


def spans(
    shares: list[tuple[PromptInputs, int]], num_tokens: int, num_rows: int
) -> list[list[tuple[int, int, int]]]:
    return [
        [(part.prompt.slot, part.start, part.stop) for part in together]
        for together in pack_parts(shares, num_tokens, num_rows)
    ]


def test_a_forward_is_filled_before_the_next_one() -> None:
    shares = [(prompt(0, 5), 5), (prompt(1, 20, 3), 12), (prompt(2, 2), 2)]
    assert spans(shares, 8, 4) == [[(0, 0, 5), (1, 3, 6)], [(1, 6, 14)], [(1, 14, 15), (2, 0, 2)]]
    assert spans(shares, 8, 1) == [[(0, 0, 5)], [(1, 3, 11)], [(1, 11, 15)], [(2, 0, 2)]]
    assert spans(shares, 100, 4) == [[(0, 0, 5), (1, 3, 15), (2, 0, 2)]]
    assert spans([], 8, 4) == []


def test_every_token_is_read_once_and_in_order() -> None:
    rng = random.Random(0)
    for _ in range(300):
        rows = [prompt(slot, rng.randint(1, 40)) for slot in range(rng.randint(1, 6))]
        shares = [(row, rng.randint(1, row.length)) for row in rows]
        num_tokens, num_rows = rng.randint(1, 30), rng.randint(1, 6)
        at = dict.fromkeys(range(len(rows)), 0)
        for together in spans(shares, num_tokens, num_rows):
            assert 0 < len(together) <= num_rows and len({slot for slot, _, _ in together}) == len(together)
            assert sum(stop - start for _, start, stop in together) <= num_tokens
            for slot, start, stop in together:
                assert start == at[slot] < stop
                at[slot] = stop
        assert at == {row.slot: count for row, count in shares}


def test_a_part_ends_its_prompt_with_the_last_token() -> None:
    (first,), (last,) = pack_parts([(prompt(0, 6), 6)], 4, 1)
    assert (first.ends, last.ends, first.count, last.count) == (False, True, 4, 2)


def test_what_is_raised_is_the_error_of_the_rows_that_had_none() -> None:
    rows = [prompt(0, 1), prompt(1, 1)]
    earlier, planted = ValueError("earlier"), ValueError("planted")
    rows[0].error = earlier

    def fail() -> None:
        raise planted

    guarded(rows, fail)
    assert [row.error for row in rows] == [earlier, planted]
    guarded(rows, lambda: rows.clear())  # all have failed: it is not called
    assert len(rows) == 2
