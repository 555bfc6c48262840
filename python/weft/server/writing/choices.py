"""Formats answers with `choices`, for /v1/chat/completions (`ChatWriter`) and /v1/completions (`CompletionWriter`).

Most of a streamed token's cost in Python is building its event. So `ChatWriter` builds the common chunk, which has
only text and its origins, by string formatting. All other chunks take the general path.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any, ClassVar

from weft.core import Output, TokenLogprob
from weft.parsing import AnswerParser, CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from weft.server.errors import ApiError
from weft.server.ids import new_call_id
from weft.server.protocol.generation import ChatBody, CompletionBody, SamplingFields
from weft.server.reading.jobs import Job
from weft.server.writing.common import (
    DONE,
    TokenJson,
    event,
    extras,
    finish_reason,
    parts_of,
    prompt_reader,
    stop_reason,
    tokens_through,
    usage,
    usage_of,
)
from weft.server.writing.increments import Increment


class ChoicesWriter(ABC):
    """Base class of both writers. `kind` and `chunk_kind` are OpenAI's `object` names for a complete answer and for a
    chunk."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, job: Job, fields: SamplingFields) -> None:
        self._job, self._fields = job, fields
        self._tokens = TokenJson(job.served.tokens, fields.return_tokens_as_token_ids)
        self._outputs: dict[int, Output] = {}
        self._read_prompt = prompt_reader(self._outputs, fields.num_answers)
        options = fields.stream_options
        self._wants_usage = options is not None and options.include_usage
        self._wants_running_usage = options is not None and options.continuous_usage_stats
        # All chunks begin with this text. The closing brace is cut off; it is written after the choices.
        self._head = json.dumps(self._envelope(self.chunk_kind), separators=(",", ":"))[:-1]

    # -- in chunks

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """Return the events for some increments."""
        return b"".join(self._chunk(increment) for increment in increments)

    def last(self) -> bytes:
        """Return the final events, after the last increment."""
        if not self._wants_usage:
            return DONE
        data = {"choices": [], "usage": self._usage(), "weft": extras(self._ended, self._job.ignored)}
        return event({**self._envelope(self.chunk_kind), **data}) + DONE

    def failed(self, error: ApiError) -> bytes:
        """Return the events for an error after the first chunk."""
        return event(error.body) + DONE

    def api_error(self, error: BaseException) -> ApiError:
        """Convert an exception to the error that the client gets."""
        return self._job.api_error(error)

    @abstractmethod
    def _chunk(self, increment: Increment) -> bytes:
        """Return the events for an increment; empty if there is nothing to send, because its text is held back."""

    def _event(self, choice: str) -> bytes:
        """Return the event for a choice, given as a JSON string."""
        text = f'data: {self._head},"choices":[{choice}]'
        if self._wants_running_usage:
            text += f',"usage":{json.dumps(usage(self._job.prompt_tokens, self._num_tokens))}'
        return (text + "}\n\n").encode()

    # -- as a whole

    def _whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        data = {"choices": choices, "usage": self._usage(), "weft": extras(self._ended, self._job.ignored)}
        return {**self._envelope(self.kind), **data}

    # -- both

    @property
    @abstractmethod
    def _num_tokens(self) -> int:
        """The number of tokens in all choices so far."""

    @property
    def _num_reasoning(self) -> int:
        """The number of reasoning tokens in the choices that have ended."""
        return 0

    @property
    def _ended(self) -> list[Output]:
        return [self._outputs[index] for index in sorted(self._outputs)]

    def _envelope(self, kind: str) -> dict[str, Any]:
        job = self._job
        return {"id": job.id, "object": kind, "created": job.created, "model": job.served.name}

    def _text(self, increment: Increment) -> str:
        """Return an increment's text. The last increment includes the stop word if the client asked for it."""
        output = increment.output
        if output is None or not self._fields.include_stop_str_in_output:
            return increment.text
        return increment.text + (output.stopped_by if isinstance(output.stopped_by, str) else "")

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._job, self._ended, self._num_reasoning)


# -- chats


@dataclass
class Choice:
    """The state of a chat's choice while it is written. `parser` splits the text; None if all of it is content.

    `held_origins` holds the origins of tokens whose text is held back. They are sent with that text.
    """

    parser: AnswerParser | None
    has_begun: bool = False
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    num_whole_calls: int = 0
    num_tokens: int = 0
    held_origins: list[str] = field(default_factory=list)


