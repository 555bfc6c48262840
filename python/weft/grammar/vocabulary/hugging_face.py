"""Reading the bytes of each token out of a Hugging Face fast tokenizer.

Its vocabulary spells tokens in one of three ways, and the vocabulary itself says which: a byte-level one
writes each byte as one of 256 characters, a byte-fallback one has pieces <0x00> to <0xFF> and U+2581 for a
space, and any other that marks spaces with U+2581 is read like that too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from weft.errors import TokenizerError
from weft.files import read_json

SPACE = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Names that only control tokens have; some tokenizers do not mark theirs as special.
CONTROL = re.compile(
    r"<\|.*\|>|<(s|/s|unk|pad|mask|bos|eos)>|\[(PAD|UNK|CLS|SEP|MASK|/?INST)\]|<SPECIAL_\d+>"
)


@dataclass(frozen=True)
class HuggingFaceVocabulary:
    """What a tokenizer and the files beside it say; `vocab_size` is the model's, if they say it."""

    tokens: list[bytes]
    special_ids: frozenset[int]
    special_names: dict[str, int]
    end_ids: tuple[int, ...]
    vocab_size: int | None


def read_huggingface(tokenizer: Any, model_path: Path | None) -> HuggingFaceVocabulary:
    """Tokens, special ids and end ids of a tokenizer object, or of a directory with a tokenizer.json."""
    end_ids: list[int] = []
    if isinstance(tokenizer, str | Path):
        model_path = model_path or Path(tokenizer)
        backend: Any = _load(Path(tokenizer))
    elif isinstance(tokenizer, Tokenizer):
        backend = tokenizer
    else:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise TokenizerError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; use Vocabulary.from_tokens, "
                "from_tiktoken or from_sentencepiece"
            )
        if tokenizer.eos_token_id is not None:
            end_ids.append(tokenizer.eos_token_id)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    specials = {i for i, token in added.items() if token.special or CONTROL.fullmatch(token.content)}
    specials |= {i for text, i in vocabulary.items() if text[:1] in ("<", "[") and CONTROL.fullmatch(text)}
    specials |= {i for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}

    decode = _decoder_of([text for text, i in vocabulary.items() if i not in added])
    tokens = [b""] * (max(vocabulary.values()) + 1)
    for text, i in vocabulary.items():
        tokens[i] = added[i].content.encode() if i in added else decode(text)
    config_ends, vocab_size = _read_configs(model_path, vocabulary)
    ends = tuple(dict.fromkeys(config_ends + end_ids))
    named = specials | set(ends)
    names = {text: i for text, i in vocabulary.items() if i in named}
    return HuggingFaceVocabulary(tokens, frozenset(specials), names, ends, vocab_size)


def _load(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{path}: no such file; weft reads fast tokenizers (tokenizer.json)")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise TokenizerError(f"{path}: can't be read as a tokenizer: {error}") from error


def _read_configs(directory: Path | None, vocabulary: dict[str, int]) -> tuple[list[int], int | None]:
    """End ids and vocabulary size that the files of a model directory give."""
    ends: list[int] = []
    vocab_size = None
    if directory is None:
        return ends, vocab_size
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        path = directory / name
        if not path.is_file():
            continue
        config = read_json(path)
        value = config.get("eos_token_id")
        ends += value if isinstance(value, list) else [value] if isinstance(value, int) else []
        token = config.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if name == "tokenizer_config.json" and text in vocabulary:
            ends.append(vocabulary[text])
        vocab_size = config.get("vocab_size", vocab_size)
    return ends, vocab_size


def _byte_level_table() -> dict[str, str]:
    """Which byte, as a Latin-1 character, each character of a byte-level vocabulary stands for: printable
    ones for themselves, the others shifted.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): chr(byte) for byte in kept} | {
        chr(256 + i): chr(byte) for i, byte in enumerate(shifted)
    }


def _decoder_of(texts: list[str]) -> Callable[[str], bytes]:
    if sum(text.startswith("<0x") and bool(BYTE_PIECE.fullmatch(text)) for text in texts) >= 128:
        return _decode_sentencepiece
    table = _byte_level_table()
    alphabet = frozenset(table)
    spelled = sum(alphabet.issuperset(text) for text in texts)
    singles = sum(len(text) == 1 and text in alphabet for text in texts)
    if singles >= 128 and spelled >= 0.99 * len(texts):
        to_bytes = str.maketrans(table)
        # A token outside the alphabet was added by hand and stands for its own text.
        return lambda text: (
            text.translate(to_bytes).encode("latin-1") if alphabet.issuperset(text) else text.encode()
        )
    if any(text.startswith(SPACE) for text in texts):
        return _decode_sentencepiece
    raise TokenizerError(
        "the tokenizer's vocabulary is neither byte-level nor of SentencePiece's kind; "
        "give the bytes of its tokens with Vocabulary.from_tokens"
    )


def _decode_sentencepiece(text: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()
