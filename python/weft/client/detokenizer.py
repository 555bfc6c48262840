"""Text of what came: answers as a whole, and piece by piece."""

from __future__ import annotations

from collections import abc
from dataclasses import replace

from weft.client.responses import Response, ResponseDelta
from weft.core import SAMPLED, Hypothesis, Output, Piece
from weft.engine.sequence import Sequence
from weft.grammar.compile.verdict import Verdicts, asked_of
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.text import RunningText, decode
from weft.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Writes the text of answers. Where a guide was not to be enforced whole, it asks whether the answer obeys it all
    the same. Threads may share one; `close` when done."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._verdicts = Verdicts()

    def output(self, response: Response) -> Output:
        """The answer of a request that has ended, with its text: its first sequence, which holds the others."""
        whole = gathered(response)
        for output in whole.outputs:
            self.write(output, response)
        return whole

    def write(self, output: Output, response: Response) -> None:
        """Write the text of one answer that has ended, and judge it."""
        output.text = self.text(output, response)
        self.judge(output, response)

    def text(self, output: Output, response: Response) -> str:
        """The text of one answer that has ended: without the stop word, or the stop token, that ended it."""
        by, tokens = output.stopped_by, output.token_ids
        text = self._decode(tokens[:-1] if isinstance(by, int) else tokens)
        return text[: self._end(tokens, response)] if isinstance(by, str) else text

    def judge(self, output: Output, response: Response) -> None:
        """Where its guide was not to be enforced whole, look whether an answer, whose text is written, obeys it.
        Another process says so, which may take a while."""
        guide = response.request.guide
        if output.stats.guided_valid and isinstance(guide, Guide):
            asked = asked_of(guide, output.text, output.token_ids, self._vocabulary, self._decode)
            if asked is not None:
                output.stats.guided_valid = self._verdicts.obeys(*asked)

    def running(self, sequence: Sequence) -> RunningText:
        """The text of a sequence as its tokens come, watched for its stop words."""
        watcher = sequence.stop_words
        return RunningText(self._tokenizer, watcher.words if isinstance(watcher, RunningText) else ())

    def close(self) -> None:
        """End what judges answers."""
        self._verdicts.close()

    def _end(self, tokens: abc.Sequence[int], response: Response) -> int | None:
        """Where the text ends before the stop word in these tokens; None where it is all text."""
        running = self.running(response.sequences[0])
        return next((running.found_at for token in tokens if running.feed(token) is not None), None)

    def _decode(self, tokens: abc.Sequence[int]) -> str:
        return decode(self._tokenizer, tokens)


class Pieces:
    """Makes pieces of a request's deltas. The text of a sequence is held back while it may become a stop word, and
    where a character is cut short; what is left comes with its end."""

    def __init__(self, detokenizer: Detokenizer, response: Response) -> None:
        self._detokenizer = detokenizer
        self._response = response
        self._texts = [detokenizer.running(sequence) for sequence in response.sequences]
        self._num_shown = [0] * len(response.sequences)

    def piece(self, delta: ResponseDelta) -> Piece:
        """What a delta added; the last one has the whole answer."""
        if delta.sequence is None:  # it never began
            return Piece("", [], [], gathered(self._response))
        index, answer = delta.sequence.index, delta.sequence.output
        new, origins = answer.token_ids[delta.start : delta.end], answer.origins[delta.start : delta.end]
        if delta.is_finished:
            self._detokenizer.write(answer, self._response)
            text = answer.text[self._num_shown[index] :]
        else:
            text = self._show(index, new)
        return Piece(text, new, origins, gathered(self._response) if delta.is_final else None, index)

    def _show(self, index: int, new: abc.Sequence[int]) -> str:
        """The text that these tokens settle."""
        running, shown = self._texts[index], self._num_shown[index]
        for token in new:
            running.feed(token)
        self._num_shown[index] = max(shown, running.num_shown)
        return running.text[shown : running.num_shown]


def gathered(response: Response) -> Output:
    """The answer of a request that has ended: its first sequence, which holds the others. Nothing writes its text."""
    if not response.sequences:  # it never began
        prompt = response.request.prompt
        return Output(
            [] if isinstance(prompt, str) else list(prompt), finish_reason="error", error=response.error
        )
    first, *others = _outputs(response)
    first.others, first.error = others, first.error or response.error
    return first


def _outputs(response: Response) -> list[Output]:
    """Those of its sequences; of a search by beams, of the answers that it found."""
    first = response.sequences[0]
    if not first.hypotheses:
        return [sequence.output for sequence in response.sequences]
    return [first.output, *(_of_beam(beam, first.output) for beam in first.hypotheses[1:])]


def _of_beam(beam: Hypothesis, best: Output) -> Output:
    """One of the answers after the best, which tells what they share."""
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
    )
