"""Slots and pages: what there is, and which request holds what of it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.config import EngineConfig, positions_ahead
from weft.core.beam_params import beam_pages_needed
from weft.engine.kv.cache import Keeping, KvManager
from weft.engine.kv.sight import Sight
from weft.engine.scheduling.running import Running
from weft.engine.sequence import Request, Stage
from weft.grammar.starts import StartedGuide


@dataclass(frozen=True)
class DrafterNeeds:
    """What drafting asks of pages: up to `max_drafts` positions are written ahead, and the last `margin` positions of a
    text that is found again are read anew. With `has_kv` it reads pages itself, and sees all of them."""

    max_drafts: int = 0
    margin: int = 0
    has_kv: bool = False


class Capacity:
    """Gives requests slots and pages, and takes them back. `reserves_all`: a request gets all pages it may need at
    once. `keeping` says how cached pages are kept, `sight` what the model's layers see of a text (None: all)."""

    def __init__(
        self,
        config: EngineConfig,
        needs: DrafterNeeds,
        keeping: Keeping = Keeping(),  # noqa: B008
        sight: Sight | None = None,
    ) -> None:
        assert config.num_pages is not None and config.max_seq_len is not None
        self.kv = KvManager(
            config.num_pages,
            config.page_size,
            reuse=config.reuse,
            partial_reuse=config.partial_reuse,
            copy_on_partial_reuse=config.copy_on_partial_reuse,
            keeping=keeping,
        )
        self.free_slots = list(range(config.max_batch - 1, -1, -1))
        self.reserves_all = config.policy != "max_utilization"
        self._reuses = config.reuse
        self._max_seq_len = config.max_seq_len
        self._margin, self._ahead = needs.margin, positions_ahead(needs.max_drafts)
        self._sight = None if needs.has_kv else sight

    def max_new_tokens(self, request: Request) -> int:
        """How many tokens the request's answer may have."""
        return min(request.sampling.max_tokens, self._max_seq_len - len(request.prompt))

    def longest(self, request: Request) -> int:
        """How many tokens its text may come to."""
        return len(request.prompt) + self.max_new_tokens(request)

    def pages_needed(self, request: Request) -> int:
        """Pages that hold the longest text the request may come to, and what is written beyond. Beams have the full
        pages of the prompt in common."""
        if request.beam is not None:
            room = self.max_new_tokens(request)
            return beam_pages_needed(len(request.prompt), room, request.beam.step_widths, self.kv.page_size)
        return self.kv.pages_needed(self.longest(request) + self._ahead)

    def take(self, request: Request, num_running: int) -> Running | None:
        """A slot and pages for a request beside `num_running` others; None where there are not enough, and nothing has
        changed then."""
        if len(self.free_slots) < request.width:
            return None
        tokens, resumed_at = request.text, len(request.output.token_ids)
        positions = self._positions(request)
        # Whoever is admitted should not be the next to be preempted.
        spare = 0 if self.reserves_all else num_running
        if spare and self.kv.pages_needed(positions) + spare > self.kv.num_available:
            return None
        kv = self.kv.begin(
            tokens,
            positions,
            margin=self._margin,
            reuse=not request.gather.context or resumed_at > 0,
            retention=request.queueing.retention,
            num_prompt=len(request.prompt),
            salt=request.queueing.salt,
        )
        if kv is None:
            return None
        request.move(Stage.CONTEXT)
        request.output.stats.note_scheduled()
        request.output.stats.note_pages(*kv.counts)
        guide = request.guide
        return Running(
            request,
            tuple(self.free_slots.pop() for _ in range(request.width)),
            kv,
            resumed_at,
            self.max_new_tokens(request),
            num_context=len(tokens),
            num_read=kv.num_reused,
            is_plain=request.is_plain,
            is_guided=guide is not None,
            has_program=guide is not None and isinstance(guide.compiled, StartedGuide),
        )

    def _positions(self, request: Request) -> int:
        """Of how many positions a request gets the pages when it is admitted: a search never gets more later."""
        if request.width > 1:
            return self.pages_needed(request) * self.kv.page_size
        return (self.longest(request) if self.reserves_all else request.num_tokens) + self._ahead

    def grow(self, running: Running) -> bool | None:
        """Pages for what the next iteration may write: whether there are more than before; None where there are not
        enough."""
        if self.reserves_all or running.search is not None:
            return False
        before = len(running.kv.pages)
        if not self.kv.grow(running.kv, running.request.num_tokens + self._ahead):
            return None
        return len(running.kv.pages) > before

    def cache(self, running: Running) -> None:
        """Let others find the pages that are full by now, and take those back that no layer sees any more. The last
        token's keys and values are not there yet."""
        is_first, never = running.next_cache_at == 0, running.max_new_tokens + 1
        sight = self._sight if running.search is None else None
        position = running.request.num_tokens - 1
        hidden = sight.hidden(position, self.kv.page_size) if sight is not None else range(0)
        running.next_cache_at = never
        # Where pages leave, nothing of the answer is stored: they could not leave before what comes after them.
        if self._reuses and not running.kv.is_lost and (is_first or not hidden):
            self._store(running)
        if sight is not None:
            self._give_back(running, sight, hidden)

    def _store(self, running: Running) -> None:
        request, kv = running.request, running.kv
        before = len(request.prompt) - 1 - self._margin
        # Of a search the prompt alone: its pages are not written any more.
        valid = before + (len(request.output.token_ids) if running.search is None else 1)
        if running.num_unread:  # preempted while it is read
            valid = running.num_read - self._margin
        if valid >= (len(kv.chain) + 1) * self.kv.page_size:
            self.kv.store(kv, request.text, valid)
        running.next_cache_at = (len(kv.chain) + 1) * self.kv.page_size - before

    def _give_back(self, running: Running, sight: Sight, hidden: range) -> None:
        kv, size = running.kv, self.kv.page_size
        if hidden and len(kv.chain) <= hidden.stop:
            self.kv.give_back(kv, hidden.start, hidden.stop)
        place = max(hidden.stop, len(kv.chain) - 1)
        due = sight.hides(place, size) + 1 - len(running.request.prompt)
        running.next_cache_at = min(running.next_cache_at, max(due, 1))

    def release(self, running: Running) -> None:
        """Take slot and pages back. What they hold of the text can be found, up to where it ends."""
        self.free_slots.extend(reversed(running.slots))
        request = running.request
        has_read = len(request.output.token_ids) > running.resumed_at and running.search is None
        if self._reuses and has_read and not running.is_spliced and request.output.error is None:
            self.kv.end(running.kv, request.text, max(request.num_tokens - 1 - self._margin, 0))
        else:
            self.kv.end(running.kv)
