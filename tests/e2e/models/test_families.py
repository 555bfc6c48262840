"""transformers' families in the whole engine, against transformers' own forwards. Those that weft can't run are
refused.

Each family of `support.families` runs with each of `SETTINGS`. `make test` runs one setting for each family without
states, and two for hybrids; CI runs more, and `make test-every` all. CI also tries every other family that transformers
has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from support.engine.family_report import Recorder
from support.engine.family_runs import PROMPTS, Family, Setting, run
from support.families import FAMILIES, HYBRIDS, OTHERS, REFUSED, UNBUILT, small_settings
from support.products import covering, every_third
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.errors import ModelError

SETTINGS = [
    Setting(**values)
    for values in covering(
        {
            "drafter": ["none", "eagle3", "ngram", "beams", "lookahead", "given", "forced", "draft_model"],
            "graphs": ["one", "none"],
            "batch": [8, 1],
            "overlap": [False, True],
            "few_pages": [False, True],
        },
        lambda values: values["batch"] > 1 or not (values["few_pages"] or values["drafter"] == "beams"),
    )
]
STRIDE = 5
"""Consecutive families begin this far apart in `SETTINGS`, so that few families have all settings."""

CHECKED = {**FAMILIES, **HYBRIDS}
OTHER_FAMILIES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*CHECKED, *REFUSED, *UNBUILT})


def cases(families: dict[str, Any], quick: int, in_ci: int) -> Iterator[Any]:
    """Each family with each setting. Of the settings of a family, `make test` runs the first `quick` and CI the first
    `in_ci`, counted from a place that rotates."""
    for number, family in enumerate(families):
        for i, setting in enumerate(SETTINGS):
            place = (i - STRIDE * number) % len(SETTINGS)
            marks = () if place < quick else (pytest.mark.slow if place < in_ci else pytest.mark.full,)
            yield pytest.param(family, setting, id=f"{family}-{setting}", marks=marks)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Makes a family's checkpoint, and keeps a few."""

    @lru_cache(2)
    def made(name: str) -> Family:
        return Family.make(name, CHECKED[name], tmp_path_factory.mktemp("family"))

    return made


@pytest.mark.parametrize(("family", "setting"), [*cases(FAMILIES, 1, 3), *cases(HYBRIDS, 2, 6)])
def test_answers_are_those_of_transformers(
    make: Callable[[str], Family], recorder: Recorder, family: str, setting: Setting
) -> None:
    recorder.passed("families", family, run(make(family), setting))


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_weft_cannot_run_are_refused(tmp_path: Path, recorder: Recorder, family: str) -> None:
    settings, reason = REFUSED[family]
    Family.make(family, settings, tmp_path)
    with pytest.raises(ModelError, match=f"weft can't run .*: {re.escape(reason)}") as refused:
        LLM(tmp_path, device="cpu")
    recorder.refused(family, reason_of(refused.value))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_every_other_family_is_right_or_refused(tmp_path: Path, recorder: Recorder, family: str) -> None:
    settings = {**small_settings(family), **OTHERS.get(family, {})}
    made = Family.make(family, settings, tmp_path)
    try:
        results = run(made, SETTINGS[0])
    except ModelError as error:
        recorder.refused(family, reason_of(error))
    else:
        recorder.passed("others", family, results)


WIDE = {"linear_num_key_heads": 4, "linear_num_value_heads": 32, "linear_key_head_dim": 16}
BITS: dict[str, dict[str, Any]] = {
    "gpt_oss": FAMILIES["gpt_oss"],
    "qwen3_5_text": {**HYBRIDS["qwen3_5_text"], **WIDE, "linear_value_head_dim": 16},
    "mamba": HYBRIDS["mamba"],
    "deepseek_v3": {**FAMILIES["deepseek_v3"], "num_local_experts": 32},
    "gemma4_text": {**FAMILIES["gemma4_text"], "hidden_size_per_layer_input": 32},
    "mamba2": {**HYBRIDS["mamba2"], "num_heads": 32, "head_dim": 4},
    "mixtral": FAMILIES["mixtral"],
}
"""Families whose rows have multiples of 32 elements in all operations. torch's operations compute the last elements of
a tensor with another rounding, if there are fewer."""


@pytest.mark.parametrize("family", every_third(list(BITS)))
def test_bits_depend_neither_on_the_batch_nor_on_drafts(tmp_path: Path, family: str) -> None:
    made = Family.make(family, BITS[family], tmp_path)
    alone = generation_logits(made, 1)
    given = [[*tokens[:5], 3, *tokens[6:]] for tokens, _ in alone]
    for answers in (generation_logits(made, 8), generation_logits(made, 8, given)):
        for (tokens, logits), (expected_tokens, expected) in zip(answers, alone, strict=True):
            assert tokens == expected_tokens
            assert torch.equal(logits, expected)


def generation_logits(
    family: Family, batch: int, given: list[list[int]] | None = None
) -> list[tuple[list[int], Tensor]]:
    """The answers to `PROMPTS` with their logits, from batches of this size, with `given` as drafts."""
    engine = EngineConfig(
        max_batch=batch,
        max_seq_len=128,
        prefill_chunk=24,
        reuse=False,
        gather_generation_logits=True,
        kv_cache_dtype="float32",  # as transformers
    )
    speculation = Speculation.none() if given is None else Speculation.given(num_draft_tokens=3)
    options: dict[str, Any] = {"return_generation_logits": True} | ({"given": given} if given else {})
    sampling = SamplingParams(temperature=0.0, max_tokens=9, min_tokens=9)
    answers = []
    with LLM(family.path, device="cpu", engine=engine, speculation=speculation) as llm:
        for output in llm.generate(PROMPTS, sampling, **options):
            assert output.generation_logits is not None
            answers.append((output.token_ids, output.generation_logits))
    return answers


def reason_of(error: ModelError) -> str:
    """The reason of a refusal, without the path and numbers of the network."""
    return re.sub(r"^.*?: (?:weft can't run \w+: )?| \(difference .*", "", str(error))
