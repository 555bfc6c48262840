"""How tokens came: who drafted each, and what could be drawn in its place."""

from __future__ import annotations

import json

import pytest

from weft import LLM, Guide, SamplingParams, Speculation

PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DRAFTERS = {
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "ngram": Speculation.ngram(num_draft_tokens=3),
    "forced": Speculation.forced(),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_one_drafter_is_named(name: str) -> None:
    with LLM(speculation=DRAFTERS[name]) as llm:
        out = llm.generate(PROMPT, guide=Guide.json_schema(SCHEMA, separators=(", ", ": ")))
    assert len(out.origins) == len(out.token_ids)
    assert set(out.origins) == {name, "sampled"}
    assert out.origins.count(name) == out.stats.accepted_drafts == sum(out.drafted)


def test_each_of_several_drafters_is_named() -> None:
    speculation = Speculation.given(Speculation.forced(Speculation.eagle3(num_draft_tokens=3)))
    guide = Guide.json_schema(SCHEMA, separators=(", ", ": "))
    with LLM(speculation=speculation) as llm:
        free = llm.generate(PROMPT, guide=guide)
        expected = llm.generate(PROMPT, guide=guide, given=free.token_ids)
        proposals = llm.engine.grammar.proposals
        assert proposals is not None
        proposed = proposals.counters().tokens
    assert free.token_ids == expected.token_ids
    assert {"forced", "eagle3"} <= set(free.origins) and "given" not in free.origins
    assert set(expected.origins) == {"given", "sampled"}
    # What is accepted was proposed, of each.
    assert 0 < free.origins.count("forced") <= proposed["forced"]
    assert 0 < expected.origins.count("given") <= proposed["given"]
    # Where only one token could be drawn after the draft before it, the grammar forced it.
    keys = json.dumps(json.loads(free.text)).split('"Ada Berg"')[0]
    assert keys == '{"name": '


def test_drafts_and_origins_are_those_of_each_request() -> None:
    """Requests that share a batch, and slots that are used again, keep their own."""
    speculation = Speculation.forced(Speculation.eagle3(num_draft_tokens=3))
    guides = [Guide.json_schema(SCHEMA, separators=(", ", ": ")), None] * 12
    with LLM(speculation=speculation) as llm:
        outs = llm.generate([PROMPT] * 24, guide=guides)
    for out, guide in zip(outs, guides, strict=True):
        assert len(out.origins) == len(out.token_ids)
        assert sum(out.drafted) == out.stats.accepted_drafts
        assert ("forced" in out.origins) == (guide is not None)
    assert len({tuple(out.origins) for out in outs[1::2]}) == 1


@pytest.mark.parametrize("speculation", [Speculation.none(), Speculation.eagle3(num_draft_tokens=3)])
def test_what_could_be_drawn_is_told(speculation: Speculation) -> None:
    with LLM(speculation=speculation) as llm:
        out = llm.generate(
            PROMPT,
            guide=Guide.regex("[a-c]{3}"),
            sampling=SamplingParams(max_tokens=8, logprobs=5),
        )
        vocabulary = llm.client.built.text.vocabulary
    assert out.logprobs is not None and vocabulary is not None
    first = out.logprobs[0]
    fits = [t for t in vocabulary.tokens if t and len(t) <= 3 and set(t) <= set(b"abc")]
    assert first.num_allowed == len(fits)
    # The model wants to begin an object, which the guide forbids.
    likeliest = next(iter(first.top))
    assert vocabulary.tokens[likeliest].startswith(b"{") and likeliest in first.forbidden
    for entry, token in zip(out.logprobs, out.token_ids, strict=True):
        assert token not in entry.forbidden and set(entry.forbidden) <= set(entry.top)
        assert entry.num_allowed
    assert out.logprobs[-1].num_allowed == len(vocabulary.end_ids)


def test_without_a_guide_nothing_is_forbidden() -> None:
    with LLM() as llm:
        out = llm.generate("Text: ", sampling=SamplingParams(max_tokens=4, logprobs=3, bad_words=[[7]]))
        size = llm.client.built.text.vocab_size
    assert out.logprobs is not None
    assert {entry.num_allowed for entry in out.logprobs} == {size - 1}
