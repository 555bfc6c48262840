"""Logits processors of searches by beams: what they see, and that the search is a plain one over what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.beam_oracle import plain_search
from support.engine.beams import Beams, beam_request, beam_tokens
from support.engine.processors import one, wanted
from support.engine.references import Checkpoint
from support.products import each_value
from weft import Guide
from weft.config import Graphs
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.core.request import Gather

PARAMS = [
    BeamParams(4, length_penalty=1.0, early_stopping=0),
    BeamParams(3, widths=[2, 3, 1], early_stopping=2),
]
BONUS = 16.0
Calls = list[tuple[list[int], list[list[int]]]]


def lean(logits_V: Tensor, text: list[int]) -> None:
    """Prefers some tokens by the text's last two, a little: beams part, and a wrong text shows."""
    for bonus, token in enumerate(wanted(*text[-2:])):
        logits_V[token] += BONUS + bonus


def watched(calls: Calls, gives: bool = False) -> LogitsProcessor:
    """Leans on every row, and notes what it is called with; where it `gives`, by a tensor of its own."""

    def act(_: int, logits: Tensor, tokens: list[list[int]], *__: object) -> Tensor | None:
        calls.append((list(logits.shape), [list(text) for text in tokens]))
        mine = logits.clone() if gives else logits
        for row, text in zip(mine[0], tokens, strict=True):
            lean(row, text)
        return mine.flatten() if gives else None

    return one(act)


def batched(calls: Calls, gives: bool = False) -> LogitsProcessor:
    """The same of all requests at once."""
    alone = watched(calls, gives).function

    def act(
        ids: list[int], logits: list[Tensor], tokens: list[list[list[int]]], *more: Any
    ) -> list[Tensor | None]:
        return [alone(*each, *more) for each in zip(ids, logits, tokens, strict=True)]

    return one(act, is_batched=True)


