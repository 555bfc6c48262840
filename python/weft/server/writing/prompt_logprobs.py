"""Log-probabilities of a prompt's own tokens, from the logits after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.core import TokenLogprob
from weft.server.writing.common import TokenJson, shown


def prompt_logprobs(prompt: Sequence[int], logits: Tensor, top: int) -> list[TokenLogprob | None]:
    """Of each token of a prompt but the first, of which there is none; `logits` [prompt, V] are the model's."""
    if len(prompt) < 2:
        return [None] * len(prompt)
    values = logits[: len(prompt) - 1].float().log_softmax(-1)
    own = values.gather(1, values.new_tensor(prompt[1:]).long()[:, None])[:, 0].tolist()
    best, names = values.topk(top, 1)
    rows = zip(own, best.tolist(), names.tolist(), strict=True)
    return [
        None,
        *(TokenLogprob(one, dict(zip(ids, likeliest, strict=True))) for one, likeliest, ids in rows),
    ]


def vllm_form(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprob | None], tokens: TokenJson
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM writes them: of each token its own and the likeliest, by id."""
    found: list[dict[str, Any] | None] = []
    for token, own in zip(prompt, logprobs, strict=True):
        if own is None:
            found.append(None)
            continue
        ranked = {name: rank for rank, name in enumerate(own.top, 1)}
        values = {**own.top, token: own.logprob}
        found.append(
            {
                str(name): {
                    "logprob": shown(value),
                    "rank": ranked.get(name),
                    "decoded_token": tokens.text(name),
                }
                for name, value in values.items()
            }
        )
    return found
