"""Changes of logits by requests, in plain torch and Python: penalties, bias, bad words, no repeated n-grams,
min_tokens, and the levelling of wide biases.

weft's own order is penalties, then bias. TensorRT-LLM's is bias, temperature, then the penalties for repetition,
presence and frequency. `trtllm_reference` follows it literally, and so returns logits / temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from support.kernels.sampling import LOWEST_TEMPERATURE
from weft.ops.slots import SlotParams


def penalize_reference_(
    logits: Tensor,
    slot: Tensor,
    params: SlotParams,
    history_length: Tensor,
    extra: Tensor,
    num_extra: Tensor,
    d2t: Tensor | None = None,
    temperature: Tensor | None = None,
) -> None:
    """Apply penalties, bias, bad words and no repeated n-grams in place, row by row.

    Row i follows the first history_length[i] tokens of its slot's history, and the first num_extra[i] tokens of
    extra[i], in which -1 is no token. Its temperature is temperature[i] (default: the slot's). A row whose slot is
    the last one, for padding, or out of bounds is unchanged. Finite logits stay finite.
    """
    vocab = params.counts.shape[1]
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    known_V = (tokens_V >= 0) & (tokens_V < vocab)
    index_V = tokens_V.where(known_V, 0)
    for i, s in enumerate(slot.tolist()):
        if not 0 <= s < len(params.counts) - 1 or not params.changes_logits[s]:
            continue
        drafted = [t for t in extra[i, : num_extra[i]].tolist() if t >= 0]
        counts_T = params.counts[s].clone()
        for token in drafted:
            if token < vocab:
                counts_T[token] += 1
        count_V = counts_T[index_V].where(known_V, 0)
        in_prompt_V = (params.prompt[s][index_V // 32] >> (index_V % 32) & 1).bool() & known_V

        x_V, bias_V = logits[i].float(), params.bias[s][index_V].where(known_V, 0)
        bias_V = bias_V if params.bias_kind[s] else torch.zeros_like(bias_V)
        heat = params.temperature[s] if temperature is None else temperature[i]
        if params.penalties_after_temperature[s]:
            y_V = _penalised(_added(x_V, bias_V), params, s, count_V, in_prompt_V, heat)
        else:
            y_V = _added(_penalised(x_V, params, s, count_V, in_prompt_V, torch.ones(())), bias_V)
        most = torch.finfo(logits.dtype).max
        y_V = y_V.clamp(-most, most).where(x_V.isfinite() & bias_V.isfinite(), y_V)
        context = params.history[s, : history_length[i]].tolist() + drafted
        for word in _words(params.bad_words[s].tolist()):
            if word[:-1] == context[len(context) - len(word) + 1 :] and len(word) <= len(context) + 1:
                y_V[tokens_V == word[-1]] = float("-inf")
        is_kept = history_length[i] <= params.history.shape[1]
        for token in repeating_tokens(context if is_kept else [], int(params.no_repeat_ngram_size[s])):
            y_V[tokens_V == token] = float("-inf")
        logits[i] = y_V.to(logits.dtype)


def trtllm_reference(
    logits: Tensor,
    temperature: float,
    penalties: tuple[float, float, float],
    bias: Tensor,
    prompt: list[int],
    answer: list[int],
    prompt_ignore_length: int = 0,
) -> Tensor:
    """Return the values from which TensorRT-LLM samples a row [V], in float64: after bias, temperature, and the
    penalties for repetition, presence and frequency."""
    y_V = (logits.double() + bias.double()) / temperature
    repetition, presence, frequency = penalties
    counted = [*prompt[prompt_ignore_length:], *answer]
    for token in {*prompt, *answer}:
        y_V[token] = y_V[token] * repetition if y_V[token] < 0 else y_V[token] / repetition
    for token in counted:
        y_V[token] -= frequency
    for token in set(counted):
        y_V[token] -= presence
    return y_V


def _added(x_V: Tensor, bias_V: Tensor) -> Tensor:
    """Add the bias. -inf in either wins over +inf."""
    is_never_V = (x_V == float("-inf")) | (bias_V == float("-inf"))
    return (x_V + bias_V).masked_fill(is_never_V, float("-inf"))


def _penalised(
    x_V: Tensor, params: SlotParams, s: int, count_V: Tensor, in_prompt_V: Tensor, heat: Tensor
) -> Tensor:
    """Apply the three penalties. Presence and frequency penalties apply to logits / `heat`."""
    repetition, presence = params.repetition_penalty[s], params.presence_penalty[s]
    frequency = params.frequency_penalty[s]
    scale = heat if heat >= LOWEST_TEMPERATURE else torch.ones(())
    scaled_V = torch.where(x_V > 0, x_V / repetition, x_V * repetition)
    y_V = scaled_V.where((count_V > 0) | in_prompt_V, x_V)
    y_V = y_V - torch.where(count_V > 0, presence * scale, 0)
    return y_V - frequency * scale * count_V


def repeating_tokens(text: list[int], size: int) -> set[int]:
    """Return the tokens that would complete an n-gram of `size` tokens that the text already contains (size 0:
    none)."""
    seen = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)} if size > 0 else set()
    return {gram[-1] for gram in seen if list(gram[:-1]) == text[len(text) - size + 1 :]}


def level_reference_(logits: Tensor, slot: Tensor, params: SlotParams) -> None:
    """Subtract the largest logit from the finite ones in rows whose slots have a wide bias, in place."""
    most = torch.finfo(logits.dtype).max
    for row, s in zip(logits, slot.tolist(), strict=True):
        if 0 <= s < len(params.ends) - 1 and params.changes_logits[s] and params.bias_kind[s] == 2:
            x = row.float()
            top = x[~x.isnan()].max() if bool((~x.isnan()).any()) else x[0]
            top = top + 0.0  # turns -0 into 0
            if bool(top.isfinite()):
                row.copy_((x - top).clamp(-most, most).to(row.dtype).where(row.isfinite(), row))


def _words(flat: list[int]) -> list[list[int]]:
    """Split the padded table row of a slot into its bad words."""
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
    """Forbid end tokens in rows whose slots need more tokens at `position`, in place, unless no other token is
    allowed."""
    there_N = (slot >= 0) & (slot < len(params.ends) - 1)
    slot = slot.where(there_N, 0)
    columns_V = torch.arange(logits.shape[1], device=logits.device)
    is_end_NV = (params.ends[slot].long()[:, :, None] == columns_V).any(1)
    others_N1 = ((logits > float("-inf")) & ~is_end_NV).any(1, keepdim=True)
    early_N1 = (there_N & (position < params.ends_allowed_from[slot]))[:, None]
    logits.masked_fill_(is_end_NV & others_N1 & early_N1, float("-inf"))
