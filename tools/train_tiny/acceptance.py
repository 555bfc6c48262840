"""Measures the share of an answer that a drafter predicts, by replaying the answer's verifications one by one.

Greedy drafts are accepted as far as the target agrees, so the drafter never changes the answer. One forward of the
target over the finished sequence is therefore enough for any answer, greedy or sampled, free or guided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from config import EAGLE3, EOS
from unroll import Head, draft

DRAFTS = 3
Drafting = Callable[[int], list[int]]
"""Returns greedy drafts after the first n tokens of a sequence."""


@dataclass(frozen=True)
class Answered:
    """Token ids of a prompt and its answer, end token included."""

    prompt: list[int]
    answer: list[int]


def head_drafting(model: Any, head: Head) -> Callable[[list[int]], Drafting]:
    """Draft with a head on transformers' `model`, without a guide."""
    embeddings = model.get_input_embeddings().weight

    def read(ids: list[int]) -> Drafting:
        tokens = torch.tensor(ids)
        states = model(tokens[None], output_hidden_states=True).hidden_states
        # The last hidden state of transformers is after the final norm.
        features = head.features(states[-1][0], [states[i][0] for i in EAGLE3.aux_layers])
        return lambda n: draft(head, embeddings, features[: n - 1], tokens[:n], DRAFTS)

    return read


def model_drafting(small: Any) -> Callable[[list[int]], Drafting]:
    """Draft with a draft model of transformers, without a guide."""

    def read(ids: list[int]) -> Drafting:
        def drafts(n: int) -> list[int]:
            sequence = ids[:n]
            for _ in range(DRAFTS):
                sequence.append(int(small(torch.tensor([sequence])).logits[0, -1].argmax()))
            return sequence[n:]

        return drafts

    return read


def acceptance(read: Callable[[list[int]], Drafting], answered: Sequence[Answered]) -> dict[str, Any]:
    """Return the mean tokens of a verification. The answer's first token comes from the prefill and is not counted."""
    tokens = verifications = 0
    accepted = [0] * DRAFTS
    for one in answered:
        ids = one.prompt + one.answer
        drafts_after = read(ids)
        done = len(one.prompt) + 1
        while done < len(ids):
            hits = 0
            for drafted, written in zip(drafts_after(done), ids[done:], strict=False):
                if drafted != written or written == EOS:
                    break
                accepted[hits] += 1
                hits += 1
            new = min(hits + 1, len(ids) - done)
            done, tokens, verifications = done + new, tokens + new, verifications + 1
    return {
        "prompts": len(answered),
        "drafts": DRAFTS,
        "tokens": tokens,
        "verifications": verifications,
        "acceptance_length": tokens / verifications,
        "accepted_at_least": [a / verifications for a in accepted],
    }
