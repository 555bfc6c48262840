"""The pool of questions and their answers: what `LLM.generate` says to each, alone and without speculation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import xgrammar as xgr

from support.engine.references import Checkpoint, compile_reference
from support.engine.sampling_oracle import Words, choose
from support.soak.prompts import GUIDES, Case, draw_cases
from weft import LLM, EngineConfig, Output
from weft.core.request import PenaltyRule, Request
from weft.executor import FinishReason
from weft.grammar.guide import Guide
from weft.grammar.xgrammar.native import XGrammarMatcher

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
