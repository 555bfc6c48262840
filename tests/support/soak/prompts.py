"""The questions that the soak asks: prompts, guides and sampling parameters, mixed once from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from support.engine.references import make_guide
from support.grammar.guides import CHOICES, GRAMMARS, REGEXES, SCHEMAS
from weft import SamplingParams
from weft.executor import GuidedDecodingParams, GuideType
from weft.grammar.guide import Guide
from weft.tiny.records import example

NUM_CASES = 150
MAX_PROMPT = 100

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<n="],
        "tags": [{"begin": "<n=a>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</n>"}],
    },
}
GUIDES: list[tuple[str, Any]] = [
    *(("json_schema", schema) for schema in list(SCHEMAS.values())[::4]),
    *(("regex", pattern) for pattern in REGEXES[::2]),
    *(("ebnf", grammar) for grammar in GRAMMARS.values()),
    *(("choice", choice) for choice in CHOICES),
    ("structural_tag", TAG),
    ("json", None),
]
NAMED = {f"guide {i}": i for i in [*range(0, len(GUIDES), 5), *(len(GUIDES) - 3 - i for i in range(4))]}
"""Guides that executors keep under a name; choices have no other way in."""

_TYPES: dict[str, tuple[GuideType, Callable[[Any], str | None]]] = {
    "json": (GuideType.JSON, lambda _: None),
    "json_schema": (GuideType.JSON_SCHEMA, json.dumps),
    "regex": (GuideType.REGEX, str),
    "ebnf": (GuideType.EBNF_GRAMMAR, str),
    "structural_tag": (GuideType.STRUCTURAL_TAG, json.dumps),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A question with one answer. `guide` is a number in GUIDES; `is_counted` takes it through a matcher in Python,
    which is watched. `num_seeds` answers with successive seeds are known."""

    number: int
    prompt: list[int]
    guide: int | None
    is_counted: bool
    sampling: SamplingParams
    num_seeds: int

    def seeded(self, index: int) -> SamplingParams:
        """What the sequence of this index is sampled by."""
        assert index < self.num_seeds or self.sampling.temperature == 0
        return replace(self.sampling, seed=(self.sampling.seed or 0) + index)

    def make_guide(self) -> Guide | None:
        """The guide itself."""
        return None if self.guide is None else make_guide(GUIDES[self.guide])

    def guide_params(self, rng: random.Random) -> GuidedDecodingParams | None:
        """The guide as requests say it: by content or by a name."""
        if self.guide is None:
            return None
        if self.is_counted:
            return GuidedDecodingParams.handle(f"counted {self.guide}")
        kind, argument = GUIDES[self.guide]
        name = next((name for name, guide in NAMED.items() if guide == self.guide), None)
        if kind == "choice" or (name is not None and rng.random() < 0.5):
            assert name is not None
            return GuidedDecodingParams.handle(name)
        guide_type, text = _TYPES[kind]
        return GuidedDecodingParams(guide_type, text(argument))


def draw_cases(encode: Callable[[str], list[int]], end_id: int) -> list[Case]:
    """The pool. Prompts share beginnings of every length."""
    rng = random.Random(4)
    texts = [encode(example(rng, "heldout").prompt)[:MAX_PROMPT] for _ in range(24)]
    cases = []
    for number in range(NUM_CASES):
        prompt = rng.choice(texts)
        if rng.random() < 0.4:
            prompt = prompt[: rng.randint(1, len(prompt))]
        elif rng.random() < 0.3:
            prompt = prompt[: rng.randint(1, len(prompt))] + rng.choice(texts)[-rng.randint(1, 30) :]
        guide = number % (2 * len(GUIDES))
        is_guided = guide < len(GUIDES) and rng.random() < 0.97
        sampling = draw_sampling(rng, rng.choice(texts), end_id)
        cases.append(
            Case(
                number,
                prompt,
                guide if is_guided else None,
                is_guided and guide % 9 == 4,
                sampling,
                num_seeds=3 if number % 6 == 0 else 1,
            )
        )
    return cases


def draw_sampling(rng: random.Random, text: list[int], end_id: int) -> SamplingParams:
    """Sampling parameters, none to many at a time."""
    given: dict[str, Any] = {"max_tokens": rng.choice((8, 12, 12, 16, 24, 40)), "logprobs": 2}
    if rng.random() < 0.55:
        given |= {"temperature": rng.choice((0.6, 1.0, 1.4)), "seed": rng.randrange(2**40)}
        if rng.random() < 0.3:
            given["top_k"] = rng.randint(2, 60)
        if rng.random() < 0.3:
            given["top_p"] = rng.uniform(0.5, 0.95)
        if rng.random() < 0.2:
            given["min_p"] = rng.uniform(0.01, 0.2)
    if rng.random() < 0.2:
        given["repetition_penalty"] = rng.uniform(0.8, 1.4)
    if rng.random() < 0.15:
        given |= {"presence_penalty": rng.uniform(-0.5, 1.0), "frequency_penalty": rng.uniform(0.0, 0.8)}
    if rng.random() < 0.15:
        given["logit_bias"] = {token: rng.choice((-3.0, 2.0)) for token in text[-4:] if token != end_id}
    if rng.random() < 0.15:
        given["bad_words"] = rng.choice((["the", "a"], [text[3:5], text[6:7]], ["er", text[2:4]]))
    draw = rng.random()
    if draw < 0.15:
        given["min_tokens"] = rng.randint(1, 6)
    elif draw < 0.3:
        given["stop"] = rng.choice((["e"], ["an", "0"], ['"']))
    elif draw < 0.4:
        given["stop_token_ids"] = [token for token in text[4:8] if token != end_id]
    return SamplingParams(**given)
