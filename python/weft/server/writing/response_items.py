"""The output items of a response as they grow, and the events that tell of it."""

from __future__ import annotations

import json
from typing import Any

from weft.parsing import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from weft.server.ids import new_hex
from weft.server.reading.responses import new_item_id

Events = list[dict[str, Any]]


class ResponseItems:
    """Items of one response: reasoning, messages, calls. Of the last one more may come."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, part: Part, logprobs: list[dict[str, Any]] | None = None) -> Events:
        """What a part of the answer changes."""
        match part:
            case Content(text):
                return self._text("message", text, logprobs)
            case Reasoning(text):
                return self._text("reasoning", text, None)
            case CallBegin(_, name):
                call = {
                    "id": new_item_id("function_call"),
                    "type": "function_call",
                    "status": "in_progress",
                    "arguments": "",
                }
                return self._open({**call, "call_id": f"call_{new_hex()[:24]}", "name": name})
            case CallArguments(_, text):
                item = self.items[-1]
                item["arguments"] += text
                return [self._event("response.function_call_arguments.delta", delta=text)]
            case CallEnd():
                return self.close()

    def close(self, status: str = "completed") -> Events:
        """Of the last item nothing more comes."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        events: Events = []
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._event("response.function_call_arguments.done", **done))
        elif item["type"] == "message":
            (part,) = item["content"]
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            events.append(self._event("response.output_text.done", content_index=0, **done))
            events.append(self._event("response.content_part.done", content_index=0, part=_copy(part)))
        else:
            text = item["content"][0]["text"]
            events.append(self._event("response.reasoning_text.done", content_index=0, text=text))
        events.append(
            {
                "type": "response.output_item.done",
                "output_index": len(self.items) - 1,
                "item": _copy(item),
            }
        )
        return events

    def end(self, status: str) -> Events:
        """The answer has ended. A call that is still open was cut."""
        is_call = bool(self.items) and self.items[-1]["type"] == "function_call"
        return self.close("incomplete" if is_call else status)

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]] | None) -> Events:
        events: Events = []
        if not (self._is_open and self.items[-1]["type"] == kind):
            if kind == "message":
                events += self._open(
                    {
                        "id": new_item_id(kind),
                        "type": kind,
                        "status": "in_progress",
                        "role": "assistant",
                        "content": [],
                    }
                )
                part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                self.items[-1]["content"].append(part)
                events.append(self._event("response.content_part.added", content_index=0, part=_copy(part)))
            else:
                events += self._open(
                    {
                        "id": new_item_id(kind),
                        "type": kind,
                        "status": "in_progress",
                        "summary": [],
                        "content": [],
                    }
                )
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

    def _open(self, item: dict[str, Any]) -> Events:
        events = self.close()
        self.items.append(item)
        self._is_open = True
        place = len(self.items) - 1
        return [*events, {"type": "response.output_item.added", "output_index": place, "item": _copy(item)}]

    def _event(self, kind: str, **data: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **data}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(item))
    return copied
