"""Free text before a guide: what its answers are, and on the command line. With every drafter:
`test_every_guide_and_drafter.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.engine.drafters import DRAFTERS
from support.engine.references import Checkpoint
from support.grammar.free_text import DIGITS, rows
from weft import LLM, EngineConfig, Guide, Output, SamplingParams
from weft.cli import app
from weft.errors import GuideError, InputError


def answer(llm: LLM, prompts: list[str], special: int, max_tokens: int = 24) -> list[Output]:
    chosen = rows(special)
    outputs: list[Output] = llm.generate(
        prompts[: len(chosen)],
        guide=[guide for guide, _ in chosen],
        sampling=[
            SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i)
            for i, (_, temperature) in enumerate(chosen)
        ],
    )
    return outputs


@pytest.fixture(scope="module")
def special(tiny: Checkpoint) -> int:
    """A special token of weft-tiny that does not end a text."""
    found = [i for i in tiny.tokenizer.all_special_ids if i not in tiny.end_ids]
    assert found
    return int(found[0])


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str], special: int) -> list[list[int]]:
    """The tokens one after another, without drafts, without graphs, one request at a time."""
    engine = EngineConfig(max_batch=1, max_seq_len=512, graphs="none")
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        outputs = answer(llm, prompts, special)
    assert all(output.error is None for output in outputs), [output.error for output in outputs]
    return [output.token_ids for output in outputs]


def test_the_answers_are_what_the_guides_say(
    tiny: Checkpoint, prompts: list[str], expected: list[list[int]], special: int
) -> None:
    """The free text is the model's own, up to the first place of the trigger; then the guide."""
    texts = [tiny.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in expected]
    plain = tiny.tokenizer.decode(tiny.reference(prompts[0], None).tokens)
    free, _, digits = texts[0].partition('": ')
    assert plain.startswith(free + '": ')
    assert re.fullmatch("[0-9]{3}", digits)
    assert texts[1].partition('e": "')[2] in ("north by northwest", 'north"}', "southern cross")
    assert texts[2].partition("i")[2].partition(":")[2].startswith("{")
    assert re.search(r"<\|endofthought\|>[0-9]{3}$", texts[4])
    assert expected[8][5] == special
    assert special not in expected[8][:5]
    assert tiny.tokenizer.decode(expected[8][6:]).startswith(("north", "south"))


def test_forced_drafts_spell_a_trigger_that_must_come(tiny: Checkpoint, prompts: list[str]) -> None:
    speculation = DRAFTERS["forced"](Path(), 8)
    guide = Guide.after("zwischenruf", Guide.choice(["ja"]), max_free_tokens=3)
    engine = EngineConfig(max_batch=1, max_seq_len=512)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        output = llm.generate(prompts[0], guide=guide, sampling=SamplingParams(max_tokens=40))
    assert output.text.endswith("zwischenrufja")
    assert output.stats.acceptance_length > 1.5


def test_on_the_command_line(prompts: list[str]) -> None:
    arguments = ["generate", "--device", "cpu", "-n", "30", prompts[0]]
    guided = [*arguments, "--after", '": ', "--regex", "[0-9]{3}", "--max-free-tokens", "20"]
    result = CliRunner().invoke(app, guided)
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r'\{"minutes": [0-9]{3}\s*', result.stdout)
    alone = CliRunner().invoke(app, [*arguments, "--after", "x"])
    assert isinstance(alone.exception, InputError) and "--after needs a guide" in str(alone.exception)
    unbound = CliRunner().invoke(app, [*arguments, "--max-free-tokens", "3"])
    assert isinstance(unbound.exception, InputError) and "give that, too" in str(unbound.exception)


def test_a_trigger_that_is_wrong_fails_its_own_request(tiny: Checkpoint, prompts: list[str]) -> None:
    end = tiny.tokenizer.eos_token
    with LLM(tiny.path, device="cpu", engine=EngineConfig(max_batch=4, max_seq_len=512)) as llm:
        outputs = llm.generate(
            prompts[:3],
            guide=[Guide.after(10**6, DIGITS), Guide.after(end, DIGITS), None],
            sampling=SamplingParams(max_tokens=3),
        )
    assert isinstance(outputs[0].error, GuideError) and "ids are 0 to" in str(outputs[0].error)
    assert isinstance(outputs[1].error, GuideError) and "is an end token" in str(outputs[1].error)
    assert outputs[2].error is None and len(outputs[2].token_ids) == 3
