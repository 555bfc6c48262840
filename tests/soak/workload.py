"""Requests drawn from the pool: how each is sent, and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from soak.questions import Case, Pool
from weft.core.logits_processors import ProcessorRows
from weft.executor import (
    ExternalDraftTokensConfig,
    GuidedDecodingParams,
    GuideType,
    KvCacheRetentionConfig,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
    SamplingConfig,
    TokenRangeRetentionConfig,
)

# -- Logits post-processors that change nothing, in every form that an executor takes, and look at what they are given

Function = Callable[..., Tensor | None]


def watching(prompt: Sequence[int], client_id: int) -> Function:
    """For one request: what it is given is that request's."""

    def watch(_: int, logits: Tensor, tokens: list[list[int]], stream: object, client: int) -> Tensor | None:
        assert client == client_id and tokens[0][: len(prompt)] == list(prompt)
        assert logits.shape[:2] == (1, 1) and bool(logits.isfinite().all())
        return logits.clone() if len(tokens[0]) % 2 else None

    return watch


def shared(
    _: int, logits: Tensor, tokens: list[list[int]], stream: object, client: int | None
) -> Tensor | None:
    """Changes and changes back."""
    logits += 1
    logits -= 1
    return None


def batched(
    ids: list[int],
    logits: list[Tensor],
    tokens: list[list[list[int]]],
    stream: object,
    clients: list[int | None],
) -> None:
    """One entry for each position of all requests that name it."""
    assert len(ids) == len(logits) == len(tokens) == len(clients) > 0


