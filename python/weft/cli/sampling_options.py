"""Options of `weft generate` for sampling and output. None leaves the value to the model's generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from weft.cli.options import OUTPUT, SAMPLING, SamplingSource, _option
from weft.cli.options import OnLength as Ways

Defaults = Annotated[
    SamplingSource,
    _option(
        "--generation-config",
        panel=SAMPLING,
        help="The source of defaults: the model's generation_config.json, or weft's own.",
    ),
]
MaxTokens = Annotated[
    int | None,
    _option(
        "--max-tokens",
        "-n",
        metavar="N",
        panel=SAMPLING,
        help="Maximum length of an answer in tokens; 256 by default.",
    ),
]
OnLength = Annotated[
    Ways | None,
    _option(
        "--on-length",
        panel=SAMPLING,
        help="At --max-tokens, cut the answer, or close a guided one so that it is complete.",
    ),
]
MinTokens = Annotated[
    int | None,
    _option("--min-tokens", metavar="N", panel=SAMPLING, help="Minimum length of an answer in tokens."),
]
NumAnswers = Annotated[
    int | None,
    _option("--num-answers", metavar="N", panel=SAMPLING, help="Number of answers to each prompt."),
]
BeamWidth = Annotated[
    int | None,
    _option(
        "--beam-width",
        metavar="N",
        panel=SAMPLING,
        help="Number of beams for a beam search; excludes drafts.",
    ),
]
Temperature = Annotated[
    float | None,
    _option("--temperature", "-t", metavar="X", panel=SAMPLING, help="0 is greedy, the default."),
]
TopK = Annotated[int | None, _option("--top-k", metavar="N", panel=SAMPLING, help="0 is all, the default.")]
TopP = Annotated[float | None, _option("--top-p", metavar="X", panel=SAMPLING, help="1 is all, the default.")]
MinP = Annotated[float | None, _option("--min-p", metavar="X", panel=SAMPLING, help="0 is all, the default.")]
RepetitionPenalty = Annotated[
    float | None, _option("--repetition-penalty", metavar="X", panel=SAMPLING, help="1 is none, the default.")
]
PresencePenalty = Annotated[
    float | None, _option("--presence-penalty", metavar="X", panel=SAMPLING, help="0 is none, the default.")
]
FrequencyPenalty = Annotated[
    float | None, _option("--frequency-penalty", metavar="X", panel=SAMPLING, help="0 is none, the default.")
]
LogitBias = Annotated[
    list[str] | None,
    _option(
        "--logit-bias",
        metavar="ID=BIAS",
        panel=SAMPLING,
        help="Added to a token's logit; -inf forbids the token. Repeatable.",
    ),
]
BadWord = Annotated[
    list[str] | None,
    _option(
        "--bad-word",
        metavar="TEXT",
        panel=SAMPLING,
        help="A text that the answer must not contain, see docs/sampling.md. Repeatable.",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option("--stop", metavar="TEXT", panel=SAMPLING, help="A text that ends the answer. Repeatable."),
]
StopTokenId = Annotated[
    list[int] | None,
    _option(
        "--stop-token-id", metavar="ID", panel=SAMPLING, help="A token that ends the answer. Repeatable."
    ),
]
Seed = Annotated[
    int | None,
    _option("--seed", metavar="N", panel=SAMPLING, help="Random seed; drawn at random by default."),
]
Logprobs = Annotated[
    int | None,
    _option(
        "--logprobs",
        metavar="N",
        panel=SAMPLING,
        help="Write log-probabilities of each token and of N top tokens (0 to 20) to --stats-json.",
    ),
]
StatsJson = Annotated[
    Path | None,
    _option(
        "--stats-json",
        metavar="FILE",
        panel=OUTPUT,
        help="Write statistics of the run, and all prompts with their answers.",
    ),
]
Trace = Annotated[
    Path | None,
    _option("--trace", metavar="FILE", panel=OUTPUT, help="Write a Chrome/Perfetto trace of the run."),
]
