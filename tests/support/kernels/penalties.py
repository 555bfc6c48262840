"""What requests change in their logits, in plain torch and Python: penalties, bias and bad words; then min_tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.slots import SlotParams


def penalize_reference_(
    logits: Tensor,
    slot: Tensor,
    params: SlotParams,
    history_length: Tensor,
    extra: Tensor,
    num_extra: Tensor,
    d2t: Tensor | None = None,
) -> None:
    """Penalties, bias and bad words, a row at a time, in place.

    Row i stands after the first history_length[i] tokens of its slot's history and the first num_extra[i] of extra[i],
    of which -1 is none. A row whose slot is out of bounds is left alone.
    """
    vocab = params.counts.shape[1]
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    known_V = (tokens_V >= 0) & (tokens_V < vocab)
    index_V = tokens_V.where(known_V, 0)
    repetition, presence, frequency = params.floats[3:]
    for i, s in enumerate(slot.tolist()):
        if not 0 <= s < len(params.counts) or not params.ints[1, s]:
            continue
        drafted = [t for t in extra[i, : num_extra[i]].tolist() if t >= 0]
        counts_T = params.counts[s].clone()
        for token in drafted:
            if token < vocab:
                counts_T[token] += 1
        count_V = counts_T[index_V].where(known_V, 0)
        in_prompt_V = (params.prompt[s][index_V // 32] >> (index_V % 32) & 1).bool() & known_V

        x_V = logits[i].float()
        scaled_V = torch.where(x_V > 0, x_V / repetition[s], x_V * repetition[s])
        y_V = scaled_V.where((count_V > 0) | in_prompt_V, x_V)
        y_V = y_V - torch.where(count_V > 0, presence[s], 0)
        y_V = y_V - frequency[s] * count_V
        if params.ints[2, s]:
            bias_V = params.bias[s][index_V].where(known_V, 0)
            y_V = (y_V + bias_V).masked_fill(
                (y_V == float("-inf")) | (bias_V == float("-inf")), float("-inf")
            )
        context = params.history[s, : history_length[i]].tolist() + drafted
        for word in _words(params.bad_words[s].tolist()):
            if word[:-1] == context[len(context) - len(word) + 1 :] and len(word) <= len(context) + 1:
                y_V[tokens_V == word[-1]] = float("-inf")
        logits[i] = y_V.to(logits.dtype)


def _words(flat: list[int]) -> list[list[int]]:
    """The bad words of one slot."""
    words: list[list[int]] = [[]]
    for token in flat:
        if token >= 0:
            words[-1].append(token)
        elif words[-1]:
            words.append([])
        else:
            break
    return [word for word in words if word]


def suppress_ends_reference_(logits: Tensor, slot: Tensor, params: SlotParams, position: Tensor) -> None:
    """Block end tokens of the slots that want more tokens before `position`, in place, unless nothing else is left."""
    there_N = (slot >= 0) & (slot < len(params.ends))
    slot = slot.where(there_N, 0)
    columns_V = torch.arange(logits.shape[1], device=logits.device)
    is_end_NV = (params.ends[slot].long()[:, :, None] == columns_V).any(1)
    others_N1 = ((logits > float("-inf")) & ~is_end_NV).any(1, keepdim=True)
    early_N1 = (there_N & (position < params.longs[1][slot]))[:, None]
    logits.masked_fill_(is_end_NV & others_N1 & early_N1, float("-inf"))
