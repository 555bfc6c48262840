"""Drafts: those that a request brings along, and what TensorRT-LLM's classes say of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.decoding_mode import DecodingMode
from weft.executor.types.fields import Count, NotNegative, Several, Share, Tensor, Tokens, Wanted, Within
from weft.executor.types.settings import Settings


class SpeculativeDecodingConfig(Settings):
    """Whether draft logits go from one executor to another. (`ExecutorConfig.speculation` says how weft drafts.)"""

    fast_logits: bool = False


class ExternalDraftTokensConfig(Settings):
    """What the answer is expected to begin with, `tokens`. They are verified once: the answer is those that are right,
    and one more. Needs an executor with `Speculation.given()`.

    A draft is right where it is the token that the target chooses, which gives the target's distribution; `logits`
    [tokens, vocab_size] of a drafter are not needed for that, and not looked at.
    """

    tokens: Tokens
    logits: Tensor | None = None
    acceptance_threshold: Share | None = None
    fast_logits: bool | None = None


class LookaheadDecodingConfig(Settings):
    """Lookahead decoding: `max_window_size` tokens are looked ahead, n-grams have `max_ngram_size` tokens, and
    `max_verification_set_size` of them are verified at once."""

    max_window_size: Count = 4
    max_ngram_size: Count = 3
    max_verification_set_size: NotNegative = 4

    def check(self) -> None:
        alone = self.max_ngram_size == 1 and (self.max_window_size > 1 or self.max_verification_set_size)
        if alone:
            raise InputError(
                "max_ngram_size is 1; n-grams of one token take a max_window_size of 1 and a max_verification_set_size "
                "of 0"
            )

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        """In an iteration: tokens decoded, tokens of a path, tokens drafted, drafts of a path."""
        return self.calculate_speculative_resource_tuple(
            self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        )

    @staticmethod
    def calculate_speculative_resource_tuple(
        window_size: int, ngram_size: int, verification_set_size: int
    ) -> tuple[int, int, int, int]:
        """`calculate_speculative_resource` of other sizes."""
        depth = ngram_size - 1
        drafts = max(depth - 1, 0) + (window_size - 1 + verification_set_size) * depth
        return drafts + 1, ngram_size, drafts, depth

    @staticmethod
    def get_default_lookahead_decoding_window() -> int:
        """The default of `max_window_size`."""
        return 4

    @staticmethod
    def get_default_lookahead_decoding_ngram() -> int:
        """The default of `max_ngram_size`."""
        return 3

    @staticmethod
    def get_default_lookahead_decoding_verification_set() -> int:
        """The default of `max_verification_set_size`."""
        return 4


class EagleConfig(Settings):
    """A tree of drafts of an EAGLE head. Held as given; `ExecutorConfig.speculation` drafts one line of tokens."""

    eagle_choices: Several[Sequence[NotNegative]] | None = None
    greedy_sampling: bool = True
    posterior_threshold: Share | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: Count | None = None


class DecodingConfig(Settings):
    """How tokens are decided. A config of a way to draft that is assigned sets the mode, too."""

    decoding_mode: Annotated[DecodingMode, Wanted("a DecodingMode, as DecodingMode.Auto()")] | None = None
    lookahead_decoding_config: LookaheadDecodingConfig | None = None
    medusa_choices: Several[Sequence[NotNegative]] | None = None
    eagle_config: EagleConfig | None = None

    def check(self) -> None:
        drafts = {
            "lookahead_decoding_config": DecodingMode.Lookahead(),
            "medusa_choices": DecodingMode.Medusa(),
            "eagle_config": DecodingMode.Eagle(),
        }
        given = [name for name in drafts if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} are given; give one")
        if given:
            vars(self)["decoding_mode"] = drafts[given[0]]


class SpeculativeDecodingFastLogitsInfo(Settings):
    """Where a drafter's logits are to be had."""

    draft_request_id: Annotated[int, Within(Kind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")] = 0
    draft_participant_id: int = 0

    def to_tensor(self) -> torch.Tensor:
        """Both numbers, int64 [2]."""
        return torch.tensor([self.draft_request_id, self.draft_participant_id], dtype=torch.int64)
