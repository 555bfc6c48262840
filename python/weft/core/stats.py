"""What one request cost."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class OutputStats:
    """What one request cost.

    Drafts are counted in `drafted_iterations`, those that verified at least one draft of the request: of
    `proposed_drafts` drafts `accepted_drafts` are in the answer, which got `drafted_tokens` tokens from these
    iterations. A place without a draft counts as nothing, and so does a draft after the answer's end, or after where
    a program wrote the text anew.

    Moments are seconds of `time.perf_counter`'s clock, None for what did not happen: `submitted_at`, `guide_ready_at`
    (compiled, or refused), `scheduled_at` (it got a slot for the first time), `first_token_at` and `last_token_at` (the
    host had read them), `ended_at`. `first_turn` and `last_turn` are the engine's turns that gave the first and the
    last token.

    `reused_tokens` of the prompt were found read already. Of the pages of keys and values that it begins with, each
    time it was admitted, `reused_pages` were found, also in part, and `missed_pages` were not; `allocated_pages` were
    handed out for it, `new_pages` of them for the first time. A page that the prompt only begins counts. `guided_valid`
    is None without a guide; else whether the grammar reached its end (False where the answer was cut). Of a JSON schema
    with `strict=False` an `LLM` asks the `jsonschema` package about such an answer, and None is where that can't say,
    or not within 2 s of a CPU.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted_iterations: int = 0
    drafted_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    reused_tokens: int = 0
    allocated_pages: int = 0
    new_pages: int = 0
    reused_pages: int = 0
    missed_pages: int = 0
    submitted_at: float = 0.0
    guide_ready_at: float | None = None
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    guided_valid: bool | None = None
    first_turn: int | None = None
    last_turn: int | None = None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of the answer per iteration that verified drafts; 1.0 where nothing was drafted."""
        return self.drafted_tokens / self.drafted_iterations if self.drafted_iterations else 1.0

    @property
    def acceptance_rate(self) -> float:
        """The share of proposed drafts that were accepted, 0 to 1; 0.0 where none was proposed."""
        return self.accepted_drafts / self.proposed_drafts if self.proposed_drafts else 0.0

    @property
    def page_hit_rate(self) -> float:
        """The share of the pages looked for that were found, 0 to 1; 0.0 where none was looked for."""
        asked = self.reused_pages + self.missed_pages
        return self.reused_pages / asked if asked else 0.0

    @property
    def compile_s(self) -> float:
        """How long the request waited for its guide, in seconds; 0.0 without one."""
        return _seconds(self.submitted_at, self.guide_ready_at)

    @property
    def time_to_first_token_s(self) -> float:
        """From submission to the first token, in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.first_token_at)

    @property
    def total_s(self) -> float:
        """From submission to the end, in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.ended_at)

    @property
    def tokens_per_second(self) -> float:
        """All tokens of the answer over the time from `scheduled_at` to `last_token_at`: prompt and answer, no waiting
        for guide and slot; 0.0 without a token."""
        seconds = _seconds(self.scheduled_at, self.last_token_at)
        return self.output_tokens / seconds if seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """The tokens after the first over the time from `first_token_at` to `last_token_at`; 0.0 where there are
        none."""
        seconds = _seconds(self.first_token_at, self.last_token_at)
        return (self.output_tokens - 1) / seconds if seconds else 0.0

    def note_guide_ready(self, guide: object = None) -> None:
        """The guide is there now, or its failure. The first call counts; on any thread."""
        if self.guide_ready_at is None:
            self.guide_ready_at = time.perf_counter()

    def note_scheduled(self) -> None:
        """The request got a slot now. The first call counts."""
        if self.scheduled_at is None:
            self.scheduled_at = time.perf_counter()

    def note_pages(self, allocated: int, new: int, reused: int, missed: int) -> None:
        """The request got pages for its text."""
        self.allocated_pages += allocated
        self.new_pages += new
        self.reused_pages += reused
        self.missed_pages += missed

    def note_tokens(self, moment: float, turn: int) -> None:
        """The host read tokens of the answer at `moment`, in an engine's turn."""
        if self.first_token_at is None:
            self.first_token_at, self.first_turn = moment, turn
        self.last_token_at, self.last_turn = moment, turn


def _seconds(begin: float | None, end: float | None) -> float:
    """From one moment to a later one; 0.0 where one of the two did not happen."""
    return 0.0 if begin is None or end is None else max(end - begin, 0.0)
