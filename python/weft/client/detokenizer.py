"""Turns the token ids of answers into text, at once or incrementally."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import Any

from weft.client.responses import Response, ResponseDelta
from weft.core import SAMPLED, Hypothesis, Output, Piece
from weft.core.output import TypedText
from weft.engine.sequence import Sequence
from weft.grammar.compile.verdict import Verdicts, guided_part, is_judged
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.stop_words import StopTokens
from weft.tokenizer.text import RunningText, decode
from weft.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Decodes answers, and checks them against guides that are not strict. Thread-safe. Call `close` when done."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._verdicts = Verdicts()

    def output(self, response: Response) -> Output:
        """The complete answer of a request that has ended, with text, `typed` and `guided_valid`: the output of the
        first sequence. `Output.others` holds the outputs of the other sequences."""
        whole = gathered(response)
        for output in whole.outputs:
            output.text = self.text(output, response)
            self.finish(output, response)
        return whole

    def text(self, output: Output, response: Response) -> str:
        """The text of a finished answer, without the text stop word or the stop token that ended it."""
        stop, tokens = output.stopped_by, output.token_ids
        text = self._decode(tokens[:-1] if isinstance(stop, int) else tokens)
        return text[: self._end(tokens, stop, response)] if isinstance(stop, str) else text

    def judges(self, response: Response) -> bool:
        """Whether `judge` asks another process about the answers of a request."""
        guide = response.request.guide
        return isinstance(guide, Guide) and is_judged(guide)

    def finish(self, output: Output, response: Response) -> None:
        """Complete a finished answer by the guide, once `output.text` is set: `typed` if the guide is a Python type,
        and the verdict of `judge`."""
        guide = response.request.guide
        if isinstance(guide, Guide) and guide.python_type is not None:
            _, text = self._guided_part(guide, output)
            output.typed = TypedText(text, guide.python_type.parse, output.stats.guided_valid is True)
        self.judge(output, response)

    def judge(self, output: Output, response: Response) -> None:
        """Check a finished answer against a guide that is not strict, and set `stats.guided_valid`. Does nothing if
        it is not True already. `output.text` must be set. Blocks while another process checks the answer, which may
        take long."""
        guide = response.request.guide
        if output.stats.guided_valid and isinstance(guide, Guide) and is_judged(guide):
            output.stats.guided_valid = self._verdicts.obeys(*self._guided_part(guide, output))

    def partial(self, guide: Guide, output: Output) -> Any:
        """The object of the complete elements of an answer that continues, as in `Piece.partial`."""
        assert guide.python_type is not None
        return guide.python_type.parse_partial(self._guided_part(guide, output)[1])

    def running(self, sequence: Sequence) -> RunningText:
        """A new incremental decoder for the tokens of a sequence. It also finds the sequence's stop words if all of
        them are texts."""
        watcher = sequence.stop_words
        if isinstance(watcher, StopTokens):
            watcher = watcher.texts
        return RunningText(self._tokenizer, watcher.words if isinstance(watcher, RunningText) else ())

    def warm_up(self) -> None:
        """Start the process that checks answers against guides that are not strict. Does not wait for it."""
        self._verdicts.start()

    def close(self) -> None:
        """End the process that checks answers against guides that are not strict."""
        self._verdicts.close()

    def _end(self, tokens: abc.Sequence[int], stop: str, response: Response) -> int | None:
        """The offset of the stop word that the last token completes; None if `stop` is no text."""
        running, word = self.running(response.sequences[0]), None
        # Words that end before `min_tokens` do not count, so only the last token's word does.
        for token in tokens:
            word = running.feed(token)
        return running.found_at if word == stop else None

    def _guided_part(self, guide: Guide, output: Output) -> tuple[Guide, str]:
        return guided_part(guide, output.text, output.token_ids, self._vocabulary, self._decode)

    def _decode(self, tokens: abc.Sequence[int]) -> str:
        return decode(self._tokenizer, tokens)


class SequenceText:
    """Decodes the tokens of a sequence as they arrive. It holds back text that may become a stop word, and the bytes of
    an incomplete character."""

    def __init__(self, detokenizer: Detokenizer, response: Response, sequence: Sequence) -> None:
        self._detokenizer, self._response = detokenizer, response
        self._running = detokenizer.running(sequence)
        self.num_shown = 0
        """The length of the text that `add` and `rest` have returned."""

    def add(self, tokens: abc.Sequence[int]) -> str:
        """Append tokens; return the text that became final."""
        running, shown = self._running, self.num_shown
        for token in tokens:
            running.feed(token)
        self.num_shown = max(shown, running.num_shown)
        return running.text[shown : self.num_shown]

    def rest(self, output: Output) -> str:
        """The text that `add` has not returned, after the sequence has ended. Sets `output.text`."""
        output.text = self._detokenizer.text(output, self._response)
        shown, self.num_shown = self.num_shown, len(output.text)
        return output.text[shown:]

    def shown(self, length: int) -> str:
        """The first `length` characters of the text; at most `num_shown` are final."""
        return self._running.text[:length]


class Pieces:
    """Turns the deltas of a streamed request into pieces."""

    def __init__(self, detokenizer: Detokenizer, response: Response) -> None:
        self._detokenizer = detokenizer
        self._response = response
        self._texts = [SequenceText(detokenizer, response, sequence) for sequence in response.sequences]

    def piece(self, delta: ResponseDelta) -> Piece:
        """The piece of a delta. The last piece carries the complete answer."""
        if delta.sequence is None:  # the request failed before it began
            return Piece("", [], [], gathered(self._response))
        index, answer = delta.sequence.index, delta.sequence.output
        new, origins = answer.token_ids[delta.start : delta.end], answer.origins[delta.start : delta.end]
        text = self._texts[index]
        if delta.is_finished:
            new_text = text.rest(answer)
            self._detokenizer.finish(answer, self._response)
        else:
            new_text = text.add(new)
        whole = gathered(self._response) if delta.is_final else None
        return Piece(new_text, new, origins, whole, index, self._partial_reader(text, answer, delta.end))

    def _partial_reader(self, text: SequenceText, answer: Output, end: int) -> abc.Callable[[], Any] | None:
        """A function that makes `Piece.partial` of the answer's first `end` tokens."""
        guide, length = self._response.request.guide, text.num_shown
        if not isinstance(guide, Guide) or guide.python_type is None:
            return None
        return lambda: self._detokenizer.partial(
            guide, Output([], answer.token_ids[:end], text=text.shown(length))
        )


