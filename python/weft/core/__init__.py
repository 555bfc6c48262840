"""Types that users and the engine share: sampling parameters, outputs and their statistics."""

from weft.core.output import (
    SAMPLED,
    SPLICED,
    BeamTrace,
    FinishReason,
    Hypothesis,
    Output,
    Piece,
    TokenLogprob,
)
from weft.core.sampling import MAX_LOGIT, MAX_LOGPROBS, OnLength, SamplingParams
from weft.core.stats import OutputStats
from weft.core.values import ValueKind, check_entries, check_words, is_encodable, read_token_ids

__all__ = [
    "MAX_LOGIT",
    "MAX_LOGPROBS",
    "SAMPLED",
    "SPLICED",
    "BeamTrace",
    "FinishReason",
    "Hypothesis",
    "OnLength",
    "Output",
    "OutputStats",
    "Piece",
    "SamplingParams",
    "TokenLogprob",
    "ValueKind",
    "check_entries",
    "check_words",
    "is_encodable",
    "read_token_ids",
]