class ChatWriter(ChoicesWriter):
    """Formats the answers of a chat."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, job: Job, body: ChatBody) -> None:
        super().__init__(job, body)
        self._body = body
        self._choices = [Choice(parser) for parser in job.parsers]
        self._is_plain = not (self._wants_running_usage or body.logprobs or body.return_token_ids)

    # -- in chunks

    def _chunk(self, increment: Increment) -> bytes:
        choice = self._choices[increment.choice]
        output = increment.output
        if choice.has_begun and choice.parser is None and output is None and self._is_plain:
            return self._plain_chunk(choice, increment)
        choice.num_tokens += len(increment.token_ids)
        if output is not None:
            self._outputs[increment.choice] = output
        deltas = self._deltas(choice, increment)
        choice.held_origins += increment.origins
        logprobs = None
        if increment.logprobs is not None and increment.token_ids:
            logprobs = self._tokens.chat(increment.token_ids, increment.logprobs, increment.origins)
        if not choice.has_begun:
            choice.has_begun = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        if not deltas and logprobs is None and output is None and not self._body.return_token_ids:
            return b""
        # The last delta's chunk carries the origins, log-probabilities and finish reason of the whole increment.
        *before, last = deltas or [{}]
        events = [self._delta_event(increment.choice, delta, "") for delta in before]
        rest = f',"token_origins":{json.dumps(choice.held_origins)}'
        choice.held_origins = []
        if logprobs is not None:
            rest += f',"logprobs":{json.dumps(logprobs)}'
        if self._body.return_token_ids:
            rest += f',"token_ids":{json.dumps(increment.token_ids)}'
        events.append(self._delta_event(increment.choice, last, rest, output))
        return b"".join(events)

    def _plain_chunk(self, choice: Choice, increment: Increment) -> bytes:
        """Return the common chunk, which has only text and the origins of its tokens."""
        choice.num_tokens += len(increment.token_ids)
        origins = increment.origins
        if choice.held_origins:
            origins = [*choice.held_origins, *origins]
        if not increment.text:
            choice.held_origins = origins
            return b""
        choice.held_origins = []
        choice.content += increment.text
        content, names = encode_basestring(increment.text), '","'.join(origins)
        return (
            f'data: {self._head},"choices":[{{"index":{increment.choice},"delta":{{"content":{content}}},'
            f'"finish_reason":null,"token_origins":["{names}"]}}]}}\n\n'
        ).encode()

    def _delta_event(
        self, index: int, delta: dict[str, Any], rest: str, output: Output | None = None
    ) -> bytes:
        reason = "null"
        if output is not None:
            reason = f'"{self._reason(index, output)}"'
            rest += f',"stop_reason":{json.dumps(stop_reason(output))}'
        delta_json = json.dumps(delta, ensure_ascii=False)
        return self._event(f'{{"index":{index},"delta":{delta_json},"finish_reason":{reason}{rest}}}')

    def _deltas(self, choice: Choice, increment: Increment) -> list[dict[str, Any]]:
        """Return the `delta` objects for an increment."""
        parts = parts_of(choice.parser, self._text(increment), increment.output)
        return merged([delta for part in parts if (delta := self._delta(choice, part)) is not None])

    def _delta(self, choice: Choice, part: Part) -> dict[str, Any] | None:
        """Add a part to its choice. Returns the part's `delta` object; None if it has none."""
        match part:
            case Content(text):
                choice.content += text
                return {"content": text}
            case Reasoning(text):
                choice.reasoning += text
                return {"reasoning_content": text} if self._body.include_reasoning else None
            case CallBegin(index, name):
                call = {"id": new_call_id(), "type": "function"}
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
        """Return the complete answer, built from the increments of all choices."""
        for increment in increments:
            choice = self._choices[increment.choice]
            choice.num_tokens += len(increment.token_ids)
            for part in parts_of(choice.parser, self._text(increment), increment.output):
                self._delta(choice, part)
            if increment.output is not None:
                self._outputs[increment.choice] = increment.output
        answer = self._whole([self._whole_choice(index) for index in sorted(self._outputs)])
        top = self._body.prompt_logprobs
        first = self._outputs[0]
        if top is not None and first.context_logits is not None:
            answer["prompt_logprobs"] = self._read_prompt(0, top).vllm_form(self._tokens)
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = list(first.prompt_token_ids)
        return answer

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
        members = {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason(index, output),
            "stop_reason": stop_reason(output),
        }
        if self._body.return_token_ids:
            members["token_ids"] = output.token_ids
        return members

    def _reason(self, index: int, output: Output) -> str:
        reason, choice = finish_reason(output), self._choices[index]
        # Report "tool_calls" only if every call is complete. A stop word may cut off the last one.
        are_whole = 0 < len(choice.calls) == choice.num_whole_calls
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
    """Merge adjacent deltas with the same kind of text. Modifies the deltas."""
    result: list[dict[str, Any]] = []
    for delta in deltas:
        last = result[-1] if result else {}
        for name in ("content", "reasoning_content"):
            if name in delta and name in last:
                last[name] += delta[name]
                break
        else:
            result.append(delta)
    return result


