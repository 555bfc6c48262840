"""A process that is paused for seconds, again and again, answers as one that is not: a pause is no guide's time. With
many more of them: `tools/pauses.py`."""

from __future__ import annotations

import pytest

from pauses import pause_at_random

PAUSES = 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["guides", "tools"])
def test_a_pause_ends_no_answer(kind: str) -> None:
    paused = pause_at_random(kind, PAUSES, seed=len(kind))
    assert paused.num_pauses == PAUSES and paused.num_answers > 0
    assert not paused.wrong
