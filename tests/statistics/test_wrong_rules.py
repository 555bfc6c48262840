"""The test of whole outputs finds rules that are wrong: each of these is refused beyond any doubt.

And what drafts are drawn with does not matter to the rule that is right.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.statistics.chi_square import CHANCE, least_p_value
from support.statistics.exact_outputs import distribution
from support.statistics.many_requests import ManyRequests
from support.statistics.small_world import Case, case, good_draft_model
from weft.engine.device.state import SlotState, StepBuffers, Verify, verify_coupled
from weft.engine.runner import step
from weft.ops.slots import SlotParams, advance_slots_, sample_slots_

pytestmark = pytest.mark.slow

SAMPLES = 40_000
SLOTS = 800
REFUSED = 1e-12
WARM = case()
K = 3


def p_of(many: ManyRequests, what: Case = WARM) -> float:
    samples = many.sample(SAMPLES, first_seed=77 << 20)
    many.close()
    return least_p_value(samples.counts(0), distribution(what))


def drafting(verify: Verify = verify_coupled) -> ManyRequests:
    return ManyRequests([WARM], SLOTS, good_draft_model, K, verify=verify)


def count_leading(right_BK: Tensor, tokens_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """How many leading drafts are `right_BK`; they are committed, whatever the target's tokens are."""
    right_BK = right_BK & (drafts_BK >= 0)
    count_B = right_BK.cumprod(1).sum(1)
    kept_BK = torch.arange(K) < count_B[:, None]
    tokens_BT[:, :K] = torch.where(kept_BK, drafts_BK, tokens_BT[:, :K])
    return count_B


def first_always(_: Tensor, tokens_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """The first draft is right, whatever it is."""
    right_BK = tokens_BT[:, :K] == drafts_BK
    right_BK[:, 0] = True
    return count_leading(right_BK, tokens_BT, drafts_BK)


def likely_enough(shares_BTV: Tensor, tokens_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """A draft is right that the target gives a fifth of its probability."""
    shares_BK = shares_BTV[:, :K].gather(2, drafts_BK.clamp(min=0)[..., None])[..., 0]
    return count_leading(shares_BK > 0.2, tokens_BT, drafts_BK)


def target_best(shares_BTV: Tensor, tokens_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """A draft is right that is the target's most likely token."""
    return count_leading(shares_BTV[:, :K].argmax(2) == drafts_BK, tokens_BT, drafts_BK)


def by_chance(shares_BTV: Tensor, tokens_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """A draft is right with the target's probability of it; the token behind a wrong one is the target's own.

    The rule of rejection sampling without what makes it exact: the drafter's probability, and the remainder.
    """
    shares_BK = shares_BTV[:, :K].gather(2, drafts_BK.clamp(min=0)[..., None])[..., 0]
    return count_leading(torch.rand_like(shares_BK) < shares_BK, tokens_BT, drafts_BK)


def most_likely_drafts(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    count: Tensor,
    drafts: Tensor,
    number: int,
    *rest: object,
    out: Tensor,
    drafts_host: Tensor,
) -> None:
    """In the place of `pick_drafts_`: drafts without noise."""
    torch.argmax(logits, 1, out=out)
    for each in (drafts, drafts_host):
        each[number - 1].index_copy_(0, slot, out)


Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    ("rule", "shared_noise"),
    [
        (first_always, True),
        (first_always, False),
        (likely_enough, True),
        (target_best, False),
        (by_chance, False),
    ],
)
def test_a_wrong_acceptance_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, shared_noise: bool
) -> None:
    def verify(state: SlotState, buf: StepBuffers, sampled_BT: Tensor) -> None:
        if sampled_BT.shape[1] == 1:
            return verify_coupled(state, buf, sampled_BT)
        count_B = rule(buf.logits_BTV.softmax(2), sampled_BT, buf.tokens_BT[:, 1:])
        verified = buf.verified
        verified.count_B.copy_(count_B)
        advance_slots_(
            sampled_BT, buf.slots_B, verified.base_B, buf.tokens_BT, verified.count_B, verified.tokens_BT,
            state.advancing, state.params, is_counted=True,
        )  # fmt: skip

    if not shared_noise:
        monkeypatch.setattr(step, "pick_drafts_", most_likely_drafts)
    assert p_of(drafting(verify)) < REFUSED


def test_the_right_rule_needs_no_shared_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "pick_drafts_", most_likely_drafts)
    assert p_of(drafting()) > CHANCE


@pytest.mark.parametrize("num_drafts", [0, K])
def test_noise_used_twice_is_found(monkeypatch: pytest.MonkeyPatch, num_drafts: int) -> None:
    """Each token alone has the right distribution; two neighbours do not."""

    def drawn(logits: Tensor, slots: Tensor, position: Tensor, params: SlotParams) -> Tensor:
        return sample_slots_(logits, slots, position // 2 - 1, torch.zeros_like(slots)[:, None], params)

    def repeated(
        logits: Tensor, slot: Tensor, base: Tensor, inputs: Tensor, params: SlotParams, *rest: object
    ) -> Tensor:
        width = inputs.shape[1]
        position = (base[:, None] + 1 + torch.arange(width)).view(-1)
        return drawn(logits, slot.repeat_interleave(width), position, params)

    def repeated_draft(
        logits: Tensor,
        slot: Tensor,
        base: Tensor,
        count: Tensor,
        drafts: Tensor,
        number: int,
        params: SlotParams,
        *rest: object,
        out: Tensor,
        drafts_host: Tensor,
    ) -> None:
        out.copy_(drawn(logits, slot, base + count + 1 + number, params))
        for each in (drafts, drafts_host):
            each[number - 1].index_copy_(0, slot, out)

    monkeypatch.setattr(step, "sample_slots_", repeated)
    monkeypatch.setattr(step, "pick_drafts_", repeated_draft)
    many = ManyRequests([WARM], SLOTS, good_draft_model if num_drafts else None, num_drafts)
    assert p_of(many) < REFUSED


@pytest.mark.parametrize(
    ("done", "promised"),
    [
        (case(temperature=1.08), WARM),
        (case(top_p=0.95), WARM),
        (case(frequency_penalty=0.4), WARM),
        (case(guided=True), case(guided=True, min_tokens=2)),
    ],
    ids=["temperature", "top-p", "frequency", "an end too early"],
)
def test_slightly_wrong_parameters_are_found(done: Case, promised: Case) -> None:
    assert p_of(ManyRequests([done], SLOTS), promised) < CHANCE
