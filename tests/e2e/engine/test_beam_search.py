"""Beam search against transformers' own, and against a plain one over transformers' logits where that has no
counterpart; with guides and every sampling parameter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import xgrammar as xgr
from transformers import LogitsProcessor

from support.engine.beam_oracle import plain_search
from support.engine.beams import Beams, beam_request, beam_tokens
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.requests import engine_request
from support.engine.sampling_oracle import Words, forbid, penalise, penalise_by_rule
from support.grammar.guides import SCHEMAS
from support.kernels.penalties import repeating_tokens
from weft.core import Hypothesis, SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.request import PenaltyRule, TokenRules
from weft.grammar.guide import Guide

EARLY: dict[int, bool | str] = {0: False, 1: True, 2: "never"}
ROUNDING = 2e-3
PARAMS = [
    BeamParams(2, length_penalty=1.0, early_stopping=1),
    BeamParams(4, 2, length_penalty=1.0, early_stopping=0),
    BeamParams(3, length_penalty=0.0, early_stopping=2),
    BeamParams(5, 5, length_penalty=2.0, early_stopping=2),
]
Guided = tuple[str, Any]


class Masked(LogitsProcessor):  # type: ignore[misc]  # transformers has no types here
    """Masks every row by xgrammar. A row that the grammar refuses has no probability already, and is left alone."""

    def __init__(self, compiled: xgr.CompiledGrammar, prompt: int, vocab_size: int) -> None:
        self.compiled, self.prompt, self.vocab_size = compiled, prompt, vocab_size
        self.mask = xgr.allocate_token_bitmask(1, vocab_size)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for i, row in enumerate(input_ids[:, self.prompt :].tolist()):
            matcher = xgr.GrammarMatcher(self.compiled)
            is_legal = all(not matcher.is_terminated() and matcher.accept_token(t) for t in row)
            if is_legal and not matcher.is_terminated():
                matcher.fill_next_token_bitmask(self.mask)
                xgr.apply_token_bitmask_inplace(scores[i : i + 1], self.mask, vocab_size=self.vocab_size)
        return scores


@torch.inference_mode()
def transformers_beams(
    checkpoint: Checkpoint,
    prompt: Sequence[int],
    params: BeamParams,
    max_tokens: int,
    guide: Guided | None = None,
) -> list[tuple[float, list[int]]]:
    """Scores and tokens of what `generate` finds."""
    processors = []
    if guide is not None:
        compiled = compile_reference(checkpoint.compiler, guide)
        processors = [Masked(compiled, len(prompt), checkpoint.model.config.vocab_size)]
    out = checkpoint.model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=params.width,
        num_return_sequences=params.num_answers,
        length_penalty=params.length_penalty,
        early_stopping=EARLY[params.early_stopping],
        max_new_tokens=max_tokens,
        do_sample=False,
        logits_processor=processors,
        renormalize_logits=guide is not None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = []
    for score, sequence in zip(out.sequences_scores.tolist(), out.sequences.tolist(), strict=True):
        tokens = sequence[len(prompt) :]
        end = next((i for i, t in enumerate(tokens) if t in checkpoint.end_ids), len(tokens) - 1)
        if score > -1e6:  # less is no answer, only room for one
            found.append((score, tokens[: end + 1]))
    return found


def assert_same(found: Sequence[Hypothesis], expected: Sequence[tuple[float, Sequence[int]]]) -> None:
    """The same scores, and the same tokens where no other answer scores as much."""
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=ROUNDING)
    for i, (hypothesis, (score, tokens)) in enumerate(zip(found, expected, strict=True)):
        rivals = [other for j, (other, _) in enumerate(expected) if j != i]
        if all(abs(score - other) > 2 * ROUNDING for other in rivals):
            assert hypothesis.token_ids == list(tokens), f"answer {i}"


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_the_answers_are_those_of_transformers(
    tiny: Checkpoint, prompts: list[str], params: BeamParams
) -> None:
    beams = Beams(tiny.path)
    for text in prompts[:2]:
        prompt = tiny.tokenizer.encode(text)
        one = beam_request(prompt, params, 24)
        beams.run([one])
        expected = transformers_beams(tiny, prompt, params, 24)
        assert len(one.output.hypotheses) == len(expected) == params.num_answers
        assert_same(one.output.hypotheses, expected)
        assert one.output.token_ids == one.output.hypotheses[0].token_ids
        assert one.output.finish_reason == one.output.hypotheses[0].finish_reason
        assert one.output.hypotheses[0].cum_log_prob == pytest.approx(sum(one.output.hypotheses[0].log_probs))
    assert beams.engine.graphs.num_replays >= beams.engine.runner.num_iterations > 0
    beams.assert_nothing_held()


def test_the_answers_are_those_of_transformers_on_random_models(random_checkpoint: Checkpoint) -> None:
    beams = Beams(random_checkpoint.path, page_size=4, prefill_chunk=7)
    prompt = random_checkpoint.tokenizer.encode("Text: a random model says anything.")
    for params in PARAMS[:2]:
        one = beam_request(prompt, params, 12)
        beams.run([one])
        assert_same(one.output.hypotheses, transformers_beams(random_checkpoint, prompt, params, 12))
    beams.assert_nothing_held()


@pytest.mark.parametrize(
    "guide",
    [("json_schema", SCHEMAS["pair/string+short"]), ("regex", r"[a-z]{2,5} [A-Z][a-z]+"), ("json", None)],
    ids=["schema", "regex", "json"],
)
def test_guided_answers_are_those_of_transformers_with_xgrammar(
    tiny: Checkpoint, prompts: list[str], guide: Guided
) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    for params in (PARAMS[0], PARAMS[3]):
        one = beam_request(prompt, params, 16)
        beams.run([one], [make_guide(guide)])
        assert_same(one.output.hypotheses, transformers_beams(tiny, prompt, params, 16, guide))
        compiled = compile_reference(tiny.compiler, guide)
        for hypothesis in one.output.hypotheses:
            matcher = xgr.GrammarMatcher(compiled)
            assert all(matcher.accept_token(token) for token in hypothesis.token_ids)
            assert matcher.is_terminated() == (hypothesis.finish_reason == "stop")
        assert one.output.stats.guided_valid == (one.output.finish_reason == "stop")
    beams.assert_nothing_held()


def test_a_guide_with_fewer_texts_than_beams_gives_all_of_them(tiny: Checkpoint) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode("Text: Is it?")
    texts = ["yes", "no", "perhaps"]
    one = beam_request(prompt, BeamParams(8, length_penalty=1.0, early_stopping=2))
    beams.run([one], [Guide.choice(texts)])
    assert {tiny.tokenizer.decode(h.token_ids[:-1]) for h in one.output.hypotheses} == set(texts)
    assert [h.score for h in one.output.hypotheses] == sorted(
        (h.score for h in one.output.hypotheses), reverse=True
    )
    # Each spelling is an answer of its own; together they are all there is.
    assert sum(math.exp(h.cum_log_prob) for h in one.output.hypotheses) <= 1 + 1e-4
    beams.assert_nothing_held()


def log_probs_of(
    checkpoint: Checkpoint,
    prompt: list[int],
    sampling: SamplingParams,
    rules: TokenRules,
    compiled: xgr.CompiledGrammar | None,
) -> Callable[[tuple[int, ...]], list[float]]:
    """What follows a text: transformers' logits with everything that `sampling` and a guide do to them."""

    @torch.inference_mode()
    def model(text: tuple[int, ...]) -> list[float]:
        answer = list(text)
        logits = checkpoint.model(torch.tensor([prompt + answer])).logits[0, -1].float()
        logits = penalise(logits, sampling, prompt, answer)
        logits = forbid(logits, Words(rules.bad_words), prompt + answer)
        if compiled is not None:
            matcher, mask = xgr.GrammarMatcher(compiled), xgr.allocate_token_bitmask(1, logits.shape[0])
            assert all(matcher.accept_token(token) for token in answer)
            matcher.fill_next_token_bitmask(mask)
            xgr.apply_token_bitmask_inplace(logits[None], mask, vocab_size=logits.shape[0])
        if len(answer) < sampling.min_tokens:
            without = logits.clone()
            without[list(rules.ends)] = -math.inf
            logits = without if bool(without.isfinite().any()) else logits
        values: list[float] = (logits / (sampling.temperature or 1.0)).log_softmax(0).tolist()
        return values

    return model


