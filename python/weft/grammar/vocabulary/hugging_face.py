"""Decodes the tokens of a Hugging Face fast tokenizer, or of a vocabulary with the same encodings, to bytes.

A byte-level vocabulary (GPT-2) writes each byte as one of 256 characters. A byte-fallback vocabulary (SentencePiece)
has pieces <0x00> to <0xFF>, and U+2581 for a space; a vocabulary that only has U+2581 is decoded in the same way. A raw
vocabulary has plain text. The encoding is detected from the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.tokenizer.byte_ranks import byte_characters
from weft.tokenizer.files import load_tokenizer

# Names of control tokens. Some tokenizers do not mark them as special.
CONTROL = re.compile(
    r"<\|.*\|>|<(s|/s|unk|pad|mask|bos|eos)>|\[(PAD|UNK|CLS|SEP|MASK|/?INST)\]|<SPECIAL_\d+>"
)


@dataclass(frozen=True)
class HuggingFaceVocabulary:
    """A vocabulary read from a tokenizer and the config files beside it. `vocab_size` is the model's; None if no file
    has it. `markers` are the special tokens that mark parts of an answer."""

    tokens: list[bytes]
    special_ids: frozenset[int]
    special_names: dict[str, int]
    end_ids: tuple[int, ...]
    vocab_size: int | None
    markers: dict[str, int]


def read_huggingface(tokenizer: Any, model_path: Path | None) -> HuggingFaceVocabulary:
    """Read a tokenizer object, or the tokenizer of a directory. `model_path` has the config files (None: that
    directory, if any). Raises `TokenizerError`."""
    end_ids: list[int] = []
    if isinstance(tokenizer, str | Path):
        model_path = model_path or Path(tokenizer)
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(tokenizer, Tokenizer):
        backend: Any = tokenizer
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
    specials = special_ids(vocabulary.items(), added)
    specials |= {i for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}

    decode = _decoder([text for text, i in vocabulary.items() if i not in added])
    tokens = [b""] * (max(vocabulary.values()) + 1)
    for text, i in vocabulary.items():
        # Decoders replace U+2581 in added tokens, too, such as the runs of spaces of Gemma's vocabulary.
        in_text = i not in added or (not added[i].special and text.startswith(SPACE))
        tokens[i] = decode(text) if in_text else text.encode()
    config_ends, vocab_size = _read_configs(model_path, vocabulary)
    ends = tuple(dict.fromkeys(config_ends + end_ids))
    control_ids = specials | set(ends)
    names = {text: i for text, i in vocabulary.items() if i in control_ids}
    marker_ids: frozenset[int] = getattr(tokenizer, "marker_ids", frozenset())
    markers = {text: i for text, i in names.items() if i in marker_ids and i not in ends}
    return HuggingFaceVocabulary(tokens, frozenset(specials), names, ends, vocab_size, markers)


def _read_configs(directory: Path | None, vocabulary: dict[str, int]) -> tuple[list[int], int | None]:
    """The end (EOS) ids and the vocabulary size from the config files of a model directory."""
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


def special_ids(texts: Iterable[tuple[str, int]], added: Mapping[int, AddedToken]) -> set[int]:
    """The ids of added tokens that are marked as special, and of all tokens that have a control token's name."""
    specials = {i for i, token in added.items() if token.special or CONTROL.fullmatch(token.content)}
    return specials | {i for text, i in texts if text[:1] in ("<", "[") and CONTROL.fullmatch(text)}


def _decoder(texts: list[str]) -> Callable[[str], bytes]:
    encoding = shown_by_texts(texts) or ("byte_fallback" if marks_spaces(texts) else None)
    if encoding is None:
        raise TokenizerError(
            "the tokenizer's vocabulary is neither byte-level nor of SentencePiece's kind; "
            "give the bytes of its tokens with Vocabulary.from_tokens"
        )
    return decoder_of(encoding)


Encoding = Literal["raw", "byte_fallback", "byte_level"]

SPACE = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
OF_DECODERS: dict[str, Encoding] = {"ByteLevel": "byte_level", "ByteFallback": "byte_fallback"}


def shown_by_texts(texts: Collection[str]) -> Encoding | None:
    """Detect the encoding from the tokens' texts; None if they leave it open."""
    if sum(text.startswith("<0x") and bool(BYTE_PIECE.fullmatch(text)) for text in texts) >= 128:
        return "byte_fallback"
    alphabet = frozenset(_byte_level_table())
    num_spelled = sum(alphabet.issuperset(text) for text in texts)
    num_single = sum(len(text) == 1 and text in alphabet for text in texts)
    return "byte_level" if num_single >= 128 and num_spelled >= 0.99 * len(texts) else None


def named_by_decoder(tokenizer: Mapping[str, Any]) -> Encoding | None:
    """The encoding that the decoder of a tokenizer.json stands for. In a sequence of decoders the first known one
    counts."""
    decoder = tokenizer.get("decoder")
    if not isinstance(decoder, dict):
        return None
    decoders = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    kinds = [entry.get("type") for entry in decoders or () if isinstance(entry, dict)]
    return next((OF_DECODERS[kind] for kind in kinds if kind in OF_DECODERS), None)


def marks_spaces(texts: Collection[str]) -> bool:
    """Whether some token begins with U+2581, SentencePiece's mark for a space."""
    return any(text.startswith(SPACE) for text in texts)


def decoder_of(encoding: Encoding) -> Callable[[str], bytes]:
    """The function that decodes a token's text to bytes."""
    if encoding == "raw":
        return str.encode
    if encoding == "byte_fallback":
        return _decode_sentencepiece
    table = _byte_level_table()
    alphabet, to_bytes = frozenset(table), str.maketrans(table)
    # A token with characters outside the alphabet was added by hand, so it is plain text.
    return lambda text: (
        text.translate(to_bytes).encode("latin-1") if alphabet.issuperset(text) else text.encode()
    )


def _byte_level_table() -> dict[str, str]:
    """Map each character of a byte-level vocabulary to its byte, as a Latin-1 character."""
    return {char: chr(byte) for byte, char in enumerate(byte_characters())}


def _decode_sentencepiece(text: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()
