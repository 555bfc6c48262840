"""Statistics of one request."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class OutputStats:
    """Statistics of one request. Moments are seconds of `time.perf_counter`; None if the event has not happened."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted_iterations: int = 0
    """Iterations that verified at least one draft of the request."""

    drafted_tokens: int = 0
    """Tokens of the answer from these iterations."""

    proposed_drafts: int = 0
    """Drafts that these iterations verified. Positions without a draft do not count. Nor do drafts after the end of
    the answer, or after the point from which a program rewrote the text."""

    accepted_drafts: int = 0
    """Drafts that are part of the answer."""

    reused_tokens: int = 0
    """Tokens of the prompt whose keys and values were cached."""

    allocated_pages: int = 0
    """Pages allocated for the text on admission, without those for later tokens. Page counts are sums over all
    admissions of the request."""

    new_pages: int = 0
    """Allocated pages that were never used before."""

    reused_pages: int = 0
    """Pages of the text on admission that were cached, whole or in part."""

    missed_pages: int = 0
    """Pages of that text that were looked up and not cached. They include the last, incomplete one."""

    submitted_at: float = 0.0
    guide_ready_at: float | None = None
    """The moment at which the guide was compiled or refused."""

    scheduled_at: float | None = None
    """The moment at which the request first got a slot."""

    first_token_at: float | None = None
    """The moment at which the host read the first token."""

    last_token_at: float | None = None
    ended_at: float | None = None
    guided_valid: bool | None = None
    """Whether the grammar reached its end. False if the answer was cut; None without a guide, or if the request ended
    while it waited. For a JSON schema with `strict=False`, an `LLM` validates the answer with the `jsonschema` package;
    None if that fails or takes more than 2 s of processor time."""

    first_step: int | None = None
    """The number of the engine's step that gave the first token."""

    last_step: int | None = None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of the answer per iteration that verified drafts; 1.0 without drafts."""
        return self.drafted_tokens / self.drafted_iterations if self.drafted_iterations else 1.0

    @property
    def acceptance_rate(self) -> float:
        """The share of proposed drafts that were accepted, 0 to 1; 0.0 without drafts."""
        return self.accepted_drafts / self.proposed_drafts if self.proposed_drafts else 0.0

    @property
    def page_hit_rate(self) -> float:
        """The share of looked-up pages that were cached, 0 to 1; 0.0 without a lookup."""
        looked_up = self.reused_pages + self.missed_pages
        return self.reused_pages / looked_up if looked_up else 0.0

    @property
    def compile_s(self) -> float:
        """The seconds that the request waited for its guide; 0.0 without a guide."""
        return _seconds(self.submitted_at, self.guide_ready_at)

    @property
    def time_to_first_token_s(self) -> float:
        """The time from submission to the first token in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.first_token_at)

    @property
    def total_s(self) -> float:
        """The time from submission to the end in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.ended_at)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer per second between `scheduled_at` and `last_token_at`, without the waits for the guide
        and a slot; 0.0 without a token."""
        seconds = _seconds(self.scheduled_at, self.last_token_at)
        return self.output_tokens / seconds if seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens per second after the first, between `first_token_at` and `last_token_at`; 0.0 if there are none."""
        seconds = _seconds(self.first_token_at, self.last_token_at)
        return (self.output_tokens - 1) / seconds if seconds else 0.0

    def note_guide_ready(self, guide: object = None) -> None:
        """Note that the guide is compiled or refused. Only the first call counts; any thread may make it."""
        if self.guide_ready_at is None:
            self.guide_ready_at = time.perf_counter()

    def note_scheduled(self) -> None:
        """Note that the request got a slot. Only the first call counts."""
        if self.scheduled_at is None:
            self.scheduled_at = time.perf_counter()

    def note_pages(self, allocated: int, new: int, reused: int, missed: int) -> None:
        """Add the page counts of one admission."""
        self.allocated_pages += allocated
        self.new_pages += new
        self.reused_pages += reused
        self.missed_pages += missed

    def note_tokens(self, moment: float, step: int) -> None:
        """Note that the host read tokens of the answer at `moment`, in the engine's step `step`."""
        if self.first_token_at is None:
            self.first_token_at, self.first_step = moment, step
        self.last_token_at, self.last_step = moment, step


def _seconds(begin: float | None, end: float | None) -> float:
    """The seconds between two moments; 0.0 if one of them has not happened."""
    return 0.0 if begin is None or end is None else max(end - begin, 0.0)