@pytest.mark.parametrize("guide", [None, ("regex", r"[a-z]{1,3}( [a-z]{1,3}){0,9}")], ids=["free", "guided"])
def test_every_sampling_parameter_acts_on_every_beam(tiny: Checkpoint, guide: Guided | None) -> None:
    undecided = 'Schema: {"the": string, "end": string}\nJSON: {"the": "'
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(undecided)
    end = next(iter(tiny.end_ids))
    sampling = SamplingParams(
        max_tokens=9,
        min_tokens=4,
        temperature=1.7,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={tiny.tokenizer.encode(" the")[-1]: 3.0, 300: -math.inf},
    )
    rules = TokenRules(((40,), (41, 42)), (end,))
    params = BeamParams(3, length_penalty=1.0, early_stopping=0, diversity_rate=0.2)
    one = engine_request(prompt, sampling, rules=rules, beam=params)
    plain = beam_request(prompt, params, 9)
    beams.run([one, plain], [make_guide(guide) if guide is not None else None] * 2)
    compiled = compile_reference(tiny.compiler, guide) if guide is not None else None
    for each, known in ((one, rules), (plain, TokenRules())):  # a request that has ended keeps none
        model = log_probs_of(tiny, prompt, each.request.sampling, known, compiled)
        assert_same(each.output.hypotheses, plain_search(model, params, 9, True, tiny.end_ids))
    assert beam_tokens([one]) != beam_tokens([plain])
    beams.assert_nothing_held()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))]
)
def test_random_searches_are_plain_ones(tiny: Checkpoint, prompts: list[str], seed: int) -> None:
    """Widths, diversity, length penalties, early stopping and sampling parameters as they come."""
    rng = random.Random(seed)
    prompt = tiny.tokenizer.encode(rng.choice(prompts))[-rng.randint(5, 60) :]
    widths = [rng.randint(1, 5) for _ in range(rng.choice([0, 0, 1, 3]))]
    params = BeamParams(
        rng.randint(2, 5),
        length_penalty=rng.choice([0.0, 0.6, 1.0, 2.5]),
        early_stopping=rng.randint(-1, 2),
        diversity_rate=rng.choice([0.0, 0.15, 1.2]),
        widths=widths,
    )
    likely = tiny.model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[
        0, len(prompt) :
    ].tolist()
    sampling = SamplingParams(
        max_tokens=rng.randint(2, 8),
        min_tokens=rng.choice([0, 0, 2]),
        temperature=rng.choice([0.0, 0.7, 1.0, 3.0]),
        repetition_penalty=rng.choice([1.0, 1.4]),
        presence_penalty=rng.choice([0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, -0.5]),
        logit_bias={rng.choice(likely): rng.choice([-2.0, 2.0, -math.inf]), next(iter(tiny.end_ids)): 4.0},
    )
    rules = TokenRules(((rng.choice(likely),), tuple(likely[1:3])), tuple(tiny.end_ids))
    one = engine_request(prompt, sampling, rules=rules, beam=params)
    beams = Beams(tiny.path, page_size=rng.choice([1, 3, 8]))
    beams.run([one])
    model = log_probs_of(tiny, prompt, sampling, rules, None)
    assert_same(one.output.hypotheses, plain_search(model, params, sampling.max_tokens, True, tiny.end_ids))
    beams.assert_nothing_held()


