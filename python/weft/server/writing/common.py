"""What answers of all routes are made of: why they ended, what they cost, how each token came."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from weft.core import Output, TokenLogprob
from weft.server.errors import ApiError
from weft.server.reading.jobs import Job
from weft.server.served import TextOffsets, TokenTexts

LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of 0, which JSON can't hold."""

FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "timeout": "length",
    "cancelled": "abort",
    "error": "error",
}


def finish_reason(output: Output) -> str:
    """OpenAI's word for it."""
    return FINISH_REASONS[output.finish_reason or "error"]


def stop_reason(output: Output) -> int | str | None:
    """The stop word or token that ended it, or "timeout"; None for an end token and for the length."""
    return "timeout" if output.finish_reason == "timeout" else output.stopped_by


def was_cut(output: Output) -> bool:
    """Whether an answer ended where it did not end itself: at its length, or at a stop word."""
    return output.finish_reason != "stop" or isinstance(output.stopped_by, str)


def shown(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def usage(job: Job, outputs: Iterable[Output], num_reasoning: int = 0) -> dict[str, Any]:
    """What they cost: tokens of prompts and answers, and what was found read already."""
    ended = list(outputs)
    return usage_of(
        job.prompt_tokens,
        sum(len(output.token_ids) for output in ended),
        sum(output.stats.reused_tokens for output in ended[:: job.num_each]),
        {
            "reasoning_tokens": num_reasoning,
            # What was predicted is what the request gave; how much of it was drafted in vain is not known.
            "accepted_prediction_tokens": sum(output.origins.count("given") for output in ended),
            "rejected_prediction_tokens": 0,
        },
    )


def usage_of(
    prompt: int, completion: int, cached: int = 0, details: dict[str, int] | None = None
) -> dict[str, Any]:
    """OpenAI's object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": details,
    }


def extras(outputs: Sequence[Output]) -> dict[str, Any]:
    """weft's own object: what guides did not enforce, what programs left, and what speculation did."""
    programs = [
        {"log": output.program_log, "variables": _texts(output.program_variables)}
        for output in outputs
        if output.program_log is not None
    ]
    stats = [output.stats for output in outputs]
    proposed, accepted = sum(s.proposed_drafts for s in stats), sum(s.accepted_drafts for s in stats)
    drafted, tokens = sum(s.drafted_iterations for s in stats), sum(s.drafted_tokens for s in stats)
    notes = list(dict.fromkeys(note for output in outputs for note in output.guide_notes))
    valid = [output.stats.guided_valid for output in outputs]
    return {
        "guided_valid": valid if any(one is not None for one in valid) else None,
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
    """How many tokens came from each."""
    counts: dict[str, int] = {}
    for origin in origins:
        counts[origin] = counts.get(origin, 0) + 1
    return counts


class TokenJson:
    """Log-probabilities and origins of tokens as JSON; `as_ids` writes tokens as "token_id:7"."""

    def __init__(self, tokens: TokenTexts, as_ids: bool = False) -> None:
        self._tokens, self._as_ids = tokens, as_ids

    def text(self, token: int) -> str:
        """How a token is written."""
        return f"token_id:{token}" if self._as_ids else self._tokens.text(token)

    def offsets(self) -> TextOffsets:
        """Where the tokens of one text begin."""
        return TextOffsets(self._tokens)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """A token of the chat API, with its bytes."""
        return {
            "token": self.text(token),
            "bytes": list(self._tokens.bytes_of(token)),
            "logprob": shown(logprob),
            "token_id": token,
        }

    def chat(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], origins: Sequence[str]
    ) -> dict[str, Any]:
        """`logprobs` of a chat's choice. weft's own: `token_id`, `origin`, `num_allowed`, and `forbidden` of those that
        could not be drawn. Special tokens, the end's among them, are no part of the text."""
        content = [
            {
                **self.entry(token, own.logprob),
                "top_logprobs": [
                    {**self.entry(name, value), **({"forbidden": True} if name in own.forbidden else {})}
                    for name, value in own.top.items()
                ],
                "origin": origin,
                "num_allowed": own.num_allowed,
            }
            for token, own, origin in zip(tokens, logprobs, origins, strict=True)
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
        """`logprobs` of a completion's choice; `top_logprobs` have the token itself, too, as OpenAI's do. Of the first
        `num_prompt` tokens special ones are there, too."""
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for place, (token, own) in enumerate(zip(tokens, logprobs, strict=True)):
            if num_prompt and place == num_prompt:
                offsets.end()
            if place >= num_prompt and self._tokens.is_special(token):
                continue
            top = own and {**self._texts(own.top), self.text(token): shown(own.logprob)}
            found["tokens"].append(self.text(token))
            found["token_logprobs"].append(own and shown(own.logprob))
            found["top_logprobs"].append(top)
            found["text_offset"].append(offsets.next(token))
        return found

    def _texts(self, top: dict[int, float]) -> dict[str, float]:
        return {self.text(name): shown(value) for name, value in top.items()}


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def failed(error: ApiError) -> bytes:
    """The events of an answer that fails after it has begun."""
    return event(error.body) + DONE


def _texts(variables: dict[str, bytes] | None) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in (variables or {}).items()}
