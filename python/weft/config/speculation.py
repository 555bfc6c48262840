"""The user's settings for speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from weft.core.values import Checked, check_fields, whole
from weft.errors import InputError

GuideDrafts = Literal["auto"] | bool
DraftTokens = int | Mapping[int, int]

MAX_DRAFT_TOKENS = 8

_FEWER = (0, 1, 2, 3, 5)
"""The numbers of drafts that adaptive drafting tries below the largest. Each has graphs of its own."""


@dataclass(frozen=True)
class Lookahead:
    """The parameters of lookahead decoding. Raises `InputError` for a value out of range."""

    window: Annotated[int, whole(1, 16, "1 to 16")] = 4
    """W: the size of each request's lookahead window, in tokens. A forward pass reads the window after the text and
    the drafts. Each position of the window predicts one token per iteration. Over the iterations, these tokens form
    n-grams."""

    ngram: Annotated[int, whole(2, MAX_DRAFT_TOKENS + 1, f"2 to {MAX_DRAFT_TOKENS + 1}")] = 3
    """N: the number of tokens in an n-gram. It is the last token of the text plus `ngram` - 1 drafts."""

    verification: Annotated[int, whole(1, 32, "1 to 32")] = 4
    """G: the number of n-grams kept for each first token. The most recent distinct ones are kept."""

    def __post_init__(self) -> None:
        check_fields(self, "lookahead's ")

    def check_within(self, limits: Lookahead) -> None:
        """Raise `InputError` if any parameter exceeds the engine's, given by `limits`."""
        for field in fields(self):
            size, limit = getattr(self, field.name), getattr(limits, field.name)
            if size > limit:
                raise InputError(
                    f"lookahead's {field.name} is {size}, but the engine's is {limit}; lower it, or make the engine "
                    f"with Speculation.lookahead({field.name}={size})"
                )


def _check_drafters(name: str, drafters: object) -> None:
    if not isinstance(drafters, tuple) or not all(isinstance(each, str) for each in drafters):
        raise InputError(
            f"{name} is {drafters!r}; make a Speculation with eagle3(), mtp(), draft_model(), ngram(), lookahead(), "
            "forced() or given()"
        )


