"""How tokens are drafted, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from weft.core.values import check_fields, whole
from weft.errors import InputError

GuideDrafts = Literal["auto"] | bool
DraftTokens = int | Mapping[int, int]

MAX_DRAFT_TOKENS = 8


@dataclass(frozen=True)
class Lookahead:
    """The sizes of lookahead decoding. Raises `InputError` for a size out of range."""

    window: Annotated[int, whole(1, 16, "1 to 16")] = 4
    """Tokens of a request's window, which a forward reads besides its text, and whose chains become n-grams."""

    ngram: Annotated[int, whole(2, MAX_DRAFT_TOKENS + 1, f"2 to {MAX_DRAFT_TOKENS + 1}")] = 3
    """Tokens of an n-gram: the last token of the text, and `ngram` - 1 drafts."""

    verification: Annotated[int, whole(1, 32, "1 to 32")] = 4
    """N-grams kept for each first token: the most recent different ones."""

    def __post_init__(self) -> None:
        check_fields(self, "lookahead's ")

    def check_within(self, limits: Lookahead) -> None:
        """Raise `InputError` unless each size is at most that of `limits`, the engine's."""
        for field in fields(self):
            size, limit = getattr(self, field.name), getattr(limits, field.name)
            if size > limit:
                raise InputError(
                    f"lookahead's {field.name} is {size}, but the engine's is {limit}; lower it, or make the engine "
                    f"with Speculation.lookahead({field.name}={size})"
                )


