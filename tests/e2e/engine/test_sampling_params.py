"""Every sampling parameter equals a reference in plain torch, with each drafter, guided or not, in any batch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from support.engine.oracle import assert_same
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.sampling_oracle import Words, decode
from support.products import pairwise
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.core.request import MAX_BAD_WORD_TOKENS
from weft.errors import InputError, RequestError
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.spelling import Speller

MIXES: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"temperature": 0.7},
    "top-k": {"temperature": 1.5, "top_k": 5},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "min-p": {"temperature": 2.0, "min_p": 0.1},
    "truncated": {"temperature": 1.7, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"temperature": 0.8, "frequency_penalty": 0.7},
    "rewarded": {"repetition_penalty": 0.8, "presence_penalty": -0.5},
    "biased": {"logit_bias": {30: 4.0, 31: -3.0, 40: -math.inf, 300: 6.5}},
    "bad words": {"bad_words": ["e", '": "', "the", [35, 36]]},
    "late end": {"min_tokens": 12, "temperature": 1.0},
    "all": {
        "temperature": 1.3,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {20: 2.0, 44: -2.0},
        "bad_words": ["in", [50, 51]],
        "min_tokens": 6,
    },
}
GUIDED = [
    None,
    (
        "json_schema",
        {"type": "object", "properties": {"k": {"type": "string", "maxLength": 12}}, "required": ["k"]},
    ),
    ("regex", r"[a-z ]{3,20}(\.|!)"),
]
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "eagle3-5": Speculation.eagle3(num_draft_tokens=5, guide_drafts=False),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "draft_model": Speculation.draft_model(num_draft_tokens=4),
    "ngram": Speculation.ngram(num_draft_tokens=8),
    "forced+eagle3": Speculation.forced(Speculation.eagle3(num_draft_tokens=3)),
}
ROWS = list(itertools.product(MIXES, range(len(GUIDED))))


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[Any]:
    """What the reference gives for each row of ROWS."""
    found = []
    speller = Speller(tiny.tokenizer, Vocabulary.from_huggingface(tiny.tokenizer).tokens)
    for i, (mix, guide) in enumerate(ROWS):
        entry = GUIDED[guide]
        compiled = compile_reference(tiny.compiler, entry) if entry is not None else None
        sampling = params(mix, i)
        words = speller.bad_words(sampling.bad_words, MAX_BAD_WORD_TOKENS)
        prompt = tiny.tokenizer.encode(prompts[i])
        found.append(decode(tiny.model, prompt, compiled, tiny.end_ids, sampling, Words(sorted(words))))
    return found


def params(mix: str, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=24, seed=seed, **MIXES[mix])


@pairwise
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
@pytest.mark.parametrize(("batch", "graphs"), [(1, "one"), (8, "one"), (3, "split"), (5, "none")])
def test_every_parameter_equals_the_reference(
    tiny: Checkpoint,
    prompts: list[str],
    expected: list[Any],
    speculation: str,
    batch: int,
    graphs: Any,
    part: int,
) -> None:
    rows = range(part, len(ROWS), 2)
    engine = EngineConfig(max_batch=batch, max_seq_len=512, graphs=graphs, kv_cache_dtype="float32")
    with LLM(tiny.path, device="cpu", speculation=SPECULATIONS[speculation], engine=engine) as llm:
        outputs = llm.generate(
            [prompts[i] for i in rows],
            guide=[make_guide(e) if (e := GUIDED[ROWS[i][1]]) is not None else None for i in rows],
            sampling=[params(ROWS[i][0], i) for i in rows],
        )
    for output, i in zip(outputs, rows, strict=True):
        mix, guide = ROWS[i]
        assert output.error is None, f"{mix}, guide {guide}: {output.error}"
        assert_same(output.token_ids, expected[i], f"{mix}, guide {GUIDED[guide]}")


@pytest.fixture(scope="module")
def llm(tiny: Checkpoint) -> Any:
    engine = EngineConfig(kv_cache_dtype="float32")
    with LLM(
        tiny.path, device="cpu", speculation=Speculation.eagle3(num_draft_tokens=3), engine=engine
    ) as made:
        yield made


def test_logprobs_are_the_models(tiny: Checkpoint, prompts: list[str], llm: LLM) -> None:
    """Before penalties, masks and temperature; the same with drafts and without."""
    import torch

    sampling = SamplingParams(
        max_tokens=12, temperature=0.9, seed=3, logprobs=4, repetition_penalty=1.3, top_k=20
    )
    guide = make_guide(("regex", r"[a-z ]{12,}"))
    output = llm.generate(prompts[0], guide=guide, sampling=sampling)
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    ids = torch.tensor([tiny.tokenizer.encode(prompts[0]) + output.token_ids])
    with torch.inference_mode():
        logits = tiny.model(ids).logits[0].float()
    rows = logits[-len(output.token_ids) - 1 : -1].log_softmax(1)
    for row, token, given in zip(rows, output.token_ids, output.logprobs, strict=True):
        best = row.topk(4)
        assert given.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert list(given.top.values()) == pytest.approx(best.values.tolist(), abs=1e-3)
        assert list(given.top.values()) == sorted(given.top.values(), reverse=True)
    without = llm.generate(prompts[0], guide=guide, sampling=replace(sampling, logprobs=None))
    assert without.logprobs is None
    assert without.token_ids == output.token_ids
    alone = llm.generate([prompts[0], prompts[1]], guide=[guide, None], sampling=[sampling, SamplingParams()])
    assert alone[0].token_ids == output.token_ids
    assert alone[1].logprobs is None


def test_stop_words_end_the_answer(prompts: list[str], llm: LLM) -> None:
    whole = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40))
    assert len(whole.text) > 12
    word = whole.text[7:11]
    output = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40, stop=["never there", word]))
    assert output.text == whole.text[: whole.text.index(word)]
    assert (output.finish_reason, output.stopped_by) == ("stop", word)
    assert whole.token_ids[: len(output.token_ids)] == output.token_ids
    pieces = list(llm.stream(prompts[0], sampling=SamplingParams(max_tokens=40, stop=word)))
    assert "".join(piece.text for piece in pieces) == output.text
    late = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40, stop=word, min_tokens=30))
    assert late.text != output.text
    assert len(late.token_ids) >= 30


def test_stop_tokens_end_the_answer(prompts: list[str], llm: LLM) -> None:
    whole = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40))
    token = whole.token_ids[6]
    output = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40, stop_token_ids=[token]))
    first = whole.token_ids.index(token)
    assert output.token_ids == whole.token_ids[: first + 1]
    assert (output.finish_reason, output.stopped_by) == ("stop", token)
    assert output.text == llm.tokenizer.decode(whole.token_ids[:first])


def test_the_grammar_beats_min_tokens(prompts: list[str], llm: LLM) -> None:
    output = llm.generate(
        prompts[0], guide=make_guide(("choice", ["yes", "no"])), sampling=SamplingParams(min_tokens=50)
    )
    assert output.text in ("yes", "no")
    assert output.finish_reason == "stop"


def test_what_leaves_no_token_ends_its_own_request(prompts: list[str], llm: LLM) -> None:
    """Bad words and bias against the guide: an error that names them; the neighbours' tokens are unchanged."""
    choice = make_guide(("choice", ["yes", "no"]))
    tokenizer = llm.tokenizer
    letters = {
        token: -math.inf for token in range(len(tokenizer)) if tokenizer.decode([token])[:1] in ("y", "n")
    }
    rows: list[tuple[Any, SamplingParams]] = [
        (None, SamplingParams(max_tokens=20)),
        (choice, SamplingParams(logit_bias=letters)),
        (choice, SamplingParams(temperature=1.0, seed=1, bad_words=[[token] for token in letters])),
        (choice, SamplingParams(temperature=1.0, seed=1)),
    ]
    outputs = llm.generate(
        [prompts[i] for i in range(4)], guide=[g for g, _ in rows], sampling=[s for _, s in rows]
    )
    for output, name in ((outputs[1], "logit_bias"), (outputs[2], "bad_words")):
        assert isinstance(output.error, RequestError)
        assert "no token is left" in str(output.error)
        assert name in str(output.error)
        assert output.token_ids == []
    assert outputs[0].token_ids == llm.generate(prompts[0], sampling=rows[0][1]).token_ids
    assert outputs[3].text in ("yes", "no")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"min_p": 2.0}, "min_p is 2.0; it must be 0"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k is -1"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be 0.001 to 1000"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"stop": ""}, "stop holds an empty word|empty"),
        ({"stop": ["a", ""]}, "empty word"),
        ({"bad_words": [""]}, "empty word"),
        ({"bad_words": [[]]}, "empty word"),
        ({"bad_words": "word"}, "give a list"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 300}, "min_tokens is 300; it must be 0 to max_tokens, 256"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs is 21; it must be 0 to 20"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3"),
        ({"logit_bias": {3: math.inf}}, "logit_bias of token 3"),
        ({"logit_bias": dict.fromkeys(range(1001), 1.0)}, "1001 tokens; it may name 1000"),
        ({"seed": 2**64}, "seed"),
        ({"temperature": 10_001}, "temperature is 10001; it must be 0 .greedy. to 10000"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"top_p": 1e-50}, "top_p"),
        ({"repetition_penalty": 1e39}, "0.001 to 1000"),
        ({"repetition_penalty": 1e-46}, "0.001 to 1000"),
        ({"presence_penalty": -1e39}, "-10000 to 10000"),
        ({"frequency_penalty": 10_001.0}, "-10000 to 10000"),
        ({"logit_bias": {5: 1e39}}, "-10000 to 10000, or -inf"),
        ({"logit_bias": {5: -10_001}}, "-10000 to 10000, or -inf"),
    ],
)
def test_bad_parameters_are_refused_when_given(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        SamplingParams(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_tokens": 2.5}, "max_tokens is 2.5; it must be a whole number"),
        ({"min_tokens": 1.5}, "min_tokens is 1.5; it must be a whole number"),
        ({"max_tokens": None}, "max_tokens is None; it must be a whole number"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
        ({"top_k": True}, "top_k is True; it must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
        ({"logprobs": True}, "logprobs is True; it must be a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": False}, "temperature is False; it must be a number"),
        ({"top_p": None}, "top_p is None; it must be a number"),
        ({"stop": None}, "stop is None; it must be a list, each entry a text"),
        ({"stop": b"ab"}, "stop is b'ab'; it must be a list"),
        ({"stop": [3]}, "stop holds 3; each entry must be a text"),
        ({"stop": [["a"]]}, "each entry must be a text"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; it must be a list, each entry a whole number"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids holds 'a'; each entry must be a whole number"),
        ({"stop_token_ids": "5"}, "stop_token_ids is '5'; it must be a list"),
        ({"stop_token_ids": [5.5]}, "stop_token_ids holds 5.5"),
        ({"bad_words": None}, "bad_words is None; it must be a list of texts or of lists"),
        ({"bad_words": [3]}, "an entry of bad_words is 3; it must be a list, each entry a whole number"),
        ({"bad_words": [[1.5]]}, "an entry of bad_words holds 1.5; each entry must be a whole number"),
        ({"bad_words": ["\ud800"]}, "not text that UTF-8 can hold"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias is .*; it must map token ids to numbers"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias names token '5'; token ids are whole numbers"),
        ({"logit_bias": {5: "1"}}, "logit_bias of token 5 is '1'; it must be a number"),
        ({"logit_bias": {5: True}}, "logit_bias of token 5 is True; it must be a number"),
    ],
)
def test_values_of_another_type_are_refused_when_given(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        SamplingParams(**given)


def test_the_bounds_themselves_give_an_answer(prompts: list[str], llm: LLM) -> None:
    """Every logit stays a number: what the extremes allow is what comes out."""
    extremes: list[dict[str, Any]] = [
        {"temperature": 10_000, "min_p": 0.5, "top_p": 2.0**-126},
        {"repetition_penalty": 1000, "frequency_penalty": -1e4, "presence_penalty": -1e4},
        {"repetition_penalty": 0.001, "frequency_penalty": 1e4, "presence_penalty": 1e4},
        {"logit_bias": {5: 1e4, 6: -math.inf}, "repetition_penalty": 1000},
        {"temperature": 1e-5, "logit_bias": {7: 1e4}},
    ]
    given = [SamplingParams(max_tokens=8, seed=1, logprobs=0, **entry) for entry in extremes]
    outputs = llm.generate([prompts[0]] * len(given), sampling=given)
    for output in outputs:
        assert output.error is None
        assert output.token_ids
        assert output.logprobs is not None
        assert all(math.isfinite(entry.logprob) for entry in output.logprobs)
    assert outputs[1].token_ids[1:] == outputs[1].token_ids[:1] * 7
    assert len(set(outputs[2].token_ids)) == len(outputs[2].token_ids)
    assert set(outputs[3].token_ids) == {5}
    assert set(outputs[4].token_ids) == {7}


def test_temperatures_below_the_lowest_are_greedy(prompts: list[str], llm: LLM) -> None:
    cold = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=8, temperature=9e-6, seed=1))
    assert cold.token_ids == llm.generate(prompts[0], sampling=SamplingParams(max_tokens=8)).token_ids


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    import numpy as np

    given = SamplingParams(top_k=np.int64(5), stop_token_ids=[np.int32(3)], temperature=np.float64(0.5))  # type: ignore[arg-type, list-item]
    assert given.top_k == 5


