"""What comes of submitted requests: increments of text, on the server's event loop."""

from __future__ import annotations

import asyncio
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

from weft.client.following import Came
from weft.client.responses import Response, ResponseDelta
from weft.client.unread import merged
from weft.core import Output, OutputStats, TokenLogprob
from weft.engine.sequence import Sequence
from weft.errors import WeftError
from weft.grammar.guide import Guide
from weft.server.errors import api_error
from weft.server.served import ServedModel


@dataclass(slots=True)
class Increment:
    """What came of one choice: text that is settled, the tokens that came with it, and at its end its whole output."""

    choice: int
    text: str
    token_ids: list[int]
    origins: list[str]
    logprobs: list[TokenLogprob] | None
    output: Output | None
    stats: OutputStats


class Answers:
    """The answers to requests that were submitted: choice p * n + i is sequence i of prompt p. Increments come at
    least `pause_s()` seconds apart, and at the end. `close` when done: what has not ended is cancelled."""

    def __init__(
        self,
        served: ServedModel,
        responses: abc.Sequence[Response],
        num_each: int,
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        self.served, self.responses = served, responses
        self._num_each = num_each
        self._texts: dict[Sequence, _SequenceText] = {}
        self._first = {response.id: place * num_each for place, response in enumerate(self.responses)}
        self._following = served.client.following(self.responses, pause_s)

    async def next(self) -> list[Increment]:
        """What came, once something did; nothing at the end. Raises `ApiError`."""
        try:
            while came := await self._following.next():
                if found := await self._read(came):
                    return found
        except WeftError as error:
            raise api_error(error) from error
        return []

    def close(self) -> None:
        """Let go of them."""
        self._following.close()

    async def _read(self, came: Came) -> list[Increment]:
        found: list[Increment] = []
        for response, deltas in came:
            if response.error is not None:
                raise response.error
            beamed = response.request.beam is not None
            for delta in merged(deltas) if len(deltas) > 1 else deltas:
                found += self._of_beams(response, delta) if beamed else [self._increment(response, delta)]
        for increment in found:
            if increment.output is not None:
                await self._judge(increment)
        return found

    def _increment(self, response: Response, delta: ResponseDelta) -> Increment:
        sequence = delta.sequence
        assert sequence is not None  # a request that never began has an error
        answer, start, end = sequence.output, delta.start, delta.end
        tokens = answer.token_ids[start:end]
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _SequenceText(self.served, response, sequence)
        return Increment(
            self._first[response.id] + sequence.index,
            text.last(answer) if delta.is_finished else text.more(tokens),
            tokens,
            answer.origins[start:end],
            answer.logprobs[start:end] if answer.logprobs is not None else None,
            answer if delta.is_finished else None,
            answer.stats,
        )

    def _of_beams(self, response: Response, delta: ResponseDelta) -> list[Increment]:
        """The answers that a search found: beams are not streamed."""
        if not delta.is_final:
            return []
        outputs = self.served.detokenizer.output(response).outputs[: self._num_each]
        first = self._first[response.id]
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
            for place, output in enumerate(outputs)
        ]

    async def _judge(self, increment: Increment) -> None:
        """Ask whether an answer obeys a guide that was not enforced whole, beside everything else."""
        response, output = self.responses[increment.choice // self._num_each], increment.output
        guide = response.request.guide
        if output is not None and isinstance(guide, Guide) and not guide.strict:
            await asyncio.to_thread(self.served.detokenizer.judge, output, response)


class _SequenceText:
    """The text of a sequence: what can't become a stop word and ends on whole characters."""

    def __init__(self, served: ServedModel, response: Response, sequence: Sequence) -> None:
        self._detokenizer, self._response = served.detokenizer, response
        self._running = served.detokenizer.running(sequence)
        self._num_shown = 0

    def more(self, tokens: abc.Sequence[int]) -> str:
        """What these tokens settle."""
        running, shown = self._running, self._num_shown
        for token in tokens:
            running.feed(token)
        self._num_shown = max(shown, running.num_shown)
        return running.text[shown : self._num_shown]

    def last(self, answer: Output) -> str:
        """The rest."""
        answer.text = self._detokenizer.text(answer, self._response)
        return answer.text[self._num_shown :]