@dataclass(frozen=True)
class Speculation:
    """How tokens are drafted. Make one with `none()`, `eagle3()`, `mtp()`, `draft_model()`, `ngram()`, `lookahead()`,
    `forced()` or `given()`.

    `num_draft_tokens` is the number of tokens drafted and verified in an iteration, 1 to 8; or a mapping from the
    batch size from which a number holds, such as `{1: 5, 4: 3, 16: 0}`: below the first none are drafted, and a 0
    drafts none under load. `guide_drafts` says whether the grammar masks the drafts of guided requests too: a draft
    that the grammar refuses is never accepted. `"auto"` measures whether that pays, and decides while it runs; the
    tokens that come out are the same. `drafters` are the registry's names; each continues after what the one before it
    drafted. `ahead` are the sizes of lookahead decoding (None: its defaults, with n-grams for `num_draft_tokens`).
    """

    drafters: tuple[str, ...] = ()
    num_draft_tokens: DraftTokens = 0
    path: str | None = None
    guide_drafts: GuideDrafts = "auto"
    ahead: Lookahead | None = None

    def __post_init__(self) -> None:
        if not (self.guide_drafts == "auto" or isinstance(self.guide_drafts, bool)):
            raise InputError(f'guide_drafts is {self.guide_drafts!r}; it must be "auto", True or False')
        if not isinstance(self.drafters, tuple) or not all(isinstance(name, str) for name in self.drafters):
            raise InputError(
                f"drafters is {self.drafters!r}; make a Speculation with eagle3(), mtp(), draft_model(), ngram(), "
                "lookahead(), forced() or given()"
            )
        if not self.drafters:
            if self.max_draft_tokens:
                raise InputError("num_draft_tokens needs a drafter; Speculation.none() drafts nothing")
            return
        for number in (n for pair in self._schedule for n in pair):
            if not isinstance(number, int) or isinstance(number, bool):
                raise InputError(
                    f"num_draft_tokens is {self.num_draft_tokens!r}; give a whole number, or a mapping of whole numbers"
                )
        for batch, count in self._schedule:
            lowest = 0 if isinstance(self.num_draft_tokens, Mapping) else 1
            if not lowest <= count <= MAX_DRAFT_TOKENS:
                raise InputError(
                    f"num_draft_tokens is {count}; it must be {lowest} to {MAX_DRAFT_TOKENS} "
                    "(for no drafts use Speculation.none())"
                )
            if batch < 1:
                raise InputError(f"num_draft_tokens begins at batch size {batch}; the smallest is 1")
        if not self.max_draft_tokens:
            raise InputError("num_draft_tokens drafts nothing at any batch size; use Speculation.none()")
        if self.ahead is not None and not (
            isinstance(self.ahead, Lookahead) and "lookahead" in self.drafters
        ):
            raise InputError(
                f"ahead is {self.ahead!r}; it must be a Lookahead, for the drafter lookahead, or None"
            )

    @property
    def name(self) -> str:
        """The drafters, as in "forced+eagle3"; "none" without any."""
        return "+".join(self.drafters) or "none"

    @property
    def max_draft_tokens(self) -> int:
        """The largest number of drafts of an iteration."""
        return max((count for _, count in self._schedule), default=0)

    def draft_tokens(self, batch: int) -> int:
        """The number of drafts of an iteration over `batch` requests."""
        return next((count for start, count in reversed(self._schedule) if start <= batch), 0)

    @property
    def _schedule(self) -> list[tuple[int, int]]:
        given = self.num_draft_tokens
        return sorted(given.items()) if isinstance(given, Mapping) else [(1, given)]

    @classmethod
    def named(
        cls,
        name: str,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
    ) -> Speculation:
        """Drafts of the drafter that the registry has under `name`; `path` is the directory of its weights, if it has
        some elsewhere than in the model directory."""
        return cls((name,), num_draft_tokens, _path(path), guide_drafts)

    @classmethod
    def none(cls) -> Speculation:
        """One token per iteration."""
        return cls()

    @classmethod
    def eagle3(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
    ) -> Speculation:
        """Drafts of an EAGLE3 head: the directory of a published head, or the model directory's own `eagle3/`."""
        return cls(("eagle3",), num_draft_tokens, _path(path), guide_drafts)

    @classmethod
    def mtp(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
    ) -> Speculation:
        """Drafts of the model's multi-token-prediction layers: in the checkpoint itself, in its `mtp/`, or at `path`.

        One layer drafts every token, reading its own output; of several, layer k makes draft k.
        """
        return cls(("mtp",), num_draft_tokens, _path(path), guide_drafts)

    @classmethod
    def draft_model(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
    ) -> Speculation:
        """Drafts of a small model with the same tokenizer: its directory, or the model directory's own `draft/`."""
        return cls(("draft_model",), num_draft_tokens, _path(path), guide_drafts)

    @classmethod
    def ngram(cls, *, num_draft_tokens: DraftTokens = 3, guide_drafts: GuideDrafts = "auto") -> Speculation:
        """Drafts are what followed the last tokens when they stood in the prompt or the answer before."""
        return cls(("ngram",), num_draft_tokens, None, guide_drafts)

    @classmethod
    def lookahead(
        cls, window: int = 4, ngram: int = 3, verification: int = 4, *, guide_drafts: GuideDrafts = "auto"
    ) -> Speculation:
        """Drafts are n-grams that the model itself makes beside the text: lookahead decoding. The sizes are those of
        `Lookahead`; `ngram` - 1 tokens are drafted.

        Every forward reads `window` more tokens of each request, so it pays where these cost little: small batches.
        """
        ahead = Lookahead(window, ngram, verification)
        return cls(("lookahead",), ngram - 1, None, guide_drafts, ahead)

    @property
    def sizes_ahead(self) -> Lookahead | None:
        """The sizes of lookahead decoding; None where it does not draft."""
        if "lookahead" not in self.drafters:
            return None
        return self.ahead or Lookahead(ngram=self.max_draft_tokens + 1)

    @classmethod
    def forced(
        cls, then: Speculation | None = None, *, num_draft_tokens: DraftTokens | None = None
    ) -> Speculation:
        """Drafts are the text that the grammar forces; `then` another drafter continues after it.

        `num_draft_tokens` is 3 by itself, and the other drafter's with one.
        """
        return cls._first("forced", then, num_draft_tokens, alone=3)

    @classmethod
    def given(
        cls, then: Speculation | None = None, *, num_draft_tokens: DraftTokens | None = None
    ) -> Speculation:
        """Drafts are text that a request brings along as what its answer may be; `then` another drafter, forced text
        too, continues after it and drafts for requests that bring none.

        `num_draft_tokens` is 8 by itself, and the other drafter's with one.
        """
        return cls._first("given", then, num_draft_tokens, alone=MAX_DRAFT_TOKENS)

    @classmethod
    def _first(
        cls, name: str, then: Speculation | None, num_draft_tokens: DraftTokens | None, alone: int
    ) -> Speculation:
        """Drafter `name` before those of `then`; by itself it drafts `alone` tokens where no number is given."""
        if then is None:
            return cls((name,), alone if num_draft_tokens is None else num_draft_tokens)
        if not isinstance(then, Speculation):
            raise InputError(
                f"{name} continues with {then!r}; give a Speculation, such as Speculation.eagle3()"
            )
        if num_draft_tokens is not None:
            raise InputError("num_draft_tokens is given twice; give it to the drafter that continues")
        if not then.drafters:
            return replace(then, drafters=(name,), num_draft_tokens=alone)
        if name in then.drafters:
            raise InputError(f"the drafter that continues after {name} text drafts {name} text itself")
        return replace(then, drafters=(name, *then.drafters))


def _path(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
