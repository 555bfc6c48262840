"""The answers of /v1/completions: as a whole, and in chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.core import Output, TokenLogprob
from weft.server.errors import ApiError
from weft.server.protocol.completions import CompletionBody
from weft.server.reading.jobs import Job
from weft.server.writing.common import (
    DONE,
    TokenJson,
    event,
    extras,
    failed,
    finish_reason,
    stop_reason,
    usage,
    usage_of,
)
from weft.server.writing.increments import Increment
from weft.server.writing.prompt_logprobs import reader


class CompletionWriter:
    """Writes one body's answers. `echoes` are the texts of the prompts, where they are to be repeated."""

    def __init__(self, job: Job, body: CompletionBody, echoes: Sequence[str]) -> None:
        self._job, self._body, self._echoes = job, body, echoes
        self._tokens = TokenJson(job.served.tokens, body.return_tokens_as_token_ids)
        self._outputs: dict[int, Output] = {}
        self._read = reader(self._outputs, job.num_each)
        self._num_choices = len(job.prepared) * job.num_each
        self._texts = [""] * self._num_choices
        self._num_tokens = [0] * self._num_choices
        self._offsets = [0] * self._num_choices
        self._held: list[list[str]] = [[] for _ in range(self._num_choices)]
        options = body.stream_options
        self._wants_usage = options is not None and options.include_usage
        self._counts = options is not None and options.continuous_usage_stats
        head = {"id": job.request_id, "object": "text_completion", "created": job.created}
        head |= {"model": job.served.name}
        self._head = json.dumps(head, separators=(",", ":"))[:-1]

    # -- in chunks

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """The events of what came."""
        return b"".join(self._chunk(one) for one in increments)

    def last(self) -> bytes:
        """What follows the last event."""
        if not self._wants_usage:
            return DONE
        data = json.loads(self._head + "}")
        return event({**data, "choices": [], "usage": self._usage(), "weft": self._extras()}) + DONE

    def failed(self, error: ApiError) -> bytes:
        """What is sent where an answer fails after it has begun."""
        return failed(error)

    def _chunk(self, one: Increment) -> bytes:
        if not self._job.wants_answer:
            if one.output is None:
                return b""
            one = without_answer(one)
        choice = one.choice
        is_first, text = not self._num_tokens[choice], self._text(one)
        self._num_tokens[choice] += len(one.token_ids)
        self._held[choice] += one.origins
        if is_first and self._echoes:
            text = self._echoes[choice // self._job.num_each] + text
        if not text and one.output is None and one.logprobs is None and not self._body.return_token_ids:
            return b""  # held back; its origins come with the text
        rest = f',"token_origins":{json.dumps(self._held[choice])}'
        self._held[choice] = []
        if one.logprobs is None:
            rest += ',"logprobs":null'
        else:
            found = self._tokens.completion(one.token_ids, one.logprobs, self._offsets[choice])
            self._offsets[choice] += self._tokens.width(one.token_ids)
            rest += f',"logprobs":{json.dumps(found)}'
            if self._body.token_details:
                details = self._tokens.chat(one.token_ids, one.logprobs, one.origins)
                rest += f',"token_details":{json.dumps(details["content"])}'
        if self._body.return_token_ids:
            rest += f',"token_ids":{json.dumps(one.token_ids)}'
        reason = "null"
        if one.output is not None:
            reason = f'"{finish_reason(one.output)}"'
            rest += f',"stop_reason":{json.dumps(stop_reason(one.output))}'
        said = json.dumps(text, ensure_ascii=False)
        data = f'data: {self._head},"choices":[{{"index":{choice},"text":{said},"finish_reason":{reason}{rest}}}]'
        if self._counts:
            data += f',"usage":{json.dumps(usage_of(self._job.prompt_tokens, sum(self._num_tokens)))}'
        return (data + "}\n\n").encode()

    def _text(self, one: Increment) -> str:
        if one.output is not None:
            self._outputs[one.choice] = one.output
        text = one.text
        if one.output is not None and self._body.include_stop_str_in_output:
            text += one.output.stopped_by if isinstance(one.output.stopped_by, str) else ""
        return text

    # -- as a whole

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The answer, once all choices have ended."""
        for one in increments:
            self._texts[one.choice] += self._text(one if self._job.wants_answer else without_answer(one))
        found = {
            "id": self._job.request_id,
            "object": "text_completion",
            "created": self._job.created,
            "model": self._job.served.name,
            "choices": [self._choice(index, self._outputs[index]) for index in sorted(self._outputs)],
            "usage": self._usage(),
            "weft": self._extras(),
        }
        return found

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        prompt = output.prompt_token_ids
        echo = self._echoes[index // self._job.num_each] if self._echoes else ""
        found: dict[str, Any] = {
            "index": index,
            "text": echo + self._texts[index],
            "logprobs": self._logprobs(index, output),
            "finish_reason": finish_reason(output),
            "stop_reason": stop_reason(output),
        }
        if self._body.token_details and output.logprobs is not None:
            details = self._tokens.chat(output.token_ids, output.logprobs, output.origins)
            found["token_details"] = details["content"]
        top = self._body.prompt_logprobs
        if top is not None:
            found["prompt_logprobs"] = self._read(index // self._job.num_each, top).vllm_form(self._tokens)
        if self._body.return_token_ids:
            found |= {"token_ids": output.token_ids, "prompt_token_ids": list(prompt)}
        return found

    def _logprobs(self, index: int, output: Output) -> dict[str, Any] | None:
        if self._body.logprobs is None or output.logprobs is None:
            return None
        tokens, logprobs = output.token_ids, list[TokenLogprob | None](output.logprobs)
        num_prompt = 0
        if self._echoes:
            prompt = output.prompt_token_ids
            num_prompt = len(prompt)
            told = self._read(index // self._job.num_each, self._body.logprobs)
            tokens, logprobs = [*prompt, *tokens], [*told.entries, *logprobs]
        return self._tokens.completion(tokens, logprobs, num_prompt=num_prompt)

    def _usage(self) -> dict[str, Any]:
        return usage(self._job, self._ended)

    def _extras(self) -> dict[str, Any]:
        return extras(self._ended)

    @property
    def _ended(self) -> list[Output]:
        return [self._outputs[index] for index in sorted(self._outputs)]


def without_answer(one: Increment) -> Increment:
    """Without the token that the engine gives where only the prompt is to be shown."""
    output = one.output
    if output is not None:
        logprobs = None if output.logprobs is None else list[TokenLogprob]()
        output = replace(
            output,
            token_ids=[],
            origins=[],
            text="",
            logprobs=logprobs,
            finish_reason="length",
            stopped_by=None,
        )
    return replace(one, text="", token_ids=[], origins=[], logprobs=None, output=output)
