"""Which parts of prompts are read together, and the inputs of the iteration that reads them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np

from weft.engine.device.state import ContextInputs
from weft.engine.runner.in_flight import PromptInputs
from weft.engine.runner.prompts import PromptPart, guarded, pack_parts, write_inputs


def prompt(slot: int, length: int, first: int = 0) -> PromptInputs:
    numbers: Any = SimpleNamespace()
    return PromptInputs((slot,), np.arange(length), (), numbers, first)


def spans(
    shares: list[tuple[PromptInputs, int]], num_tokens: int, num_parts: int
) -> list[list[tuple[int, int, int]]]:
    parts = [PromptPart(prompt, prompt.position, prompt.position + count) for prompt, count in shares]
    return [
        [(part.prompt.slot, part.start, part.stop) for part in together]
        for together in pack_parts(parts, num_tokens, num_parts)
    ]


def test_an_iteration_is_filled_before_the_next_one() -> None:
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


def test_the_last_part_ends_before_the_prompts_last_token() -> None:
    (first,), (last,) = pack_parts([PromptPart(prompt(0, 7), 0, 6)], 4, 1)
    assert (first.is_last, last.is_last, first.count, last.count) == (False, True, 4, 2)


def test_inputs_hold_rows_then_parts() -> None:
    """The example of `write_inputs`."""
    inputs = ContextInputs.on_host((4, 3, 12))
    p, q = prompt(3, 8, 4), prompt(5, 20)
    write_inputs(inputs, [7, 3], [PromptPart(p, 4, 7), PromptPart(q, 0, 3)], 2, 9)
    assert [live.item() for live in (inputs.live_N, inputs.live_BT, inputs.live_B)] == [10, 4, 2]
    assert inputs.slots.tolist() == [7, 3, 9, 9, 3, 5, 9]
    assert inputs.base[4:].tolist() == [4, 0, 0] and inputs.first_R.tolist() == [4, 0, 0]
    assert inputs.starts.tolist() == [0, 2, 4, 4, 4, 7, 10, 10]
    assert inputs.tokens_N[4:10].tolist() == [4, 5, 6, 0, 1, 2]
    assert inputs.after_N[4:10].tolist() == [5, 6, 7, 1, 2, 3]
    assert (inputs.tokens_N.ctypes.data - inputs.data.ctypes.data) % 16 == 0


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
