"""Parts of an answer that all routes write alike: its end, its usage, weft's extras, and tokens with
log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from weft.core import Output, TokenLogprob
from weft.server.models import TextOffsets, TokenTexts
from weft.server.reading.jobs import Job

# -- the end of an answer

FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "timeout": "length",
    "cancelled": "abort",
    "error": "error",
}
"""The engine's finish reasons in OpenAI's words."""


def finish_reason(output: Output) -> str:
    """The `finish_reason` of an answer without calls."""
    return FINISH_REASONS[output.finish_reason or "error"]


def stop_reason(output: Output) -> int | str | None:
    """The stop word or token that ended the answer, or "timeout"; None for an end token and for the length."""
    return "timeout" if output.finish_reason == "timeout" else output.stopped_by


def was_cut(output: Output) -> bool:
    """Whether the answer was cut at its length, a deadline or a stop word, and did not end itself."""
    return output.finish_reason != "stop" or isinstance(output.stopped_by, str)


# -- usage and extras


def usage_of(job: Job, outputs: Iterable[Output], num_reasoning: int = 0) -> dict[str, Any]:
    """The `usage` of a job whose answers have ended. `num_reasoning` counts their reasoning tokens."""
    ended = list(outputs)
    return usage(
        job.prompt_tokens,
        sum(len(output.token_ids) for output in ended),
        # The first answer of each prompt counts the prompt's reused tokens.
        sum(output.stats.reused_tokens for output in ended[:: job.body.num_answers]),
        {
            "reasoning_tokens": num_reasoning,
            # Only accepted predictions are known; how many tokens were drafted in vain is not.
            "accepted_prediction_tokens": sum(output.origins.count("given") for output in ended),
            "rejected_prediction_tokens": 0,
        },
    )


def usage(
    prompt: int, completion: int, cached: int = 0, details: dict[str, int] | None = None
) -> dict[str, Any]:
    """OpenAI's `usage` object from counts of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": details,
    }


def tokens_through(pieces: Iterable[bytes], text: str) -> int:
    """How many tokens, given by their bytes, it takes to reach the end of `text`, which begins at any of them. All of
    them if the tokens do not contain `text`: some tokenizers write text that no token has."""
    tokens = list(pieces)
    if not text:
        return 0
    wanted = text.encode()
    begin = b"".join(tokens).find(wanted)
    if begin < 0:
        return len(tokens)
    end, position = begin + len(wanted), 0
    for count, piece in enumerate(tokens):
        if position >= end:
            return count
        position += len(piece)
    return len(tokens)


def extras(outputs: Sequence[Output]) -> dict[str, Any]:
    """The `weft` object of an answer: unenforced parts of guides, results of programs, and speculation."""
    programs = [
        {"log": output.program_log, "variables": _as_texts(output.program_variables)}
        for output in outputs
        if output.program_log is not None
    ]
    stats = [output.stats for output in outputs]
    proposed, accepted = sum(s.proposed_drafts for s in stats), sum(s.accepted_drafts for s in stats)
    drafted, tokens = sum(s.drafted_iterations for s in stats), sum(s.drafted_tokens for s in stats)
    notes = list(dict.fromkeys(note for output in outputs for note in output.guide_notes))
    valid = [output.stats.guided_valid for output in outputs]
    return {
        "guided_valid": valid if any(verdict is not None for verdict in valid) else None,
        "guide_notes": notes or None,
        "programs": programs or None,
        "origins": counted(origin for output in outputs for origin in output.origins),
        "speculative_decoding": {
            "num_draft_tokens": proposed,
            "num_accepted_tokens": accepted,
            "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
            "mean_acceptance_length": tokens / drafted if drafted else 1.0,
        }
        if proposed
        else None,
        "num_iterations": max((s.iterations for s in stats), default=0),
        "decode_tokens_per_second": max((s.decode_tokens_per_second for s in stats), default=0.0),
        "compile_s": max((s.compile_s for s in stats), default=0.0),
        "time_to_first_token_s": min((s.time_to_first_token_s for s in stats), default=0.0),
    }


def counted(origins: Iterable[str]) -> dict[str, int]:
    """Tokens by origin."""
    counts: dict[str, int] = {}
    for origin in origins:
        counts[origin] = counts.get(origin, 0) + 1
    return counts


def _as_texts(variables: dict[str, bytes] | None) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in (variables or {}).items()}


# -- tokens and log-probabilities

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of 0, which JSON can't hold."""


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LOWEST_LOGPROB)


