"""A draft model's drafts against transformers, and models that do not fit their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.checkpoints import save_checkpoint, save_draft_model
from support.engine.drafting import PAGE, PAGES, SLOTS, Drafting, Oracle
from support.launch_check import check_launched
from weft.config import Speculation
from weft.errors import ModelError, TokenizerError
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.loading import load_model
from weft.ops.formats import ACTIVATION_DTYPES
from weft.spec.base import DrafterContext
from weft.spec.draft_model import DraftModel
from weft.tokenizer.files import load_tokenizer


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    save_checkpoint(path, "llama", num_hidden_layers=1)
    return path


def context(
    target_path: Path, path: Path | None, dtype: str = "auto", activation_dtype: str = "auto"
) -> DrafterContext:
    target = load_model(target_path, dtype=dtype, activation_dtype=activation_dtype)
    speculation = Speculation.draft_model(path, num_draft_tokens=4)
    return DrafterContext(speculation, target_path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)


def transformers_oracle(model: Any) -> Oracle:
    def logits(tokens: Tensor, hidden: Tensor, drafts: list[int]) -> Tensor:
        last = model.config.vocab_size - 1
        text = torch.cat((tokens, torch.tensor(drafts, dtype=torch.int64))).clamp(max=last)
        out: Tensor = model(text[None]).logits[0, -1, :1536]
        return out

    return logits


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("vocab_size", [1536, 1500, 1600])
def test_drafts_are_those_of_transformers(
    vocab_size: int, seed: int, tmp_path: Path, target_path: Path
) -> None:
    oracle = save_draft_model(tmp_path, vocab_size=vocab_size)
    drafter = DraftModel.load(context(target_path, tmp_path))
    assert drafter.aux_layers == ()
    if vocab_size < 1536:
        assert drafter.d2t is not None
        assert torch.equal(drafter.d2t, torch.zeros(vocab_size, dtype=torch.int64))
    else:
        assert drafter.d2t is None
    drafting = Drafting(drafter, drafter.kv, transformers_oracle(oracle), 1536, 0, seed)
    drafting.run(4, [0, 1, 4])
    assert drafting.compared > 0


def test_the_model_directorys_own_draft_is_used(tmp_path: Path, target_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"no draft model there; give its directory to Speculation.draft_model"
    ):
        DraftModel.load(context(target_path, None))
    target = tmp_path / "with"
    save_checkpoint(target, "llama", num_hidden_layers=1)
    save_draft_model(target / "draft")
    assert DraftModel.load(context(target, None)).model.config.num_layers == 2


def test_it_runs_in_the_targets_dtype(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path)
    drafter = DraftModel.load(context(target_path, tmp_path, dtype="bfloat16"))
    assert drafter.model.layers[0].mlp.up.weight.dtype == torch.bfloat16
    assert drafter.draft_buffers(2).logits_BD.dtype == drafter.kv.dtype == torch.float32


@pytest.mark.parametrize("name", ["auto", "float32", "bfloat16"])
def test_it_rounds_as_the_target(tmp_path: Path, target_path: Path, name: str) -> None:
    save_draft_model(tmp_path)
    drafter = DraftModel.load(context(target_path, tmp_path, dtype="bfloat16", activation_dtype=name))
    assert drafter.model.config.rounding is ACTIVATION_DTYPES.get(name)


def edit(file: Path, change: Callable[[Any], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def swap(data: Any) -> None:
    """Exchange the ids of two tokens."""
    vocab = data["model"]["vocab"]
    a, b = sorted(vocab, key=vocab.__getitem__)[40:42]
    vocab[a], vocab[b] = vocab[b], vocab[a]


def test_another_tokenizer_is_refused_by_the_first_token_that_differs(
    tmp_path: Path, target_path: Path
) -> None:
    save_draft_model(tmp_path)
    edit(tmp_path / "tokenizer.json", swap)
    vocab = json.loads((target_path / "tokenizer.json").read_text())["model"]["vocab"]
    a, b = sorted(vocab, key=vocab.__getitem__)[40:42]
    with pytest.raises(ModelError) as caught:
        DraftModel.load(context(target_path, tmp_path))
    assert f"token {vocab[a]} is {b!r}, and {a!r} to the target's tokenizer" in str(caught.value)


def rename_special(data: Any) -> None:
    """Give a special token another name."""
    token = next(token for token in data["added_tokens"] if token["special"])
    vocab = data["model"]["vocab"]
    if token["content"] in vocab:
        vocab["<|other|>"] = vocab.pop(token["content"])
    token["content"] = "<|other|>"


def add_token(data: Any) -> None:
    """Add a token after all others."""
    data["added_tokens"].append(
        {"id": 1540, "content": "<think>", "special": False, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
    )  # fmt: skip


@pytest.mark.parametrize("change", [rename_special, add_token])
def test_special_tokens_and_those_of_one_model_may_differ(
    change: Callable[[Any], object], tmp_path: Path, target_path: Path
) -> None:
    save_draft_model(tmp_path, vocab_size=1600)
    edit(tmp_path / "tokenizer.json", change)
    assert DraftModel.load(context(target_path, tmp_path)).d2t is None


def test_the_tokenizer_given_apart_from_the_target_is_compared(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path)
    given = replace(context(target_path, tmp_path), model_path=tmp_path / "weights in memory")
    vocabulary = Vocabulary.from_huggingface(target_path)
    assert DraftModel.load(replace(given, tokenizer=vocabulary)).model.config.vocab_size == 1536
    assert (
        DraftModel.load(replace(given, tokenizer=load_tokenizer(target_path))).model.config.vocab_size == 1536
    )
    edit(tmp_path / "tokenizer.json", swap)
    for tokenizer in (vocabulary, load_tokenizer(target_path)):
        with pytest.raises(ModelError, match="a draft model must have the target's tokenizer"):
            DraftModel.load(replace(given, tokenizer=tokenizer))


def test_what_can_not_be_compared_is_said(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path)
    given = context(target_path, tmp_path)
    with pytest.warns(
        UserWarning, match="it could not be checked .*: the target was given without a tokenizer"
    ):
        DraftModel.load(replace(given, model_path=tmp_path / "weights in memory"))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match=r"it could not be checked .* has no tokenizer"):
        DraftModel.load(given)


def test_a_tokenizer_that_can_not_be_read_is_refused(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: can't be read as a tokenizer"):
        DraftModel.load(context(target_path, tmp_path))


def test_a_smaller_vocabulary_may_lack_the_last_tokens(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path, vocab_size=1500)
    assert DraftModel.load(context(target_path, tmp_path)).model.config.vocab_size == 1500


def test_a_model_that_ends_early_is_warned_of(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path, max_position_embeddings=32)
    with pytest.warns(
        UserWarning, match=r"'max_position_embeddings' is 32, but requests may have 56 positions"
    ):
        DraftModel.load(context(target_path, tmp_path))


def test_drafting_keeps_the_rule_of_launched_functions(tmp_path: Path, target_path: Path) -> None:
    save_draft_model(tmp_path)
    drafter = DraftModel.load(context(target_path, tmp_path))
    drafting = Drafting(drafter, drafter.kv, lambda *_: torch.empty(0), 1536, 0, 0)
    drafter.kv.groups[0].zero_()
    with torch.inference_mode():
        for slot, length in enumerate([1, 2, 2, 2]):
            drafting.begin(slot, length)
        for parts in (drafting.read([1, 2, 3]), None):
            verified, buffers = drafting.verify(
                [2, 0, 3, 1], 4, parts
            )  # no padding: its results are undefined
            check_launched(drafter.draft_first, verified, buffers)
            check_launched(drafter.draft_next, verified, buffers, 2)