@pytest.mark.parametrize("temperature", [0.6, 1.8])
def test_other_penalty_rules_act_on_every_beam(
    tiny: Checkpoint, prompts: list[str], temperature: float
) -> None:
    """TensorRT-LLM's penalties, and n-grams that may not come again."""
    prompt = tiny.tokenizer.encode(prompts[0])[-30:]
    sampling = SamplingParams(
        max_tokens=9,
        temperature=temperature,
        repetition_penalty=1.2,
        presence_penalty=0.9,
        frequency_penalty=0.4,
        logit_bias={prompt[-2]: 1.5},
        no_repeat_ngram_size=2,
    )
    rule = PenaltyRule(counts_prompt=True, prompt_ignore_length=5, after_temperature=True)
    params = BeamParams(4, length_penalty=1.0, early_stopping=2)
    one = engine_request(prompt, sampling, rules=TokenRules(penalties=rule), beam=params)
    plain = beam_request(prompt, params, 9, temperature=temperature)
    beams = Beams(tiny.path)
    beams.run([one, plain])

    @torch.inference_mode()
    def model(text: tuple[int, ...]) -> list[float]:
        logits = tiny.model(torch.tensor([prompt + list(text)])).logits[0, -1].float()
        logits = penalise_by_rule(logits, sampling, prompt, text, rule)
        logits[list(repeating_tokens(prompt + list(text), 2))] = -math.inf
        values: list[float] = (logits / temperature).log_softmax(0).tolist()
        return values

    assert_same(one.output.hypotheses, plain_search(model, params, 9, True, tiny.end_ids))
    assert beam_tokens([one]) != beam_tokens([plain])
    beams.assert_nothing_held()
