"""`penalize_` in plain torch and Python, which the kernels are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.penalties import Penalties


def penalize_reference_(
    logits: Tensor,
    slot: Tensor,
    penalties: Penalties,
    history_length: Tensor,
    extra: Tensor,
    num_extra: Tensor,
    d2t: Tensor | None = None,
) -> None:
    """What `penalize_` does, a row at a time."""
    vocab = penalties.counts.shape[1]
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    known_V = (tokens_V >= 0) & (tokens_V < vocab)
    index_V = tokens_V.where(known_V, 0)
    for i, s in enumerate(slot.tolist()):
        if not penalties.active[s]:
            continue
        drafted = [t for t in extra[i, : num_extra[i]].tolist() if t >= 0]
        counts_T = penalties.counts[s].clone()
        for token in drafted:
            if token < vocab:
                counts_T[token] += 1
        count_V = counts_T[index_V].where(known_V, 0)
        in_prompt_V = (penalties.prompt[s][index_V // 32] >> (index_V % 32) & 1).bool() & known_V

        x_V = logits[i].float()
        scaled_V = torch.where(x_V > 0, x_V / penalties.repetition[s], x_V * penalties.repetition[s])
        y_V = scaled_V.where((count_V > 0) | in_prompt_V, x_V)
        y_V = y_V - torch.where(count_V > 0, penalties.presence[s], 0)
        y_V = y_V - penalties.frequency[s] * count_V
        if penalties.biased[s]:
            bias_V = penalties.bias[s][index_V].where(known_V, 0)
            y_V = (y_V + bias_V).masked_fill(
                (y_V == float("-inf")) | (bias_V == float("-inf")), float("-inf")
            )
        context = penalties.history[s, : history_length[i]].tolist() + drafted
        for word in _words(penalties.bad_words[s].tolist()):
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
