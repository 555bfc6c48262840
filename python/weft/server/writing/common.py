"""Code that the writers of all routes share: finish reasons, an answer's parts, usage, weft's extras, tokens with
log-probabilities, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from weft.core import Output, TokenLogprob
from weft.parsing import AnswerParser, Content, Part
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
"""Maps the engine's finish reasons to OpenAI's. "abort" and "error" are not in OpenAI's API."""


def finish_reason(output: Output) -> str:
    """Return the `finish_reason` of an answer without tool calls."""
    return FINISH_REASONS[output.finish_reason or "error"]


def stop_reason(output: Output) -> int | str | None:
    """Return the stop word or stop token that ended the answer, or "timeout". None if an end token or the length limit
    ended it."""
    return "timeout" if output.finish_reason == "timeout" else output.stopped_by


def was_cut(output: Output) -> bool:
    """Return whether the length limit, a deadline or a stop word cut off the answer, which then did not end by
    itself."""
    return output.finish_reason != "stop" or isinstance(output.stopped_by, str)


# -- the text of an answer


def parts_of(parser: AnswerParser | None, text: str, output: Output | None) -> list[Part]:
    """Split the next text of a chat's answer into parts. With the last text, `output` is the whole answer. Without a
    parser all text is content."""
    if parser is None:
        return [Content(text)] if text else []
    parts = parser.feed(text) if text else []
    return parts if output is None else [*parts, *parser.finish(is_cut=was_cut(output))]


# -- usage and extras


def usage_of(job: Job, outputs: Iterable[Output], num_reasoning: int = 0) -> dict[str, Any]:
    """Return the `usage` of a job whose answers have ended. `num_reasoning` is the number of their reasoning
    tokens."""
    ended = list(outputs)
    return usage(
        job.prompt_tokens,
        sum(len(output.token_ids) for output in ended),
        # Count each prompt's cached tokens once, at its first answer.
        sum(output.stats.reused_tokens for output in ended[:: job.body.num_answers]),
        {
            "reasoning_tokens": num_reasoning,
            # The engine does not count rejected drafts by origin, so the number of rejected predictions is unknown.
            "accepted_prediction_tokens": sum(output.origins.count("given") for output in ended),
            "rejected_prediction_tokens": 0,
        },
    )


def usage(
    prompt: int, completion: int, cached: int = 0, details: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return OpenAI's `usage` object for these token counts."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": details,
    }


def tokens_through(pieces: Iterable[bytes], text: str) -> int:
    """Count the tokens up to the end of the first occurrence of `text`. `pieces` are the bytes of the tokens. If they
    do not contain `text`, all tokens count, because some tokenizers decode to text that no token holds."""
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


def extras(outputs: Sequence[Output], ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Return an answer's `weft` object: unenforced parts of guides, `ignored` fields of the request, program results,
    and statistics of speculation and timing."""
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
        "ignored": ignored or None,
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
    """Count the tokens of each origin."""
    counts: dict[str, int] = {}
    for origin in origins:
        counts[origin] = counts.get(origin, 0) + 1
    return counts


def _as_texts(variables: dict[str, bytes] | None) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in (variables or {}).items()}


# -- tokens and log-probabilities

LOWEST_LOGPROB = -9999.0
"""Replaces -inf, the logarithm of 0, which JSON can't represent."""


def finite(logprob: float) -> float:
    """Clamp a log-probability to a value that JSON can represent."""
    return max(logprob, LOWEST_LOGPROB)


class TokenJson:
    """Converts tokens with log-probabilities and origins to JSON. With `as_ids`, a token's text is its id, such as
    "token_id:7"."""

    def __init__(self, tokens: TokenTexts, as_ids: bool = False) -> None:
        self._tokens, self._as_ids = tokens, as_ids

    def text(self, token: int) -> str:
        """Return a token's text, or its id with `as_ids`."""
        return f"token_id:{token}" if self._as_ids else self._tokens.text(token)

    def offsets(self) -> TextOffsets:
        """Return a new counter of text offsets, for one answer."""
        return TextOffsets(self._tokens)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """Return a token in the chat API's format, with its bytes."""
        return {
            "token": self.text(token),
            "bytes": list(self._tokens.bytes_of(token)),
            "logprob": finite(logprob),
            "token_id": token,
        }

    def chat(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], origins: Sequence[str]
    ) -> dict[str, Any]:
        """Return the `logprobs` of a chat's choice. weft adds `token_id`, `origin`, `num_allowed`, and `forbidden` for
        tokens that were not allowed. Special tokens are omitted, because they are not part of the text."""
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
        """Return the `logprobs` of a completion's choice. As in OpenAI's API, `top_logprobs` includes the sampled token
        itself. The first `num_prompt` tokens are the prompt; special tokens after the prompt are omitted."""
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
    """The log-probabilities and ranks of a prompt's tokens. Rank 1 is the most likely token. The entries of the first
    token are None."""

    tokens: Sequence[int]
    entries: list[TokenLogprob | None]
    ranks: list[int | None]

    def vllm_form(self, token_json: TokenJson) -> list[dict[str, Any] | None]:
        """Return vLLM's `prompt_logprobs`: for each position an object that maps token ids to log-probabilities. It has
        the prompt's token and the most likely ones."""
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
"""A function (p, k) that returns the log-probabilities of prompt p, with the k most likely tokens per position."""


def prompt_reader(outputs: dict[int, Output], num_each: int) -> PromptReader:
    """Return a cached function that computes the log-probabilities of a prompt. `outputs` maps choices to outputs; each
    prompt has `num_each` choices."""

    @cache
    def read(place: int, top: int) -> PromptLogprobs:
        output = outputs[place * num_each]  # the prompt's logits are in its first answer
        assert output.context_logits is not None
        return prompt_logprobs(output.prompt_token_ids, output.context_logits, top)

    return read


def prompt_logprobs(prompt: Sequence[int], logits: Tensor, top: int) -> PromptLogprobs:
    """Compute the log-probabilities of a prompt from the model's `logits` [prompt length, vocab_size]."""
    if len(prompt) < 2:
        return PromptLogprobs(prompt, [None] * len(prompt), [None] * len(prompt))
    # The logits at each position predict the next token, so the last row is not needed.
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
    """Format a server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """Format a server-sent event that has a name, which is its `type`."""
    return f"event: {data['type']}\n".encode() + event(data)
