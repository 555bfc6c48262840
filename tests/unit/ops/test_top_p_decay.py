"""Top-p that decays, by slot on the CPU: a function of the tokens before a position, committed or drafted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kernels.row_draws import top_p_after
from support.kernels.rows import rows_params
from support.kernels.slots import pick_drafts
from weft import SamplingParams
from weft.engine.device.sampling import SlotSampling
from weft.ops.slots import SlotParams, advance_slots_, sample_slots_
from weft.runtime import CpuRuntime

VOCAB = 50
ONE = torch.zeros(1, dtype=torch.int64)


def a_slot(answer: list[int] | None = None, **given: object) -> SlotParams:
    """Slot 0, of a request that has said `answer`."""
    params = rows_params(1, VOCAB)
    asked = SamplingParams(temperature=1.0, **given)  # type: ignore[arg-type]
    sampling = SlotSampling(CpuRuntime(), asked, [1, 2], VOCAB, answer=answer or (), seed=5)
    params.records[0] = torch.from_numpy(sampling.record)
    return params


def commit(params: SlotParams, tokens: list[int]) -> None:
    """Accept all of them but the last, which follows them."""
    width = len(tokens)
    verified = torch.zeros(2, width + 1, dtype=torch.int64)
    one = torch.zeros(2, dtype=torch.int64)
    moved = (
        verified,
        one,
        one.clone(),
        one.clone(),
        torch.zeros(width, 2, dtype=torch.int64),
        verified.clone(),
    )
    drawn = torch.tensor([tokens])
    inputs = torch.tensor([[0, *tokens[:-1]]])
    advance_slots_(drawn, ONE, ONE, inputs, ONE.clone(), drawn.clone(), moved, params)


def test_by_hand() -> None:
    params = a_slot(top_p=0.8, top_p_decay=0.5, top_p_min=0.15, top_p_reset_ids=7)
    seen = []
    for tokens in ([3], [4, 5], [7], [1], [7, 2], [3, 3, 7]):
        commit(params, tokens)
        seen.append(round(float(params.top_p[0]), 4))
    assert seen == [0.4, 0.15, 0.8, 0.4, 0.4, 0.8]


def test_a_least_above_the_first_raises_it() -> None:
    params = a_slot(top_p=0.3, top_p_min=0.6)
    commit(params, [3])
    assert float(params.top_p[0]) == pytest.approx(0.6)


def test_by_default_it_stays() -> None:
    params = a_slot(top_p=1e-7, top_p_reset_ids=3)
    commit(params, [3, 4])
    assert float(params.top_p[0]) == pytest.approx(1e-7)


def test_nothing_is_no_token() -> None:
    params = a_slot(top_p=0.8, top_p_decay=0.5)
    commit(params, [-1])
    assert float(params.top_p[0]) == pytest.approx(0.8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=9), st.floats(0.1, 1), st.floats(1e-6, 1), st.integers(0, 5))
def test_a_request_that_goes_on_has_what_it_had(
    answer: list[int], decay: float, least: float, reset: int
) -> None:
    rule = {"top_p": 0.9, "top_p_decay": decay, "top_p_min": least, "top_p_reset_ids": reset}
    whole, again = a_slot(**rule), a_slot(answer, **rule)
    expected = top_p_after(float(whole.top_p[0]), whole, 0, answer)
    for token in answer:
        commit(whole, [token])
    assert float(whole.top_p[0]) == float(again.top_p[0]) == expected


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_the_same_tokens_whatever_is_drafted(num_drafts: int) -> None:
    """What a position draws is a function of its logits and the text, not of how many positions are looked at."""
    logits_V = torch.randn(200, VOCAB, generator=torch.Generator().manual_seed(1))
    rule = {"top_p": 0.97, "top_p_decay": 0.6, "top_p_min": 0.2, "top_p_reset_ids": 7}

    def text(drafts_of: int) -> list[int]:
        params, said = a_slot(**rule), list[int]()
        while len(said) < 60:
            at = len(said)
            known = plain[at : at + drafts_of] if drafts_of else []
            rows = logits_V[at : at + len(known) + 1].clone()
            inputs = torch.tensor([[0, *known]])
            drawn = sample_slots_(rows, ONE, ONE + 1 + at, inputs, params).tolist()
            right = next((k for k, draft in enumerate(known) if draft != drawn[k]), len(known))
            commit(params, drawn[: right + 1])
            said += drawn[: right + 1]
        return said[:60]

    plain: list[int] = []
    plain = text(0) + [-1] * 9
    assert 7 in plain
    assert text(num_drafts) == plain[:60]
    without = sample_slots_(logits_V[:60].clone(), ONE, ONE + 1, torch.full((1, 60), -1), a_slot(top_p=0.97))
    assert without.tolist() != plain[:60]


def test_drafts_are_drawn_as_their_targets_will_be() -> None:
    params = a_slot(top_p=0.9, top_p_decay=0.1, top_p_min=0.01)
    params.max_drafts[:] = 3
    drafts = torch.full((3, 2), -1)
    for number in (1, 2, 3):
        logits = torch.linspace(0, 3, VOCAB)[None]
        expected = sample_slots_(
            logits.expand(number, VOCAB).clone(),
            ONE,
            ONE + 2,
            torch.tensor([[0, *drafts[: number - 1, 0]]]),
            params,
        )[-1:]
        drawn = pick_drafts(logits.clone(), ONE, ONE + 1, ONE, drafts, number, params)
        assert drawn.tolist() == expected.tolist()