def gathered(response: Response) -> Output:
    """The complete answer of a request that has ended: the output of the first sequence. `Output.others` holds the
    outputs of the other sequences. Sets no `text`."""
    if not response.sequences:  # the request failed before it began
        request = response.request
        ids = [] if isinstance(request.prompt, str) else list(request.prompt)
        return Output(ids, finish_reason="error", error=response.error, prompt=request.prompt_text)
    first, *others = _outputs(response)
    first.others, first.error = others, first.error or response.error
    return first


def _outputs(response: Response) -> list[Output]:
    """One output per sequence. A beam search has one sequence, and one output per answer, best first."""
    first = response.sequences[0]
    if not first.hypotheses:
        return [sequence.output for sequence in response.sequences]
    return [
        first.output,
        *(_of_beam(i, beam, first.output) for i, beam in enumerate(first.hypotheses[1:], 1)),
    ]


def _of_beam(index: int, beam: Hypothesis, best: Output) -> Output:
    """Make the output of a beam search's answer `beam`, the `index`-th best. `best` is the output of the best answer;
    the fields that all answers share are taken from it."""
    is_whole = beam.finish_reason == "stop" and beam.stopped_by is None
    prompts = {name: tensor for name, tensor in best.additional.items() if name.startswith("context_")}
    stats = replace(best.stats, output_tokens=len(beam.token_ids))
    if stats.guided_valid is not None:
        stats.guided_valid = is_whole
    return Output(
        best.prompt_token_ids,
        list(beam.token_ids),
        [SAMPLED] * len(beam.token_ids),
        finish_reason=beam.finish_reason or best.finish_reason,
        stopped_by=beam.stopped_by,
        logprobs=None if best.logprobs is None else beam.token_logprobs,
        generation_logits=beam.generation_logits,
        context_logits=best.context_logits,
        additional=prompts | beam.additional,
        guide_notes=best.guide_notes,
        stats=stats,
        prompt=best.prompt,
        index=index,
    )
