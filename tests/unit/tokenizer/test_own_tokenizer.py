"""Tokenizers without transformers: the same ids, texts and special tokens as transformers has of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from weft import load_tokenizer, package_model_path
from weft.errors import TokenizerError
from weft.grammar.vocabulary.tokenizer import Vocabulary

TEXTS = (
    "",
    "Hello world",
    "  two  spaces\n\nand lines\t",
    "naïve ☃ 日本語 👩‍👩‍👧 it's 12345",
    "<s>special</s> <tool> <|end|>text<|extra|> <mask>",
    "a" * 300,
)
CORPUS = ["the cat sat on the mat", "Hello world, it's 12345", "naïve ☃ 日本語", "  two  spaces\n"] * 20


def byte_level() -> Tokenizer:
    """As GPT-2's children have it, with what cuts and fills taken along."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    made.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    made.add_tokens([AddedToken("<tool>", special=False, lstrip=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.enable_truncation(7)
    made.enable_padding(length=20)
    return made


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral have it."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    pieces = ["▁", "▁the", "H", "e", "l", "o", "▁H", "el", "lo", "é", "日"]
    vocab |= {piece: len(vocab) + i for i, piece in enumerate(pieces)}
    merges = [("▁", "H"), ("e", "l"), ("l", "o")]
    made = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def save_with_numbers(directory: Path) -> None:
    PreTrainedTokenizerFast(
        tokenizer_object=byte_level(),
        bos_token="<s>",
        eos_token=AddedToken("</s>", special=True, rstrip=True),
        pad_token="<pad>",
        extra_special_tokens=["<|extra|>"],
    ).save_pretrained(directory)


def save_without_numbers(directory: Path) -> None:
    """tokenizer_config.json names tokens that tokenizer.json has not, with special_tokens_map.json beside it."""
    byte_level().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "image_token": "<|image|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    older = {
        "eos_token": {
            "content": "<|end|>",
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
            "normalized": False,
        }
    }
    (directory / "special_tokens_map.json").write_text(json.dumps(older))


def save_numbered(directory: Path) -> None:
    """Tokens that only tokenizer_config.json numbers, as old converters wrote them; and settings that change texts."""
    byte_fallback().save(str(directory / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    size = byte_fallback().get_vocab_size()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            "2": {"content": "</s>", "special": True, **flags},
            str(size + 1): {"content": "<tool>", "special": False, **flags},
            str(size): {"content": "<|end|>", "special": True, **flags},
        },
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def save_with_ends(directory: Path) -> None:
    """Settings that ask for tokens around texts; the rule of tokenizer.json holds."""
    byte_level().save(str(directory / "tokenizer.json"))
    ends = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": False, **ends}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def save_with_begin(directory: Path) -> None:
    byte_fallback().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def save_split(directory: Path) -> None:
    """Texts never have special tokens."""
    byte_level().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def save_bare(directory: Path) -> None:
    byte_level().save(str(directory / "tokenizer.json"))


SAVED = {
    "numbered": save_with_numbers,
    "older": save_without_numbers,
    "llama": save_numbered,
    "ends": save_with_ends,
    "begin": save_with_begin,
    "split": save_split,
    "bare": save_bare,
}


@pytest.fixture(params=["weft-tiny", *SAVED])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "weft-tiny":
        return package_model_path()
    SAVED[request.param](tmp_path)
    return tmp_path


@pytest.fixture
def theirs(directory: Path) -> Any:
    if (directory / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(directory)
    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.mark.parametrize("special", [False, True])
def test_texts_have_the_same_ids_and_ids_the_same_text(directory: Path, theirs: Any, special: bool) -> None:
    ours = load_tokenizer(directory)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=special)
        assert ids == theirs.encode(text, add_special_tokens=special), text
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert [ours.decode(i) for i in range(len(ours))] == [theirs.decode(i) for i in range(len(theirs))]


def test_special_tokens_are_the_same(directory: Path, theirs: Any) -> None:
    ours = load_tokenizer(directory)
    assert len(ours) == len(theirs)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.all_special_ids == theirs.all_special_ids
    for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"):
        for attribute in (f"{name}_token", f"{name}_token_id"):
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    with pytest.raises(AttributeError, match="backend_tokenizer"):
        _ = ours.vocab_files


def test_vocabularies_read_of_both_are_the_same(directory: Path, theirs: Any) -> None:
    def read(tokenizer: Any) -> Vocabulary:
        return Vocabulary.from_huggingface(tokenizer, end_ids=[0])

    assert read(load_tokenizer(directory)).fingerprint == read(theirs).fingerprint
    assert read(load_tokenizer(directory)).special_names == read(theirs).special_names


def test_packages_that_sentencepiece_needs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_sentencepiece(tmp_path)
    monkeypatch.setattr("weft.tokenizer.sentence_pieces.find_spec", lambda _: None)
    with pytest.raises(TokenizerError, match=r"SentencePiece.*pip install sentencepiece protobuf"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_a_vocabulary_with_merges_is_converted_by_transformers(kind: str, tmp_path: Path) -> None:
    byte_level().model.save(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert ours.eos_token_id == theirs.eos_token_id is not None


def save_sentencepiece(directory: Path) -> None:
    import sentencepiece

    with (directory / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=file, vocab_size=330, byte_fallback=True,
            model_type="bpe", hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))


def test_a_directory_without_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="can't be read as a tokenizer"):
        load_tokenizer(tmp_path)
    save_bare(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: can't be read as JSON"):
        load_tokenizer(tmp_path)
