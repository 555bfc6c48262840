"""The entrants of the comparison: every engine without drafts, and with each of its drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .checkpoints import TINY

DENSE_ENGINES = ("weft", "llama.cpp", "vLLM", "transformers")
"""The engines that run weights in 16 and 32 bits."""
GGUF_ENGINES = ("weft", "llama.cpp", "OpenVINO")
"""The engines that run quantised GGUF files."""
ENGINES = (*DENSE_ENGINES, "OpenVINO")


@dataclass(frozen=True)
class Entrant:
    """An engine with its drafter. `is_guided_only` marks entrants that without a guide would equal another one."""

    engine: str
    drafter: str = "none"
    num_drafts: int = 0
    is_guided_only: bool = False

    @property
    def name(self) -> str:
        """The names of the engine and the drafter, and the number of drafts."""
        return self.engine if self.drafter == "none" else f"{self.engine} {self.drafter} {self.num_drafts}"


def _weft(drafter: str, num_drafts: int) -> Entrant:
    return Entrant("weft", drafter, num_drafts, is_guided_only=drafter.startswith("forced"))


EVERYWHERE = (
    *(Entrant(engine) for engine in ENGINES),
    _weft("ngram", 4),
    _weft("forced+ngram", 6),
    Entrant("llama.cpp", "ngram", 4),
    Entrant("llama.cpp", "ngram", 8),
    Entrant("vLLM", "ngram", 4),
    Entrant("OpenVINO", "ngram", 4),
)
WITH_HEADS = (
    _weft("eagle3", 3),
    _weft("eagle3", 5),
    _weft("mtp", 5),
    _weft("draft_model", 3),
    _weft("forced+eagle3", 5),
    Entrant("llama.cpp", "draft_model", 3),
    Entrant("llama.cpp", "draft_model", 5),
)
"""Entrants that need additional weights: a head or a draft model."""


def lineup(checkpoint: str, engines: Sequence[str], drafts: bool = True) -> list[Entrant]:
    """Return the entrants of these engines for a checkpoint, in a fixed order."""
    everybody = EVERYWHERE + (WITH_HEADS if checkpoint == TINY else ())
    chosen = [e for e in everybody if e.engine in engines and (drafts or e.drafter == "none")]
    return sorted(chosen, key=lambda e: ENGINES.index(e.engine))
