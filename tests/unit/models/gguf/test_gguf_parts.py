"""GGUF models in several files: read as one, and refused with the name of the part that is missing or wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.families import config_of, make_network
from support.gguf_files import write
from weft import LLM, ModelError, SamplingParams, package_model_path
from weft.client.model_facts import ModelFacts
from weft.config import model_directory
from weft.models.gguf.parts import read_model_header
from weft.models.gguf.reading import gguf_to_directory
from weft.models.stored import gguf_file, stored_tensors

SETTINGS = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
COUNT = 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def network() -> Any:
    return make_network(config_of("llama", {**SETTINGS, "tie_word_embeddings": False}))


def parts_of(network: Any, directory: Path, kind: str = "Q8_0") -> list[Path]:
    directory.mkdir(exist_ok=True)
    write(network, directory / "model.gguf", kind, part_size=4)
    parts = sorted(directory.glob("model-*.gguf"))
    assert [part.name for part in parts] == [f"model-{i:05}-of-{COUNT:05}.gguf" for i in range(1, COUNT + 1)]
    return parts


@pytest.fixture
def parts(network: Any, tmp_path: Path) -> list[Path]:
    return parts_of(network, tmp_path / "parts")


def tokens_of(model: Path) -> list[int]:
    with LLM(model, device="cpu") as llm:
        return llm.generate([3, 4, 5], SamplingParams(max_tokens=6)).token_ids


def test_each_part_is_the_whole_model(network: Any, parts: list[Path], tmp_path: Path) -> None:
    whole = write(network, tmp_path / "whole.gguf", "Q8_0")
    directories = {model_directory(part) for part in parts}
    assert len(directories) == 1 and gguf_file(directories.pop()) == parts[0]
    assert tokens_of(parts[1]) == tokens_of(whole)
    facts = ModelFacts.read(model_directory(parts[2]), torch.device("cpu"))
    assert facts.headers.num_files == COUNT
    assert facts.headers.stored_bytes == sum(each.num_bytes for each in stored_tensors(whole).values())
    for file, name in ((whole, "one"), (parts[1], "other")):
        gguf_to_directory(file, tmp_path / name)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_directory_is_made_again_if_a_part_changes(network: Any, parts: list[Path]) -> None:
    directory = model_directory(parts[0])
    assert model_directory(parts[0]) == directory
    parts_of(network, parts[0].parent, "F16")
    assert model_directory(parts[0]) != directory


def test_parts_may_be_links_to_files_with_other_names(parts: list[Path], tmp_path: Path) -> None:
    """As in the cache of the hub's client."""
    snapshot, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    snapshot.mkdir()
    blobs.mkdir()
    for i, part in enumerate(parts):
        part.rename(blobs / f"{i}")
        (snapshot / part.name).symlink_to(blobs / f"{i}")
    assert len(tokens_of(snapshot / parts[2].name)) == 6


def test_a_link_may_lead_to_a_part(parts: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(parts[1])
    assert model_directory(link) == model_directory(parts[0])


def test_a_directory_may_hold_parts(network: Any, parts: list[Path], tmp_path: Path) -> None:
    directory = parts[0].parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package_model_path() / name, directory)
    network.save_pretrained(tmp_path / "original")
    shutil.copy(tmp_path / "original" / "config.json", directory)
    assert tokens_of(directory) == tokens_of(parts[0])
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"there is no model-00002-of-00003\.gguf beside it; get all parts"):
        stored_tensors(directory)
    shutil.copy(parts[0], directory / "another.gguf")
    with pytest.raises(ModelError, match="has 3 GGUF files; give the path of one"):
        stored_tensors(directory)


def lose(parts: list[Path], network: Any) -> None:
    parts[0].unlink()
    parts[2].unlink()


def rename(parts: list[Path], network: Any) -> None:
    parts[1].rename(parts[1].with_name("second.gguf"))


def repeat(parts: list[Path], network: Any) -> None:
    shutil.copy(parts[1], parts[2])


def mix(parts: list[Path], network: Any) -> None:
    other = make_network(config_of("llama", {**SETTINGS, "attention_bias": True}))
    directory = parts[0].parent.with_name("other")
    directory.mkdir()
    write(other, directory / "model.gguf", "Q8_0", part_size=6)
    shutil.copy(directory / parts[2].name, parts[2])


def repeat_tensors(parts: list[Path], network: Any) -> None:
    """The tensors of the second part, with the number of the third one."""
    data = parts[1].read_bytes()
    at = data.index(b"split.no") + len("split.no") + 4
    assert data[at : at + 2] == b"\1\0"
    parts[2].write_bytes(data[:at] + b"\2\0" + data[at + 2 :])


def fewer(parts: list[Path], network: Any) -> None:
    """One more tensor in all headers."""
    for part in parts:
        data = part.read_bytes()
        at = data.index(b"split.tensors.count") + len("split.tensors.count") + 4
        part.write_bytes(data[:at] + bytes([data[at] + 1]) + data[at + 1 :])


def cut(parts: list[Path], network: Any) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-100])


WRONG: dict[str, tuple[Callable[[list[Path], Any], None], str, str]] = {
    "missing": (
        lose,
        "model-00002-of-00003.gguf",
        r"there is no model-00001-of-00003\.gguf and 1 more beside it",
    ),
    "renamed": (
        rename,
        "second.gguf",
        r"second\.gguf: is one of 3 parts of a model, and its name must say so",
    ),
    "twice": (
        repeat,
        "model-00001-of-00003.gguf",
        r"00003-of-00003\.gguf: its header says part 1 \(from 0\) of 3",
    ),
    "tensors twice": (
        repeat_tensors,
        "model-00001-of-00003.gguf",
        r"00003\.gguf: has the tensor .* which model-00002-of-00003\.gguf has, too",
    ),
    "a tensor fewer": (
        fewer,
        "model-00001-of-00003.gguf",
        r"the parts have 12 tensors together, and 'split\.tensors\.count' is 13",
    ),
    "of another model": (
        mix,
        "model-00001-of-00003.gguf",
        r"00003\.gguf: its header says .* with 16 tensors; .* with 12 tensors",
    ),
    "cut short": (
        cut,
        "model-00001-of-00003.gguf",
        r"00003-of-00003\.gguf: can't be read as GGUF.*cut short",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_refused_by_name(name: str, parts: list[Path], network: Any) -> None:
    damage, given, message = WRONG[name]
    damage(parts, network)
    with pytest.raises(ModelError, match=message):
        model_directory(parts[0].with_name(given))


def test_the_first_part_may_have_no_tensors(network: Any, tmp_path: Path) -> None:
    """As llama.cpp's tool writes it with --no-tensor-first-split."""
    import gguf

    from support.gguf_files import add_sizes, add_tensor, finish, tensors
    from weft.models.gguf.tokenizer import add_tokenizer

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=6, small_first_shard=True)
    add_sizes(writer, network.config)
    add_tokenizer(writer, package_model_path(), network.config.vocab_size)
    for name, rows in tensors(network.state_dict(), network.config, "llama"):
        add_tensor(writer, name, rows, "Q8_0")
    finish(writer, tmp_path / "model.gguf")
    first = min(tmp_path.glob("model-*.gguf"))
    whole = write(network, tmp_path / "whole.gguf", "Q8_0")
    assert read_model_header(first).tensors.keys() == read_model_header(whole).tensors.keys()
    assert tokens_of(first) == tokens_of(whole)
