"""The options of `LLM.generate` besides guide and sampling, for one prompt or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict, cast

from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.names import OPTION_HINTS, SAMPLING_HINTS, hint
from weft.core.prompts import Prompt, is_prompt, spread
from weft.core.request import DEFAULT_SAMPLING, NOTHING, Gather, Request
from weft.errors import InputError
from weft.grammar.guide import Guide

OWN_PROCESSOR = "logits_processor"
"""The name that errors use for a processor given as a plain function."""

Function = Callable[..., Any]
Floats = float | None | Sequence[float | None]
Integers = int | None | Sequence[int | None]


class RequestOptions(TypedDict, total=False):
    """Options of a request. With a list of prompts, every option but the last three may be a list of the same length,
    in which None stands for the default.

    - `priority`, 0 to 1 (0.5): requests of a higher priority are scheduled first. After `timeout_s` seconds the
      request ends with "timeout" and its partial answer. Prompts reuse only cached pages with the same `cache_salt`.
    - `beam_width` returns the best answers of a beam search of this width; `length_penalty`, `early_stopping` and
      `diversity_rate` are as in `docs/beam-search.md`. Needs `EngineConfig(max_beam_width=...)`.
    - `given` is the expected answer, text or token ids: drafts for `Speculation.given()`. `max_drafts` limits the
      drafts of an iteration (None: the engine's limit; 0: none).
    - `logits_processor` changes the raw logits: a function `(request_id, logits, tokens, stream, client_id)`
      (`docs/outputs.md`), or a `LogitsProcessor`.
    - `return_context_logits` fills `Output.context_logits`. `return_generation_logits` fills
      `Output.generation_logits`, and needs `EngineConfig(gather_generation_logits=True)`. `additional_outputs` returns
      tensors that the model marks, and needs `EngineConfig(additional_outputs=...)`. Its entries are names, or pairs of
      a name and whether to return the prompt's too. These three are the same for all prompts.
    """

    priority: Floats
    cache_salt: str | Sequence[str | None] | None
    timeout_s: Floats
    beam_width: Integers
    length_penalty: Floats
    early_stopping: Integers
    diversity_rate: Floats
    given: Prompt | Sequence[Prompt | None] | None
    max_drafts: Integers
    logits_processor: Function | LogitsProcessor | Sequence[Function | LogitsProcessor | None] | None
    return_context_logits: bool
    return_generation_logits: bool
    additional_outputs: Sequence[str | tuple[str, bool]]


DIRECT = ("priority", "cache_salt", "timeout_s", "given", "max_drafts")
"""Options that are fields of `Request` under the same name."""
BEAM = ("length_penalty", "early_stopping", "diversity_rate")
TEXTS = ("given",)
"""Options whose value is text or a list of token ids. A list may therefore be a single value."""
SAMPLING = {field.name for field in fields(SamplingParams)}
GATHERED = ("return_context_logits", "return_generation_logits", "additional_outputs")


def requests_of(
    prompts: Sequence[Prompt],
    guides: Sequence[Any],
    samplings: Sequence[SamplingParams | None],
    options: RequestOptions,
    *,
    streams: bool = False,
) -> list[Request]:
    """One request for each prompt. A guide is anything that `Guide.of` takes, or None. Raises `InputError` for invalid
    values and `TypeError` for unknown options."""
    columns = _columns(options, len(prompts))
    gather = _gather(options)
    # The prompts of a list often share a guide; the schema of a Python type is made once for all of them.
    given = {id(guide): guide for guide in guides}
    made = {key: None if guide is None else Guide.of(guide) for key, guide in given.items()}
    return [
        _request(
            prompt,
            made[id(guide)],
            sampling,
            {name: column[i] for name, column in columns.items()},
            gather,
            streams,
        )
        for i, (prompt, guide, sampling) in enumerate(zip(prompts, guides, samplings, strict=True))
    ]


def _columns(options: RequestOptions, count: int) -> dict[str, list[Any]]:
    """The values of each given option, one for each of `count` prompts. `GATHERED` options are left out."""
    unknown = set(options) - set(RequestOptions.__annotations__)
    if unknown:
        raise TypeError(_unknown(min(unknown)))
    columns = {}
    for name, value in options.items():
        if name in GATHERED or value is None:
            continue
        is_one = name in TEXTS and _is_one_text(value)
        columns[name] = [value] * count if is_one else spread(cast("Any", value), count, name)
    return columns


def _unknown(name: str) -> str:
    """The error message for an unknown option."""
    if name in SAMPLING:
        return (
            f"there is no option {name!r}: it is a sampling parameter; give "
            f"sampling=SamplingParams({name}=...)"
        )
    known = ["sampling", "guide", *RequestOptions.__annotations__]
    return f"there is no option {name!r}; {hint(name, known, {**SAMPLING_HINTS, **OPTION_HINTS})}"


def _is_one_text(value: object) -> bool:
    """Whether the value is a single text or list of token ids, and not a list of those."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) and value[0] is None:
        return False
    return is_prompt(value)


def _request(
    prompt: Prompt,
    guide: Guide | None,
    sampling: SamplingParams | None,
    values: Mapping[str, Any],
    gather: Gather,
    streams: bool,
) -> Request:
    sampling = sampling if sampling is not None else DEFAULT_SAMPLING
    if not isinstance(sampling, SamplingParams):
        is_guide = isinstance(sampling, Guide | type)
        cure = "give the guide by its name: guide=..." if is_guide else "give a SamplingParams"
        given = sampling.__name__ if isinstance(sampling, type) else f"a {type(sampling).__name__}"
        raise InputError(f"sampling is {given}; {cure}")
    direct = {name: values[name] for name in DIRECT if values.get(name) is not None}
    return Request(
        prompt,
        sampling,
        guide,
        _beam(values, sampling),
        processor=_processor(values.get("logits_processor")),
        gather=gather,
        streams=streams,
        **direct,
    )


def _beam(values: Mapping[str, Any], sampling: SamplingParams) -> BeamParams | None:
    settings = {name: values[name] for name in BEAM if values.get(name) is not None}
    width = values.get("beam_width")
    if width is not None and width != 1:
        beam = BeamParams(width, **settings)
        if (sampling.n or 1) > beam.width:
            raise InputError(
                f"n is {sampling.n}; a search with {beam.width} beams gives 1 to {beam.width} answers: raise "
                "beam_width, or lower n"
            )
        return replace(beam, num_return_sequences=sampling.n)
    if settings:
        raise InputError(f"{min(settings)} is for a search by beams; give a beam_width of 2 or more, too")
    return None


def _processor(given: Function | LogitsProcessor | None) -> LogitsProcessor | None:
    return (
        given
        if given is None or isinstance(given, LogitsProcessor)
        else LogitsProcessor(OWN_PROCESSOR, given)
    )


def _gather(options: RequestOptions) -> Gather:
    """The tensors that the requests return. Raises `InputError` for invalid values."""
    for name in ("return_context_logits", "return_generation_logits"):
        if not isinstance(options.get(name, False), bool):
            raise InputError(f"{name} is {options[name]!r}; it must be True or False")
    named = dict(_named(options.get("additional_outputs") or ()))
    gather = Gather(
        options.get("return_context_logits", False),
        options.get("return_generation_logits", False),
        tuple(named),
        tuple(name for name, has_context in named.items() if has_context),
    )
    return NOTHING if gather == NOTHING else gather


def _named(outputs: object) -> list[tuple[str, bool]]:
    named: list[tuple[str, bool]] = []
    for output in outputs if isinstance(outputs, list | tuple) else (None,):
        match output:
            case str():
                named.append((output, False))
            case (str() as name, bool() as has_context):
                named.append((name, has_context))
            case _:
                raise InputError(
                    f"additional_outputs is {outputs!r}; it must be a list of names, or of pairs of a name and whether "
                    "it is wanted of the prompt too"
                )
    return named
