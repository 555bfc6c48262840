"""Options of `weft generate` for sampling and output. None leaves the value to the model's generation_config.json.

Each numeric field of `SamplingParams` is an option; `OTHER_FORMS` holds the options of the other fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

from weft.cli.inputs import read_bias
from weft.cli.options import OUTPUT, SAMPLING, OnLength, SamplingSource, _option
from weft.core import SamplingParams, ValueKind
from weft.core.values import docstrings, ranges

Defaults = Annotated[
    SamplingSource,
    _option(
        "--generation-config",
        panel=SAMPLING,
        help="The source of defaults: the model's generation_config.json, or weft's own.",
    ),
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

# -- the fields of SamplingParams


def _sampling(*names: str, help: str, **more: Any) -> Any:
    return _option(*names, help=help, panel=SAMPLING, **more)


OTHER_FORMS: dict[str, Any] = {
    "max_tokens": Annotated[
        int | None,
        _sampling(
            "--max-tokens",
            "-n",
            metavar="N",
            help="Maximum length of an answer in tokens (256; weft chat: 1024).",
        ),
    ],
    "temperature": Annotated[
        float | None, _sampling("--temperature", "-t", metavar="X", help="0 is greedy, the default.")
    ],
    "logit_bias": Annotated[
        list[str] | None,
        _sampling(
            "--logit-bias",
            metavar="ID=BIAS",
            help="Added to a token's logit; -inf forbids the token. Repeatable.",
        ),
    ],
    "bad_words": Annotated[
        list[str] | None,
        _sampling(
            "--bad-word",
            metavar="TEXT",
            help="A text that the answer must not contain, see docs/sampling.md. Repeatable.",
        ),
    ],
    "stop": Annotated[
        list[str] | None, _sampling("--stop", metavar="TEXT", help="A text that ends the answer. Repeatable.")
    ],
    "stop_token_ids": Annotated[
        list[int] | None,
        _sampling("--stop-token-id", metavar="ID", help="A token that ends the answer. Repeatable."),
    ],
    "logprobs": Annotated[
        int | None,
        _sampling(
            "--logprobs",
            metavar="N",
            help="Write log-probabilities of each token and of N top tokens (0 to 20) to --stats-json.",
        ),
    ],
    "on_length": Annotated[
        OnLength | None,
        _sampling(
            "--on-length",
            help="At --max-tokens, cut the answer, or close a guided one so that it is complete.",
        ),
    ],
    "n": Annotated[
        int | None, _sampling("--num-answers", metavar="N", help="Number of answers to each prompt.")
    ],
}
"""Options of fields that are no numbers, or that have a short flag, another name or a help text of their own."""


def sampling_options() -> dict[str, Any]:
    """Return the annotated type of each option, by its field of `SamplingParams`."""
    docs, numbers = docstrings(SamplingParams), ranges(SamplingParams)
    options = {name: _number(name, range.kind, docs.get(name, "")) for name, range in numbers.items()}
    return options | OTHER_FORMS


def _number(name: str, kind: ValueKind, doc: str) -> Any:
    """The option of a numeric field. Its help is the first paragraph of the field's docstring."""
    help = " ".join(doc.partition("\n\n")[0].split())
    help = re.sub(r"`(\w+)`", lambda match: _flag(match[1]), help)
    if kind is ValueKind.INTEGER:
        return Annotated[int | None, _sampling(_flag(name), metavar="N", help=help)]
    return Annotated[float | None, _sampling(_flag(name), metavar="X", help=help)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_sampling_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """A decorator that replaces a command's `**options` by the sampling options, named as their fields, except for
    those in `without`. The command gets None for each one that is not given; `read_sampling` leaves those out."""
    signature = inspect.signature(command, eval_str=True)
    *others, _ = signature.parameters.values()
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in sampling_options().items()
        if name not in without
    ]
    setattr(command, "__signature__", signature.replace(parameters=[*others, *options]))  # noqa: B010  # for mypy
    return command


def read_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling options that the command line gives, as parameters of `SamplingParams`."""
    given = {name: value for name, value in options.items() if value is not None}
    if "on_length" in given:
        given["on_length"] = given["on_length"].value
    if "logit_bias" in given:
        given["logit_bias"] = read_bias(given["logit_bias"])
    return given
