"""The answers of /v1/completions: as a whole, and in chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.core import Output, TokenLogprob
from weft.server.protocol.completions import CompletionBody
from weft.server.reading.jobs import Job
from weft.server.writing.choices import ChoicesWriter
from weft.server.writing.common import finish_reason, stop_reason
from weft.server.writing.increments import Increment


class CompletionWriter(ChoicesWriter):
    """Writes one body's answers. `echoes` are the texts of the prompts, where they are to be repeated."""

    kind = chunk_kind = "text_completion"

    def __init__(self, job: Job, body: CompletionBody, echoes: Sequence[str]) -> None:
        super().__init__(job, body)
        self._body, self._echoes = body, echoes
        num_choices = len(job.requests) * job.num_each
        self._texts = [""] * num_choices
        self._counted = [0] * num_choices
        self._offsets = [self._tokens.offsets() for _ in range(num_choices)]
        self._held: list[list[str]] = [[] for _ in range(num_choices)]

    # -- in chunks

    def _chunk(self, one: Increment) -> bytes:
        if not self._job.wants_answer:
            if one.output is None:
                return b""
            one = without_answer(one)
        choice = one.choice
        if one.output is not None:
            self._outputs[choice] = one.output
        is_first, text = not self._counted[choice], self._text(one)
        self._counted[choice] += len(one.token_ids)
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
        return self._event(f'{{"index":{choice},"text":{said},"finish_reason":{reason}{rest}}}')

    # -- as a whole

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The answer, once all choices have ended."""
        for one in increments:
            told = one if self._job.wants_answer else without_answer(one)
            if told.output is not None:
                self._outputs[told.choice] = told.output
            self._texts[told.choice] += self._text(told)
        return self._whole([self._choice(index, self._outputs[index]) for index in sorted(self._outputs)])

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
        return self._tokens.completion(tokens, logprobs, self._tokens.offsets(), num_prompt)

    @property
    def _num_tokens(self) -> int:
        return sum(self._counted)


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
