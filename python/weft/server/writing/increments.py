"""Receives the deltas of submitted requests on the event loop, and detokenizes them into increments of text."""

from __future__ import annotations

import asyncio
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

from weft.client.detokenizer import SequenceText
from weft.client.following import Came
from weft.client.responses import Response, ResponseDelta
from weft.client.unread import merged
from weft.core import Output, OutputStats, TokenLogprob
from weft.engine.sequence import Sequence
from weft.errors import WeftError
from weft.server.errors import api_error
from weft.server.models import ServedModel


@dataclass(slots=True)
class Increment:
    """New tokens of one choice, and the text that they complete. In the last increment, `output` is the whole answer;
    in all others it is None."""

    choice: int
    text: str
    token_ids: list[int]
    origins: list[str]
    logprobs: list[TokenLogprob] | None
    output: Output | None
    stats: OutputStats


class Answers:
    """The answers to submitted requests. Choice p * `num_each` + i is sequence i of prompt p.

    Two results of `next` are at least `pause_s()` seconds apart, but the end of a request is not delayed. Call `close`
    when done. It cancels the requests that have not ended.
    """

    def __init__(
        self,
        served: ServedModel,
        responses: abc.Sequence[Response],
        num_each: int,
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        self.served, self.responses = served, responses
        self._num_each = num_each
        self._texts: dict[Sequence, SequenceText] = {}
        self._first_choice = {response.id: place * num_each for place, response in enumerate(self.responses)}
        self._following = served.client.following(self.responses, pause_s)

    async def next(self) -> list[Increment]:
        """Wait for the next increments. Returns an empty list at the end. Raises `ApiError`."""
        try:
            while news := await self._following.next():
                if increments := await self._increments(news):
                    return increments
        except WeftError as error:
            raise api_error(error) from error
        return []

    def close(self) -> None:
        """Stop following the requests, and cancel those that have not ended."""
        self._following.close()

    async def _increments(self, news: Came) -> list[Increment]:
        increments: list[Increment] = []
        for response, deltas in news:
            if response.error is not None:
                raise response.error
            has_beams = response.request.beam is not None
            for delta in merged(deltas) if len(deltas) > 1 else deltas:
                if has_beams:
                    increments += await self._of_beams(response, delta)
                else:
                    increments.append(self._of_delta(response, delta))
        for increment in increments:
            if increment.output is not None:
                await self._judge(increment)
        return increments

    def _of_delta(self, response: Response, delta: ResponseDelta) -> Increment:
        sequence = delta.sequence
        assert sequence is not None  # only a request with an error has no sequence
        answer, start, end = sequence.output, delta.start, delta.end
        tokens = answer.token_ids[start:end]
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = SequenceText(self.served.detokenizer, response, sequence)
        return Increment(
            self._first_choice[response.id] + sequence.index,
            text.rest(answer) if delta.is_finished else text.add(tokens),
            tokens,
            answer.origins[start:end],
            answer.logprobs[start:end] if answer.logprobs is not None else None,
            answer if delta.is_finished else None,
            answer.stats,
        )

    async def _of_beams(self, response: Response, delta: ResponseDelta) -> list[Increment]:
        # Beams may change until the search ends, so only the final delta produces increments.
        if not delta.is_final:
            return []
        detokenizer = self.served.detokenizer
        if detokenizer.judges(response):  # as in `_judge`
            outputs = (await asyncio.to_thread(detokenizer.output, response)).outputs
        else:
            outputs = detokenizer.output(response).outputs
        first = self._first_choice[response.id]
        return [
            Increment(
                first + place,
                output.text,
                output.token_ids,
                output.origins,
                output.logprobs,
                output,
                output.stats,
            )
            for place, output in enumerate(outputs[: self._num_each])
        ]

    async def _judge(self, increment: Increment) -> None:
        """Check a finished answer against a guide that is not strict."""
        response, output = self.responses[increment.choice // self._num_each], increment.output
        is_due = response.request.beam is None  # `_of_beams` has judged the answers of beams
        if output is not None and is_due and self.served.detokenizer.judges(response):
            # Another process checks the answer, which may take long. A thread waits for it, so that the event loop
            # does not block.
            await asyncio.to_thread(self.served.detokenizer.judge, output, response)
