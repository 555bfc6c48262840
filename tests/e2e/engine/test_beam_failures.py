"""What fails in a beam search ends its own request, says why, and leaves the others their answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from support.engine.beams import Beams, beam_request, beam_tokens
from support.engine.references import Checkpoint
from weft.core.beam_params import BeamParams
from weft.engine.sequence import RequestGuide
from weft.errors import DeadEndError, GuideStateError, RequestError
from weft.grammar.base import NO_REQUEST, Opening, wrap_matcher
from weft.grammar.guide import Guide


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
    good, bad = beam_request(prompt, BeamParams(3)), beam_request(prompt, BeamParams(3))
    alone = beam_request(prompt, BeamParams(3))
    beams.run([alone])
    bad.guide = RequestGuide.of(Given(Forking(50, 60)))
    beams.start(bad)
    beams.start(good)
    beams.finish()
    assert isinstance(bad.output.error, GuideStateError)
    assert "no token is left for token 3 under the guide" in str(bad.output.error)
    assert {token for h in bad.output.hypotheses for token in h.token_ids} == {50, 60}
    assert good.output.error is None and beam_tokens([good]) == beam_tokens([alone])
    beams.assert_nothing_held()


def test_a_matcher_that_cannot_fork_serves_one_beam_and_no_more(tiny: Checkpoint, prompts: list[str]) -> None:
    beams, prompt = Beams(tiny.path), tiny.tokenizer.encode(prompts[0])
    single, parted = beam_request(prompt, BeamParams(2)), beam_request(prompt, BeamParams(2))
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
    good, bad = beam_request(prompt, BeamParams(2)), beam_request(prompt, BeamParams(2))
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
    one = beam_request([5, 6], BeamParams(2), logit_bias=dict.fromkeys(digits, -math.inf))
    beams.start(one, Guide.regex("[0-9]+"))
    beams.step()
    assert isinstance(one.output.error, GuideStateError)
    assert "no token is left for token 1 under the guide" in str(one.output.error)
    beams.assert_nothing_held()


def test_biases_that_leave_nothing_are_an_error_of_the_request(tiny: Checkpoint) -> None:
    beams = Beams(tiny.path)
    one = beam_request([5, 6], BeamParams(2))
    rules = replace(one.request.rules, bias=torch.full((len(beams.vocabulary.tokens),), -math.inf))
    one.request = replace(one.request, rules=rules)
    beams.start(one)
    beams.step()
    assert isinstance(one.output.error, DeadEndError)
    assert "no token is left for token 1 under embedding_bias" in str(one.output.error)
    beams.assert_nothing_held()


def test_logits_that_are_not_numbers_are_an_error_of_the_request(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams = Beams(tiny.path, graphs="none")
    one = beam_request([5, 6], BeamParams(2))
    beams.start(one)
    beams.step()
    beams.step()
    model, logits = beams.engine.parts.model, beams.engine.parts.model.logits
    monkeypatch.setattr(model, "logits", lambda *args, **options: logits(*args, **options).mul_(math.nan))
    beams.step()
    assert type(one.output.error) is RequestError  # the engine's failure, not a dead end of the request's own
    assert "the model's logits for token 3 are all NaN" in str(one.output.error)
    assert len(one.output.token_ids) == 2  # what came before stays
    beams.assert_nothing_held()


def test_an_iteration_that_fails_ends_who_was_in_it_and_the_next_one_works(
    tiny: Checkpoint, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beams, prompt = Beams(tiny.path, graphs="none"), tiny.tokenizer.encode(prompts[0])
    alone, later = beam_request(prompt, BeamParams(3)), beam_request(prompt, BeamParams(3))
    both = [beam_request(prompt, BeamParams(3)), beam_request(prompt, BeamParams(3))]
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
    assert beam_tokens([later]) == beam_tokens([alone])
    beams.assert_nothing_held()
