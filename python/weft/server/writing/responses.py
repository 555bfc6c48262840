"""Formats the answers of /v1/responses. `ResponseItems` builds the output items and their events. `ResponsesWriter`
puts them into a complete response or a stream of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from weft.core import Output
from weft.parsing import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from weft.server.errors import ApiError
from weft.server.ids import new_call_id, new_item_id
from weft.server.protocol.responses import ResponsesBody
from weft.server.reading.jobs import Job
from weft.server.reading.responses import renamed
from weft.server.writing.common import TokenJson, extras, named_event, parts_of, tokens_through, usage_of
from weft.server.writing.increments import Increment

Events = list[dict[str, Any]]
Keep = Callable[[dict[str, Any]], None]
"""Called with a finished response, to store it."""


class ResponseItems:
    """The output items of a response: reasoning, messages and function calls. Only the last item is still growing."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, part: Part, logprobs: list[dict[str, Any]] | None = None) -> Events:
        """Add a part of the answer, and return its events."""
        match part:
            case Content(text):
                return self._add_text("message", text, logprobs)
            case Reasoning(text):
                return self._add_text("reasoning", text, None)
            case CallBegin(_, name):
                call = self._new("function_call", arguments="")
                return self._open({**call, "call_id": new_call_id(), "name": name})
            case CallArguments(_, text):
                self.items[-1]["arguments"] += text
                return [self._event("response.function_call_arguments.delta", delta=text)]
            case CallEnd():
                return self.close()

    def close(self, status: str = "completed") -> Events:
        """Close the last item if it is open, and return the events."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        events: Events = []
        match item["type"]:
            case "function_call":
                done = {"arguments": item["arguments"], "name": item["name"]}
                events.append(self._event("response.function_call_arguments.done", **done))
            case "message":
                (part,) = item["content"]
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                events.append(self._event("response.output_text.done", content_index=0, **done))
                events.append(
                    self._event("response.content_part.done", content_index=0, part=_snapshot(part))
                )
            case _:
                text = item["content"][0]["text"]
                events.append(self._event("response.reasoning_text.done", content_index=0, text=text))
        place = len(self.items) - 1
        events.append({"type": "response.output_item.done", "output_index": place, "item": _snapshot(item)})
        return events

    def end(self, status: str) -> Events:
        """Close the last item at the end of the answer. A call that is still open was cut off, and becomes
        "incomplete"."""
        is_call = bool(self.items) and self.items[-1]["type"] == "function_call"
        return self.close("incomplete" if is_call else status)

    def _add_text(self, kind: str, text: str, logprobs: list[dict[str, Any]] | None) -> Events:
        events: Events = []
        if not (self._is_open and self.items[-1]["type"] == kind):
            if kind == "message":
                events += self._open(self._new(kind, role="assistant", content=[]))
                part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                self.items[-1]["content"].append(part)
                events.append(
                    self._event("response.content_part.added", content_index=0, part=_snapshot(part))
                )
            else:
                events += self._open(self._new(kind, summary=[], content=[]))
                self.items[-1]["content"].append({"type": "reasoning_text", "text": ""})
        content = self.items[-1]["content"][0]
        content["text"] += text
        if kind == "reasoning":
            return [*events, self._event("response.reasoning_text.delta", content_index=0, delta=text)]
        content["logprobs"] += logprobs or []
        delta = self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs or []
        )
        return [*events, delta]

    def _new(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"id": new_item_id(kind), "type": kind, "status": "in_progress", **members}

    def _open(self, item: dict[str, Any]) -> Events:
        events = self.close()
        self.items.append(item)
        self._is_open = True
        place = len(self.items) - 1
        added = {"type": "response.output_item.added", "output_index": place, "item": _snapshot(item)}
        return [*events, added]

    def _event(self, kind: str, **data: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **data}


def _snapshot(item: Any) -> Any:
    """Return a deep copy, because items still grow after their events are built."""
    return json.loads(json.dumps(item))


class ResponsesWriter:
    """Formats a response. `keep` is called with the finished response if the client wants it stored."""

    def __init__(self, job: Job, body: ResponsesBody, keep: Keep) -> None:
        self._job, self._body, self._keep = job, body, keep
        (self._parser,) = job.parsers
        self._items = ResponseItems()
        self._tokens = TokenJson(job.served.tokens)
        self._output: Output | None = None
        self._num_events = 0
        self._reasoning = ""
        # The log-probabilities and origins of tokens whose text is held back. They are sent with that text.
        self._held_logprobs: list[dict[str, Any]] = []
        self._held_origins: list[str] = []

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """Return the events for some increments."""
        events: Events = []
        if not self._num_events:
            response = self._response("in_progress")
            events += [{"type": "response.created", "response": response}]
            events += [{"type": "response.in_progress", "response": response}]
        for increment in increments:
            events += self._add(increment)
        return b"".join(map(self._event, events))

    def last(self) -> bytes:
        """Return the final event, with the complete response."""
        response = self._ended()
        return self._event({"type": f"response.{response['status']}", "response": response})

    def failed(self, error: ApiError) -> bytes:
        """Return the events for an error after the first chunk."""
        data = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        response = self._response("failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event(data) + self._event({"type": "response.failed", "response": response})

    def api_error(self, error: BaseException) -> ApiError:
        """Convert an exception to the error that the client gets, with this route's field names."""
        return renamed(self._job.api_error(error))

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """Return the complete response, built from all increments."""
        for increment in increments:
            self._add(increment)
        return self._ended()

    def _add(self, increment: Increment) -> Events:
        if increment.logprobs is not None and increment.token_ids:
            logprobs = self._tokens.chat(increment.token_ids, increment.logprobs, increment.origins)
            self._held_logprobs += logprobs["content"]
        events: Events = []
        for part in parts_of(self._parser, increment.text, increment.output):
            events += self._items.add(part, self._held_logprobs if isinstance(part, Content) else None)
            if isinstance(part, Reasoning):
                # The API has no log-probabilities for reasoning. Drop those, and keep the rest for the text that
                # follows.
                self._reasoning += part.text
                pieces = (bytes(entry["bytes"]) for entry in self._held_logprobs)
                self._held_logprobs = self._held_logprobs[tokens_through(pieces, part.text) :]
            else:
                self._held_logprobs = []
        if increment.output is not None:
            self._output = increment.output
            events += self._items.end("completed" if self._status == "completed" else "incomplete")
        self._add_origins(increment, events)
        return events

    def _add_origins(self, increment: Increment, events: Events) -> None:
        """Add the token origins to the last delta event. If there is none at the end of the answer, add them to the
        last event of any kind."""
        self._held_origins += increment.origins
        deltas = [event for event in events if event["type"].endswith(".delta")]
        if deltas or (increment.output is not None and events):
            (deltas or events)[-1]["token_origins"] = self._held_origins
            self._held_origins = []

    @property
    def _status(self) -> str:
        reason = self._output.finish_reason if self._output is not None else None
        return "completed" if reason == "stop" else "incomplete"

    def _ended(self) -> dict[str, Any]:
        output = self._output
        assert output is not None
        response = self._response(self._status)
        if self._status == "incomplete":
            is_late = output.finish_reason == "timeout"
            response["incomplete_details"] = {"reason": "timeout" if is_late else "max_output_tokens"}
        pieces = map(self._job.served.tokens.bytes_of, output.token_ids)
        usage = usage_of(self._job, [output], tokens_through(pieces, self._reasoning))
        response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": usage["total_tokens"],
        }
        response["weft"] = extras([output], self._job.ignored)
        if self._body.store:
            self._keep(response)
        return response

    def _response(self, status: str) -> dict[str, Any]:
        body, sampling = self._body, self._job.requests[0].sampling
        return {
            "id": self._job.id,
            "object": "response",
            "created_at": self._job.created,
            "status": status,
            "model": self._job.served.name,
            "output": _snapshot(self._items.items),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": body.reasoning.effort if body.reasoning is not None else None,
                "summary": None,
            },
            "store": body.store,
            "temperature": sampling.temperature,
            "text": {"format": (body.text.format if body.text is not None else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _event(self, data: dict[str, Any]) -> bytes:
        numbered = {**data, "sequence_number": self._num_events}
        self._num_events += 1
        return named_event(numbered)
