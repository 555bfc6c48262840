"""Slots and pages: what there is, and which request holds what of it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.config import ResolvedConfig, positions_ahead
from weft.core.beam_params import beam_pages_needed
from weft.engine.kv.cache import Keeping, KvManager
from weft.engine.kv.sight import Sight
from weft.engine.sequence import Sequence


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
        config: ResolvedConfig,
        needs: DrafterNeeds,
        keeping: Keeping = Keeping(),  # noqa: B008
        sight: Sight | None = None,
    ) -> None:
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

    def max_new_tokens(self, sequence: Sequence) -> int:
        """How many tokens the request's answer may have."""
        return min(sequence.request.sampling.max_tokens, self._max_seq_len - len(sequence.prompt))

    def longest(self, sequence: Sequence) -> int:
        """How many tokens its text may come to."""
        return len(sequence.prompt) + self.max_new_tokens(sequence)

    def pages_needed(self, sequence: Sequence) -> int:
        """Pages that hold the longest text the request may come to, and what is written beyond. Beams have the full
        pages of the prompt in common."""
        if sequence.request.beam is not None:
            room = self.max_new_tokens(sequence)
            return beam_pages_needed(
                len(sequence.prompt), room, sequence.request.beam.step_widths, self.kv.page_size
            )
        return self.kv.pages_needed(self.longest(sequence) + self._ahead)

    def take(self, sequence: Sequence, num_running: int) -> bool:
        """Admit a sequence beside `num_running` others. False where slots or pages are too few; nothing has changed
        then."""
        if len(self.free_slots) < sequence.width:
            return False
        tokens, is_resumed = sequence.text, bool(sequence.output.token_ids)
        positions = self._positions(sequence)
        # Whoever is admitted should not be the next to be preempted.
        spare = 0 if self.reserves_all else num_running
        if spare and self.kv.pages_needed(positions) + spare > self.kv.num_available:
            return False
        kv = self.kv.begin(
            tokens,
            positions,
            margin=self._margin,
            reuse=not sequence.request.gather.context or is_resumed,
            retention=sequence.request.retention,
            num_prompt=len(sequence.prompt),
            salt=sequence.request.cache_salt,
        )
        if kv is None:
            return False
        slots = tuple(self.free_slots.pop() for _ in range(sequence.width))
        sequence.admit(slots, kv, self.max_new_tokens(sequence))
        sequence.output.stats.note_scheduled()
        sequence.output.stats.note_pages(*kv.counts)
        return True

    def _positions(self, sequence: Sequence) -> int:
        """Of how many positions a request gets the pages when it is admitted: a search never gets more later."""
        if sequence.width > 1:
            return self.pages_needed(sequence) * self.kv.page_size
        return (self.longest(sequence) if self.reserves_all else sequence.num_tokens) + self._ahead

    def grow(self, sequence: Sequence) -> bool | None:
        """Pages for what the next iteration may write: whether there are more than before; None where there are not
        enough."""
        if self.reserves_all or sequence.search is not None:
            return False
        before = len(sequence.kv.pages)
        if not self.kv.grow(sequence.kv, sequence.num_tokens + self._ahead):
            return None
        return len(sequence.kv.pages) > before

    def cache(self, sequence: Sequence) -> None:
        """Let others find the pages that are full by now, and take those back that no layer sees any more. The last
        token's keys and values are not there yet."""
        is_first, never = sequence.next_cache_at == 0, sequence.max_new_tokens + 1
        sight = self._sight if sequence.search is None else None
        position = sequence.num_tokens - 1
        hidden = sight.hidden(position, self.kv.page_size) if sight is not None else range(0)
        sequence.next_cache_at = never
        # Where pages leave, nothing of the answer is stored: they could not leave before what comes after them.
        if self._reuses and not sequence.kv.is_lost and (is_first or not hidden):
            self._store(sequence)
        if sight is not None:
            self._give_back(sequence, sight, hidden)

    def _store(self, sequence: Sequence) -> None:
        kv = sequence.kv
        before = len(sequence.prompt) - 1 - self._margin
        # Of a search the prompt alone: its pages are not written any more.
        valid = before + (len(sequence.output.token_ids) if sequence.search is None else 1)
        if sequence.num_unread:  # preempted while it is read
            valid = sequence.num_read - self._margin
        if valid >= (len(kv.chain) + 1) * self.kv.page_size:
            self.kv.store(kv, sequence.text, valid)
        sequence.next_cache_at = (len(kv.chain) + 1) * self.kv.page_size - before

    def _give_back(self, sequence: Sequence, sight: Sight, hidden: range) -> None:
        kv, size = sequence.kv, self.kv.page_size
        if hidden and len(kv.chain) <= hidden.stop:
            self.kv.give_back(kv, hidden.start, hidden.stop)
        place = max(hidden.stop, len(kv.chain) - 1)
        due = sight.hides(place, size) + 1 - len(sequence.prompt)
        sequence.next_cache_at = min(sequence.next_cache_at, max(due, 1))

    def release(self, sequence: Sequence) -> None:
        """Take slot and pages back. What they hold of the text can be found, up to where it ends."""
        self.free_slots.extend(reversed(sequence.slots))
        has_read = len(sequence.output.token_ids) > sequence.resumed_at and sequence.search is None
        if self._reuses and has_read and not sequence.must_reread and sequence.output.error is None:
            self.kv.end(sequence.kv, sequence.text, max(sequence.num_tokens - 1 - self._margin, 0))
        else:
            self.kv.end(sequence.kv)
