"""What searches by beams give besides tokens: the model's tensors along each answer's own path, as transformers has
them for its text, and the likeliest tokens at each place; with widths that change, in streams, and cut short.
"""

from __future__ import annotations

import pytest
import torch

from support.engine.beam_oracle import plain_search
from support.engine.beams import Beams, beam_request, beam_tokens
from support.engine.outputs_oracle import Expected, close
from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.core import Hypothesis
from weft.core.beam_params import BeamParams
from weft.core.request import Gather
from weft.engine.sequence import Sequence

NAMES = ("hidden_states.0", "hidden_states.2", "TopKLogits")
OUTPUTS = tuple((name, name != "hidden_states.0") for name in NAMES)
EVERYTHING = Gather(True, True, NAMES, NAMES[1:])
WIDTHS = [
    BeamParams(4, length_penalty=1.0, early_stopping=0),
    BeamParams(3, 2, early_stopping=-1, diversity_rate=0.4),
    BeamParams(4, widths=[1, 4, 2], length_penalty=1.0, early_stopping=2),
    BeamParams(2, widths=[2, 3, 5], length_penalty=0.5),
]


@pytest.fixture(scope="module")
def beams(tiny: Checkpoint) -> Beams:
    return Beams(tiny.path, gather_generation_logits=True, additional_outputs=OUTPUTS)


def assert_own(tiny: Checkpoint, request: Sequence, found: Hypothesis, gather: Gather = EVERYTHING) -> None:
    """What an answer has is what the model gives for its text."""
    prompt = request.prompt
    expected = Expected.of(tiny, prompt + found.token_ids)
    where = slice(len(prompt) - 1, len(prompt) - 1 + len(found.token_ids))
    if gather.generation_logits:
        close(found.generation_logits, expected.logits[where])
    else:
        assert found.generation_logits is None
    additional = found.additional
    assert set(additional) == set(gather.names)
    for name, tensor in additional.items():
        close(tensor, expected.named(name, where))


@pytest.mark.parametrize("params", WIDTHS, ids=str)
def test_every_answer_has_the_tensors_of_its_own_text(
    tiny: Checkpoint, beams: Beams, prompts: list[str], params: BeamParams
) -> None:
    prompt = tiny.tokenizer.encode(prompts[0])
    one, plain = beam_request(prompt, params, 14, gather=EVERYTHING), beam_request(prompt, params, 14)
    beams.run([one])
    beams.run([plain])
    assert beam_tokens([one]) == beam_tokens([plain])
    output, hypotheses = one.output, one.output.hypotheses
    assert len(hypotheses) == min(params.num_answers, params.width_after(13))
    for found in hypotheses:
        assert_own(tiny, one, found)
    assert output.generation_logits is not None and hypotheses[0].generation_logits is not None
    assert torch.equal(output.generation_logits, hypotheses[0].generation_logits)
    whole = Expected.of(tiny, prompt)
    close(output.context_logits, whole.logits)
    for name in EVERYTHING.context_names:
        close(output.additional[f"context_{name}"], whole.named(name, slice(0, len(prompt))))
    assert plain.output.hypotheses[0].trace is None and plain.output.generation_logits is None
    beams.assert_nothing_held()


@pytest.mark.parametrize("params", WIDTHS, ids=str)
def test_searches_of_any_width_are_plain_ones(
    tiny: Checkpoint, beams: Beams, prompts: list[str], params: BeamParams
) -> None:
    @torch.inference_mode()
    def model(text: tuple[int, ...]) -> list[float]:
        logits = tiny.model(torch.tensor([prompt + list(text)])).logits[0, -1]
        values: list[float] = (logits / 1.5).log_softmax(0).tolist()
        return values

    for prompt in ([0, 292, 28, 380], tiny.tokenizer.encode(prompts[1])):
        one = beam_request(prompt, params, 9, temperature=1.5)
        beams.run([one])
        expected = plain_search(model, params, 9, True, tiny.end_ids)
        assert [h.score for h in one.output.hypotheses] == pytest.approx([s for s, _ in expected], abs=2e-3)
        assert [h.token_ids for h in one.output.hypotheses] == [list(text) for _, text in expected]
    beams.assert_nothing_held()


