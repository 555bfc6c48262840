"""The answers of /v1/chat/completions: as a whole, and in chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from weft.core import Output
from weft.parsing import AnswerParser, CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from weft.server.ids import new_hex
from weft.server.protocol.chat import ChatBody
from weft.server.reading.jobs import Job
from weft.server.writing.choices import ChoicesWriter
from weft.server.writing.common import finish_reason, stop_reason, was_cut
from weft.server.writing.increments import Increment
from weft.server.writing.thought import tokens_through


@dataclass
class Choice:
    """What was written of one choice. `parser` splits its text; None: all of it is content."""

    parser: AnswerParser | None
    has_begun: bool = False
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    num_whole_calls: int = 0
    num_tokens: int = 0
    held_origins: list[str] = field(default_factory=list)


class ChatWriter(ChoicesWriter):
    """Writes one body's answers. `parsers` are those of its choices."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, job: Job, body: ChatBody, parsers: Sequence[AnswerParser | None]) -> None:
        super().__init__(job, body)
        self._body = body
        self._choices = [Choice(parser) for parser in parsers]
        self._is_plain = not (self._counts or body.logprobs or body.return_token_ids)

    @property
    def parser(self) -> AnswerParser | None:
        """What splits the first choice's text."""
        return self._choices[0].parser

    # -- in chunks

    def _chunk(self, one: Increment) -> bytes:
        choice = self._choices[one.choice]
        if choice.has_begun and choice.parser is None and one.output is None and self._is_plain:
            return self._plain_chunk(choice, one)
        choice.num_tokens += len(one.token_ids)
        if one.output is not None:
            self._outputs[one.choice] = one.output
        deltas = self._deltas(choice, one)
        choice.held_origins += one.origins
        logprobs = None
        if one.logprobs is not None and one.token_ids:
            logprobs = self._tokens.chat(one.token_ids, one.logprobs, one.origins)
        if not choice.has_begun:
            choice.has_begun = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        if not deltas and logprobs is None and one.output is None and not self._body.return_token_ids:
            return b""  # its text is held back; its origins come with the text
        *before, last = deltas or [{}]
        written = [self._delta_event(one.choice, delta, "") for delta in before]
        rest = f',"token_origins":{json.dumps(choice.held_origins)}'
        choice.held_origins = []
        if logprobs is not None:
            rest += f',"logprobs":{json.dumps(logprobs)}'
        if self._body.return_token_ids:
            rest += f',"token_ids":{json.dumps(one.token_ids)}'
        written.append(self._delta_event(one.choice, last, rest, one.output))
        return b"".join(written)

    def _plain_chunk(self, choice: Choice, one: Increment) -> bytes:
        """What most chunks are: a text, and how its tokens came."""
        choice.num_tokens += len(one.token_ids)
        origins = one.origins
        if choice.held_origins:
            origins = [*choice.held_origins, *origins]
        if not one.text:
            choice.held_origins = origins
            return b""
        choice.held_origins = []
        choice.content += one.text
        said, came = encode_basestring(one.text), '","'.join(origins)
        return (
            f'data: {self._head},"choices":[{{"index":{one.choice},"delta":{{"content":{said}}},"finish_reason":null,'
            f'"token_origins":["{came}"]}}]}}\n\n'
        ).encode()

    def _delta_event(
        self, index: int, delta: dict[str, Any], rest: str, output: Output | None = None
    ) -> bytes:
        reason = "null"
        if output is not None:
            reason = f'"{self._reason(index, output)}"'
            rest += f',"stop_reason":{json.dumps(stop_reason(output))}'
        said = json.dumps(delta, ensure_ascii=False)
        return self._event(f'{{"index":{index},"delta":{said},"finish_reason":{reason}{rest}}}')

    def _deltas(self, choice: Choice, one: Increment) -> list[dict[str, Any]]:
        """What the text adds to the message."""
        return merged(
            [delta for part in self._parts(choice, one) if (delta := self._delta(choice, part)) is not None]
        )

    def _parts(self, choice: Choice, one: Increment) -> list[Part]:
        text = self._text(one)
        if choice.parser is None:
            return [Content(text)] if text else []
        parts = choice.parser.feed(text) if text else []
        if one.output is not None:
            parts = [*parts, *choice.parser.finish(is_cut=was_cut(one.output))]
        return parts

    def _delta(self, choice: Choice, part: Part) -> dict[str, Any] | None:
        match part:
            case Content(text):
                choice.content += text
                return {"content": text}
            case Reasoning(text):
                choice.reasoning += text
                return {"reasoning_content": text} if self._body.include_reasoning else None
            case CallBegin(index, name):
                call = {"id": f"call_{new_hex()[:24]}", "type": "function"}
                choice.calls.append({**call, "function": {"name": name, "arguments": ""}})
                return {"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]}
            case CallArguments(index, text):
                choice.calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                choice.num_whole_calls += 1
        return None

    # -- as a whole

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The answer, once all choices have ended."""
        for one in increments:
            self._choices[one.choice].num_tokens += len(one.token_ids)
            for part in self._parts(self._choices[one.choice], one):
                self._delta(self._choices[one.choice], part)
            if one.output is not None:
                self._outputs[one.choice] = one.output
        found = self._whole([self._whole_choice(index) for index in sorted(self._outputs)])
        top = self._body.prompt_logprobs
        first = self._outputs[0]
        if top is not None and first.context_logits is not None:
            found["prompt_logprobs"] = self._read(0, top).vllm_form(self._tokens)
        if self._body.return_token_ids:
            found["prompt_token_ids"] = list(first.prompt_token_ids)
        return found

    def _whole_choice(self, index: int) -> dict[str, Any]:
        choice, output = self._choices[index], self._outputs[index]
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.calls:
            message["content"] = choice.content or None
            message["tool_calls"] = choice.calls
        if choice.reasoning and self._body.include_reasoning:
            message["reasoning_content"] = choice.reasoning
        logprobs = None
        if output.logprobs is not None:
            logprobs = self._tokens.chat(output.token_ids, output.logprobs, output.origins)
        found = {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason(index, output),
            "stop_reason": stop_reason(output),
        }
        if self._body.return_token_ids:
            found["token_ids"] = output.token_ids
        return found

    def _reason(self, index: int, output: Output) -> str:
        reason, choice = finish_reason(output), self._choices[index]
        are_whole = 0 < len(choice.calls) == choice.num_whole_calls  # a stop word may stand within one
        return "tool_calls" if reason == "stop" and are_whole else reason

    @property
    def _num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def _num_reasoning(self) -> int:
        bytes_of, choices = self._job.served.tokens.bytes_of, self._choices
        return sum(
            tokens_through(map(bytes_of, output.token_ids), choices[index].reasoning)
            for index, output in self._outputs.items()
        )


def merged(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Deltas that say the same field one after another are one."""
    found: list[dict[str, Any]] = []
    for delta in deltas:
        last = found[-1] if found else {}
        for name in ("content", "reasoning_content"):
            if name in delta and name in last:
                last[name] += delta[name]
                break
        else:
            found.append(delta)
    return found
