"""External drafts of requests, and TensorRT-LLM's settings for speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.decoding_mode import DecodingMode
from weft.executor.types.fields import Count, NotNegative, Several, Share, Tensor, Tokens, Wanted, Within
from weft.executor.types.settings import Settings


class SpeculativeDecodingConfig(Settings):
    """The transfer of draft logits between executors. For weft's speculation see `ExecutorConfig.speculation`."""

    fast_logits: bool = False


class ExternalDraftTokensConfig(Settings):
    """Drafts for the first tokens of the answer. They are verified once: the answer is the accepted drafts and one more
    token. Needs an executor with `Speculation.given()`.

    A draft is accepted if it equals the token that the target samples, so the answer has the target's distribution. The
    drafter's `logits` [tokens, vocab_size] are not needed for this, and are ignored.
    """

    tokens: Tokens
    logits: Tensor | None = None
    acceptance_threshold: Share | None = None
    fast_logits: bool | None = None


class LookaheadDecodingConfig(Settings):
    """The sizes of lookahead decoding: a lookahead window of `max_window_size` tokens, n-grams of `max_ngram_size`
    tokens, and `max_verification_set_size` n-grams that are verified at once."""

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
        """The sizes of an iteration: decoded tokens, tokens of a path, drafted tokens, drafts of a path."""
        return self.calculate_speculative_resource_tuple(
            self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        )

    @staticmethod
    def calculate_speculative_resource_tuple(
        window_size: int, ngram_size: int, verification_set_size: int
    ) -> tuple[int, int, int, int]:
        """Like `calculate_speculative_resource`, for the given sizes."""
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
    """Settings for the draft tree of an EAGLE head. They are kept as given, but refused:
    `ExecutorConfig.speculation` drafts one chain of tokens."""

    eagle_choices: Several[Sequence[NotNegative]] | None = None
    greedy_sampling: bool = True
    posterior_threshold: Share | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: Count | None = None


class DecodingConfig(Settings):
    """The decoding mode. The config of a speculation method also sets the mode."""

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
    """Identifies the request and the participant that hold a drafter's logits."""

    draft_request_id: Annotated[int, Within(ValueKind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")] = 0
    draft_participant_id: int = 0

    def to_tensor(self) -> torch.Tensor:
        """The two numbers as an int64 tensor [2]."""
        return torch.tensor([self.draft_request_id, self.draft_participant_id], dtype=torch.int64)
