"""What answers with choices have in common, those of /v1/chat/completions and of /v1/completions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from weft.core import Output
from weft.server.errors import ApiError
from weft.server.protocol.generation import SamplingFields
from weft.server.reading.jobs import Job
from weft.server.writing.common import DONE, TokenJson, event, extras, failed, usage, usage_of
from weft.server.writing.increments import Increment
from weft.server.writing.prompt_logprobs import reader


class ChoicesWriter(ABC):
    """Writes the answers of one body. `kind` and `chunk_kind` are OpenAI's words for an answer and a chunk of it."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, job: Job, fields: SamplingFields) -> None:
        self._job, self._fields = job, fields
        self._tokens = TokenJson(job.served.tokens, fields.return_tokens_as_token_ids)
        self._outputs: dict[int, Output] = {}
        self._read = reader(self._outputs, job.num_each)
        options = fields.stream_options
        self._wants_usage = options is not None and options.include_usage
        self._counts = options is not None and options.continuous_usage_stats
        self._head = json.dumps(self._envelope(self.chunk_kind), separators=(",", ":"))[:-1]

    # -- in chunks

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """The events of what came."""
        return b"".join(self._chunk(one) for one in increments)

    def last(self) -> bytes:
        """What follows the last event."""
        if not self._wants_usage:
            return DONE
        ended = {"choices": [], "usage": self._usage(), "weft": extras(self._ended)}
        return event({**self._envelope(self.chunk_kind), **ended}) + DONE

    def failed(self, error: ApiError) -> bytes:
        """What is sent where an answer fails after it has begun."""
        return failed(error)

    @abstractmethod
    def _chunk(self, one: Increment) -> bytes:
        """The events of one increment."""

    def _event(self, choice: str) -> bytes:
        """An event of a choice, which is written already."""
        text = f'data: {self._head},"choices":[{choice}]'
        if self._counts:
            text += f',"usage":{json.dumps(usage_of(self._job.prompt_tokens, self._num_tokens))}'
        return (text + "}\n\n").encode()

    # -- as a whole

    def _whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer with these choices."""
        rest = {"choices": choices, "usage": self._usage(), "weft": extras(self._ended)}
        return {**self._envelope(self.kind), **rest}

    # -- both

    @property
    @abstractmethod
    def _num_tokens(self) -> int:
        """Of all choices so far."""

    @property
    def _num_reasoning(self) -> int:
        """Tokens of reasoning of what has ended."""
        return 0

    @property
    def _ended(self) -> list[Output]:
        return [self._outputs[index] for index in sorted(self._outputs)]

    def _envelope(self, kind: str) -> dict[str, Any]:
        job = self._job
        return {"id": job.request_id, "object": kind, "created": job.created, "model": job.served.name}

    def _text(self, one: Increment) -> str:
        """An increment's text, at its end with the stop word where that is wanted."""
        ended = one.output
        if ended is None or not self._fields.include_stop_str_in_output:
            return one.text
        return one.text + (ended.stopped_by if isinstance(ended.stopped_by, str) else "")

    def _usage(self) -> dict[str, Any]:
        return usage(self._job, self._ended, self._num_reasoning)
