"""Lookahead decoding as a whole: the iterations and drafts of a plain loop, which makes every line anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from support.engine.lookahead_oracle import Pool, Told
from support.engine.references import Checkpoint
from support.products import each_value
from weft import LLM, EngineConfig, InputError, SamplingParams, Speculation
from weft.client import Request
from weft.config import Lookahead
from weft.core import Output


@torch.inference_mode()
def decode(
    model: Any, prompt: Sequence[int], sizes: Lookahead, ends: set[int], max_tokens: int, max_drafts: int = 8
) -> Told:
    """Greedy lookahead decoding; `model` is a transformers causal LM."""

    def following(line: Sequence[int]) -> list[int]:
        found: list[int] = model(torch.tensor([list(line)])).logits[0].argmax(-1).tolist()
        return found

    pool, told = Pool(sizes, prompt), Told()
    while not told.tokens or (told.tokens[-1] not in ends and len(told.tokens) < max_tokens):
        # A prompt's last token has no drafts, but a window.
        drafts, start = pool.drafts(max_drafts) if told.tokens else [], len(pool.text) - 1
        said = following([*pool.text, *drafts, *pool.window])[start:]
        count = 0
        while count < len(drafts) and drafts[count] == said[count]:
            count += 1
        new = said[: count + 1]
        last = next((i for i, token in enumerate(new, 1) if token in ends), len(new))
        kept = new[: min(last, max_tokens - len(told.tokens))]
        told.tokens += kept
        if drafts:
            is_over = told.tokens[-1] in ends or len(told.tokens) == max_tokens
            told.iterations += 1
            told.proposed += min(len(drafts), len(kept)) if is_over else len(drafts)
            told.accepted += min(count, len(kept))
        pool.accept(new)
        pool.follow(said[len(drafts) + 1 :][: sizes.window])
    return told


GREEDY = SamplingParams(max_tokens=30)
REPETITIVE = "Text: one red cup, one red cup, one red cup, one red cup\nSchema: {}\nJSON: "


def asked(llm: LLM, prompts: list[str], **options: Any) -> list[Output]:
    """Answers to requests with sizes of their own."""
    handles = llm.client.submit([Request(prompt, GREEDY, **options) for prompt in prompts])
    taken = llm.client.responses.take([handle.id for handle in handles], 60)
    outputs = []
    for handle, deltas in taken:
        assert handle is not None and handle.error is None, handle
        outputs += [
            delta.sequence.output for delta in deltas if delta.is_final and delta.sequence is not None
        ]
    return outputs


@each_value
@pytest.mark.parametrize("sizes", [(1, 2, 1), (4, 3, 4), (7, 5, 2), (16, 9, 8)])
@pytest.mark.parametrize(
    "engine", [{"overlap": True}, {"overlap": False}, {"graphs": "split"}, {"graphs": "none"}], ids=str
)
def test_its_drafts_are_those_of_a_plain_loop(
    tiny: Checkpoint, prompts: list[str], sizes: tuple[int, int, int], engine: dict[str, Any]
) -> None:
    config = EngineConfig(max_batch=3, max_seq_len=512, kv_cache_dtype="float32", **engine)
    texts = [prompts[0], REPETITIVE]
    with LLM(tiny.path, device="cpu", speculation=Speculation.lookahead(*sizes), engine=config) as llm:
        outputs = llm.generate(texts, GREEDY)
    total = 0
    for text, output in zip(texts, outputs, strict=True):
        told = decode(tiny.model, tiny.tokenizer.encode(text), Lookahead(*sizes), tiny.end_ids, 30)
        stats = output.stats
        assert output.token_ids == told.tokens
        got = (stats.drafted_iterations, stats.proposed_drafts, stats.accepted_drafts)
        assert got == (told.iterations, told.proposed, told.accepted)
        total += told.accepted
    assert total > 0


def test_the_windows_n_grams_are_worth_something(tiny: Checkpoint) -> None:
    """More is accepted than of the text's own n-grams, and far more than none."""
    prompt, sampling = "Text: a red cup\nSchema: {}\nJSON: ", SamplingParams(max_tokens=100)
    lengths = {}
    for name, speculation in (
        ("none", Speculation.none()),
        ("ngram", Speculation.ngram(num_draft_tokens=2)),
        ("lookahead", Speculation.lookahead()),
        ("larger", Speculation.lookahead(8, 4, 8)),
    ):
        with LLM(tiny.path, device="cpu", speculation=speculation) as llm:
            lengths[name] = [
                llm.generate(text, sampling).stats.acceptance_length for text in (prompt, REPETITIVE)
            ]
    print(lengths)
    assert lengths["none"] == [1.0, 1.0]
    assert min(lengths["lookahead"]) > 1.2
    assert sum(lengths["lookahead"]) > sum(lengths["ngram"])


@pytest.mark.parametrize("batch", [1, 3])
def test_requests_have_sizes_of_their_own(tiny: Checkpoint, prompts: list[str], batch: int) -> None:
    own, texts = Lookahead(4, 3, 1), [*prompts[:2], REPETITIVE]
    engine = EngineConfig(max_batch=batch, max_seq_len=512)
    with LLM(tiny.path, device="cpu", speculation=Speculation.lookahead(4, 6, 4), engine=engine) as llm:
        outputs = asked(llm, texts, lookahead=own)
        limited = asked(llm, texts, max_drafts=1)
        none = asked(llm, texts, max_drafts=0)
        for sizes, message in (
            (Lookahead(5, 3, 4), "window is 5, but the engine's is 4"),
            (Lookahead(4, 7, 4), "ngram is 7, but the engine's is 6"),
            (Lookahead(4, 6, 5), "verification is 5"),
        ):
            (handle,) = llm.client.submit([Request(REPETITIVE, GREEDY, lookahead=sizes)])
            assert isinstance(handle.error, InputError) and message in str(handle.error)
    for text, output, one, plain in zip(texts, outputs, limited, none, strict=True):
        tokens = tiny.tokenizer.encode(text)
        told = decode(tiny.model, tokens, own, tiny.end_ids, 30)
        assert output.token_ids == one.token_ids == plain.token_ids == told.tokens
        assert output.stats.proposed_drafts == told.proposed
        assert output.stats.accepted_drafts == told.accepted
        assert one.stats.proposed_drafts <= one.stats.drafted_iterations
        assert plain.stats.proposed_drafts == 0
    assert sum(one.stats.accepted_drafts for one in limited) > 0


def test_where_it_is_refused(tiny: Checkpoint) -> None:
    with pytest.raises(InputError, match="additional_outputs does not work with"):
        LLM(
            tiny.path,
            device="cpu",
            speculation=Speculation.lookahead(),
            engine=EngineConfig(additional_outputs=(("TopKLogits", False),)),
        )
    with pytest.raises(InputError, match="ahead is 3"):
        Request(REPETITIVE, GREEDY, lookahead=3)  # type: ignore[arg-type]
    with LLM(tiny.path, device="cpu") as llm:
        (handle,) = llm.client.submit([Request(REPETITIVE, GREEDY, lookahead=Lookahead())])
        assert "does not use it" in str(handle.error)
