"""A request that is searched by beams, what of it beams can't do, and its state while it is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.config import EngineConfig, Speculation
from weft.core import FinishReason, TokenLogprob
from weft.engine.beam.pages import BeamPages
from weft.engine.beam.search import BeamParams, BeamSearch, Continuation, Ends, Hypothesis, Words
from weft.engine.beam.step import BeamPlan
from weft.engine.device.sampling import MAX_END_TOKENS, SamplingRow
from weft.engine.device.state import DecodeParts
from weft.engine.request import Request
from weft.errors import GuideStateError, InputError, RequestError
from weft.grammar.base import Matcher
from weft.guided.clock import GuideClock
from weft.runtime.interface import Runtime


@dataclass(eq=False)
class BeamRequest(Request):
    """A request for the best answers that a beam search finds.

    It holds `slots`, one for each beam, of which `slot` is the first. `hypotheses` are the best so far, best first, at
    most `beam.num_answers`; when it is finished, the answers. `output` holds the first of them; its log-probabilities
    are those that the search ranked.

    Nothing is drawn: the seed does not matter, and a temperature only flattens or sharpens the distribution that is
    searched (0 and 1 leave it as it is). Raises `InputError` for what beams can't do.
    """

    beam: BeamParams = field(kw_only=True)
    hypotheses: list[Hypothesis] = field(default_factory=list, kw_only=True)
    slots: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        sampling = self.sampling
        for name, neutral in (("top_k", 0), ("top_p", 1), ("min_p", 0)):
            if getattr(sampling, name) != neutral:
                raise InputError(
                    f"{name} is {getattr(sampling, name)}; beams are not drawn, they follow the likeliest tokens: "
                    "leave it out, or use a beam width of 1"
                )
        if sampling.logprobs:
            raise InputError(
                f"logprobs is {sampling.logprobs}; beams give the log-probabilities of their own tokens only: ask "
                "for 0, or use a beam width of 1"
            )
        if self.gather.generated or self.gather.context:
            names = ", ".join(dict.fromkeys((*self.gather.context, *self.gather.generated)))
            raise InputError(
                f"beams give no tensors of the model ({names}); ask for them with a beam width of 1"
            )
        if self.processor is not None:
            raise InputError("logits processors do not act on beams; use a beam width of 1")
        if len(self.stop_ids) > MAX_END_TOKENS:
            raise InputError(
                f"stop_token_ids has {len(self.stop_ids)} entries; beams, which must offer so many more continuations "
                f"each, take {MAX_END_TOKENS}"
            )
        if self.stop_words is not None and not isinstance(self.stop_words, Words):
            raise InputError(
                f"{type(self.stop_words).__name__} can't watch several beams for stop words: give one with fork()"
            )


def check_beam_width(max_beam_width: int, speculation: Speculation, config: EngineConfig) -> None:
    """Raise `InputError` unless an engine can be made for beam searches as wide as `max_beam_width`."""
    if max_beam_width < 1:
        raise InputError(f"the beam width is {max_beam_width}; it must be 1 (no beams) or more")
    if max_beam_width > config.max_batch:
        raise InputError(
            f"max_beam_width is {max_beam_width}, but {config.max_batch} sequences are decoded at once; raise "
            "max_batch (of an executor: max_batch_size), or lower the width"
        )
    if max_beam_width > 1 and speculation.drafters:
        raise InputError(
            f"beam search does not work with speculation ({speculation.name}): use Speculation.none(), or a "
            "max_beam_width of 1"
        )


@dataclass(eq=False)
class BeamRun:
    """A beam request under way. Beam b's sampling state is that of `slots[b]`, its pages are `pages.tables[b]`, its
    grammar is `matchers[b]` (none without a guide), and `clock` measures what they all take for one token. `copies` are
    pages to copy before its beams go on."""

    request: BeamRequest
    search: BeamSearch
    slots: tuple[int, ...]
    pages: BeamPages
    row: SamplingRow
    prompt: Tensor
    prompt_pages: Tensor
    matchers: list[Matcher]
    clock: GuideClock
    vocab_size: int
    first: int = 0
    copies: list[tuple[int, int]] = field(default_factory=list)
    complete: list[Hypothesis] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        request: BeamRequest,
        runtime: Runtime,
        parts: DecodeParts,
        slots: tuple[int, ...],
        pages: Sequence[int],
        page_size: int,
        end_tokens: frozenset[int],
        room: int,
        mask_time_limit_s: float = 0.0,
    ) -> BeamRun:
        """At the end of its prompt, which is to be read."""
        sampling = request.sampling
        end_tokens = request.end_ids if request.end_ids is not None else end_tokens
        ends = Ends(room, end_tokens, request.stop_ids - end_tokens, min_tokens=sampling.min_tokens)
        words = request.stop_words
        assert words is None or isinstance(words, Words)
        beam_pages = BeamPages(pages, len(request.prompt), page_size)
        vocab_size = parts.model.config.vocab_size

        def pinned(values: Sequence[int], dtype: torch.dtype) -> Tensor:
            tensor = runtime.pinned((len(values),), dtype)
            tensor.copy_(torch.tensor(values, dtype=dtype))
            return tensor

        return cls(
            request,
            BeamSearch(request.beam, ends, words),
            slots,
            beam_pages,
            SamplingRow(runtime, sampling, request.seed, request.rules, request.prompt, vocab_size),
            pinned(request.prompt, torch.int64),
            pinned(beam_pages.tables[0], torch.int32),
            [request.take_matcher()] if request.compiled is not None else [],
            GuideClock(mask_time_limit_s),
            vocab_size,
        )

    @property
    def is_shaped(self) -> bool:
        """Whether sampling parameters change the logits."""
        return self.row.needs_shaping or self.row.temperature not in (0, 1)

    def plan(self, rows: int) -> BeamPlan:
        """The kind of iteration that its beams alone need; a power of two of continuations, so that few kinds are
        captured."""
        offered = 1 << (self.search.num_needed - 1).bit_length()
        return BeamPlan(rows, min(offered, self.vocab_size), bool(self.matchers), self.is_shaped)

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Slot, the slot whose text goes on, last token and its position, of each beam."""
        prompt, slots = self.request.prompt, self.slots
        return [
            (
                slots[b],
                slots[beam.parent],
                (beam.token_ids or prompt)[-1],
                len(prompt) + len(beam.token_ids) - 1,
            )
            for b, beam in enumerate(self.search.beams)
        ]

    def advance(self, offers: Sequence[Sequence[Continuation]]) -> FinishReason | None:
        """Let the beams go on with the best of `offers`; why the request ends, if it does.

        Raises `RequestError` where nothing can go on and there is no answer, and what a matcher raises.
        """
        search, request = self.search, self.request
        answers = search.advance(offers)
        if self.matchers:
            self.clock.restart(len(self.matchers))
            with self.clock.measured("tokens"):
                self._follow(answers)
        if search.is_done and not search.answers:
            raise self._nothing_left()
        if not search.is_done:
            self.copies = self.pages.advance([beam.parent for beam in search.beams])
        request.hypotheses = search.best()
        self._show(request.hypotheses[0])
        return request.hypotheses[0].finish_reason if search.is_done else None

    def _follow(self, answers: Sequence[tuple[int, Hypothesis]]) -> None:
        """Fork the matchers with their beams; each accepts the token that its beam goes on with."""
        beams, old = self.search.beams, self.matchers
        for parent, answer in answers:
            matcher = old[parent].fork()
            self._accept(matcher, answer.token_ids[-1])
            if answer.stopped_by is None and matcher.is_terminated():
                self.complete.append(answer)
        children = Counter(beam.parent for beam in beams)
        self.matchers = []
        for beam in beams:
            children[beam.parent] -= 1  # the last one goes on with the matcher itself
            self.matchers.append(old[beam.parent].fork() if children[beam.parent] else old[beam.parent])
        for beam, matcher in zip(beams, self.matchers, strict=True):
            self._accept(matcher, beam.token_ids[-1])

    def _accept(self, matcher: Matcher, token: int) -> None:
        if not matcher.accept(token):
            raise GuideStateError(f"the grammar refused token {token}, which its mask allowed")
        if matcher.has_replaced:
            raise GuideStateError(
                f"the program puts other tokens in the place of token {token}, which a search by beams can't do; use "
                "another program, or no beams"
            )

    def _show(self, best: Hypothesis) -> None:
        """The best answer so far is the output."""
        output = self.request.output
        output.token_ids, output.drafted = list(best.token_ids), [False] * len(best.token_ids)
        output.stopped_by = best.stopped_by
        if output.logprobs is not None:
            output.logprobs = [TokenLogprob(value, {}) for value in best.log_probs]
        if self.request.compiled is not None:
            output.stats.guided_valid = any(best is answer for answer in self.complete)

    def _nothing_left(self) -> RequestError:
        place = f"token {len(self.request.output.token_ids) + 1}"
        if self.request.compiled is not None:
            return GuideStateError(f"no beam can go on: no token is left for {place} under the guide")
        return RequestError(
            f"no beam can go on: bad_words, logit_bias, embedding_bias or the model's own logits leave no token for "
            f"{place}"
        )