class TokenJson:
    """Tokens with log-probabilities and origins as JSON. With `as_ids` a token's text is "token_id:7"."""

    def __init__(self, tokens: TokenTexts, as_ids: bool = False) -> None:
        self._tokens, self._as_ids = tokens, as_ids

    def text(self, token: int) -> str:
        """The text of a token."""
        return f"token_id:{token}" if self._as_ids else self._tokens.text(token)

    def offsets(self) -> TextOffsets:
        """Offsets for the tokens of one text."""
        return TextOffsets(self._tokens)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """A token in the form of the chat API, with its bytes."""
        return {
            "token": self.text(token),
            "bytes": list(self._tokens.bytes_of(token)),
            "logprob": finite(logprob),
            "token_id": token,
        }

    def chat(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], origins: Sequence[str]
    ) -> dict[str, Any]:
        """The `logprobs` of a chat's choice. weft adds `token_id`, `origin`, `num_allowed`, and `forbidden` for tokens
        that the guide excluded. Special tokens are left out, as they are no text."""
        content = [
            {
                **self.entry(token, logprob.logprob),
                "top_logprobs": [
                    {
                        **self.entry(other, value),
                        **({"forbidden": True} if other in logprob.forbidden else {}),
                    }
                    for other, value in logprob.top.items()
                ],
                "origin": origin,
                "num_allowed": logprob.num_allowed,
            }
            for token, logprob, origin in zip(tokens, logprobs, origins, strict=True)
            if not self._tokens.is_special(token)
        ]
        return {"content": content, "refusal": None}

    def completion(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob | None],
        offsets: TextOffsets,
        num_prompt: int = 0,
    ) -> dict[str, Any]:
        """The `logprobs` of a completion's choice. As OpenAI's, `top_logprobs` include the token itself. Special tokens
        are left out, except among the first `num_prompt` tokens, which are the prompt."""
        columns: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if num_prompt and place == num_prompt:
                offsets.end_text()
            if place >= num_prompt and self._tokens.is_special(token):
                continue
            top = logprob and {**self._top(logprob.top), self.text(token): finite(logprob.logprob)}
            columns["tokens"].append(self.text(token))
            columns["token_logprobs"].append(logprob and finite(logprob.logprob))
            columns["top_logprobs"].append(top)
            columns["text_offset"].append(offsets.next(token))
        return columns

    def _top(self, top: dict[int, float]) -> dict[str, float]:
        return {self.text(token): finite(value) for token, value in top.items()}


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities and ranks, from 1, of a prompt's own tokens. Those of the first token are None."""

    tokens: Sequence[int]
    entries: list[TokenLogprob | None]
    ranks: list[int | None]

    def vllm_form(self, token_json: TokenJson) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: for each token an object by token id, with the token itself and the most likely."""
        entries: list[dict[str, Any] | None] = []
        for token, logprob, rank in zip(self.tokens, self.entries, self.ranks, strict=True):
            if logprob is None:
                entries.append(None)
                continue
            others = {other: place for place, other in enumerate(logprob.top, 1) if other != token}
            ranks = {token: rank, **others}
            values = {**logprob.top, token: logprob.logprob}
            entries.append(
                {
                    str(other): {
                        "logprob": finite(values[other]),
                        "rank": ranks[other],
                        "decoded_token": token_json.text(other),
                    }
                    for other in ranks
                }
            )
        return entries


PromptReader = Callable[[int, int], PromptLogprobs]
"""Gives the log-probabilities of prompt p with the k most likely tokens per position."""


def prompt_reader(outputs: dict[int, Output], num_each: int) -> PromptReader:
    """Reads the prompts of `outputs`, which are by choice, `num_each` per prompt. Each prompt is read once."""

    @cache
    def read(place: int, top: int) -> PromptLogprobs:
        output = outputs[place * num_each]  # the first answer of a prompt has its logits
        assert output.context_logits is not None
        return prompt_logprobs(output.prompt_token_ids, output.context_logits, top)

    return read


def prompt_logprobs(prompt: Sequence[int], logits: Tensor, top: int) -> PromptLogprobs:
    """The log-probabilities of a prompt from the model's `logits` [prompt length, vocab_size]."""
    if len(prompt) < 2:
        return PromptLogprobs(prompt, [None] * len(prompt), [None] * len(prompt))
    # The logits at a position are for the token after it.
    values = logits[: len(prompt) - 1].float().log_softmax(-1)
    token_values = values.gather(1, values.new_tensor(prompt[1:]).long()[:, None])
    ranks = (values > token_values).sum(1).add(1).tolist()
    top_values, top_ids = values.topk(top, 1)
    rows = zip(token_values[:, 0].tolist(), top_values.tolist(), top_ids.tolist(), strict=True)
    entries = [TokenLogprob(logprob, dict(zip(ids, likely, strict=True))) for logprob, likely, ids in rows]
    return PromptLogprobs(prompt, [None, *entries], [None, *ranks])


# -- server-sent events

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
