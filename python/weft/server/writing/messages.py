"""Formats the answers of /v1/messages. `ContentBlocks` builds the blocks and their events. `MessagesWriter` puts them
into a complete message or a stream of events."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import copysign, isinf
from typing import Any

from pydantic_core import from_json

from weft.core import Output
from weft.parsing import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from weft.server.errors import ApiError
from weft.server.ids import new_call_id
from weft.server.protocol.messages import MessagesBody
from weft.server.reading.jobs import Job
from weft.server.reading.messages import renamed
from weft.server.writing.common import extras, named_event, parts_of, tokens_through
from weft.server.writing.increments import Increment

Events = list[dict[str, Any]]

SIGNATURE = "weft"
"""The signature of all blocks of thinking. Clients require one, and send it back; weft does not read it."""


class ContentBlocks:
    """The content blocks of a message: thinking, text and calls of tools. Only the last block is still growing.

    `reasoning` is the whole reasoning. Without `shows_thinking`, blocks of thinking have no text.
    """

    def __init__(self, shows_thinking: bool = True) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.reasoning = ""
        self._shows_thinking = shows_thinking
        self._is_open = False
        self._arguments = ""
        self._num_calls = self._num_whole_calls = 0

    def add(self, part: Part) -> Events:
        """Add a part of the answer, and return its events."""
        match part:
            case Content(text):
                events = self._open({"type": "text", "text": ""})
                self.blocks[-1]["text"] += text
                return [*events, self._delta("text_delta", text=text)]
            case Reasoning(text):
                self.reasoning += text
                events = self._open({"type": "thinking", "thinking": "", "signature": ""})
                if not self._shows_thinking:
                    return events
                self.blocks[-1]["thinking"] += text
                return [*events, self._delta("thinking_delta", thinking=text)]
            case CallBegin(_, name):
                self._num_calls += 1
                call = {"type": "tool_use", "id": new_call_id("toolu_"), "name": name, "input": {}}
                return [*self.close(), *self._open(call)]
            case CallArguments(_, text):
                self._arguments += text
                return [self._delta("input_json_delta", partial_json=text)]
            case CallEnd():
                self._num_whole_calls += 1
                return self.close()

    def close(self) -> Events:
        """Close the last block if it is open, and return the events."""
        if not self._is_open:
            return []
        self._is_open = False
        block, events = self.blocks[-1], list[dict[str, Any]]()
        if block["type"] == "tool_use":
            block["input"], self._arguments = _input(self._arguments), ""
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            events.append(self._delta("signature_delta", signature=SIGNATURE))
        return [*events, {"type": "content_block_stop", "index": len(self.blocks) - 1}]

    @property
    def are_whole_calls(self) -> bool:
        """Whether the answer calls tools, and no call is cut off."""
        return 0 < self._num_calls == self._num_whole_calls

    def _open(self, block: dict[str, Any]) -> Events:
        """Open a block, unless the open block is of the same type. Returns the events."""
        if self._is_open and self.blocks[-1]["type"] == block["type"]:
            return []
        events = self.close()
        self.blocks.append(block)
        self._is_open = True
        # A copy, because the block grows after its event is built.
        start = {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": {**block}}
        return [*events, start]

    def _delta(self, kind: str, **members: str) -> dict[str, Any]:
        delta = {"type": kind, **members}
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _input(arguments: str) -> dict[str, Any]:
    """Parse the arguments of a call. If they are cut off, the result has the complete part, as in Anthropic's
    clients."""
    try:
        data = from_json(arguments or "{}", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return _finite(data) if isinstance(data, dict) else {}


def _finite(value: Any) -> Any:
    """Replace infinity by the largest float. A number such as 1e999 is valid JSON but parses as infinity, which JSON
    can't represent."""
    match value:
        case dict():
            return {name: _finite(member) for name, member in value.items()}
        case list():
            return [_finite(member) for member in value]
        case float() if isinf(value):
            return copysign(sys.float_info.max, value)
    return value


class MessagesWriter:
    """Formats a message."""

    def __init__(self, job: Job, body: MessagesBody, request_id: str) -> None:
        self._job, self._body, self._request_id = job, body, request_id
        (self._parser,) = job.parsers
        self._blocks = ContentBlocks(body.thinking is None or body.thinking.display != "omitted")
        self._output: Output | None = None
        self._has_begun = False
        # The origins of tokens whose text is held back. They are sent with that text.
        self._held_origins: list[str] = []

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """Return the events for some increments."""
        events: Events = []
        if not self._has_begun:
            self._has_begun = True
            usage = self._usage(increments[0].stats.reused_tokens)
            events.append({"type": "message_start", "message": self._message({"usage": usage})})
        for increment in increments:
            events += self._add(increment)
        return b"".join(map(named_event, events))

    def last(self) -> bytes:
        """Return the final events, with the reason of the end, the usage and weft's extras."""
        end = self._end()
        stop = {name: end.pop(name) for name in ("stop_reason", "stop_sequence")}
        delta = {"type": "message_delta", "delta": stop, **end}
        if self._held_origins:
            delta["token_origins"] = self._held_origins
        return named_event(delta) + named_event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        """Return the event for an error after the first chunk."""
        return named_event(error.messages_body(self._request_id))

    def api_error(self, error: BaseException) -> ApiError:
        """Convert an exception to the error that the client gets, with this route's field names."""
        return renamed(self._job.api_error(error))

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """Return the complete message, built from all increments."""
        for increment in increments:
            self._add(increment)
        return self._message({"content": self._blocks.blocks, **self._end()})

    def _add(self, increment: Increment) -> Events:
        parts = parts_of(self._parser, increment.text, increment.output)
        events = [event for part in parts for event in self._blocks.add(part)]
        self._held_origins += increment.origins
        deltas = [event for event in events if event["type"] == "content_block_delta"]
        if deltas:
            deltas[-1]["token_origins"], self._held_origins = self._held_origins, []
        if increment.output is not None:
            self._output = increment.output
            events += self._blocks.close()
        return events

    def _message(self, members: dict[str, Any]) -> dict[str, Any]:
        message = {"id": self._job.id, "type": "message", "role": "assistant", "model": self._job.served.name}
        return {**message, "content": [], "stop_reason": None, "stop_sequence": None, **members}

    def _end(self) -> dict[str, Any]:
        """Return the members of a message that are known at its end."""
        output = self._output
        assert output is not None
        pieces = map(self._job.served.tokens.bytes_of, output.token_ids)
        num_thinking = tokens_through(pieces, self._blocks.reasoning)
        usage = self._usage(output.stats.reused_tokens, len(output.token_ids))
        return {
            **self._stop(output),
            "usage": {**usage, "output_tokens_details": {"thinking_tokens": num_thinking}},
            "weft": extras([output], self._job.ignored),
        }

    def _stop(self, output: Output) -> dict[str, str | None]:
        reason, word = output.finish_reason, output.stopped_by
        if reason == "stop" and isinstance(word, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": word}
        if reason == "stop":
            stop = "tool_use" if self._blocks.are_whole_calls else "end_turn"
        else:
            is_full = reason == "length" and len(output.token_ids) < self._body.max_tokens
            stop = "model_context_window_exceeded" if is_full else "max_tokens"
        return {"stop_reason": stop, "stop_sequence": None}

    def _usage(self, num_cached: int, num_output: int = 0) -> dict[str, Any]:
        # In Anthropic's API the input tokens are those that were not cached.
        return {
            "input_tokens": self._job.prompt_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": num_output,
        }
