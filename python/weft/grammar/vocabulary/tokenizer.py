"""`Vocabulary`: the bytes of each token, and the end (EOS) tokens.

Special and end tokens have the bytes b"" here, so no grammar allows one inside a text. The padding ids of a model whose
vocabulary is larger than the tokenizer's are blocked in the same way.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from weft import _core
from weft.errors import TokenizerError
from weft.grammar.vocabulary.hugging_face import read_huggingface


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """Tokens as bytes. `tokens[i]` is b"" for a special, end or unused id. `len(tokens)` is the model's vocabulary
    size. `special_names` maps the known names of special and end tokens to their ids. `markers` are those of them that
    mark parts of an answer, such as its reasoning; they have bytes in `with_markers`."""

    tokens: tuple[bytes, ...]
    special_ids: frozenset[int]
    end_ids: tuple[int, ...]
    special_names: Mapping[str, int] = field(default_factory=dict)
    markers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_tokens(
        cls,
        tokens: Sequence[bytes],
        *,
        end_ids: Iterable[int],
        special_ids: Iterable[int] = (),
        special_names: Mapping[str, int] | None = None,
        vocab_size: int | None = None,
    ) -> Vocabulary:
        """From the bytes of each token. `vocab_size` is the model's (default: `len(tokens)`). Names of tokens that are
        neither special nor end tokens are dropped from `special_names`.

        Raises `TokenizerError` if there is no end id, if an id is out of range, or if a token that is not special does
        not fit into the model's vocabulary.
        """
        ends, specials = tuple(dict.fromkeys(end_ids)), frozenset(special_ids)
        size = len(tokens) if vocab_size is None else vocab_size
        if not ends:
            raise TokenizerError("the vocabulary has no end token; give end_ids (often the eos_token_id)")
        for name, ids in (("end_ids", ends), ("special_ids", specials)):
            bad = next((i for i in ids if not 0 <= i < len(tokens) and not 0 <= i < size), None)
            if bad is not None:
                raise TokenizerError(f"{name} holds {bad}; the vocabulary's ids are 0 to {size - 1}")
        beyond = next((i for i in range(size, len(tokens)) if i not in specials and tokens[i]), None)
        if beyond is not None or any(i >= size for i in ends):
            raise TokenizerError(
                f"the tokenizer has token {beyond if beyond is not None else max(ends)}, but the model's "
                f"vocabulary ends at {size - 1}; is this the model's tokenizer?"
            )
        blocked = specials | set(ends)
        kept = tuple(b"" if i in blocked else bytes(token) for i, token in enumerate(tokens[:size]))
        names = {name: i for name, i in (special_names or {}).items() if i in blocked and i < size}
        return cls(
            kept + (b"",) * (size - len(kept)), frozenset(i for i in specials if i < size), ends, names
        )

    @classmethod
    def from_huggingface(
        cls,
        tokenizer: Any,
        *,
        model_path: str | Path | None = None,
        vocab_size: int | None = None,
        end_ids: Iterable[int] | None = None,
    ) -> Vocabulary:
        """From a Hugging Face fast tokenizer: transformers', a `tokenizers.Tokenizer`, or the directory of any
        tokenizer that `load_tokenizer` reads.

        The end ids are `end_ids`. By default they come from the tokenizer, and from the config files of `model_path`
        or of the directory. `vocab_size` is the model's (default: that of config.json, or else the tokenizer's). Raises
        `TokenizerError`.
        """
        read = read_huggingface(tokenizer, None if model_path is None else Path(model_path))
        vocabulary = cls.from_tokens(
            read.tokens,
            end_ids=read.end_ids if end_ids is None else end_ids,
            special_ids=read.special_ids,
            special_names=read.special_names,
            vocab_size=read.vocab_size if vocab_size is None else vocab_size,
        )
        return vocabulary._marked(read.markers)

    @classmethod
    def from_tiktoken(
        cls, encoding: Any, *, vocab_size: int | None = None, end_ids: Iterable[int] | None = None
    ) -> Vocabulary:
        """From a `tiktoken.Encoding`. The end id is its `<|endoftext|>`, unless given."""
        names = {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}
        tokens = [b""] * encoding.n_vocab
        for i in range(encoding.n_vocab):
            try:
                tokens[i] = encoding.decode_single_token_bytes(i)
            except KeyError:
                continue  # tiktoken leaves gaps between the ids of special tokens
        if end_ids is None:
            end_ids = [encoding.eot_token] if "<|endoftext|>" in encoding.special_tokens_set else []
        return cls.from_tokens(
            tokens, end_ids=end_ids, special_ids=names.values(), special_names=names, vocab_size=vocab_size
        )

    @classmethod
    def from_sentencepiece(
        cls, processor: Any, *, vocab_size: int | None = None, end_ids: Iterable[int] | None = None
    ) -> Vocabulary:
        """From a `sentencepiece.SentencePieceProcessor` or the path of a model file."""
        if isinstance(processor, str | Path):
            from sentencepiece import SentencePieceProcessor

            processor = SentencePieceProcessor(model_file=str(processor))
        tokens: list[bytes] = []
        names: dict[str, int] = {}
        for i in range(processor.get_piece_size()):
            piece: str = processor.id_to_piece(i)
            if processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i):
                names[piece] = i
            if processor.is_byte(i):
                tokens.append(bytes([int(piece[3:5], 16)]))
            else:
                tokens.append(piece.replace("\u2581", " ").encode())
        if end_ids is None:
            end_ids = [processor.eos_id()] if processor.eos_id() >= 0 else []
        return cls.from_tokens(
            tokens, end_ids=end_ids, special_ids=names.values(), special_names=names, vocab_size=vocab_size
        )

    def __repr__(self) -> str:
        specials = len(self.special_ids)
        return f"Vocabulary({self.vocab_size} tokens, {specials} of them special, end_ids={self.end_ids})"

    @property
    def vocab_size(self) -> int:
        """The model's vocabulary size: the number of bits of a mask."""
        return len(self.tokens)

    def _marked(self, markers: Mapping[str, int]) -> Vocabulary:
        known = {name: i for name, i in markers.items() if i < self.vocab_size and i not in self.end_ids}
        return replace(self, markers=known) if known else self

    @cached_property
    def with_markers(self) -> Vocabulary:
        """The vocabulary in which `markers` have their names as bytes, and are no special tokens: that of an answer's
        text, of free text before a guide, and of structural tags. Elsewhere no guide allows a marker."""
        if not self.markers:
            return self
        tokens, ids = list(self.tokens), set(self.markers.values())
        for name, token in self.markers.items():
            tokens[token] = name.encode()
        names = {name: i for name, i in self.special_names.items() if i not in ids}
        return Vocabulary(tuple(tokens), self.special_ids - ids, self.end_ids, names)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens, the end ids and the markers."""
        digest = hashlib.sha256()
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        digest.update(repr(self.end_ids).encode())
        if self.markers:
            digest.update(repr(sorted(self.markers.items())).encode())
        return digest.hexdigest()

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of a sequence of tokens. Special tokens add none."""
        return b"".join(self.tokens[i] for i in ids)

    def dump(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file."""
        data = {
            "format": "weft-vocabulary-1",
            "tokens": [b64encode(token).decode() for token in self.tokens],
            "special_ids": sorted(self.special_ids),
            "special_names": dict(self.special_names),
            "end_ids": list(self.end_ids),
            "markers": dict(self.markers),
        }
        Path(path).write_text(json.dumps(data))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file that `dump` wrote. Raises `TokenizerError` for any other file."""
        try:
            data = json.loads(Path(path).read_text())
            if data["format"] != "weft-vocabulary-1":
                raise KeyError("format")
            return cls.from_tokens(
                [b64decode(token) for token in data["tokens"]],
                end_ids=data["end_ids"],
                special_ids=data["special_ids"],
                special_names=data.get("special_names"),
            )._marked(data.get("markers") or {})
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, TokenizerError):
                raise
            raise TokenizerError(
                f"{path}: not a vocabulary that Vocabulary.dump wrote ({error!r})"
            ) from error


@functools.lru_cache(maxsize=4)
def token_texts(vocabulary: Vocabulary) -> _core.TokenTexts:
    """The native tables that tokenize forced text, cached for the last few vocabularies."""
    return _core.TokenTexts(vocabulary.tokens)


atexit.register(token_texts.cache_clear)  # native objects must go before the interpreter drops their types
