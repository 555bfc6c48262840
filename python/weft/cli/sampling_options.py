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
        help="Where what is not given comes from: the model's generation_config.json, or weft's defaults.",
    ),
]
MaxTokens = Annotated[
    int | None,
    _option(
        "--max-tokens",
        "-n",
        metavar="N",
        panel=SAMPLING,
        help="The longest answer, in tokens; 256 if not given.",
    ),
]
OnLength = Annotated[
    Ways | None,
    _option(
        "--on-length",
        panel=SAMPLING,
        help="At --max-tokens an answer is cut, or a guided one is whole by then.",
    ),
]
MinTokens = Annotated[
    int | None, _option("--min-tokens", metavar="N", panel=SAMPLING, help="No end before so many tokens.")
]
NumAnswers = Annotated[
    int | None, _option("--num-answers", metavar="N", panel=SAMPLING, help="Answers to each prompt.")
]
BeamWidth = Annotated[
    int | None,
    _option(
        "--beam-width",
        metavar="N",
        panel=SAMPLING,
        help="Search with so many beams for the best answers; no drafts.",
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
        "--logit-bias", metavar="ID=BIAS", panel=SAMPLING, help="Of a token; -inf forbids it; again for each."
    ),
]
BadWord = Annotated[
    list[str] | None,
    _option(
        "--bad-word",
        metavar="TEXT",
        panel=SAMPLING,
        help="A text not to be written, see docs/sampling.md; again for each.",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option("--stop", metavar="TEXT", panel=SAMPLING, help="A text that ends the answer; again for each."),
]
StopTokenId = Annotated[
    list[int] | None,
    _option(
        "--stop-token-id", metavar="ID", panel=SAMPLING, help="A token that ends the answer; again for each."
    ),
]
Seed = Annotated[
    int | None,
    _option("--seed", metavar="N", panel=SAMPLING, help="Decides the text; drawn afresh if not given."),
]
Logprobs = Annotated[
    int | None,
    _option(
        "--logprobs",
        metavar="N",
        panel=SAMPLING,
        help="Log-probabilities of each token and of so many likeliest, 0 to 20, in the file of --stats-json.",
    ),
]
StatsJson = Annotated[
    Path | None,
    _option(
        "--stats-json",
        metavar="FILE",
        panel=OUTPUT,
        help="Write statistics of the run, and each prompt with its answers.",
    ),
]
Trace = Annotated[
    Path | None,
    _option("--trace", metavar="FILE", panel=OUTPUT, help="Write a Chrome/Perfetto trace of the run."),
]
