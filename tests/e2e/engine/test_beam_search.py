"""Beam search against transformers' own, and against a plain one over transformers' logits where that has no
counterpart; guided, in a batch, under random schedules; what fails alone, and that nothing is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import xgrammar as xgr
from transformers import LogitsProcessor

from support.engine.beam_oracle import plain_search
from support.engine.beams import Beams
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.requests import engine_request
from support.engine.sampling_oracle import Words, forbid, penalise
from support.grammar.guides import SCHEMAS
from support.launch_check import check_launched
from weft.config import Graphs
from weft.core import Hypothesis, SamplingParams
from weft.engine.beam_params import BeamParams
from weft.engine.device.sampling import TokenRules
from weft.engine.request import Request
from weft.engine.request_guide import RequestGuide
from weft.engine.step.prefill import guarded
from weft.errors import GuideStateError, RequestError
from weft.grammar.base import NO_REQUEST, Opening, wrap_matcher
from weft.grammar.guide import Guide
from weft.runtime import CpuRuntime, cpu
from weft.text import RunningText

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


def request(prompt: list[int], params: BeamParams, max_tokens: int = 16, **sampling: Any) -> Request:
    return engine_request(prompt, SamplingParams(max_tokens=max_tokens, **sampling), 0, beam=params)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_the_answers_are_those_of_transformers(
    tiny: Checkpoint, prompts: list[str], params: BeamParams
) -> None:
    beams = Beams(tiny.path)
    for text in prompts[:2]:
        prompt = tiny.tokenizer.encode(text)
        one = request(prompt, params, 24)
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
        one = request(prompt, params, 12)
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
        one = request(prompt, params, 16)
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
    one = request(prompt, BeamParams(8, length_penalty=1.0, early_stopping=2))
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
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode("Text: the the end of the end.")
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
    plain = request(prompt, params, 9)
    beams.run([one, plain], [make_guide(guide) if guide is not None else None] * 2)
    compiled = compile_reference(tiny.compiler, guide) if guide is not None else None
    for each, known in ((one, rules), (plain, TokenRules())):  # a request that has ended keeps none
        model = log_probs_of(tiny, prompt, each.sampling, known, compiled)
        assert_same(each.output.hypotheses, plain_search(model, params, 9, True, tiny.end_ids))
    assert one.output.hypotheses[0].token_ids != plain.output.hypotheses[0].token_ids
    beams.assert_nothing_held()


def several(tiny: Checkpoint, prompts: list[str]) -> tuple[list[Request], list[Guide | None]]:
    """Requests of different kinds, which fit in 12 slots together."""
    encode = tiny.tokenizer.encode
    requests = [
        request(encode(prompts[0]), BeamParams(3, early_stopping=2, length_penalty=1.0), 12),
        request(encode(prompts[1]), BeamParams(3, early_stopping=0), 10, frequency_penalty=0.5),
        request(encode(prompts[2]), BeamParams(3, diversity_rate=0.5), 14, logprobs=0),
        request(encode("Text:"), BeamParams(3), 6, temperature=0.5),
    ]
    return requests, [None, Guide.regex("[a-z ]+"), Guide.json_schema(SCHEMAS["object/string"]), None]


def texts(requests: Sequence[Request]) -> list[list[list[int]]]:
    return [[h.token_ids for h in each.output.hypotheses] for each in requests]


@pytest.mark.parametrize("graphs", ["split", "none"])
def test_a_batch_gives_what_each_gives_alone(tiny: Checkpoint, prompts: list[str], graphs: Graphs) -> None:
    alone, guides = several(tiny, prompts)
    beams = Beams(tiny.path, max_batch=12, graphs=graphs)
    for each, guide in zip(alone, guides, strict=True):
        beams.run([each], [guide])
    together, guides = several(tiny, prompts)
    beams.run(together, guides)
    assert texts(together) == texts(alone)
    logprobs = together[2].output.logprobs
    assert (
        logprobs is not None
        and [entry.logprob for entry in logprobs] == together[2].output.hypotheses[0].log_probs
    )
    assert bool(beams.engine.graphs.num_replays) == (graphs != "none")
    beams.assert_nothing_held()


def test_random_schedules_give_the_same_answers(tiny: Checkpoint, prompts: list[str]) -> None:
    expected, guides = several(tiny, prompts)
    Beams(tiny.path, max_batch=12).run(expected, guides)
    beams = Beams(tiny.path, max_batch=12)
    try:
        for name, seed in [*(("random", seed) for seed in range(12)), ("ahead", 0), ("ahead", 1)]:
            cpu.set_schedule(name, seed)
            found, guides = several(tiny, prompts)
            beams.run(found, guides)
            assert texts(found) == texts(expected), f"{name}, seed {seed}"
    finally:
        cpu.set_schedule("inline")


def test_one_that_is_cancelled_keeps_its_best_and_disturbs_nobody(
    tiny: Checkpoint, prompts: list[str]
) -> None:
    expected, guides = several(tiny, prompts)
    Beams(tiny.path, max_batch=12).run(expected, guides)
    found, guides = several(tiny, prompts)
    beams = Beams(tiny.path, max_batch=12)
    for each, guide in zip(found, guides, strict=True):
        beams.start(each, guide)
    for _ in range(5):
        beams.step()
    beams.engine.cancel(found[0])
    assert [len(h.token_ids) for h in found[0].output.hypotheses] and found[0].output.hypotheses[
        0
    ].finish_reason is None
    assert len(found[0].output.token_ids) == 5  # one of each step
    beams.finish()
    assert texts(found[1:]) == texts(expected[1:])
    beams.assert_nothing_held()


def test_stop_words_and_stop_tokens_end_single_beams(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    free = request(prompt, BeamParams(3, length_penalty=1.0), 24)
    beams.run([free])
    texts_free = [tiny.tokenizer.decode(h.token_ids) for h in free.output.hypotheses]
    word = texts_free[0][6:10]
    sampling = SamplingParams(max_tokens=24, stop=[word])
    stopped = engine_request(
        prompt, sampling, 0, stop_words=RunningText(beams.tokenizer, (word,)),
        beam=BeamParams(3, length_penalty=1.0, early_stopping=2),
    )  # fmt: skip
    beams.run([stopped])
    assert stopped.output.hypotheses[0].stopped_by == stopped.output.stopped_by == word
    for hypothesis in stopped.output.hypotheses:
        text = tiny.tokenizer.decode(hypothesis.token_ids)
        assert (word in text) == (hypothesis.stopped_by == word)
        assert word not in tiny.tokenizer.decode(hypothesis.token_ids[:-1])
    token = free.output.hypotheses[0].token_ids[4]
    at_token = request(prompt, BeamParams(3), 24, stop_token_ids=[token])
    beams.run([at_token])
    assert any(h.stopped_by == token and h.token_ids[-1] == token for h in at_token.output.hypotheses)
    assert not any(token in h.token_ids[:-1] for h in at_token.output.hypotheses)
    beams.assert_nothing_held()


class Stuck:
    """Allows some tokens twice, then none."""

    def __init__(self, *tokens: int, taken: int = 0) -> None:
        self.tokens, self.taken = tokens, taken

    def accept(self, token: int) -> bool:
        self.taken += token in self.tokens
        return token in self.tokens

    def fill(self, row: Any) -> None:
        for token in self.tokens if self.taken < 2 else ():
            row[token // 32] |= 1 << token % 32

    def rollback(self, count: int) -> None:
        self.taken -= count

    def is_terminated(self) -> bool:
        return False


class Forking(Stuck):
    """The same, for several beams."""

    def fork(self) -> Forking:
        return Forking(*self.tokens, taken=self.taken)


class Given:
    """A compiled guide of a matcher at hand."""

    vocab_size, memory_bytes, notes = 0, 0, ()

    def __init__(self, matcher: Any) -> None:
        self.made = matcher

    def matcher(self, opening: Opening = NO_REQUEST) -> Any:
        return wrap_matcher(self.made)


def test_a_guide_that_leaves_nothing_ends_its_request_alone(tiny: Checkpoint, prompts: list[str]) -> None:
    beams = Beams(tiny.path)
    prompt = tiny.tokenizer.encode(prompts[0])
    good, bad = request(prompt, BeamParams(3)), request(prompt, BeamParams(3))
    alone = request(prompt, BeamParams(3))
    beams.run([alone])
    bad.guide = RequestGuide.of(Given(Forking(50, 60)))
    beams.start(bad)
    beams.start(good)
    beams.finish()
    assert isinstance(bad.output.error, GuideStateError)
    assert "no token is left for token 3 under the guide" in str(bad.output.error)
    assert {token for h in bad.output.hypotheses for token in h.token_ids} == {50, 60}
    assert good.output.error is None and texts([good]) == texts([alone])
    beams.assert_nothing_held()


def test_a_matcher_that_cannot_fork_serves_one_beam_and_no_more(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    single, parted = request(prompt, BeamParams(2)), request(prompt, BeamParams(2))
    single.guide, parted.guide = RequestGuide.of(Given(Stuck(50))), RequestGuide.of(Given(Stuck(50, 60)))
    beams.start(single)
    beams.start(parted)
    beams.step()
    beams.step()
    assert single.output.error is None and single.output.token_ids == [50, 50]
    assert isinstance(parted.output.error, GuideStateError) and "fork" in str(parted.output.error)
    beams.step()
    beams.assert_nothing_held()


def test_a_matcher_that_raises_ends_its_request_alone(tiny: Checkpoint, prompts: list[str]) -> None:
    class Raising(Stuck):
        def fill(self, row: Any) -> None:
            raise RuntimeError("no mask today")

    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    good, bad = request(prompt, BeamParams(2)), request(prompt, BeamParams(2))
    bad.guide = RequestGuide.of(Given(Raising(50)))
    beams.start(bad)
    beams.start(good)
    beams.finish()
    assert isinstance(bad.output.error, GuideStateError) and "no mask today" in str(bad.output.error)
    assert good.output.error is None and good.output.hypotheses
    beams.assert_nothing_held()


def test_a_guide_and_a_bias_that_leave_nothing_together_are_an_error(tiny: Checkpoint) -> None:
    beams = Beams(tiny.path)
    digits = [token for token, text in enumerate(beams.vocabulary.tokens) if text[:1].isdigit()]
    one = request([5, 6], BeamParams(2), logit_bias=dict.fromkeys(digits, -math.inf))
    beams.start(one, Guide.regex("[0-9]+"))
    beams.step()
    assert isinstance(one.output.error, GuideStateError)
    assert "no token is left for token 1 under the guide" in str(one.output.error)
    beams.assert_nothing_held()


def test_logits_that_are_not_numbers_are_an_error_of_the_request(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams = Beams(tiny.path)
    one = request([5, 6], BeamParams(2))
    beams.start(one)
    beams.step()
    beams.step()
    logits = beams.engine.parts.model.logits
    monkeypatch.setattr(beams.engine.parts.model, "logits", lambda hidden: logits(hidden) * math.nan)
    beams.step()
    assert isinstance(one.output.error, RequestError) and not isinstance(one.output.error, GuideStateError)
    assert "leave no token for token 3" in str(one.output.error)
    assert len(one.output.token_ids) == 2  # what came before stays
    beams.assert_nothing_held()


def test_an_iteration_that_fails_ends_who_was_in_it_and_the_next_one_works(
    tiny: Checkpoint, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    alone, later = request(prompt, BeamParams(3)), request(prompt, BeamParams(3))
    both = [request(prompt, BeamParams(3)), request(prompt, BeamParams(3))]
    beams.run([alone])

    def broken(*args: object) -> None:
        raise RuntimeError("the device is away")

    for each in both:
        beams.start(each)
    beams.step()
    beams.step()
    with monkeypatch.context() as patch:
        patch.setattr(beams.engine.parts.model, "forward", broken)
        beams.step()
    assert all("the device is away" in str(each.output.error) for each in both)
    assert len(both[0].output.token_ids) == 2  # what came before stays
    beams.run([later])
    assert texts([later]) == texts([alone])
    beams.assert_nothing_held()


def test_every_launched_function_keeps_the_rule(
    tiny: Checkpoint, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}
    pinned: list[torch.Tensor] = []
    launch, make_pinned = cpu.Stream.launch, CpuRuntime.pinned

    def record_launch(self: cpu.Stream, fn: Callable[..., None], *args: Any) -> None:
        inner, rest = (args[1], args[2:]) if fn is guarded else (fn, args)
        launched[getattr(inner, "__qualname__", "")] = (inner, rest)
        launch(self, fn, *args)

    def record_pinned(self: CpuRuntime, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        pinned.append(make_pinned(self, shape, dtype))
        return pinned[-1]

    monkeypatch.setattr(cpu.Stream, "launch", record_launch)
    monkeypatch.setattr(CpuRuntime, "pinned", record_pinned)
    beams = Beams(tiny.path, graphs="none", max_seq_len=96)
    prompt = tiny.tokenizer.encode("Text: one two three.")
    one = request(prompt, BeamParams(3), 6, min_tokens=3, repetition_penalty=1.1, temperature=0.9)
    beams.run([one], [Guide.regex("[a-z ]{9,}")])
    expected = {"open_slot", "read_chunk", "branch", "note_offers", "target_forward"}
    assert expected <= set(launched)
    for name in expected:
        fn, args = launched[name]
        with torch.inference_mode():
            check_launched(fn, *args, host=[tensor for tensor in pinned if tensor.numel()])


def test_a_prompt_that_is_known_in_part_is_read_from_there(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path, page_size=8, reuse=True), tiny.tokenizer.encode(prompts[0])
    params = BeamParams(3, length_penalty=1.0)
    first, second = request(prompt, params), request(prompt, params)
    beams.run([first])
    beams.run([second])
    assert first.output.stats.reused_tokens == 0 < second.output.stats.reused_tokens
    assert texts([second]) == texts([first])