def captured(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
    """A device function."""
    logits_BTV.mul_(1.0)


captured.allows_capture = True  # type: ignore[attr-defined]

CONFIG = LogitsPostProcessorConfig({"shared": shared, "captured": captured}, batched)


def draw_processor(rng: random.Random, prompt: Sequence[int], client_id: int) -> dict[str, Any]:
    """Fields of a request: none, most of the time."""
    if rng.random() < 0.88:
        return {}
    if rng.random() < 0.4:
        return {"logits_post_processor": watching(prompt, client_id)}
    names = ("shared", "captured", "captured", Request.BATCHED_POST_PROCESSOR_NAME)
    return {"logits_post_processor_name": rng.choice(names)}


# -- what becomes of them

Fate = Literal["answered", "cancelled", "timed out", "invalid"]

# What is wrong with a request, and what its error says.
INVALID: list[tuple[dict[str, Any], str]] = [
    (
        {"guided_decoding_params": GuidedDecodingParams(GuideType.JSON_SCHEMA, '{"type": "nonsense"}')},
        "nonsense",
    ),
    (
        {"guided_decoding_params": GuidedDecodingParams(GuideType.JSON_SCHEMA, '{"$ref": "#"}')},
        "the guide can.t be met",
    ),
    ({"guided_decoding_params": GuidedDecodingParams(GuideType.REGEX, r"(a")}, "regex"),
    (
        {"guided_decoding_params": GuidedDecodingParams(GuideType.EBNF_GRAMMAR, 'root ::= "a" missing')},
        "EBNF|missing",
    ),
    ({"guided_decoding_params": GuidedDecodingParams.handle("of nobody")}, "no guide is registered"),
    (
        {"guided_decoding_params": GuidedDecodingParams(GuideType.REGEX, "a+"), "end_id": 7},
        "end_id is 7, but a guided answer",
    ),
    ({"input_token_ids": [1, 10**6]}, "holds token id 1000000"),
    ({"input_token_ids": [5] * 500}, "the prompt has 500 tokens, but max_seq_len is"),
    ({"bad_words": [[10**6]]}, "holds token id 1000000"),
    ({"stop_words": [[10**6]]}, "holds token id 1000000"),
    ({"embedding_bias": torch.zeros(3)}, "embedding_bias has 3 entries"),
    ({"sampling_config": SamplingConfig(2)}, "beam_width is 2, but"),
    ({"logits_post_processor_name": "nobody's"}, "there is no logits post-processor"),
]
WITHOUT_GIVEN: tuple[dict[str, Any], str] = (
    {"external_draft_tokens_config": ExternalDraftTokensConfig([1])},
    "Speculation.given",
)
WITHOUT_LOGITS: tuple[dict[str, Any], str] = (
    {"output_config": OutputConfig(return_generation_logits=True)},
    "gather_generation_logits=True",
)


@dataclass(frozen=True, eq=False)
class Errand:
    """A request, and what its sender does. `error` is what is said of an invalid one. A request that is to be cancelled
    is after so many responses or seconds, whichever is first."""

    case: Case
    request: Request
    fate: Fate
    error: str = ""
    cancel_responses: int = 0
    cancel_s: float = 0.0

    @property
    def num_sequences(self) -> int:
        return self.request.sampling_config.num_sequences


def draw(
    rng: random.Random, pool: Pool, count: int, *, takes_given: bool, gives_logits: bool
) -> list[Errand]:
    """So many errands, to an executor that may take given drafts and give generation logits."""
    return [_draw(rng, pool, number, takes_given, gives_logits) for number in range(count)]


def crowd(pool: Pool, count: int) -> list[Errand]:
    """The errands whose answers are longest against their prompts. If they start together in few pages, these hold all
    prompts, but not all answers."""

    def growth(case: Case) -> int:
        return len(pool.answer(case, 0).token_ids) - len(case.prompt)

    cases = sorted((case for case in pool.cases if pool.answer(case, 0).error is None), key=growth)
    rng = random.Random(0)
    errands = []
    for number, case in enumerate(cases[-count:]):
        fields = _fields(rng, pool, case, takes_given=False, gives_logits=False) | {"client_id": number}
        fields["sampling_config"] = _sampling_config(case, num_sequences=None)
        errands.append(Errand(case, Request(**fields), "answered"))
    return errands


def _draw(rng: random.Random, pool: Pool, number: int, takes_given: bool, gives_logits: bool) -> Errand:
    case = rng.choice(pool.cases)
    draw = rng.random()
    fate: Fate = "answered"
    if draw < 0.09:
        fate = "invalid"
    elif draw < 0.24:
        fate = "cancelled"
    elif draw < 0.33:
        fate = "timed out"
    fields = _fields(rng, pool, case, takes_given, gives_logits)
    fields |= {"client_id": number} | draw_processor(rng, case.prompt, number)
    error, seconds = "", 0.0
    if fate == "invalid":
        refused = [WITHOUT_GIVEN] * (not takes_given) + [WITHOUT_LOGITS] * (not gives_logits)
        changed, error = rng.choice([*INVALID, *refused])
        left_out = ("num_draft_tokens", "external_draft_tokens_config", "logits_post_processor")
        fields |= dict.fromkeys(left_out) | changed
    elif fate == "timed out":
        fields["allotted_time_ms"] = rng.choice((0.0, 0.0, 2.0, 10.0, 30.0, 60.0, 120.0))
    elif fate == "cancelled":
        seconds = rng.choice((0.0, 0.005, 0.02, 0.05, 0.1))
    return Errand(case, Request(**fields), fate, error, rng.randint(1, 6), seconds)


def _fields(
    rng: random.Random, pool: Pool, case: Case, takes_given: bool, gives_logits: bool
) -> dict[str, Any]:
    sampling = case.sampling
    is_several = (case.num_seeds > 1 or sampling.temperature == 0) and rng.random() < 0.2
    bias = None
    if sampling.logit_bias is not None:
        bias = torch.zeros(pool.vocab_size)
        for token, value in sampling.logit_bias.items():
            bias[token] = value
    has_log_probs = rng.random() < 0.3
    (end,) = pool.checkpoint.end_ids
    fields: dict[str, Any] = {
        "input_token_ids": case.prompt,
        "max_tokens": sampling.max_tokens,
        "streaming": rng.random() < 0.5,
        "return_all_generated_tokens": rng.random() < 0.2,
        "sampling_config": _sampling_config(case, rng.choice((2, 3)) if is_several else None),
        "output_config": OutputConfig(
            exclude_input_from_output=rng.random() < 0.5,
            return_log_probs=has_log_probs,
            top_log_probs=2 if has_log_probs and rng.random() < 0.5 else 0,
            return_perf_metrics=rng.random() < 0.3,
            return_context_logits=rng.random() < 0.08,
            return_generation_logits=gives_logits and rng.random() < 0.2,
        ),
        "kv_cache_retention_config": _retention(rng, len(case.prompt)) if rng.random() < 0.2 else None,
        "bad_words": sampling.bad_words or None,
        "stop_words": [*sampling.stop_words, *([token] for token in sampling.stop_token_ids)] or None,
        "embedding_bias": bias,
        "guided_decoding_params": case.guide_params(rng),
        "priority": rng.choice((0.5, 0.5, 0.0, 1.0, rng.random())),
        "end_id": rng.choice((None, end)) if case.guide is not None else end,
        "num_draft_tokens": rng.randint(0, 8) if rng.random() < 0.25 else None,
    }
    if takes_given and fields["num_draft_tokens"] != 0 and rng.random() < 0.35:
        fields["external_draft_tokens_config"] = ExternalDraftTokensConfig(_expected(rng, pool, case))
    return fields


def _sampling_config(case: Case, num_sequences: int | None) -> SamplingConfig:
    """What is not the default, so that the likeliest token is asked for as callers do."""
    sampling, given = case.sampling, {}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        if getattr(sampling, name) != type(sampling).__dataclass_fields__[name].default:
            given[name] = getattr(sampling, name)
    for name in ("frequency_penalty", "min_tokens", "seed"):
        if getattr(sampling, name):
            given[name] = getattr(sampling, name)
    if sampling.temperature:  # nothing else asks for sampling
        given.setdefault("top_p", 1.0)
    return SamplingConfig(num_return_sequences=num_sequences, **given)


def _retention(rng: random.Random, length: int) -> KvCacheRetentionConfig:
    start = rng.randrange(length)
    kept = TokenRangeRetentionConfig(
        start, rng.choice((None, start + 9)), priority=rng.randint(0, 100), duration_ms=rng.choice((None, 50))
    )
    return KvCacheRetentionConfig([kept], rng.randint(0, 100))


def _expected(rng: random.Random, pool: Pool, case: Case) -> Sequence[int]:
    """What the caller takes the answer to be: right, right in parts, or another's."""
    tokens = list(pool.answer(case, 0).token_ids) or [1]
    draw = rng.random()
    if draw < 0.3:
        return list(pool.answer(rng.choice(pool.cases), 0).token_ids) or [1]
    if draw < 0.7:
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(tokens))
            change = rng.random()
            if change < 0.4:
                tokens[place] = rng.randrange(pool.vocab_size)
            elif change < 0.7 and len(tokens) > 1:
                del tokens[place]
            else:
                tokens.insert(place, rng.randrange(pool.vocab_size))
    return tokens
