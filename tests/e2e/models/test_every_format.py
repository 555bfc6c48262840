"""Each format of quantised weights in the whole engine: with every drafter, schedule and guide, an answer has the
tokens of an engine without graphs and drafts that answers prompt by prompt.

A product's bits depend neither on the batch nor on drafts, so the tokens must be equal, ties included. `make test` runs
two settings for each format, CI three and `make test-every` all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine.family_runs import (
    CHUNK,
    FEW_PAGES,
    GUIDES,
    MAX_SEQ_LEN,
    PAGE_SIZE,
    PROMPTS,
    Family,
    Setting,
    count_preemptions,
)
from support.engine.references import make_guide
from support.families import save, small_settings
from support.gguf_files import write
from support.products import covering
from support.quantised import CASES, quantise
from weft import LLM, EngineConfig, SamplingParams
from weft.config import model_directory
from weft.models.loading import load_model
from weft.ops.formats import Format
from weft.ops.packing import parts_of

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
SAFETENSORS = {
    Format.INT4_32: "packed-32-zeros",
    Format.INT4_64: "awq-64",
    Format.INT4_128: "awq-128",
    Format.INT8_32: "int8-group",
    Format.INT8_128: "int8-channel",
    Format.FP8: "fp8-blocks",
}
"""The formats that weft makes, by ways to quantise of `support.quantised`. The other ones are those of GGUF files."""
WAYS = {kind.name: (kind, SAFETENSORS.get(kind)) for kind in Format if kind.is_quantized}
WAYS |= {"act-order": (Format.INT4_64, "gptq-mixed")}
"""The formats, and how matrices get them: as `support.quantised` names it, or None for GGUF. "act-order" has products
whose matrices have different orders of inputs."""
NUM_TOKENS = 12
SETTINGS = [
    Setting(**values)
    for values in covering(
        {
            "drafter": ["none", "eagle3", "ngram", "lookahead", "forced", "draft_model"],
            "graphs": ["one", "none"],
            "batch": [8, 1],
            "overlap": [False, True],
            "few_pages": [False, True],
        },
        lambda values: values["batch"] > 1 or not values["few_pages"],
    )
]


def cases() -> Iterator[Any]:
    """Each way with each setting, from a place that rotates."""
    for number, way in enumerate(WAYS):
        for i, setting in enumerate(SETTINGS):
            place = (i - 3 * number) % len(SETTINGS)
            marks = () if place < 2 else (pytest.mark.slow if place < 3 else pytest.mark.full,)
            yield pytest.param(way, setting, id=f"{way}-{setting}", marks=marks)


class Quantised(Family):
    """A random Llama whose matrices are in one format."""

    @classmethod
    def of(cls, name: str, path: Path) -> Quantised:
        kind, way = WAYS[name]
        network = save("llama", {**small_settings("llama"), **SIZES}, path)
        if way is not None:
            _quantise(way, path)
        else:
            path = model_directory(write(network, path / "blocks.gguf", kind.name))
        layer: Any = load_model(path).layers[0]  # type: ignore[attr-defined]
        parts = parts_of(layer.mixer.qkv.packed.parts)
        assert {part.format for part in parts} == {kind}
        assert [part.order for part in parts] == ([0, 1, 2] if name == "act-order" else [-1])
        return cls(name, path, network)

    def answers(self, setting: Setting) -> list[list[int]]:
        """The tokens of all answers to `PROMPTS` in an engine with a setting."""
        engine = EngineConfig(
            graphs=setting.graphs,
            overlap=setting.overlap,
            max_batch=setting.batch,
            max_seq_len=MAX_SEQ_LEN,
            page_size=PAGE_SIZE,
            prefill_chunk=CHUNK,
            num_pages=FEW_PAGES if setting.few_pages else None,
            max_num_tokens=2 * CHUNK,
            policy="max_utilization" if setting.few_pages else "guaranteed_no_evict",
        )
        sampling = [
            SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, min_tokens=0 if guide else NUM_TOKENS)
            for guide in GUIDES
        ]
        guides = [None if guide is None else make_guide(guide) for guide in GUIDES]
        speculation = self.speculation(setting.drafter)
        with (
            count_preemptions() as preempted,
            LLM(self.path, device="cpu", engine=engine, speculation=speculation) as llm,
        ):
            outputs = llm.generate(PROMPTS, sampling, guide=guides)
        assert setting.few_pages or not preempted
        for output in outputs:
            assert output.error is None, output.error
        return [output.token_ids for output in outputs]


def _quantise(way: str, path: Path) -> None:
    """Quantise the matrices of a checkpoint's layers."""
    case = CASES[way]
    torch.manual_seed(1)
    tensors = load_file(path / "model.safetensors")
    stored = dict(tensors)
    for name, parts, _ in quantise(case, tensors, lambda module: ".layers." in module):
        del stored[name]
        stored |= parts
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": case.settings}))


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Quantised, Any]]]:
    """Makes a way's checkpoint and its plain answers, and keeps a few."""

    @lru_cache(2)
    def made(way: str) -> tuple[Quantised, Any]:
        model = Quantised.of(way, tmp_path_factory.mktemp("format"))
        return model, model.answers(Setting("none", "none", 1, False, False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield made


@pytest.mark.parametrize(("way", "setting"), [*cases()])
def test_answers_are_those_of_a_plain_loop(
    make: Callable[[str], tuple[Quantised, Any]], way: str, setting: Setting
) -> None:
    model, expected = make(way)
    assert model.answers(setting) == expected
