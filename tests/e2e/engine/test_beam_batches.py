"""Beam searches beside others, under random schedules, cancelled, stopped, and begun from known pages: the answers are
those that each has alone, nothing is kept, and what is launched keeps the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.engine.beams import Beams, beam_request, beam_tokens
from support.engine.references import Checkpoint
from support.engine.requests import engine_request
from support.grammar.guides import SCHEMAS
from support.launch_check import check_launched
from weft.config import Graphs
from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.engine.runner.prompts import guarded
from weft.engine.sequence import Sequence
from weft.grammar.guide import Guide
from weft.runtime import CpuRuntime, cpu
from weft.tokenizer.text import RunningText


def several(tiny: Checkpoint, prompts: list[str]) -> tuple[list[Sequence], list[Guide | None]]:
    """Requests of different kinds, which fit in 12 slots together."""
    encode = tiny.tokenizer.encode
    requests = [
        beam_request(encode(prompts[0]), BeamParams(3, early_stopping=2, length_penalty=1.0), 12),
        beam_request(encode(prompts[1]), BeamParams(3, early_stopping=0), 10, frequency_penalty=0.5),
        beam_request(encode(prompts[2]), BeamParams(3, diversity_rate=0.5), 14, logprobs=0),
        beam_request(encode("Text:"), BeamParams(3), 6, temperature=0.5),
    ]
    return requests, [None, Guide.regex("[a-z ]+"), Guide.json_schema(SCHEMAS["object/string"]), None]


@pytest.mark.parametrize("graphs", ["split", "none"])
def test_a_batch_gives_what_each_gives_alone(tiny: Checkpoint, prompts: list[str], graphs: Graphs) -> None:
    alone, guides = several(tiny, prompts)
    beams = Beams(tiny.path, max_batch=12, graphs=graphs)
    for each, guide in zip(alone, guides, strict=True):
        beams.run([each], [guide])
    together, guides = several(tiny, prompts)
    beams.run(together, guides)
    assert beam_tokens(together) == beam_tokens(alone)
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
            assert beam_tokens(found) == beam_tokens(expected), f"{name}, seed {seed}"
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
    assert beam_tokens(found[1:]) == beam_tokens(expected[1:])
    beams.assert_nothing_held()


def test_stop_words_and_stop_tokens_end_single_beams(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    free = beam_request(prompt, BeamParams(3, length_penalty=1.0), 24)
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
    at_token = beam_request(prompt, BeamParams(3), 24, stop_token_ids=[token])
    beams.run([at_token])
    assert any(h.stopped_by == token and h.token_ids[-1] == token for h in at_token.output.hypotheses)
    assert not any(token in h.token_ids[:-1] for h in at_token.output.hypotheses)
    beams.assert_nothing_held()


def test_a_prompt_that_is_known_in_part_is_read_from_there(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path, page_size=8, reuse=True), tiny.tokenizer.encode(prompts[0])
    params = BeamParams(3, length_penalty=1.0)
    first, second = beam_request(prompt, params), beam_request(prompt, params)
    beams.run([first])
    beams.run([second])
    assert first.output.stats.reused_tokens == 0 < second.output.stats.reused_tokens
    assert beam_tokens([second]) == beam_tokens([first])


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
    one = beam_request(prompt, BeamParams(3), 6, min_tokens=3, repetition_penalty=1.1, temperature=0.9)
    beams.run([one], [Guide.regex("[a-z ]{9,}")])
    expected = {"open_slots", "branch", "note_offers", "target_forward"}
    assert expected <= set(launched)
    for name in expected:
        fn, args = launched[name]
        with torch.inference_mode():
            check_launched(fn, *args, host=[tensor for tensor in pinned if tensor.numel()])
