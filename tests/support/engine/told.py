"""What an order of work must not change: the tokens, and how many iterations and drafts they took. Sampling is coupled,
so a race among drafts shows in the second alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from weft import LLM, Output
from weft.core import OutputStats
from weft.engine.sequence import Sequence
from weft.engine.step.draft_masking import DraftGuidance
from weft.runtime import cpu


@dataclass
class Counted:
    """How a request was drafted; the names are those of `OutputStats`."""

    iterations: int = 0
    drafted_iterations: int = 0
    drafted_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0

    @classmethod
    def of(cls, stats: OutputStats) -> Counted:
        """What the engine counted."""
        return cls(**{field.name: getattr(stats, field.name) for field in fields(cls)})


Told = list[tuple[list[int], Counted]]


def told(answers: Iterable[Output | Sequence]) -> Told:
    """Tokens and counts of each answer, none of which may have failed."""
    outputs = [answer.output if isinstance(answer, Sequence) else answer for answer in answers]
    assert [output.error for output in outputs if output.error is not None] == []
    return [(output.token_ids, Counted.of(output.stats)) for output in outputs]


def settle(llm: LLM) -> None:
    """Wait until the engine is idle, since answers are out before the iteration that was launched ahead is over. Where
    it would measure whether masking drafts pays, it masks them from now on: that depends on who is served together, and
    so on when guides are compiled.
    """
    while llm.client.call(lambda: llm.engine.has_work):
        pass
    cpu.synchronize()
    if llm.engine.runner.guidance.ways == (True, False):
        llm.engine.runner.guidance = DraftGuidance(True)
