"""Settings: frozen dataclasses that say what is wrong with a value when it is given."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from weft.errors import InputError

GuideDrafts = Literal["auto"] | bool

MAX_DRAFT_TOKENS = 8


@dataclass(frozen=True)
class Speculation:
    """How tokens are drafted. Make one with `none()` or `eagle3()`.

    `num_draft_tokens` is the number of tokens drafted and verified in an iteration, 1 to 8. `guide_drafts` says
    whether the grammar masks the drafts of guided requests too: a draft that the grammar refuses is never accepted.
    `"auto"` masks them.
    """

    drafter: str | None = None
    num_draft_tokens: int = 0
    path: str | None = None
    guide_drafts: GuideDrafts = "auto"

    def __post_init__(self) -> None:
        if self.drafter is None:
            if self.num_draft_tokens:
                raise InputError("num_draft_tokens needs a drafter; Speculation.none() drafts nothing")
        elif not 1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
            raise InputError(
                f"num_draft_tokens is {self.num_draft_tokens}; it must be 1 to {MAX_DRAFT_TOKENS} "
                "(for no drafts use Speculation.none())"
            )
        if self.guide_drafts not in ("auto", True, False):
            raise InputError(f'guide_drafts is {self.guide_drafts!r}; it must be "auto", True or False')

    @property
    def guides_drafts(self) -> bool:
        """Whether the drafts of guided requests are masked."""
        return self.drafter is not None and self.guide_drafts is not False

    @classmethod
    def none(cls) -> Speculation:
        """One token per iteration."""
        return cls()

    @classmethod
    def eagle3(
        cls, path: str | Path | None = None, *, num_draft_tokens: int = 3, guide_drafts: GuideDrafts = "auto"
    ) -> Speculation:
        """Drafts of an EAGLE3 head: the directory of a published head, or the model directory's own `eagle3/`."""
        return cls("eagle3", num_draft_tokens, None if path is None else str(path), guide_drafts)


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine.

    `max_batch` requests decode at once, each of at most `max_seq_len` tokens (prompt and answer; default: what the
    model can, at most 4096). Keys and values live in `num_pages` pages of `page_size` tokens (default: enough for
    every slot). Prompts are read in chunks of `prefill_chunk` tokens. `capture=False` issues every iteration eagerly
    instead of replaying a graph: the same function, the same tokens, slower.
    """

    max_batch: int = 8
    max_seq_len: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    prefill_chunk: int = 256
    capture: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batch", "page_size", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_seq_len is not None and self.max_seq_len < 2:
            raise InputError(f"max_seq_len is {self.max_seq_len}; it must be at least 2")
        if self.num_pages is not None and self.num_pages < 2:
            raise InputError(
                f"num_pages is {self.num_pages}; it must be at least 2 (page 0 is the padding's)"
            )

    def resolved(self, max_position_embeddings: int, num_draft_tokens: int) -> EngineConfig:
        """The same config with every default replaced by a number."""
        limit = max_position_embeddings
        length = self.max_seq_len if self.max_seq_len is not None else min(limit, 4096)
        if length > limit:
            raise InputError(f"max_seq_len is {length}, but the model ends at {limit} positions")
        pages = self.num_pages
        if pages is None:
            pages = 1 + self.max_batch * self.pages_for(length, num_draft_tokens)
        return replace(self, max_seq_len=length, num_pages=pages)

    def pages_for(self, tokens: int, num_draft_tokens: int) -> int:
        """Pages that hold `tokens` and what two iterations in flight may write beyond them."""
        ahead = 2 * (num_draft_tokens + 1) + num_draft_tokens
        return -(-(tokens + ahead) // self.page_size)


def package_model_path() -> Path:
    """The directory of weft-tiny, the model inside the package."""
    return Path(__file__).parent / "assets" / "weft-tiny"


def is_debug() -> bool:
    """Whether WEFT_DEBUG is set: errors of the command line then come with their traceback."""
    return bool(os.environ.get("WEFT_DEBUG"))
