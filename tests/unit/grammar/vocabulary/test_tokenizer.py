"""Vocabularies: each token's bytes, from every kind of tokenizer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from support.grammar.grammars import small_vocabulary
from support.grammar.tokenizers import byte_fallback, byte_level
from weft.config import package_model_path
from weft.errors import TokenizerError
from weft.grammar import Guide, Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.grammar.xgrammar.translate import tokenizer_info

TEXTS = [
    "plain words",
    ' {"key": [1, 2.5, null]}',
    "h\u00e9llo \u4f60\u597d \U0001f600",
    "tab\tand\nnewline",
    "  two  ",
]


def test_a_byte_level_tokenizer() -> None:
    tokenizer = byte_level()
    end = tokenizer.token_to_id("<|end|>")
    vocabulary = Vocabulary.from_huggingface(tokenizer, end_ids=[end])
    for text in TEXTS:
        assert vocabulary.decode(tokenizer.encode(text).ids) == text.encode()
    assert vocabulary.tokens[tokenizer.token_to_id("\u0120wo")] == b" wo"
    assert vocabulary.tokens[tokenizer.token_to_id("<tool>")] == b"<tool>"
    for special in ("<|end|>", "<start>", "<|unmarked|>"):
        assert vocabulary.tokens[tokenizer.token_to_id(special)] == b""
        assert tokenizer.token_to_id(special) in vocabulary.special_ids
        assert vocabulary.special_names[special] == tokenizer.token_to_id(special)
    assert "<tool>" not in vocabulary.special_names
    assert vocabulary.end_ids == (end,)


def test_a_byte_fallback_tokenizer() -> None:
    vocabulary = Vocabulary.from_huggingface(byte_fallback(), end_ids=[2])
    assert vocabulary.tokens[3 + 65] == b"A"
    assert vocabulary.tokens[259:263] == (b" ", b" the", b"a", b"  ")
    assert vocabulary.tokens[:3] == (b"", b"", b"")


def test_transformers_and_directories_say_the_end(tmp_path: Path) -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<|end|>")
    end = fast.convert_tokens_to_ids("<|end|>")
    assert Vocabulary.from_huggingface(fast).end_ids == (end,)
    fast.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, end]}))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 400, "eos_token_id": 5}))
    read = Vocabulary.from_huggingface(tmp_path)
    assert read.end_ids == (5, end)
    assert read.vocab_size == 400
    assert read.tokens[:5] == Vocabulary.from_huggingface(fast).tokens[:5]
    assert Vocabulary.from_huggingface(fast, model_path=tmp_path).fingerprint == read.fingerprint


def test_the_embedded_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(package_model_path())
    vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=package_model_path())
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert vocabulary.decode(ids) == text.encode()
    assert tokenizer.eos_token_id in vocabulary.end_ids
    assert all(vocabulary.tokens[i] == b"" for i in tokenizer.all_special_ids)


def test_tiktoken() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"he": 256, b"ll": 257}
    encoding = tiktoken.Encoding(
        "tiny",
        pat_str=r"\S+|\s+",
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 260, "<|other|>": 261},
    )
    vocabulary = Vocabulary.from_tiktoken(encoding)
    assert vocabulary.end_ids == (260,)
    assert vocabulary.special_ids == {260, 261}
    assert vocabulary.special_names == {"<|endoftext|>": 260, "<|other|>": 261}
    assert vocabulary.tokens[258:] == (b"", b"", b"", b"")
    for text in TEXTS:
        assert vocabulary.decode(encoding.encode(text)) == text.encode()


def test_sentencepiece(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a dog and a cat"] * 20),
        model_writer=model,
        vocab_size=300,
        byte_fallback=True,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocabulary = Vocabulary.from_sentencepiece(path)
    assert vocabulary.fingerprint == Vocabulary.from_sentencepiece(processor).fingerprint
    assert vocabulary.end_ids == (processor.eos_id(),)
    for text in ["the cat", "\u00e9 dog"]:
        assert vocabulary.decode(processor.encode(text)) == b" " + text.encode()
    assert vocabulary.tokens[processor.unk_id()] == b""
    assert vocabulary.special_names == {"<unk>": 0, "<s>": 1, "</s>": 2}


def test_dump_and_load(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    named = Vocabulary.from_tokens([b"", b"a"], end_ids=[0], special_names={"</s>": 0})
    named.dump(path)
    assert Vocabulary.load(path).special_names == {"</s>": 0}
    small_vocabulary().dump(path)
    loaded = Vocabulary.load(path)
    assert loaded.tokens == small_vocabulary().tokens
    assert loaded.special_ids == small_vocabulary().special_ids
    assert loaded.fingerprint == small_vocabulary().fingerprint
    for wrong in ("{}", "[]", "not json", '{"format": "other"}'):
        path.write_text(wrong)
        with pytest.raises(TokenizerError, match="not a vocabulary"):
            Vocabulary.load(path)


def test_fingerprints_tell_vocabularies_apart() -> None:
    one = Vocabulary.from_tokens([b"", b"ab", b"c"], end_ids=[0])
    assert one.fingerprint == Vocabulary.from_tokens([b"", b"ab", b"c"], end_ids=[0]).fingerprint
    assert one.fingerprint != Vocabulary.from_tokens([b"", b"a", b"bc"], end_ids=[0]).fingerprint
    assert one.fingerprint != Vocabulary.from_tokens([b"", b"ab", b"c", b""], end_ids=[0]).fingerprint


@pytest.mark.parametrize(
    ("tokens", "options", "text"),
    [
        ([b"a"], {"end_ids": []}, "no end token"),
        ([b"a"], {"end_ids": [4]}, "end_ids holds 4"),
        ([b"a", b"b"], {"end_ids": [0], "special_ids": [-1]}, "special_ids holds -1"),
        (
            [b"a", b"b", b"c"],
            {"end_ids": [0], "vocab_size": 2},
            "has token 2, but the model's vocabulary ends at 1",
        ),
        ([b"a", b"b", b"c"], {"end_ids": [2], "special_ids": [2], "vocab_size": 2}, "ends at 1"),
    ],
)
def test_what_is_no_vocabulary(tokens: list[bytes], options: dict[str, Any], text: str) -> None:
    with pytest.raises(TokenizerError, match=text):
        Vocabulary.from_tokens(tokens, **options)


def test_tokenizers_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Vocabulary.from_huggingface(tmp_path)
    with pytest.raises(TokenizerError, match="no such directory"):
        Vocabulary.from_huggingface("nowhere")
    with pytest.raises(TokenizerError, match="object is not a fast tokenizer"):
        Vocabulary.from_huggingface(object())
    words = Tokenizer(models.WordLevel(vocab={"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(TokenizerError, match="neither byte-level"):
        Vocabulary.from_huggingface(words, end_ids=[0])


def test_padding_beyond_the_tokenizer_is_blocked_and_specials_are_never_text() -> None:
    vocabulary = Vocabulary.from_tokens(
        [b"<s>", b"</s>"] + [bytes([byte]) for byte in range(1, 256)],
        end_ids=[1],
        special_ids=[0],
        vocab_size=320,
    )
    assert vocabulary.vocab_size == 320
    info = tokenizer_info(vocabulary)
    assert info.vocab_size == 320
    assert list(info.stop_token_ids) == [1]
    assert tokenizer_info(vocabulary) is info
    matcher = XGrammarBackend(vocabulary).compile(Guide.regex("[^x]*")).matcher()
    assert matcher.validate([2 + ord("<") - 1, 2 + ord("s") - 1]) == 2
    for token in (0, 257, 319):
        assert not matcher.accept(token)
    assert matcher.accept(1)
