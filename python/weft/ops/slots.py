"""Sampling by slot: what requests ask of their logits lies on the device, and one captured call serves every mix of
them.

A request's parameters are numbers in its slot's rows of `SlotParams`, neutral where it asks for nothing. So no kernel
launch, and no graph, depends on what requests ask. R slots, B batch rows, T = 1 + K positions, K drafts, V vocabulary,
N = B * T logits rows.

A token is the argmax of logits / temperature + noise (`csrc/kernels/sampling/gumbel.h`). The noise is a function of the
request's seed, the position and the target's token id, and of nothing else. So a drafter that draws with it tends to
draw what the target will, a draft is right when it is equal, and a seed gives the same text whatever the drafter, the
batch or the load. Since -log(-log(u)) is a Gumbel variate, the token is distributed as softmax(logits / temperature).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.ops.slots_native import ADVANCE, INPUTS, KEEP, PICK, PROPOSALS, SAMPLE


@dataclass(frozen=True)
class SlotParams:
    """Sampling parameters of R slots and what penalties know of their texts; on one device, all contiguous.

    `vocab` is the target's vocabulary, M the room for bad words, E that for end tokens, L the most tokens of a text.
    """

    floats: Tensor
    """[9, R] float32. temperature: below 1e-5, or NaN, is the largest logit without noise. top_p, of the token after
    the text: >= 1 is none. min_p: <= 0 is none. repetition, positive: divides positive, multiplies other logits of
    tokens in prompt or output. presence, frequency: taken from the logits of tokens that are counted, once and as often
    as they are. top_p_decay and top_p_min: every token makes top_p max(top_p * decay, min), unless they are 1 and 0.
    What top_p begins with."""
    longs: Tensor
    """[2, R] int64: the seed, and the position until which end tokens are blocked."""
    ints: Tensor
    """[9, R] int32: top_k, <= 0 for none; whether the slot has penalties, bias, bad words or no_repeat at all; whether
    its bias is read, 2 where that goes beyond 10,000; how many drafts it may have; whether it wants log-probabilities;
    whether the host chooses its tokens, so that verification leaves it where it is; whether its bias and temperature
    come before penalties; no_repeat, the length of n-grams that do not come twice, 0 for none; the token after which
    top_p begins anew, -1 for none."""
    counts: Tensor
    """[R, vocab] int32: how often each token stands in what is counted: the output, and all or a part of the prompt for
    those who count that, too."""
    prompt: Tensor
    """[R, ceil(vocab / 32)] int32; bit t % 32 of word t // 32 is set where token t stands in the prompt."""
    bias: Tensor
    """[R, vocab] float32, -inf allowed: added to the logits."""
    bad_words: Tensor
    """[R, M] int32: sequences of tokens, each ended by -1 or the end of the row; an empty one ends the list."""
    history: Tensor
    """[R, L] int32: the tokens of prompt and output by position."""
    ends: Tensor
    """[R, E] int32: the tokens that would end a slot's request; -1 is none."""

    @staticmethod
    def neutral(
        slots: int, vocab: int, bad_words: int, ends: int, max_length: int, device: torch.device
    ) -> SlotParams:
        """Tables of slots that ask for nothing. Before its slot is written a row's temperature is 0."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        floats, ints = zeros(9, slots, dtype=torch.float32), zeros(9, slots, dtype=torch.int32)
        floats[1] = floats[6] = floats[8] = 1.0
        ints[8] = -1
        return SlotParams(
            floats=floats,
            longs=zeros(2, slots, dtype=torch.int64),
            ints=ints,
            counts=zeros(slots, vocab, dtype=torch.int32),
            prompt=zeros(slots, -(-vocab // 32), dtype=torch.int32),
            bias=zeros(slots, vocab, dtype=torch.float32),
            bad_words=zeros(slots, bad_words, dtype=torch.int32) - 1,
            history=zeros(slots, max_length, dtype=torch.int32),
            ends=zeros(slots, ends, dtype=torch.int32) - 1,
        )

    @property
    def max_drafts(self) -> Tensor:
        """[R] int32: how many drafts each slot may have."""
        return self.ints[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the operations' arguments."""
        return (
            self.floats, self.longs, self.ints, self.counts, self.prompt, self.bias, self.bad_words, self.history,
            self.ends,
        )  # fmt: skip


