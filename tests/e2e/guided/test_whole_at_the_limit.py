"""`on_length="close"`: whatever the limit, an answer is whole, or its request is refused before it begins."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from support.engine.guide_rows import SCHEMA, is_valid, questions
from support.engine.references import Checkpoint, make_guide
from support.executor import until_final
from support.grammar.guides import GUIDES
from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.cli import app
from weft.errors import GuideError, InputError
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    SamplingConfig,
)

NEEDS = re.compile(r"needs (\d+) tokens")


@pytest.fixture(scope="module")
def llm(tiny: Checkpoint) -> Iterator[LLM]:
    engine = EngineConfig(max_batch=8, max_seq_len=512)
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        yield llm


def closing(max_tokens: int, **settings: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, on_length="close", **settings)


def needed(llm: LLM, guides: list[Guide]) -> list[int]:
    """What the refusal of one token says of each."""
    outputs = llm.generate(["x"] * len(guides), guide=guides, sampling=closing(1))
    assert all(isinstance(output.error, GuideError) and not output.token_ids for output in outputs)
    return [int(found[1]) for output in outputs if (found := NEEDS.search(str(output.error)))]


def test_every_answer_is_whole(llm: LLM, tiny: Checkpoint) -> None:
    """From the fewest tokens that a guide needs on, and one less is refused; greedy and drawn."""
    asked = [(question.prompt, guide) for question, guide in zip(questions(3), GUIDES, strict=False)]
    least = needed(llm, [make_guide(guide) for _, guide in asked])
    assert len(least) == len(asked) >= 100
    rng = random.Random(2)
    limits = [rng.choice((-1, 0, 1, 2, 3, 5, 8, 13, 21)) for _ in asked]
    outputs = llm.generate(
        [prompt for prompt, _ in asked],
        guide=[make_guide(guide) for _, guide in asked],
        sampling=[
            closing(count + more, temperature=i % 2, seed=i)
            for i, (count, more) in enumerate(zip(least, limits, strict=True))
        ],
    )
    for (_, guide), count, more, output in zip(asked, least, limits, outputs, strict=True):
        if more < 0:
            assert isinstance(output.error, GuideError)
            assert f"needs {count} tokens" in str(output.error)
            continue
        assert output.error is None
        assert output.finish_reason == "stop"
        assert output.stats.guided_valid
        assert len(output.token_ids) <= count + more
        assert is_valid(output.text, guide, tiny), (guide, output.text)


def test_where_an_answer_ends_by_itself_nothing_changes(llm: LLM) -> None:
    asked = [question for question in questions(5) if question.guide[0] == "json_schema"][:24]
    prompts, guides = [q.prompt for q in asked], [make_guide(q.guide) for q in asked]
    cut = llm.generate(
        prompts, guide=guides, sampling=SamplingParams(max_tokens=200, temperature=0.7, seed=1)
    )
    closed = llm.generate(prompts, guide=guides, sampling=closing(200, temperature=0.7, seed=1))
    ended = [(a, b) for a, b in zip(cut, closed, strict=True) if len(a.token_ids) < 120]
    assert len(ended) >= 12
    assert all(a.token_ids == b.token_ids for a, b in ended)


def test_the_context_is_a_limit_too(tiny: Checkpoint) -> None:
    engine = EngineConfig(max_batch=2, max_seq_len=64)
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        prompt, guide = list(range(300, 334)), Guide.json_schema(SCHEMA)
        output = llm.generate(prompt, guide=guide, sampling=closing(1000, temperature=1.0, seed=4))
        assert output.finish_reason == "stop"
        assert len(output.token_ids) <= 30
        with pytest.raises(GuideError, match=r"room for 14; raise max_tokens, or shorten the prompt"):
            llm.generate(prompt + prompt[:16], guide=guide, sampling=closing(1000))


def test_what_can_not_be(llm: LLM) -> None:
    with pytest.raises(InputError, match="needs a guide"):
        llm.generate("x", sampling=closing(9))
    with pytest.raises(InputError, match='on_length is \'end\'; it must be "cut" or "close"'):
        SamplingParams(on_length="end")  # type: ignore[arg-type]
    # The one way out is forbidden: that is the request's own error, and no answer.
    end = llm.tokenizer.encode('"', add_special_tokens=False)
    words = [
        [token]
        for token, text in enumerate(map(llm.tokenizer.decode, range(len(llm.tokenizer))))
        if '"' in text
    ]
    assert end in words
    with pytest.raises(Exception, match="bad_words"):
        llm.generate(
            "x", guide=Guide.regex('[a-z]+"'), sampling=closing(6, bad_words=words[:1000], temperature=1.0)
        )


def test_beams_and_kept_guides(tiny: Checkpoint) -> None:
    """The executor's own field, for beams and several sequences, with a guide that was registered."""
    config = ExecutorConfig(
        max_batch_size=6, max_beam_width=3, guided_decoding_config=GuidedDecodingConfig(), max_seq_len=256
    )
    with Executor(tiny.path, config) as executor:
        executor.register_guide("schema", Guide.json_schema(SCHEMA)).result()
        params = GuidedDecodingParams.handle("schema")
        prompt = tiny.tokenizer.encode("Write about John.")
        numbers = [
            executor.enqueue_request(
                Request(
                    prompt,
                    room,
                    sampling_config=sampling,
                    guided_decoding_params=params,
                    output_config=OutputConfig(exclude_input_from_output=True),
                )
            )
            for room in (24, 31)
            for sampling in (
                SamplingConfig(3, on_length="close"),
                SamplingConfig(num_return_sequences=2, temperature=1.0, seed=1, on_length="close"),
            )
        ]
        refused = executor.enqueue_request(
            Request(
                prompt, 4, sampling_config=SamplingConfig(on_length="close"), guided_decoding_params=params
            )
        )
        answers = [until_final(executor, number) for number in numbers]
        assert "needs" in until_final(executor, refused)[0].error_msg
    found = 0
    for responses in answers:
        for response in responses:
            assert not response.has_error(), response.error_msg
            for tokens in response.result.output_token_ids:
                text = tiny.tokenizer.decode(tokens, skip_special_tokens=True)
                assert is_valid(text, ("json_schema", SCHEMA), tiny), text
                found += 1
    assert found == 2 * (3 + 2)
    with pytest.raises(InputError, match="on_length"):
        SamplingConfig(on_length="no")  # type: ignore[arg-type]


def test_the_command_line() -> None:
    arguments = [
        "generate",
        "Write.",
        "--json",
        "-n",
        "12",
        "-t",
        "1",
        "--seed",
        "3",
        "--speculation",
        "none",
    ]
    result = CliRunner().invoke(app, [*arguments, "--on-length", "close"])
    assert result.exit_code == 0
    assert result.stdout.strip()[-1] in "]}"