@dataclass(frozen=True)
class Speculation(Checked):
    """How tokens are drafted. Create it with `none()`, `eagle3()`, `mtp()`, `draft_model()`, `ngram()`,
    `lookahead()`, `forced()` or `given()`."""

    drafters: Annotated[tuple[str, ...], _check_drafters] = ()
    """The drafters' names in the registry. Each drafter continues after the drafts of the previous one."""

    num_draft_tokens: DraftTokens = 0
    """The number of tokens to draft and verify per iteration, 1 to 8. A mapping sets the number by batch size, such
    as `{1: 5, 4: 3, 16: 0}`. Each key is the smallest batch size of its number. 0 turns drafting off under load, and
    batches below the smallest key have no drafts."""

    path: str | None = None
    """The directory of the drafter's weights. Default: a place in the model's directory that depends on the drafter."""

    guide_drafts: GuideDrafts = "auto"
    """Whether the grammar also masks the drafter's logits for guided requests. Forbidden drafts are always rejected,
    so masking can raise the acceptance rate. `"auto"` measures continuously whether it pays off. The tokens are the
    same."""

    ahead: Lookahead | None = None
    """The parameters of lookahead decoding. Default: those of `Lookahead`, with `ngram` set to `num_draft_tokens` +
    1."""

    adaptive: bool = False
    """Whether an iteration may have fewer drafts than `num_draft_tokens`, or none. The engine measures the time of
    iterations and the acceptance of drafts continuously, and chooses the number with the most tokens per second at each
    batch size. The tokens are the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drafters:
            self._check_schedule()
        elif self.max_draft_tokens:
            raise InputError("num_draft_tokens needs a drafter; Speculation.none() drafts nothing")
        if not isinstance(self.adaptive, bool):
            raise InputError(f"adaptive is {self.adaptive!r}; it must be True or False")
        if self.adaptive and (not self.drafters or "lookahead" in self.drafters):
            raise InputError(
                f"adaptive does not work with Speculation.{self.name}(), whose number of drafts is fixed"
            )
        if self.ahead is not None and not (
            isinstance(self.ahead, Lookahead) and "lookahead" in self.drafters
        ):
            raise InputError(
                f"ahead is {self.ahead!r}; it must be a Lookahead, for the drafter lookahead, or None"
            )

    def _check_schedule(self) -> None:
        for number in (number for entry in self._schedule for number in entry):
            if not isinstance(number, int) or isinstance(number, bool):
                raise InputError(
                    f"num_draft_tokens is {self.num_draft_tokens!r}; give a whole number, or a mapping of whole numbers"
                )
        lowest = 0 if isinstance(self.num_draft_tokens, Mapping) else 1
        for batch, count in self._schedule:
            if not lowest <= count <= MAX_DRAFT_TOKENS:
                raise InputError(
                    f"num_draft_tokens is {count}; it must be {lowest} to {MAX_DRAFT_TOKENS} "
                    "(for no drafts use Speculation.none())"
                )
            if batch < 1:
                raise InputError(f"num_draft_tokens begins at batch size {batch}; the smallest is 1")
        if not self.max_draft_tokens:
            raise InputError("num_draft_tokens drafts nothing at any batch size; use Speculation.none()")

    @property
    def name(self) -> str:
        """The drafters' names, such as "forced+eagle3"; "none" without drafters."""
        return "+".join(self.drafters) or "none"

    @property
    def max_draft_tokens(self) -> int:
        """The maximum number of drafts per iteration, over all batch sizes."""
        return max((count for _, count in self._schedule), default=0)

    def draft_tokens(self, batch: int) -> int:
        """Return the number of drafts per request in an iteration over `batch` requests."""
        return next((count for start, count in reversed(self._schedule) if start <= batch), 0)

    def draft_numbers(self, batch: int) -> tuple[int, ...]:
        """Return the numbers of drafts per request that an iteration over `batch` requests may have, smallest first."""
        largest = self.draft_tokens(batch)
        fewer = [number for number in _FEWER if number < largest] if self.adaptive else []
        return (*fewer, largest)

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
        adaptive: bool = False,
    ) -> Speculation:
        """Draft with the drafter that the registry has under `name`. `path` is the directory of its weights, if they
        are not in the model's directory."""
        return cls((name,), num_draft_tokens, _path(path), guide_drafts, adaptive=adaptive)

    @classmethod
    def none(cls) -> Speculation:
        """No speculation: each iteration decodes one token per request."""
        return cls()

    @classmethod
    def eagle3(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
        adaptive: bool = False,
    ) -> Speculation:
        """Draft with an EAGLE3 head. `path` is the directory of a published head. Default: the model's `eagle3/`."""
        return cls(("eagle3",), num_draft_tokens, _path(path), guide_drafts, adaptive=adaptive)

    @classmethod
    def mtp(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
        adaptive: bool = False,
    ) -> Speculation:
        """Draft with the model's multi-token-prediction (MTP) layers. They are in the checkpoint, in its `mtp/`, or
        at `path`.

        A single layer makes all drafts, each from its previous output. With several layers, layer k makes draft k.
        """
        return cls(("mtp",), num_draft_tokens, _path(path), guide_drafts, adaptive=adaptive)

    @classmethod
    def draft_model(
        cls,
        path: str | Path | None = None,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
        adaptive: bool = False,
    ) -> Speculation:
        """Draft with a small model that has the same tokenizer, at `path` or in the model's `draft/`."""
        return cls(("draft_model",), num_draft_tokens, _path(path), guide_drafts, adaptive=adaptive)

    @classmethod
    def ngram(
        cls,
        *,
        num_draft_tokens: DraftTokens = 3,
        guide_drafts: GuideDrafts = "auto",
        adaptive: bool = False,
    ) -> Speculation:
        """Draft by prompt lookup: propose the tokens that followed an earlier occurrence of the text's last
        tokens."""
        return cls(("ngram",), num_draft_tokens, None, guide_drafts, adaptive=adaptive)

    @classmethod
    def lookahead(
        cls, window: int = 4, ngram: int = 3, verification: int = 4, *, guide_drafts: GuideDrafts = "auto"
    ) -> Speculation:
        """Draft by lookahead decoding: the model itself generates n-grams alongside the text. If the text's last token
        begins an n-gram, the other `ngram` - 1 tokens are a draft. `Lookahead` describes the parameters.

        Each forward pass reads `window` more tokens per request. That pays off for small batches, where they cost
        little.
        """
        ahead = Lookahead(window, ngram, verification)
        return cls(("lookahead",), ngram - 1, None, guide_drafts, ahead)

    @property
    def lookahead_sizes(self) -> Lookahead | None:
        """The parameters of lookahead decoding; None if it is not used."""
        if "lookahead" not in self.drafters:
            return None
        return self.ahead or Lookahead(ngram=self.max_draft_tokens + 1)

    @property
    def max_tokens_ahead(self) -> int:
        """The largest number of tokens after a row's last one that a forward reads: drafts, and lookahead's window."""
        sizes = self.lookahead_sizes
        return self.max_draft_tokens + (sizes.window if sizes is not None else 0)

    @classmethod
    def forced(
        cls,
        then: Speculation | None = None,
        *,
        num_draft_tokens: DraftTokens | None = None,
        adaptive: bool = False,
    ) -> Speculation:
        """Draft the text that the grammar forces. The drafters of `then` continue after it.

        With `then`, its `num_draft_tokens` applies. Without it, `num_draft_tokens` defaults to 3.
        """
        return cls._first("forced", then, num_draft_tokens, adaptive, alone=3)

    @classmethod
    def given(
        cls,
        then: Speculation | None = None,
        *,
        num_draft_tokens: DraftTokens | None = None,
        adaptive: bool = False,
    ) -> Speculation:
        """Draft the answer that the client expects, `Request.given`. The drafters of `then` continue after it, and
        draft for requests without an expected answer.

        With `then`, its `num_draft_tokens` applies. Without it, `num_draft_tokens` defaults to 8.
        """
        return cls._first("given", then, num_draft_tokens, adaptive, alone=MAX_DRAFT_TOKENS)

    @classmethod
    def _first(
        cls,
        name: str,
        then: Speculation | None,
        num_draft_tokens: DraftTokens | None,
        adaptive: bool,
        alone: int,
    ) -> Speculation:
        """Put drafter `name` before the drafters of `then`. Without `then`, it drafts `alone` tokens by default. If
        `then` has no drafters, it always does. Raises `InputError` if both are given a number."""
        if then is None:
            number = alone if num_draft_tokens is None else num_draft_tokens
            return cls((name,), number, adaptive=adaptive)
        if not isinstance(then, Speculation):
            raise InputError(
                f"{name} continues with {then!r}; give a Speculation, such as Speculation.eagle3()"
            )
        if num_draft_tokens is not None:
            raise InputError("num_draft_tokens is given twice; give it to the drafter that continues")
        if not then.drafters:
            return replace(then, drafters=(name,), num_draft_tokens=alone, adaptive=adaptive)
        if name in then.drafters:
            raise InputError(f"the drafter that continues after {name} text drafts {name} text itself")
        return replace(then, drafters=(name, *then.drafters), adaptive=adaptive or then.adaptive)


def _path(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
