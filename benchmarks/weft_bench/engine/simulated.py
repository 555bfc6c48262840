"""Simulates acceptance, for timing models with random weights. Their drafts would never be accepted."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from weft.engine.device.state import SlotState, StepBuffers
from weft.engine.engine import Engine
from weft.errors import InputError
from weft.ops.slots import advance_slots_
from weft.runtime import get as get_runtime
from weft.runtime.dump import dump_graph


def simulate_acceptance(engine: Engine, length: float) -> None:
    """Make a new engine's verification accept drafts such that iterations give `length` tokens on average over
    positions, independent of the target's samples. Raises `InputError` for a length that the number of drafts does
    not allow."""
    most = engine.parts.max_drafts + 1
    if not (math.isfinite(length) and 1 <= length <= most):
        raise InputError(
            f"simulated acceptance is {length}; with {most - 1} drafts it can be 1 to {most} tokens"
        )
    engine.parts.verify = partial(_verify, length)


def simulated_operations(length: float, num_drafts: int) -> int:
    """Return the number of operations that `simulate_acceptance` adds to an iteration's graph. On a GPU each is a
    kernel."""
    runtime = get_runtime("cpu")
    stream = runtime.stream()
    vocab = 8
    slots_B, base_B = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    logits_BTV, sampled_BT = torch.zeros(1, num_drafts + 1, vocab), torch.zeros(1, num_drafts + 1).long()
    tensors = (slots_B, base_B, logits_BTV, sampled_BT, sampled_BT[:, 1:])

    def count(*args: Tensor) -> None:
        base_B.copy_(count_simulated(length, *args)[0])

    return len(dump_graph(runtime, stream, lambda: stream.launch(count, *tensors)).nodes)


def _verify(length: float, state: SlotState, buf: StepBuffers, sampled_BT: Tensor) -> None:
    verified, drafts_BK = buf.verified, buf.tokens_BT.narrow(1, 1, buf.tokens_BT.shape[1] - 1)
    count_B, tokens_BT = count_simulated(
        length, buf.slots_B, verified.base_B, buf.logits_BTV, sampled_BT, drafts_BK
    )
    verified.count_B.copy_(count_B)
    advance_slots_(
        tokens_BT, buf.slots_B, verified.base_B, buf.tokens_BT, verified.count_B, verified.tokens_BT,
        state.advancing, state.params, is_counted=True,
    )  # fmt: skip


def count_simulated(
    length: float,
    slots_B: Tensor,
    base_B: Tensor,
    logits_BTV: Tensor,
    sampled_BT: Tensor,
    drafts_BK: Tensor,
) -> tuple[Tensor, Tensor]:
    """Count accepted drafts as if each iteration gave `length` tokens on average over positions. Returns the counts,
    and the tokens including the accepted drafts.

    A missing draft, or one that the mask forbids (its logit is -inf), still ends the accepted drafts.
    """
    num_drafts = drafts_BK.shape[1]
    whole = int(length - 1)
    kept_logits_BK = logits_BTV.narrow(1, 0, num_drafts).gather(2, drafts_BK.clamp(min=0)[..., None])[..., 0]
    legal_BK = (drafts_BK >= 0) & (kept_logits_BK > float("-inf"))
    count_B = legal_BK.cumprod(1).sum(1)
    if fraction := length - 1 - whole:
        # The fractional part of `length` counts for some rows only. The selection changes with a row's base in each
        # iteration.
        spread_B = ((base_B * 40503 + slots_B * 9973) % 65537 * 75 % 65537).float() / 65537
        count_B = torch.minimum(whole + (spread_B < fraction).long(), count_B)
    else:
        count_B = count_B.clamp(max=whole)
    kept_BK = torch.arange(num_drafts, device=base_B.device) < count_B[:, None]
    tokens_BK = torch.where(kept_BK, drafts_BK, sampled_BT.narrow(1, 0, num_drafts))
    return count_B, torch.cat((tokens_BK, sampled_BT.narrow(1, num_drafts, 1)), 1)
