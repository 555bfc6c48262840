"""Tokenizers of GGUF files, against the libraries that they come from: tiktoken and SentencePiece."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import regex
import sentencepiece
import tiktoken
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from support.gguf_files import add_sizes, add_tensor, finish, tensors
from support.texts import CORPUS, texts
from weft import load_tokenizer
from weft.config import model_directory
from weft.errors import TokenizerError
from weft.grammar import Vocabulary
from weft.models.gguf.header import read_header
from weft.models.gguf.metadata import Metadata
from weft.models.gguf.splitting import SPLITTING
from weft.models.gguf.tokenizer import names_no_splitting, tokenizer_json
from weft.tokenizer.byte_ranks import byte_characters

SPECIAL = {"<s>": 0, "</s>": 1}
NORMAL, CONTROL, UNUSED = 1, 3, 5


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(file: Path, size: int, add: Callable[[Any], None]) -> Path:
    """A file of a tiny Llama with the tokenizer that `add` gives to the writer."""
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    writer = gguf.GGUFWriter(file, "llama")
    add_sizes(writer, config)
    add(writer)
    for name, rows in tensors(transformers.LlamaForCausalLM(config).state_dict(), config, "llama"):
        add_tensor(writer, name, rows, "F16")
    return finish(writer, file)


# -- byte-level BPE


@cache
def ranks() -> dict[bytes, int]:
    """A vocabulary of bytes, and of tokens that a trainer found in the corpus."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s?\S+|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([*CORPUS, *texts(40)], trainer)
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    ordered = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return {bytes(byte_of[each] for each in text): i for i, (text, _) in enumerate(ordered)}


def add_ranks(writer: Any, found: dict[bytes, int], pre: str | None, begins: bool | None = None) -> None:
    alphabet = byte_characters()
    names = {token: "".join(alphabet[byte] for byte in token) for token in found}
    merges = [
        f"{names[token[:i]]} {names[token[i:]]}"
        for token in found
        for i in range(1, len(token))
        if token[:i] in found and token[i:] in found
    ]
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*SPECIAL, *names.values(), "[PAD0]"])
    writer.add_token_types([CONTROL] * len(SPECIAL) + [NORMAL] * len(names) + [UNUSED])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if begins is not None:
        writer.add_add_bos_token(begins)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""The pattern of o200k_base in tiktoken, whose code downloads its vocabulary."""
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
LLAMA3 = TikTokenConverter(vocab_file="").pattern
PATTERNS = {
    "gpt-2": GPT2,
    "llama-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": PRETOKENIZE_REGEX,
    "deepseek-r1-qwen": PRETOKENIZE_REGEX,
    "gpt-4o": O200K,
    "tekken": TEKKEN,
}


@pytest.mark.parametrize("pre", SPLITTING)
def test_byte_level_tokenizers_encode_as_tiktoken(pre: str, tmp_path: Path) -> None:
    found = ranks()
    file = write(tmp_path / "model.gguf", len(found) + 3, lambda writer: add_ranks(writer, found, pre))
    tokenizer = load_tokenizer(model_directory(file))
    same = next((name for name in PATTERNS if SPLITTING[name] == SPLITTING[pre]), None)
    ids = {token: rank + len(SPECIAL) for token, rank in found.items()}
    pattern = r"[\s\S]+" if pre == "default" else PATTERNS[same] if same else GPT2
    encoding = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ids, special_tokens=SPECIAL)
    for text in texts():
        normal = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        # Without a pattern of its own, each digit is apart, and what is between is split as by GPT-2.
        parts = default_parts(normal) if pre == "default" else [normal] if same else apart(normal)
        expected = [token for part in parts for token in encoding.encode_ordinary(part)]
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokens == expected, text
        assert tokenizer.decode(tokens) == normal
    begins = pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
    assert tokenizer.encode("x")[:-1] == [0] * begins
    assert tokenizer.encode("</s>", add_special_tokens=False) == [1]
    vocabulary = Vocabulary.from_huggingface(tokenizer)
    assert [vocabulary.tokens[i] for i in ids.values()] == [*ids]


def default_parts(text: str) -> list[str]:
    """The parts of a text by llama.cpp's default rules: each splits the parts of those before it."""
    parts = [text]
    for rule in (r"[\p{P}$+<=>^~|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9]{3}"):
        parts = [part for whole in parts for part in regex.split(f"({rule})", whole) if part]
    return parts


def apart(text: str) -> list[str]:
    """The parts of a text between digits, and the digits."""
    parts, last = [""], False
    for character in text:
        is_digit = unicodedata.category(character).startswith("N")
        if is_digit or last:
            parts.append("")
        parts[-1] += character
        last = is_digit
    return [part for part in parts if part]


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_a_file_says_whether_texts_begin_with_a_token(pre: str, begins: bool, tmp_path: Path) -> None:
    found = ranks()
    file = write(
        tmp_path / "model.gguf", len(found) + 3, lambda writer: add_ranks(writer, found, pre, begins)
    )
    assert load_tokenizer(model_directory(file)).encode("x")[:-1] == [0] * begins