class Captured:
    """A captured processor: the token after each is preferred by the last one's number."""

    allows_capture = True

    def __call__(self, rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
        favourite_BT1 = ((rows.tokens.clamp(min=0) * 17) % 300 + 20)[..., None]
        logits_BTV.scatter_add_(
            2, favourite_BT1, torch.full_like(favourite_BT1, BONUS, dtype=logits_BTV.dtype)
        )


def leaning(tiny: Checkpoint, prompt: list[int]) -> Callable[[tuple[int, ...]], list[float]]:
    """transformers' distribution after a text, once it is leant on."""

    @torch.inference_mode()
    def model(text: tuple[int, ...]) -> list[float]:
        tokens = prompt + list(text)
        logits = tiny.model(torch.tensor([tokens])).logits[0, -1].clone()
        lean(logits, tokens)
        values: list[float] = logits.log_softmax(0).tolist()
        return values

    return model


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("gives", [False, True], ids=["in place", "given"])
@pytest.mark.parametrize("make", [watched, batched])
@each_value
def test_it_is_called_once_for_all_beams(
    tiny: Checkpoint,
    prompts: list[str],
    params: BeamParams,
    gives: bool,
    make: Callable[..., LogitsProcessor],
) -> None:
    prompt, calls = tiny.tokenizer.encode(prompts[0]), []
    beams = Beams(tiny.path)
    found = beam_request(prompt, params, 8, processor=make(calls, gives))
    beams.run([found])
    expected = plain_search(leaning(tiny, prompt), params, 8, True, tiny.end_ids)
    assert [h.score for h in found.output.hypotheses] == pytest.approx([s for s, _ in expected], abs=2e-3)
    assert beam_tokens([found]) == [[list(text) for _, text in expected]]
    vocab, first = len(beams.vocabulary.tokens), params.width_after(0)
    assert calls[0] == ([1, first, vocab], [prompt] * first)
    for step, (shape, texts) in enumerate(calls[1:]):
        assert shape == [1, params.width_after(step), vocab] and len(texts) == shape[1]
        assert {len(text) for text in texts} == {len(prompt) + step + 1}
        assert all(text[: len(prompt)] == prompt for text in texts)
        assert len({tuple(text) for text in texts}) == len(texts)
    beams.assert_nothing_held()


@pytest.mark.parametrize("graphs", ["one", "split", "none"])
def test_a_batch_gives_what_each_gives_alone(tiny: Checkpoint, prompts: list[str], graphs: Graphs) -> None:
    encode = tiny.tokenizer.encode

    def three(*processors: LogitsProcessor | None) -> list[Any]:
        return [
            beam_request(encode(prompts[i]), PARAMS[0], 8, processor=processor)
            for i, processor in enumerate(processors)
        ]

    beams = Beams(tiny.path, max_batch=12, graphs=graphs)
    alone = three(watched([]), None, watched([]))
    for each in alone:
        beams.run([each])
    together, calls = three(watched([]), None, watched([])), []
    beams.run(together)
    assert beam_tokens(together) == beam_tokens(alone)
    beams.run(plain := three(None))
    assert beam_tokens(plain) != beam_tokens(alone[:1])
    both = batched(calls)
    beams.run(again := three(both, None, both))
    assert beam_tokens(again) == beam_tokens(alone)
    assert sum(len(shape) == 3 for shape, _ in calls) == len(calls) == 2 * 8
    beams.assert_nothing_held()


@pytest.mark.parametrize("graphs", ["one", "none"])
def test_a_captured_one_acts_on_every_beam(tiny: Checkpoint, prompts: list[str], graphs: Graphs) -> None:
    def steer(_: int, logits: Tensor, tokens: list[list[int]], *__: object) -> None:
        for row, text in zip(logits[0], tokens, strict=True):
            row[text[-1] * 17 % 300 + 20] += BONUS

    beams, prompt = Beams(tiny.path, graphs=graphs), tiny.tokenizer.encode(prompts[0])
    params = BeamParams(4, length_penalty=1.0, early_stopping=2)
    on_host = beam_request(prompt, params, 8, processor=one(steer))
    captured = beam_request(prompt, params, 8, processor=one(Captured()))
    plain = beam_request(prompt, params, 8)
    beams.run([on_host])
    beams.run([captured, plain])
    assert beam_tokens([captured]) == beam_tokens([on_host]) != beam_tokens([plain])
    beams.assert_nothing_held()


def test_logits_that_are_gathered_are_those_before_it(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path, gather_generation_logits=True), tiny.tokenizer.encode(prompts[0])
    gather = Gather(generation_logits=True)
    found = beam_request(prompt, PARAMS[0], 6, gather=gather, processor=watched([]))
    beams.run([found])
    for hypothesis in found.output.hypotheses:
        with torch.inference_mode():
            logits = tiny.model(torch.tensor([prompt + hypothesis.token_ids])).logits[0, len(prompt) - 1 : -1]
        assert hypothesis.generation_logits is not None
        torch.testing.assert_close(hypothesis.generation_logits, logits, atol=2e-3, rtol=2e-3)


def test_only_beams_that_live_are_shown(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt, calls = Beams(tiny.path), tiny.tokenizer.encode(prompts[0]), []
    guided = beam_request(prompt, BeamParams(8, early_stopping=2), 12, processor=watched(calls))
    beams.run([guided], [Guide.choice(["yes", "no"])])
    sizes = [shape[1] for shape, _ in calls]
    assert sizes[0] == 8 and max(sizes[1:]) < 8
    beams.assert_nothing_held()


@pytest.mark.parametrize("at", [0, 2], ids=["prompt", "beams"])
def test_one_that_raises_or_gives_too_little_ends_its_request(
    tiny: Checkpoint, prompts: list[str], at: int
) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    number = [0]

    def small(_: int, logits: Tensor, *__: object) -> Tensor | None:
        number[0] += 1
        return logits[0, 0] if number[0] > at else None

    bad, good = beam_request(prompt, PARAMS[0], 8, processor=one(small)), beam_request(prompt, PARAMS[0], 8)
    alone = beam_request(prompt, PARAMS[0], 8)
    beams.run([alone])
    for each in (bad, good):
        beams.start(each)
    beams.finish()
    assert f"it may return None or a tensor of {4 * len(beams.vocabulary.tokens)} values" in str(
        bad.output.error
    )
    assert good.output.error is None and beam_tokens([good]) == beam_tokens([alone])
    beams.assert_nothing_held()