def sample_slots_(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    params: SlotParams,
    temperatures: Tensor | None = None,
) -> Tensor:
    """The target's token at every position, [N] int64, -1 where there is none; `logits` keep what parameters changed.

    logits: [N, V] float32, float16 or bfloat16, rows any distance apart, V at most 2^23; row b * T + t is position t of
        batch row b.
    slot, base: [B] int64: the batch row's slot, and the position of its last committed token.
    inputs: [B, T] int64: that token, then the drafts; position t has seen t of them, which count as output. -1 is none.
    temperatures: float32, P >= T for each slot: those that are not negative go before the slot's own.
    In this order: repetition, presence, frequency and bias, in float32, rounded once to the logits' dtype, finite where
    both were; or the bias first, and presence and frequency taken from logits / temperature. A bad word's last token is
    blocked where the tokens before it are those that the text ends with, and the last of an n-gram of the text where
    the text ends with the others; end tokens are blocked before their position, unless every other logit is -inf or
    NaN. Where a bias goes beyond 10,000, the largest logit is taken from all. Then top-k, top-p and min-p, each of
    which keeps ties with the last that it keeps; the draw, where a NaN never wins, and of equal sums that of the lowest
    token.
    The logits of a slot out of bounds are left alone. Raises `InputError` for tensors that are not as above, and
    `InterfaceError` for CUDA tensors in a build without CUDA.
    """
    token: Tensor = SAMPLE(logits, slot, base, inputs, *params.tensors, temperatures)
    return token


def pick_drafts_(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    count: Tensor,
    drafts: Tensor,
    number: int,
    params: SlotParams,
    temperatures: Tensor | None = None,
    proposed: Tensor | None = None,
    d2t: Tensor | None = None,
    *,
    out: Tensor,
    drafts_host: Tensor | None = None,
) -> None:
    """Draft `number` (from 1) of every batch row, to `out` [B] int64 in the target's ids and to its place in `drafts`.

    It is drawn as the target's token at its position will be (`sample_slots_`), but that it may be an end, after the
    drafts before it. -1 is none: where the logits leave nothing, and beyond the slot's own limit of drafts.

    logits: [B, V] of the drafter. slot, base: as in `sample_slots_`. count: [B] int64, how many drafts verification
    accepted. drafts, proposed: [K, R] int64 by slot; what the host proposed goes before, unless it is -1. d2t: [V]
    int64; column c stands for token c + d2t[c]. drafts_host: written as `drafts`. It and `proposed` may be the host's
    memory, pinned for CUDA.
    """
    PICK(
        logits, slot, base, count, drafts, number, *params.tensors, temperatures, proposed, d2t, out, drafts_host
    )  # fmt: skip


def advance_slots_(
    sampled: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    count: Tensor,
    tokens: Tensor,
    slots: tuple[Tensor, ...],
    params: SlotParams,
    is_counted: bool = False,
) -> None:
    """Verify the drafts and move every slot to the end of what is committed, in place.

    sampled: [B, T] int64, the target's tokens; inputs: [B, T] int64, of which all but the first are drafts. The leading
    drafts that equal the target's tokens are accepted: how many goes to `count` [B] int64 (with `is_counted` it says
    so already), the tokens to `tokens` [B, T].
    slots: by slot `verified` [R, K + 2] (count, then tokens), `last_token`, `length`, `proposed` [R] (how many drafts
    there were, where T > 1), `drafts` [K, R], of which those beyond T - 1 become -1, and `verified_host`, which is
    written as `verified` and may be the host's memory, pinned for CUDA; all int64. The last slot pads: it stays at
    length 0. Tokens of slots with penalties are counted, and change top_p where it decays.
    """
    ADVANCE(
        sampled, slot, base, inputs, count, tokens, *slots, params.floats, params.ints, params.counts,
        params.history, is_counted,
    )  # fmt: skip


def keep_logits_(logits: Tensor, kept: Tensor, slot: Tensor, params: SlotParams) -> None:
    """Copy the rows of `logits` [N, V] whose slots want log-probabilities to `kept` [N, V], contiguous. slot: [B]."""
    KEEP(logits, kept, slot, params.ints)


def read_slots_(
    slot: Tensor, by_slot: tuple[Tensor, ...], base: Tensor, tokens: Tensor, pages: Tensor
) -> None:
    """What an iteration reads of its rows' slots: how long their texts are, their last tokens and drafts, their pages.

    slot: [B] int64. by_slot: `length` and `last_token` [R] int64, `drafts` [K, R] int64 and `page_table` [R, P] int32.
    Written: base [B] int64, tokens [B, T] int64 (the last token, then T - 1 <= K drafts) and pages [B, P] int32.
    """
    INPUTS(slot, *by_slot, base, tokens, pages)


def take_proposals_(slot: Tensor, proposed: Tensor, drafts: Tensor, number: int, params: SlotParams) -> None:
    """Drafts 1..`number` of each row's slot in `drafts` [K, R] become those of `proposed` [K, R] int64, -1 beyond the
    slot's own limit. slot: [B] int64. `proposed` may be the host's memory, pinned for CUDA."""
    PROPOSALS(slot, proposed, drafts, number, params.ints)
