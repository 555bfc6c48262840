"""Reading the bytes of each token out of a Hugging Face fast tokenizer.

Its vocabulary spells tokens in one of the ways of `encodings.py`, and the vocabulary itself says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.grammar.vocabulary.encodings import decoder_of, marks_spaces, shown_by_texts

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
    specials = special_ids(vocabulary.items(), added)
    specials |= {i for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}

    decode = _decoder([text for text, i in vocabulary.items() if i not in added])
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


def special_ids(texts: Iterable[tuple[str, int]], added: Mapping[int, AddedToken]) -> set[int]:
    """The ids of tokens that are marked as special among the added ones, or have names that only such have."""
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
