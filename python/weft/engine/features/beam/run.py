"""Runs a beam search: turns an iteration's continuations into the rows of the next iteration.

`BeamSearch` (`search.py`) chooses the beams; this file assigns slots, pages and matchers to them. On admission the
sequence gets all pages that its beams may ever need, and it keeps them until it ends. `BeamPages` tracks the pages of
each beam: beams with a common ancestor share its full pages, and each beam has its own last page.
"""

from __future__ import annotations

from collections import Counter, abc

from weft.core import SAMPLED, FinishReason, Hypothesis
from weft.core.request import BeamWords
from weft.engine.device.results import StepResults
from weft.engine.features.beam.search import BeamEnds, BeamSearch, Continuation
from weft.engine.features.beam.trace import Trace
from weft.engine.sequence import Branching, BranchRow, Sequence
from weft.errors import DeadEndError, GuideStateError, RequestError
from weft.grammar.base import Matcher
from weft.guided.clock import GuideClock
from weft.guided.state import GuidedState


class BeamRun:
    """The beam search of one sequence (`Sequence.search`). Beam b decodes in the sequence's slot b and in the pages
    `BeamPages.tables[b]`. With a guide it has matcher b."""

    def __init__(
        self,
        sequence: Sequence,
        state: GuidedState,
        page_size: int,
        end_tokens: frozenset[int],
        time_limit_s: float,
    ) -> None:
        assert sequence.request.beam is not None
        ends = sequence.request.end_ids if sequence.request.end_ids is not None else end_tokens
        stops = frozenset(sequence.request.sampling.stop_token_ids) - ends
        words = sequence.stop_words
        assert words is None or isinstance(words, BeamWords)
        num_top = sequence.request.sampling.logprobs or None
        self._trace = Trace(num_top) if num_top or sequence.request.gather.generated else None
        beam_ends = BeamEnds(sequence.max_new_tokens, ends, stops, sequence.request.sampling.min_tokens)
        self.search = BeamSearch(sequence.request.beam, beam_ends, words, self._trace)
        # Round up to a power of two to limit the number of buffers: each number of offers has its own.
        num_wanted = max(self.search.num_needed, num_top or 0)
        self.num_offers = min(1 << (num_wanted - 1).bit_length(), state.vocab_size)
        self._sequence, self._state = sequence, state
        self._pages = BeamPages(sequence.kv.pages, len(sequence.prompt), page_size)
        self._matchers: list[Matcher] = []
        self._clock = GuideClock(time_limit_s)  # measures the matchers' time for one token
        self._complete: list[Hypothesis] = []
        self._branching: Branching | None = None

    @property
    def num_rows(self) -> int:
        """The number of beams that continue."""
        return len(self.search.beams)

    def answer(self, beam: int) -> abc.Sequence[int]:
        """The answer tokens so far of a beam."""
        return self.search.beams[beam].token_ids

    def take_branching(self) -> Branching | None:
        """Return the branching for the next iteration and remove it, so that a second call returns None."""
        branching, self._branching = self._branching, None
        return branching

    def commit(self, results: StepResults) -> FinishReason | None:
        """Extend the beams by the best continuations of an iteration. Returns the finish reason, or None if the search
        goes on.

        Raises `RequestError` if no beam can continue and there is no answer. Errors of matchers propagate.
        """
        sequence, search = self._sequence, self.search
        if sequence.processor is not None:
            sequence.processor.check()
        if sequence.guide is not None and not self._matchers:
            self._matchers = [sequence.guide.take_matcher()]
        sequence.gathered.add_context(sequence.output)
        # Must come before `advance`, which changes `num_rows`: these are the rows of the iteration just read.
        slots = self._sequence.slots[: self.num_rows]
        offers = [self._offers(results, slot) for slot in slots]
        if self._trace is not None:
            self._trace.add([results.outputs(slot, sequence.request.gather, 1) for slot in slots], offers)
        needed = search.num_needed
        answers = search.advance([offer[:needed] for offer in offers])
        if self._matchers:
            self._clock.restart(len(self._matchers))
            with self._clock.measured("tokens"):
                self._follow(answers)
        if search.is_done and not search.answers:
            raise self._nothing_left()
        if not search.is_done:
            self._branch()
        sequence.output.hypotheses = search.best()
        self._show(sequence.output.hypotheses[0])
        return sequence.output.hypotheses[0].finish_reason if search.is_done else None

    def _offers(self, results: StepResults, slot: int) -> abc.Sequence[Continuation]:
        """The likeliest continuations of a slot's text, likeliest first; empty if the grammar allows no token."""
        if self._matchers:
            code, message = self._state.status(slot)
            if code == "dead_end":
                return ()
            if code:
                raise GuideStateError(message)
        return results.offers(slot, self.num_offers)

    def _follow(self, answers: abc.Sequence[tuple[int, Hypothesis]]) -> None:
        """Give each beam a fork of its parent's matcher, and let the fork accept the beam's new token."""
        beams, old = self.search.beams, self._matchers
        for parent, answer in answers:
            matcher = old[parent].fork()
            self._accept(matcher, answer.token_ids[-1])
            if answer.stopped_by is None and matcher.is_terminated():
                self._complete.append(answer)
        children = Counter(beam.parent for beam in beams)
        self._matchers = []
        for beam in beams:
            children[beam.parent] -= 1  # the last child takes its parent's matcher without a fork
            self._matchers.append(old[beam.parent].fork() if children[beam.parent] else old[beam.parent])
        for beam, matcher in zip(beams, self._matchers, strict=True):
            self._accept(matcher, beam.token_ids[-1])

    def _accept(self, matcher: Matcher, token: int) -> None:
        if not matcher.accept(token):
            raise GuideStateError(f"the grammar refused token {token}, which its mask allowed")
        if matcher.has_edit:
            raise GuideStateError(
                f"the guide edits the text after token {token}, which a beam search can't do; use another guide, or no "
                "beams"
            )

    def _branch(self) -> None:
        beams, sequence = self.search.beams, self._sequence
        copies = self._pages.advance([beam.parent for beam in beams])
        rows = [
            BranchRow(
                sequence.slots[b],
                sequence.slots[beam.parent],
                beam.token_ids[-1],
                len(sequence.prompt) + len(beam.token_ids) - 1,
                self._pages.tables[b],
                self._matchers[b] if self._matchers else None,
            )
            for b, beam in enumerate(beams)
        ]
        self._branching = Branching(rows, copies)

    def _show(self, best: Hypothesis) -> None:
        """Copy the best answer so far to the sequence's output."""
        output = self._sequence.output
        output.token_ids, output.origins = list(best.token_ids), [SAMPLED] * len(best.token_ids)
        output.stopped_by = best.stopped_by
        if output.logprobs is not None:
            output.logprobs = best.token_logprobs
        if self._sequence.is_guided:
            output.stats.guided_valid = any(best is answer for answer in self._complete)

    def _nothing_left(self) -> RequestError:
        place = f"token {len(self._sequence.output.token_ids) + 1}"
        if self._sequence.is_guided:
            return GuideStateError(f"no beam can go on: no token is left for {place} under the guide")
        forbidding = self._sequence.request.forbidding
        if forbidding:
            return DeadEndError(
                f"no beam can go on: no token is left for {place} under {' and '.join(forbidding)}"
            )
        return RequestError(f"no beam can go on: the model's logits for {place} are all NaN or -inf")


