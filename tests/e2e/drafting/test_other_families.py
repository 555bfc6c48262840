"""Draft models of another family than their target, with its tokenizer and a vocabulary of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.checkpoints import save_checkpoint
from support.engine.drafting_requests import check, references, run
from support.engine.oracle import Reference
from support.engine.references import Checkpoint, load
from weft import LLM, EngineConfig, SamplingParams, Speculation

VOCAB = 1536
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("qwen3") / "model"
    save_checkpoint(path, "qwen3")
    return load(path)


@pytest.fixture(scope="module")
def expected(qwen3: Checkpoint, prompts: list[str]) -> list[Reference]:
    return references(qwen3, prompts)


@pytest.mark.parametrize("graphs", ["one", "none"])
@pytest.mark.parametrize("vocab_size", [VOCAB - 36, VOCAB, VOCAB + 64])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tokens_are_those_without_speculation(
    qwen3: Checkpoint,
    prompts: list[str],
    expected: list[Reference],
    tmp_path: Path,
    family: str,
    vocab_size: int,
    graphs: Any,
) -> None:
    save_checkpoint(tmp_path / "draft", family, seed=3, vocab_size=vocab_size, **SMALL)
    speculation = Speculation.draft_model(tmp_path / "draft", num_draft_tokens=3)
    engine = EngineConfig(max_batch=3, max_seq_len=512, kv_cache_dtype="float32", graphs=graphs)
    with LLM(qwen3.path, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = run(llm, prompts)
    check(outputs, expected)
    assert sum(output.stats.proposed_drafts for output in outputs) > 0


def test_a_twin_with_a_larger_vocabulary_drafts_what_the_target_says(
    prompts: list[str], tmp_path: Path
) -> None:
    """Qwen2 with biases of zero is Llama. Its padding would win every argmax if it could be drafted."""
    model = save_checkpoint(tmp_path / "llama", "llama")
    twin = save_checkpoint(tmp_path / "twin", "qwen2", vocab_size=VOCAB + 64)
    tensors = dict(model.state_dict())
    for name, parameter in twin.named_parameters():
        with torch.no_grad():
            parameter.zero_()
            if name in tensors:
                parameter[: len(tensors[name])] = tensors[name]
    last = model.get_output_embeddings().weight.detach()
    with torch.no_grad():
        twin.get_output_embeddings().weight[VOCAB:] = 3 * last[:64]
    twin.save_pretrained(tmp_path / "twin")
    speculation = Speculation.draft_model(tmp_path / "twin", num_draft_tokens=3)
    with LLM(tmp_path / "llama", device="cpu", speculation=speculation) as llm:
        sampling = SamplingParams(max_tokens=24)
        outputs = llm.generate(prompts[:4], sampling=sampling)
    with LLM(tmp_path / "llama", device="cpu") as llm:
        plain = llm.generate(prompts[:4], sampling=sampling)
    for output, wanted in zip(outputs, plain, strict=True):
        assert output.token_ids == wanted.token_ids
        assert output.stats.accepted_drafts == output.stats.proposed_drafts > 0
