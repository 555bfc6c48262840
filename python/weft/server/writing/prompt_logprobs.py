"""Log-probabilities of a prompt's own tokens, from the logits after each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from weft.core import Output, TokenLogprob
from weft.server.writing.common import TokenJson, shown


@dataclass(frozen=True)
class PromptLogprobs:
    """Of each token of a prompt but the first, of which there is None: the log-probabilities of it and the likeliest,
    and its rank, from 1."""

    tokens: Sequence[int]
    entries: list[TokenLogprob | None]
    ranks: list[int | None]

    def vllm_form(self, written: TokenJson) -> list[dict[str, Any] | None]:
        """`prompt_logprobs` as vLLM writes them: of each token its own and the likeliest, by id."""
        found: list[dict[str, Any] | None] = []
        for token, own, rank in zip(self.tokens, self.entries, self.ranks, strict=True):
            if own is None:
                found.append(None)
                continue
            ranks = {token: rank, **{name: place for place, name in enumerate(own.top, 1) if name != token}}
            values = {**own.top, token: own.logprob}
            found.append(
                {
                    str(name): {
                        "logprob": shown(values[name]),
                        "rank": ranks[name],
                        "decoded_token": written.text(name),
                    }
                    for name in ranks
                }
            )
        return found


Reader = Callable[[int, int], PromptLogprobs]
"""Of a prompt, by its place, and so many likeliest tokens."""


def reader(outputs: dict[int, Output], num_each: int) -> Reader:
    """Reads the prompts of outputs, by choice, each prompt once. The first output of a prompt has its logits."""

    @cache
    def read(place: int, top: int) -> PromptLogprobs:
        first = outputs[place * num_each]
        assert first.context_logits is not None
        return prompt_logprobs(first.prompt_token_ids, first.context_logits, top)

    return read


def prompt_logprobs(prompt: Sequence[int], logits: Tensor, top: int) -> PromptLogprobs:
    """Those of a prompt; `logits` [prompt, V] are the model's."""
    if len(prompt) < 2:
        return PromptLogprobs(prompt, [None] * len(prompt), [None] * len(prompt))
    values = logits[: len(prompt) - 1].float().log_softmax(-1)
    own = values.gather(1, values.new_tensor(prompt[1:]).long()[:, None])
    ranks = (values > own).sum(1).add(1).tolist()
    best, names = values.topk(top, 1)
    rows = zip(own[:, 0].tolist(), best.tolist(), names.tolist(), strict=True)
    entries = [TokenLogprob(one, dict(zip(ids, likeliest, strict=True))) for one, likeliest, ids in rows]
    return PromptLogprobs(prompt, [None, *entries], [None, *ranks])
