"""The answers of /v1/responses: as a whole, and as events."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from weft.core import Output
from weft.parsing import AnswerParser, Content, Part, Reasoning
from weft.server.errors import ApiError
from weft.server.protocol.responses import ResponsesBody
from weft.server.reading.jobs import Job
from weft.server.writing.common import TokenJson, extras, usage, was_cut
from weft.server.writing.increments import Increment
from weft.server.writing.response_items import ResponseItems
from weft.server.writing.thought import tokens_through

Keep = Callable[[dict[str, Any]], None]
"""Called with a response that has ended."""


class ResponsesWriter:
    """Writes one response. `keep` hears of it when it has ended."""

    def __init__(self, job: Job, body: ResponsesBody, parser: AnswerParser | None, keep: Keep) -> None:
        self._job, self._body, self._parser, self._keep = job, body, parser, keep
        self._items = ResponseItems()
        self._tokens = TokenJson(job.served.tokens)
        self._output: Output | None = None
        self._num_events = 0
        self._thought = ""
        self._held: list[dict[str, Any]] = []
        self._origins: list[str] = []

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """The events of what came."""
        events: list[dict[str, Any]] = []
        if not self._num_events:
            begun = self._response("in_progress")
            events += [{"type": "response.created", "response": begun}]
            events += [{"type": "response.in_progress", "response": begun}]
        for one in increments:
            events += self._add(one)
        return b"".join(map(self._event, events))

    def last(self) -> bytes:
        """The event of the whole response."""
        response = self._ended()
        return self._event({"type": f"response.{response['status']}", "response": response})

    def failed(self, error: ApiError) -> bytes:
        """What is sent where it fails after it has begun."""
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        response = self._response("failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event(told) + self._event({"type": "response.failed", "response": response})

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The response, once it has ended."""
        for one in increments:
            self._add(one)
        return self._ended()

    def _add(self, one: Increment) -> list[dict[str, Any]]:
        if one.logprobs is not None and one.token_ids:
            self._held += self._tokens.chat(one.token_ids, one.logprobs, one.origins)["content"]
        events: list[dict[str, Any]] = []
        for part in self._parts(one):
            events += self._items.add(part, self._held if isinstance(part, Content) else None)
            if isinstance(part, Reasoning):  # whose log-probabilities are nobody's; those of text may follow
                self._thought += part.text
                self._held = self._held[tokens_through((bytes(e["bytes"]) for e in self._held), part.text) :]
            else:
                self._held = []
        if one.output is not None:
            self._output = one.output
            events += self._items.end("completed" if self._status == "completed" else "incomplete")
        self._tell_origins(one, events)
        return events

    def _tell_origins(self, one: Increment, events: list[dict[str, Any]]) -> None:
        """Say how the tokens came, with the last text of an increment. Those of text that is held back come with it."""
        self._origins += one.origins
        deltas = [event for event in events if event["type"].endswith(".delta")]
        if deltas or (one.output is not None and events):
            (deltas or events)[-1]["token_origins"] = self._origins
            self._origins = []

    def _parts(self, one: Increment) -> list[Part]:
        if self._parser is None:
            return [Content(one.text)] if one.text else []
        parts = self._parser.feed(one.text) if one.text else []
        return parts if one.output is None else [*parts, *self._parser.finish(is_cut=was_cut(one.output))]

    @property
    def _status(self) -> str:
        reason = self._output.finish_reason if self._output is not None else None
        return "completed" if reason == "stop" else "incomplete"

    def _ended(self) -> dict[str, Any]:
        response = self._response(self._status)
        if self._status == "incomplete":
            is_late = self._output is not None and self._output.finish_reason == "timeout"
            response["incomplete_details"] = {"reason": "timeout" if is_late else "max_output_tokens"}
        assert self._output is not None
        pieces = map(self._job.served.tokens.bytes_of, self._output.token_ids)
        spent = usage(self._job, [self._output], tokens_through(pieces, self._thought))
        response["usage"] = {
            "input_tokens": spent["prompt_tokens"],
            "input_tokens_details": {**spent["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": spent["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": spent["completion_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": spent["total_tokens"],
        }
        response["weft"] = extras([self._output])
        if self._body.store:
            self._keep(response)
        return response

    def _response(self, status: str) -> dict[str, Any]:
        body, sampling = self._body, self._job.requests[0].sampling
        return {
            "id": self._job.request_id,
            "object": "response",
            "created_at": self._job.created,
            "status": status,
            "model": self._job.served.name,
            "output": json.loads(json.dumps(self._items.items)),
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
        said = {**data, "sequence_number": self._num_events}
        self._num_events += 1
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        return f"event: {data['type']}\ndata: {text}\n\n".encode()