def commit_search(sequence: Sequence, results: StepResults) -> FinishReason | None:
    """Commit an iteration of a sequence with a beam search."""
    assert isinstance(sequence.search, BeamRun)
    return sequence.search.commit(results)


class BeamPages:
    """The KV pages of one sequence's beams. `tables[b]` lists the pages of beam b, in the order of positions.

    At first there is one beam. It holds as many of `pages` as the prompt's `num_tokens` tokens need. The full pages
    among them may be shared with other sequences, so no beam may write to them.
    """

    def __init__(self, pages: abc.Sequence[int], num_tokens: int, page_size: int) -> None:
        held = -(-num_tokens // page_size)
        assert len(set(pages)) == len(pages) >= held
        self._page_size = page_size
        self._num_tokens = num_tokens
        self._free = list(reversed(pages[held:]))
        self._holders = Counter(pages[:held])
        self.tables = [list(pages[:held])]

    @property
    def num_free(self) -> int:
        """The number of pages that no beam holds."""
        return len(self._free)

    def advance(self, parents: abc.Sequence[int]) -> list[tuple[int, int]]:
        """Make beam b a child of the previous beam `parents[b]`, with room for one more token.

        Returns page copies as (source, target). They must be made before the forward of that token. No page is both a
        source and a target, so their order does not matter.
        """
        old, partial = self.tables, self._num_tokens % self._page_size != 0
        self.tables = [list(old[parent]) for parent in parents]
        for table in self.tables:
            self._holders.update(table)
        for table in old:
            self._release(table)
        copies = []
        for table in self.tables:
            if not partial:
                table.append(self._take())
            elif self._holders[table[-1]] > 1:
                # Several beams would write their next token to this page. All of them but the last get a copy.
                copies.append((table[-1], self._take()))
                self._release(table[-1:])
                table[-1] = copies[-1][1]
        self._num_tokens += 1
        return copies

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] += 1
        return page

    def _release(self, pages: abc.Sequence[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._free.append(page)
