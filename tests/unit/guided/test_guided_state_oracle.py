"""Many iterations of `GuidedState`, every mask compared with an oracle's (`state_fuzz.py`): matchers native and in
Python, drafts guided and not.
"""

from __future__ import annotations

import pytest

from support.grammar.grammars import compiled, some_guides
from support.grammar.state_fuzz import Decoding
from support.products import rest_slow


@rest_slow
@pytest.mark.parametrize("guided_drafts", [False, True])
@pytest.mark.parametrize(("max_drafts", "iterations"), [(0, 400), (1, 400), (3, 500), (8, 300)])
def test_every_mask_is_the_oracles(max_drafts: int, iterations: int, guided_drafts: bool) -> None:
    ways = [
        [compiled(guide, native=native) for native in (False, True, True, True, True)]
        for guide in some_guides()
    ]
    decoding = Decoding(ways, max_drafts, guided_drafts, seed=max_drafts * 2 + guided_drafts)
    for _ in range(iterations):
        decoding.iterate()
    assert decoding.state.num_failed == 0
    assert decoding.state.num_pending == 0
    assert decoding.state.epoch == iterations
