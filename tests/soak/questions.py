"""The pool of questions and their answers: what `LLM.generate` says to each, alone and without speculation."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import xgrammar as xgr

from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.sampling_oracle import Words, choose
from support.grammar.guides import CHOICES, GRAMMARS, REGEXES, SCHEMAS
from weft import LLM, EngineConfig, Output, SamplingParams
from weft.core.request import PenaltyRule, Request
from weft.executor import FinishReason, GuidedDecodingParams, GuideType
from weft.grammar.guide import Guide
from weft.grammar.xgrammar.backend import XGrammarMatcher
from weft.tiny.records import example

# -- The questions that the soak asks: prompts, guides and sampling parameters, mixed once from a seed

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


# -- the pool of these

MAX_SEQ_LEN = 192
RULE = PenaltyRule(counts_prompt=True, after_temperature=True)
"""An executor's penalties."""
ROUNDING = 2e-3
"""Values nearer than this may change places by rounding."""


class CountedMatcher(XGrammarMatcher):
    """XGrammar's matcher, called through Python. Those that live can be counted."""

    alive: ClassVar[weakref.WeakSet[CountedMatcher]] = weakref.WeakSet()

    def __init__(self, matcher: xgr.GrammarMatcher, end_ids: tuple[int, ...]) -> None:
        super().__init__(matcher, end_ids)
        self.alive.add(self)


@dataclass(frozen=True)
class Pool:
    """The cases, their answers by case and index of the sequence, and what tells rounding from errors."""

    checkpoint: Checkpoint
    cases: list[Case]
    answers: dict[tuple[int, int], Output]
    bad_words: dict[int, tuple[tuple[int, ...], ...]]
    counted: dict[int, Guide]

    @classmethod
    def make(cls, checkpoint: Checkpoint) -> Pool:
        """Draw the cases and answer them."""
        engine = EngineConfig(
            max_batch=1,
            max_seq_len=MAX_SEQ_LEN,
            reuse=False,
            overlap=False,
            grammar="xgrammar",
            logprobs="sampled",
        )
        with LLM(checkpoint.path, device="cpu", engine=engine) as llm:
            ends = llm.client.built.text.end_ids
            cases = draw_cases(llm.tokenizer.encode, ends[0])
            keys = [(case, index) for case in cases for index in range(case.num_seeds)]
            requests = [
                Request(case.prompt, case.seeded(index), case.make_guide(), penalties=RULE)
                for case, index in keys
            ]
            outputs = _answered(llm, requests)
            answers = {(case.number, i): output for (case, i), output in zip(keys, outputs, strict=True)}
            bad_words = {
                case.number: llm.client.inputs.words.rules(case.sampling).bad_words for case in cases
            }
            compiled = {
                case.guide: llm.compile(case.make_guide()).result() for case in cases if case.is_counted
            }
        return cls(
            checkpoint,
            cases,
            answers,
            bad_words,
            {number: Guide.matcher(_counted(one.compiled, ends)) for number, one in compiled.items()},
        )

    @cached_property
    def vocab_size(self) -> int:
        return int(self.checkpoint.model.config.vocab_size)

    def answer(self, case: Case, index: int) -> Output:
        """What the sequence of this index says."""
        return self.answers[case.number, index if case.num_seeds > 1 else 0]

    def compare(self, case: Case, index: int, tokens: Sequence[int], what: str) -> bool:
        """The tokens are a beginning of the answer. False: up to where rounding led elsewhere."""
        expected = self.answer(case, index).token_ids
        for i, (got, wanted) in enumerate(zip(tokens, expected, strict=False)):
            if got != wanted:
                gap = self.gap(case, index, i)
                assert gap < ROUNDING, (
                    f"{what}: token {i} is {got}, the reference has {wanted}, and its two best values are {gap} apart; "
                    f"{list(tokens)} instead of {expected}"
                )
                return False
        assert len(tokens) <= len(expected), f"{what}: {list(tokens)} is longer than {expected}"
        return True

    @torch.inference_mode()
    def gap(self, case: Case, index: int, place: int) -> float:
        """How far the two best values of the answer's token are apart."""
        answer = self.answer(case, index).token_ids[:place]
        sampling, ends = case.seeded(index), self.checkpoint.end_ids
        matcher = None
        if case.guide is not None:
            compiled = compile_reference(self.checkpoint.compiler, GUIDES[case.guide])
            matcher = xgr.GrammarMatcher(compiled)
            assert all(matcher.accept_token(token) for token in answer)
        logits = self.checkpoint.model(torch.tensor([[*case.prompt, *answer]])).logits[0, -1].float()
        mask = xgr.allocate_token_bitmask(1, len(logits))
        words = Words(self.bad_words[case.number])
        ends = ends | set(sampling.stop_token_ids)
        return choose(logits, matcher, mask, ends, case.prompt, answer, sampling, words, RULE)[1]


def finish_reason(output: Output) -> FinishReason:
    """How an executor says why an answer ended."""
    if output.finish_reason == "stop":
        return FinishReason.END_ID if output.stopped_by is None else FinishReason.STOP_WORDS
    assert output.finish_reason == "length"
    return FinishReason.LENGTH


def _answered(llm: LLM, requests: Sequence[Request]) -> list[Output]:
    """What an LLM's engine answers, one request after another."""
    outputs = []
    for handle in llm.client.submit(requests):
        while not handle.is_over:
            llm.client.responses.take([handle.id], 60)
        outputs.append(handle.sequences[0].output)
    return outputs


def _counted(compiled: Any, end_ids: tuple[int, ...]) -> Callable[[], CountedMatcher]:
    return lambda: CountedMatcher(xgr.GrammarMatcher(compiled), end_ids)