def test_the_likeliest_tokens_are_of_the_distribution_that_was_ranked(
    tiny: Checkpoint, beams: Beams, prompts: list[str]
) -> None:
    prompt = tiny.tokenizer.encode(prompts[0])
    one = beam_request(prompt, BeamParams(3, early_stopping=2), 10, temperature=2.0, logprobs=20)
    beams.run([one])
    for found in one.output.hypotheses:
        logits = Expected.of(tiny, prompt + found.token_ids).logits[len(prompt) - 1 : -1]
        values = (logits / 2).log_softmax(1)
        tops = found.top_log_probs
        assert tops is not None and len(tops) == len(found.token_ids)
        for row, top, token, own in zip(values, tops, found.token_ids, found.log_probs, strict=True):
            assert list(top.values()) == pytest.approx(row.topk(20).values.tolist(), abs=2e-3)
            assert [row[t].item() for t in top] == pytest.approx(list(top.values()), abs=2e-3)
            assert own == pytest.approx(row[token].item(), abs=2e-3)
            assert token not in top or top[token] == own
    logprobs = one.output.logprobs
    assert logprobs is not None and logprobs == one.output.hypotheses[0].token_logprobs
    assert len(logprobs[0].top) == 20
    guided = beam_request(prompt, BeamParams(2), 4, logprobs=5)
    beams.run([guided], [Guide.choice(["yes", "no"])])
    tops = guided.output.hypotheses[0].top_log_probs
    assert tops is not None and all(0 < len(top) <= 5 for top in tops)  # what the guide forbids is left out
    beams.assert_nothing_held()


def test_what_was_seen_on_the_way_stays_as_it_was(tiny: Checkpoint, beams: Beams, prompts: list[str]) -> None:
    """Answers of every iteration, read once all is over."""
    prompt, seen = tiny.tokenizer.encode(prompts[2]), []
    gather = Gather(generation_logits=True, names=("hidden_states.0",))
    one = beam_request(prompt, BeamParams(3, early_stopping=2), 8, gather=gather)
    one.on_progress = lambda request: seen.append([*request.output.hypotheses])
    beams.run([one])
    assert len(seen) >= 8
    for step in seen[::3]:
        for found in step:
            assert_own(tiny, one, found, gather)


def test_one_that_is_cancelled_has_the_tensors_of_its_best(
    tiny: Checkpoint, beams: Beams, prompts: list[str]
) -> None:
    one = beam_request(tiny.tokenizer.encode(prompts[0]), BeamParams(3), 12, gather=EVERYTHING)
    beams.start(one)
    for _ in range(4):
        beams.step()
    beams.engine.cancel(one)
    assert len(one.output.token_ids) == 4
    assert_own(tiny, one, one.output.hypotheses[0])
    assert one.output.generation_logits is not None and one.output.generation_logits.shape[0] == 4
    assert set(one.output.additional) > set(NAMES)
    beams.assert_nothing_held()


def test_an_llm_gives_every_answer_its_own(tiny: Checkpoint, prompts: list[str]) -> None:
    config = EngineConfig(
        kv_cache_dtype="float32",  # as the reference
        max_batch=4,
        max_seq_len=160,
        max_beam_width=4,
        gather_generation_logits=True,
        additional_outputs=OUTPUTS,
    )
    with LLM(tiny.path, device="cpu", engine=config) as llm:
        output = llm.generate(
            prompts[0],
            SamplingParams(max_tokens=9, logprobs=2),
            beam_width=3,
            return_context_logits=True,
            return_generation_logits=True,
            additional_outputs=[("hidden_states.2", True)],
        )
    prompt = tiny.tokenizer.encode(prompts[0])
    assert len(output.outputs) == 3
    for each in output.outputs:
        expected = Expected.of(tiny, prompt + each.token_ids)
        where = slice(len(prompt) - 1, len(prompt) - 1 + len(each.token_ids))
        close(each.generation_logits, expected.logits[where])
        close(each.context_logits, expected.logits[: len(prompt)])
        close(each.additional["hidden_states.2"], expected.states[2][where])
        close(each.additional["context_hidden_states.2"], expected.states[2][: len(prompt)])
        assert each.logprobs is not None and [len(entry.top) for entry in each.logprobs] == [2] * len(
            each.token_ids
        )