def test_unknown_tokenizers_are_refused_unless_one_is_beside(tmp_path: Path) -> None:
    found = ranks()
    file = write(tmp_path / "model.gguf", len(found) + 3, lambda writer: add_ranks(writer, found, "viking"))
    with pytest.raises(TokenizerError, match=r"'viking'; weft reads .*tokenizer.json .* beside the file"):
        model_directory(file)
    known = write(tmp_path / "known.gguf", len(found) + 3, lambda writer: add_ranks(writer, found, "gpt-2"))
    made = model_directory(known)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    beside = load_tokenizer(model_directory(file))
    assert beside.encode("Hello world") == load_tokenizer(made).encode("Hello world")
    (tmp_path / "tokenizer.json").write_text("nonsense")
    with pytest.raises(TokenizerError, match="can't be read as a tokenizer"):
        model_directory(file)


def test_a_file_that_names_no_splitting_has_the_default_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = ranks()

    def named(pre: str | None) -> Path:
        return write(tmp_path / f"{pre}.gguf", len(found) + 3, lambda writer: add_ranks(writer, found, pre))

    made = {name: model_directory(named(name)) for name in ("default", "gpt-2")}
    assert not caplog.records
    older = named(None)
    tokenizer = (model_directory(older) / "tokenizer.json").read_bytes()
    assert tokenizer == (made["default"] / "tokenizer.json").read_bytes()
    assert "None.gguf: has no 'tokenizer.ggml.pre', so text is split by llama.cpp's default" in caplog.text
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((made["gpt-2"] / name).read_bytes())
    caplog.clear()
    tokenizer = (model_directory(older) / "tokenizer.json").read_bytes()
    assert tokenizer == (made["gpt-2"] / "tokenizer.json").read_bytes() and not caplog.records


def test_gpt_2_itself_names_no_splitting(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gpt2")
    add_ranks(writer, ranks(), None)
    fields = Metadata(read_header(finish(writer, tmp_path / "model.gguf")))
    assert tokenizer_json(fields)["pre_tokenizer"] == SPLITTING["gpt-2"].pre_tokenizer
    assert not names_no_splitting(fields)


# -- SentencePiece


def add_pieces(
    writer: Any, model: sentencepiece.SentencePieceProcessor, size: int, has_prefix: bool = True
) -> None:
    """Add the pieces as llama.cpp's converter does."""
    pieces = [(f"[PAD{i}]", -10000.0, UNUSED) for i in range(size)]
    for i in range(model.get_piece_size()):
        kind = NORMAL
        if model.is_unknown(i):
            kind = 2
        elif model.is_control(i):
            kind = CONTROL
        elif model.is_byte(i):
            kind = 6
        pieces[i] = model.id_to_piece(i), model.get_score(i), kind
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    if not has_prefix:
        writer.add_add_space_prefix(False)


def trained(file: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=stream,
            model_type="bpe",
            vocab_size=420,
            hard_vocab_limit=False,
            minloglevel=2,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            **options,
        )
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_encodes_as_sentencepiece(has_prefix: bool, tmp_path: Path) -> None:
    original = trained(tmp_path / "pieces.model", add_dummy_prefix=has_prefix)
    size = original.get_piece_size() + 5

    file = write(tmp_path / "model.gguf", size, lambda writer: add_pieces(writer, original, size, has_prefix))
    tokenizer = load_tokenizer(model_directory(file))
    for text in texts():
        tokens = original.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == tokens, text
        assert tokenizer.decode(tokens) == original.decode(tokens)
    assert tokenizer.encode("x") == [original.bos_id(), *original.encode("x")]
    assert tokenizer.encode("</s>", add_special_tokens=False) == [original.eos_id()]
    expected = Vocabulary.from_sentencepiece(original).tokens
    assert Vocabulary.from_huggingface(tokenizer).tokens[: len(expected)] == expected


def test_added_pieces_keep_their_spaces(tmp_path: Path) -> None:
    """Gemma has tokens for runs of spaces, and for texts such as "<tool>". The file has their spaces as in texts."""
    words = ["▁▁", "▁▁▁", "\n", "<tool>"]
    original = trained(tmp_path / "pieces.model", add_dummy_prefix=False, user_defined_symbols=words)
    size = original.get_piece_size()

    def add(writer: Any) -> None:
        add_pieces(writer, original, size, has_prefix=False)
        numbers = {original.piece_to_id(word) for word in words}
        for key, value in (("tokens", None), ("token_type", 4)):
            listed = writer.kv_data[0][f"tokenizer.ggml.{key}"].value
            for i in numbers:
                listed[i] = original.id_to_piece(i).replace("▁", " ") if value is None else value

    tokenizer = load_tokenizer(model_directory(write(tmp_path / "model.gguf", size, add)))
    for text in [*texts(), "a  b   c\n<tool>x", "x\n\n   y"]:
        assert tokenizer.encode(text, add_special_tokens=False) == original.encode(text), text
        assert tokenizer.decode(original.encode(text)) == original.decode(original.encode(text))


def test_pieces_without_scores_are_refused(tmp_path: Path) -> None:
    original = trained(tmp_path / "pieces.model")

    def add(writer: Any) -> None:
        add_pieces(writer, original, original.get_piece_size())
        scores = writer.kv_data[0]["tokenizer.ggml.scores"].value
        scores[:] = [-1000.0] * len(scores)

    file = write(tmp_path / "model.gguf", original.get_piece_size(), add)
    with pytest.raises(TokenizerError, match="have no scores"):
        model_directory(file)
