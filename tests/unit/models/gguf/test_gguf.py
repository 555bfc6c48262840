"""GGUF files: what becomes of a model directory on the way there and back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from weft import LLM, SamplingParams, load_tokenizer, package_model_path
from weft.errors import ModelError, TokenizerError
from weft.models.gguf.reading import gguf_to_directory
from weft.models.gguf.rotation import in_halves, side_by_side
from weft.models.gguf.writing import directory_to_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 1540,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 5000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
TEXTS = ("Schema: any\nJSON: ", "  12345 is not 6,789", "naïve ☃ — it's", "</s> and <pad>")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small Llama of random weights, with rows of the embedding that are no tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=request.param)
    path = tmp_path / "model"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((package_model_path() / name).read_bytes())
    return path


def tensors(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back_every_weight_is_what_it_was(directory: Path, tmp_path: Path, dtype: str) -> None:
    """In 16 bits but for their rounding; norms are never rounded on the way there."""
    file = directory_to_gguf(directory, tmp_path / "model.gguf", dtype)
    back = tensors(gguf_to_directory(file, tmp_path / "back", dtype))
    before = tensors(directory)
    assert back.keys() == before.keys()
    for name, weights in before.items():
        assert torch.equal(back[name], weights.to(DTYPES[dtype])), name
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
    assert kinds["output_norm.weight"] == "F32" and kinds["blk.1.attn_q.weight"].startswith(dtype[0].upper())


def test_transformers_reads_what_is_written(directory: Path, tmp_path: Path) -> None:
    """Another reader of GGUF computes what the directory's model does: names, sizes and the order of rows are right."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF with the package accelerate")
    directory_to_gguf(directory, tmp_path / "model.gguf", "float32")
    load = transformers.AutoModelForCausalLM.from_pretrained
    read = load(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(read(ids).logits, load(directory)(ids).logits)


def test_the_tokenizer_comes_back(directory: Path, tmp_path: Path) -> None:
    file = directory_to_gguf(directory, tmp_path / "model.gguf", "float32")
    back = load_tokenizer(gguf_to_directory(file, tmp_path / "back"))
    before = load_tokenizer(directory)
    for text in TEXTS:
        assert back.encode(text) == before.encode(text)
        assert back.decode(before.encode(text)) == before.decode(before.encode(text))
    assert back.special_tokens_map == before.special_tokens_map
    assert back.chat_template == before.chat_template


def test_weft_runs_the_directory(directory: Path, tmp_path: Path) -> None:
    file = directory_to_gguf(directory, tmp_path / "model.gguf", "float32")
    gguf_to_directory(file, tmp_path / "back", "float32")
    sampling = SamplingParams(max_tokens=8)
    with LLM(directory, device="cpu") as before, LLM(tmp_path / "back", device="cpu") as back:
        outputs = [llm.generate([3, 4, 5], sampling=sampling) for llm in (before, back)]
    assert outputs[0].token_ids == outputs[1].token_ids


@pytest.mark.parametrize(
    ("dtype", "steps"), [("Q8_0", 127), ("Q5_1", 15), ("Q5_0", 15), ("Q4_1", 7), ("Q4_0", 7)]
)
def test_packed_weights_are_unpacked(directory: Path, tmp_path: Path, dtype: str, steps: int) -> None:
    """The numbers of blocks are as near as their bits allow."""
    file = directory_to_gguf(directory, tmp_path / "model.gguf", dtype)
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
    assert kinds["output_norm.weight"] == "F32" and kinds["blk.1.attn_q.weight"] == dtype
    back, before = tensors(gguf_to_directory(file, tmp_path / "back", "float32")), tensors(directory)
    for name, weights in before.items():
        torch.testing.assert_close(back[name], weights, atol=float(weights.abs().max()) / steps, rtol=0.0)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_order_of_rows_is_that_of_the_rotation(heads: int) -> None:
    """Turned pair by pair in GGUF's order, rows have the products that they have half by half in a directory's."""
    size = 8
    queries, keys = torch.randn(
        2, heads * size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )

    def halves(row: Tensor, position: int) -> Tensor:
        return turned(row.view(heads, 2, size // 2).transpose(1, 2), position)

    def pairs(row: Tensor, position: int) -> Tensor:
        return turned(side_by_side(row, heads).view(heads, size // 2, 2), position)

    products = [(turn(queries, 5) * turn(keys, 3)).sum((1, 2)) for turn in (halves, pairs)]
    torch.testing.assert_close(*products)
    assert torch.equal(in_halves(side_by_side(queries, heads), heads), queries)


def turned(pairs: Tensor, position: int) -> Tensor:
    """[heads, pairs, 2]: each pair turned by its own angle times the position."""
    angles = position / 10.0 ** torch.arange(pairs.shape[1], dtype=torch.float64)
    x, y = pairs.unbind(-1)
    return torch.stack((x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()), -1)


def edit(directory: Path, name: str, **changes: Any) -> None:
    path = directory / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_gguf_has_no_place_for_is_refused(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    with pytest.raises(ModelError, match="dtype is 'int8'"):
        directory_to_gguf(directory, out, "int8")
    edit(directory, "config.json", attention_bias=True)
    with pytest.raises(ModelError, match="without biases"):
        directory_to_gguf(directory, out, "float32")
    edit(directory, "config.json", attention_bias=False)
    edit(directory, "tokenizer.json", pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(TokenizerError, match="byte-level BPE"):
        directory_to_gguf(directory, out, "float32")
    assert not out.exists()


@pytest.mark.parametrize("number", [SIZES["vocab_size"], -1])
@pytest.mark.parametrize("place", ["vocab", "added_tokens"])
def test_a_tokenizer_of_more_tokens_is_refused(
    directory: Path, tmp_path: Path, place: str, number: int
) -> None:
    spelled = json.loads((directory / "tokenizer.json").read_text())
    if place == "vocab":
        spelled["model"]["vocab"]["another"] = number
    else:
        spelled["added_tokens"].append({"id": number, "content": "another", "special": True})
    (directory / "tokenizer.json").write_text(json.dumps(spelled))
    with pytest.raises(
        TokenizerError, match=rf"'another' has the id {number}, but the model has 1540 tokens"
    ):
        directory_to_gguf(directory, tmp_path / "model.gguf", "float32")


def test_what_is_no_llama_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'mamba'"):
        gguf_to_directory(file, tmp_path / "out")
    file.write_bytes(b"no such file")
    with pytest.raises(ModelError, match="can't be read as GGUF"):
        gguf_to_directory(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
