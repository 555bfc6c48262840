"""Matchers, recognisers and plug-ins of a user's own under speculation: the tokens are those without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Checkpoint
from e2e.drafters import DRAFTERS, save_random_drafters
from guide_kinds import Brackets, Collapsing, built
from weft import LLM, EngineConfig, Guide, Output, SamplingParams

VOCABULARY, END = 1200, 1


class Turns:
    """Tokens of three classes in turn, ten of them, then the end. It knows no way back."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allowed(self) -> list[int]:
        if len(self.taken) >= 10:
            return [END]
        return list(range(40 + len(self.taken) % 3, VOCABULARY, 3))

    def accept(self, token: int) -> bool:
        if token not in self.allowed():
            return False
        self.taken.append(token)
        return True

    def fill(self, row: Any) -> None:
        words = row.view("uint32")
        for token in self.allowed():
            words[token // 32] |= 1 << (token % 32)

    def is_terminated(self) -> bool:
        return self.taken[-1:] == [END]


class Returning(Turns):
    """The same, with a way back."""

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]


def rows() -> list[tuple[Guide | None, float]]:
    return [
        (Guide.matcher(Turns), 0.0),
        (Guide.matcher(Returning), 1.0),
        (Guide.recognizer(lambda: Brackets(12)), 1.0),
        (Guide.recognizer(lambda: Collapsing(12)), 0.0),
        (Guide.plugin(built("matcher_plugin"), "9"), 1.0),
        (Guide.plugin(built("recognizer_plugin"), "14"), 1.0),
        (Guide.after(":", Guide.plugin(built("matcher_plugin"), "5")), 0.0),
        (Guide.after("e", Guide.matcher(Turns), max_free_tokens=6), 1.0),
        (None, 0.0),
    ]


def answer(llm: LLM, prompts: list[str], chosen: list[tuple[Guide | None, float]]) -> list[Output]:
    outputs: list[Output] = llm.generate(
        prompts[: len(chosen)],
        guide=[guide for guide, _ in chosen],
        sampling=[
            SamplingParams(max_tokens=18, temperature=temperature, seed=i)
            for i, (_, temperature) in enumerate(chosen)
        ],
    )
    assert [output.error for output in outputs] == [None] * len(outputs)
    return outputs


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[list[int]]:
    assert tiny.tokenizer.eos_token_id == END and tiny.model.config.vocab_size >= VOCABULARY
    with LLM(tiny.path, device="cpu", engine=EngineConfig(max_batch=1, graphs="none")) as llm:
        outputs = answer(llm, prompts, rows())
    assert outputs[0].token_ids[-1] == END and len(outputs[0].token_ids) == 11
    assert outputs[4].text.isdigit() and len(outputs[4].text) == 9
    assert outputs[5].text.strip("()[]{}") == ""
    assert outputs[6].text.partition(":")[2].isdigit()
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize("drafter", ["eagle3", "ngram-unguided", "forced+eagle3", "random mtp chain"])
def test_tokens_are_those_without_speculation(
    tiny: Checkpoint,
    prompts: list[str],
    expected: list[list[int]],
    random_drafters: Path,
    drafter: str,
    num_drafts: int,
) -> None:
    graphs: Any = "split" if (num_drafts + len(drafter)) % 2 else "one"
    engine = EngineConfig(max_batch={1: 9, 3: 1, 8: 4}[num_drafts], max_seq_len=512, graphs=graphs)
    speculation = DRAFTERS[drafter](random_drafters, num_drafts)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = answer(llm, prompts, rows())
    assert [output.token_ids for output in outputs] == expected