# -- completions


class CompletionWriter(ChoicesWriter):
    """Formats the answers of a completion."""

    kind = chunk_kind = "text_completion"

    def __init__(self, job: Job, body: CompletionBody) -> None:
        super().__init__(job, body)
        self._body = body
        self._texts = [""] * job.num_answers
        self._token_counts = [0] * job.num_answers
        self._offsets = [self._tokens.offsets() for _ in range(job.num_answers)]
        self._held_origins: list[list[str]] = [[] for _ in range(job.num_answers)]

    # -- in chunks

    def _chunk(self, increment: Increment) -> bytes:
        if self._body.is_prompt_only:
            if increment.output is None:
                return b""
            increment = without_answer(increment)
        index, output = increment.choice, increment.output
        if output is not None:
            self._outputs[index] = output
        is_first, text = not self._token_counts[index], self._text(increment)
        self._token_counts[index] += len(increment.token_ids)
        self._held_origins[index] += increment.origins
        if is_first:
            text = self._echo(index) + text
        if not text and output is None and increment.logprobs is None and not self._body.return_token_ids:
            return b""
        rest = f',"token_origins":{json.dumps(self._held_origins[index])}'
        self._held_origins[index] = []
        if increment.logprobs is None:
            rest += ',"logprobs":null'
        else:
            logprobs = self._tokens.completion(increment.token_ids, increment.logprobs, self._offsets[index])
            rest += f',"logprobs":{json.dumps(logprobs)}'
            if self._body.token_details:
                details = self._tokens.chat(increment.token_ids, increment.logprobs, increment.origins)
                rest += f',"token_details":{json.dumps(details["content"])}'
        if self._body.return_token_ids:
            rest += f',"token_ids":{json.dumps(increment.token_ids)}'
        reason = "null"
        if output is not None:
            reason = f'"{finish_reason(output)}"'
            rest += f',"stop_reason":{json.dumps(stop_reason(output))}'
        text_json = json.dumps(text, ensure_ascii=False)
        return self._event(f'{{"index":{index},"text":{text_json},"finish_reason":{reason}{rest}}}')

    # -- as a whole

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """Return the complete answer, built from the increments of all choices."""
        for increment in increments:
            if self._body.is_prompt_only:
                increment = without_answer(increment)
            if increment.output is not None:
                self._outputs[increment.choice] = increment.output
            self._texts[increment.choice] += self._text(increment)
        return self._whole(
            [self._whole_choice(index, self._outputs[index]) for index in sorted(self._outputs)]
        )

    def _whole_choice(self, index: int, output: Output) -> dict[str, Any]:
        prompt = output.prompt_token_ids
        members: dict[str, Any] = {
            "index": index,
            "text": self._echo(index) + self._texts[index],
            "logprobs": self._logprobs(index, output),
            "finish_reason": finish_reason(output),
            "stop_reason": stop_reason(output),
        }
        if self._body.token_details and output.logprobs is not None:
            details = self._tokens.chat(output.token_ids, output.logprobs, output.origins)
            members["token_details"] = details["content"]
        top = self._body.prompt_logprobs
        if top is not None:
            place = index // self._body.num_answers
            members["prompt_logprobs"] = self._read_prompt(place, top).vllm_form(self._tokens)
        if self._body.return_token_ids:
            members |= {"token_ids": output.token_ids, "prompt_token_ids": list(prompt)}
        return members

    def _logprobs(self, index: int, output: Output) -> dict[str, Any] | None:
        if self._body.logprobs is None or output.logprobs is None:
            return None
        tokens, logprobs = output.token_ids, list[TokenLogprob | None](output.logprobs)
        num_prompt = 0
        if self._body.echo:
            prompt = output.prompt_token_ids
            num_prompt = len(prompt)
            of_prompt = self._read_prompt(index // self._body.num_answers, self._body.logprobs)
            tokens, logprobs = [*prompt, *tokens], [*of_prompt.entries, *logprobs]
        return self._tokens.completion(tokens, logprobs, self._tokens.offsets(), num_prompt)

    def _echo(self, index: int) -> str:
        """Return the prompt's text if the client wants it repeated, else ""."""
        return self._job.echoes[index // self._body.num_answers] if self._body.echo else ""

    @property
    def _num_tokens(self) -> int:
        return sum(self._token_counts)


def without_answer(increment: Increment) -> Increment:
    """Return the increment without its generated token. The engine always generates at least one, even if the client
    wants only the prompt."""
    output = increment.output
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
    return replace(increment, text="", token_ids=[], origins=[], logprobs=None, output=output)