@pytest.mark.parametrize("longer", [[], ["q" * 30]])
def test_stop_words_complete_before_min_tokens_do_not_count(
    prompts: list[str], llm: LLM, longer: list[str]
) -> None:
    """Nor afterwards, because another stop word is longer."""
    whole = llm.generate(prompts[0], sampling=SamplingParams(max_tokens=40))
    count = 6
    start = llm.tokenizer.decode(whole.token_ids[:count], skip_special_tokens=True)
    word = start[-3:]
    assert whole.text.count(word) == 1
    stop = SamplingParams(max_tokens=40, min_tokens=count, stop=[word, *longer])
    output = llm.generate(prompts[0], sampling=stop)
    assert output.text == whole.text
    assert output.stopped_by is None


def test_bad_words_are_blocked_in_other_spellings(prompts: list[str], llm: LLM) -> None:
    """A grammar that leaves nothing else finds no way round through smaller tokens."""
    for text, word in (("unknown", "unknown"), ("street", "street"), ("the street", "street")):
        output = llm.generate(
            [prompts[0]],
            guide=make_guide(("choice", [text])),
            sampling=SamplingParams(max_tokens=30, bad_words=[word]),
        )[0]
        assert output.error is not None, f"{text!r} without {word!r} came out as {output.token_ids}"
        assert "bad_words" in str(output.error)


@pytest.mark.parametrize(
    "given", [{"stop_token_ids": [99999]}, {"logit_bias": {-1: 1.0}}, {"bad_words": [[1, 1536]]}]
)
def test_token_ids_outside_the_vocabulary_are_refused(
    prompts: list[str], llm: LLM, given: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="ids of this model are 0 to"):
        llm.generate(prompts[0], sampling=SamplingParams(**given))


def test_more_bad_words_than_fit_are_refused(prompts: list[str], llm: LLM) -> None:
    with pytest.raises(InputError, match="there is room for 1024"):
        llm.generate(prompts[0], sampling=SamplingParams(bad_words=[[i, i + 1] for i in range(400)]))
