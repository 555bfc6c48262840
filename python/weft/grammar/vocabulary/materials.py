"""A vocabulary in the form that other programs exchange: the tokens' texts by id, and the contents of tokenizer.json.

XGrammar's `TokenizerInfo` and LLGuidance's tokenizers are built from these, and TensorRT-LLM programs store them in a
file. The encoding of bytes is detected as in XGrammar: from the texts if they are clear, else from the tokenizer's
decoder. Without a tokenizer the texts are taken as raw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from weft.errors import InputError, TokenizerError
from weft.grammar.vocabulary.hugging_face import (
    Encoding,
    decoder_of,
    marks_spaces,
    named_by_decoder,
    read_huggingface,
    shown_by_texts,
    special_ids,
)
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.files import load_tokenizer


@dataclass(frozen=True)
class VocabularyMaterials:
    """The data to build a `Vocabulary` from without a tokenizer object.

    `encoded_vocab[i]` is the encoded text of token i, "" for an unused id. A bytes entry is taken as it is.
    `tokenizer_str` has the contents of tokenizer.json. One of the two may be None: the texts are then taken from the
    JSON, or are raw. `stop_token_ids` are the end tokens (None: the model's own). Raises `InputError` for other
    values.
    """

    encoded_vocab: Sequence[str | bytes] | None = None
    tokenizer_str: str | None = None
    stop_token_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        vocab, text, stops = self.encoded_vocab, self.tokenizer_str, self.stop_token_ids
        if vocab is not None and not _are(vocab, str | bytes):
            raise InputError("encoded_vocab must be a list of the tokens' texts, by id")
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"tokenizer_str is a {type(text).__name__}; it must be a text, the tokenizer's JSON"
            )
        if stops is not None and not (
            stops and _are(stops, int) and not any(isinstance(i, bool) for i in stops)
        ):
            raise InputError(
                f"stop_token_ids is {stops!r}; it must be a list of token ids, at least one, or None"
            )
        if not vocab and text is None:
            raise InputError("encoded_vocab and tokenizer_str are both missing; give at least one of them")

    @classmethod
    def of(
        cls, tokenizer: Any, *, model_path: str | Path | None = None, end_ids: Iterable[int] | None = None
    ) -> VocabularyMaterials:
        """From a Hugging Face fast tokenizer: transformers', weft's, a `tokenizers.Tokenizer`, or a model directory.
        With the same `vocab_size`, `vocabulary` then returns that of `Vocabulary.from_huggingface`, without `markers`.

        The end ids are `end_ids`. By default they come from the tokenizer and the files of `model_path` (or of the
        directory); None if there are none. Tokens that are special only by their name are marked as special in the
        JSON. Raises `TokenizerError` for any other tokenizer.
        """
        if isinstance(tokenizer, str | Path):
            model_path = model_path or tokenizer
            tokenizer = load_tokenizer(tokenizer)
        read = read_huggingface(tokenizer, None if model_path is None else Path(model_path))
        backend: Tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        texts = [""] * len(read.tokens)
        for text, i in backend.get_vocab(with_added_tokens=True).items():
            texts[i] = text
        ends = list(read.end_ids if end_ids is None else dict.fromkeys(end_ids))
        return cls(texts, _marked(backend, read.special_ids), ends or None)

    def to_dict(self) -> dict[str, Any]:
        """The three fields as a dict for JSON: `VocabularyMaterials(**json.loads(json.dumps(...)))` restores them.
        Raises `InputError` if `encoded_vocab` has bytes, which JSON can't hold."""
        vocab = self.encoded_vocab
        if vocab is not None and not _are(vocab, str):
            raise InputError("encoded_vocab holds bytes, which JSON can't; use Vocabulary.dump")
        return {
            "encoded_vocab": None if vocab is None else list(vocab),
            "tokenizer_str": self.tokenizer_str,
            "stop_token_ids": None if self.stop_token_ids is None else list(self.stop_token_ids),
        }

    def vocabulary(
        self, vocab_size: int | None = None, *, end_ids: Iterable[int] | None = None
    ) -> Vocabulary:
        """The vocabulary of a model with `vocab_size` tokens (None: the number of texts). A padded model has more
        tokens than texts. `end_ids` is used if `stop_token_ids` is None.

        Special tokens are those marked in the JSON, and those with a control token's name. Raises `TokenizerError` if
        the JSON is not a tokenizer, if texts are not listed by id or not from this model, if encoded texts come
        without the JSON, or if no end id is known.
        """
        backend = None if self.tokenizer_str is None else _tokenizer(self.tokenizer_str)
        added = {} if backend is None else backend.get_added_tokens_decoder()
        numbers = {} if backend is None else backend.get_vocab(with_added_tokens=True)
        texts = _texts(numbers) if self.encoded_vocab is None else list(self.encoded_vocab)
        _check_numbers(texts, numbers)
        spelled = [text for i, text in enumerate(texts) if isinstance(text, str) and text and i not in added]
        decode = decoder_of(self._encoding(spelled))
        tokens = [
            text if isinstance(text, bytes) else text.encode() if i in added else decode(text)
            for i, text in enumerate(texts)
        ]
        named = [(text, i) for i, text in enumerate(texts) if isinstance(text, str)]
        return Vocabulary.from_tokens(
            tokens,
            end_ids=self._ends(end_ids, len(tokens) if vocab_size is None else vocab_size),
            special_ids=special_ids(named, {i: token for i, token in added.items() if i < len(tokens)}),
            special_names=dict(named),
            vocab_size=vocab_size,
        )

    def _encoding(self, texts: list[str]) -> Encoding:
        shown = shown_by_texts(texts)
        if self.tokenizer_str is None:
            if shown is not None:
                raise TokenizerError(
                    f"encoded_vocab spells its tokens as {shown.replace('_', '-')} tokenizers do, but without a "
                    "tokenizer_str its texts would be taken as they are; give the tokenizer's JSON as tokenizer_str"
                )
            return "raw"
        if shown is not None:
            return shown
        of_decoder = named_by_decoder(json.loads(self.tokenizer_str))
        return of_decoder or ("byte_fallback" if marks_spaces(texts) else "raw")

    def _ends(self, default: Iterable[int] | None, size: int) -> tuple[int, ...]:
        if self.stop_token_ids is None:
            if default is None:
                raise TokenizerError(
                    "stop_token_ids is None, and nothing else says what ends a text; give it"
                )
            return tuple(default)
        bad = next((i for i in self.stop_token_ids if not 0 <= i < size), None)
        if bad is not None:
            raise TokenizerError(f"stop_token_ids holds {bad}; the model's ids are 0 to {size - 1}")
        return tuple(self.stop_token_ids)


def _are(values: Any, kind: Any) -> bool:
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray)
    return is_list and all(isinstance(value, kind) for value in values)


def _tokenizer(text: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises no more precise type
        raise TokenizerError(
            f"tokenizer_str is not a tokenizer's JSON, as tokenizer.json holds it: {error}"
        ) from None


def _texts(numbers: Mapping[str, int]) -> list[str | bytes]:
    texts: list[str | bytes] = [""] * (max(numbers.values(), default=-1) + 1)
    for text, i in numbers.items():
        texts[i] = text
    return texts


def _check_numbers(texts: Sequence[str | bytes], numbers: Mapping[str, int]) -> None:
    """Raise `TokenizerError` if a text has another id than in the tokenizer. A list that skips unused ids is shifted
    like this, and its masks would allow the wrong tokens."""
    for i, text in enumerate(texts):
        number = numbers.get(text, i) if isinstance(text, str) else i
        if number != i:
            raise TokenizerError(
                f"encoded_vocab has {text!r} at {i}, but it is token {number} of tokenizer_str; list the texts by id, "
                'with "" for an id that no token has'
            )


def _marked(backend: Tokenizer, specials: Iterable[int]) -> str:
    """The tokenizer's JSON, with these tokens marked as special."""
    added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    unmarked = {i for i in specials if i in added and not added[i].special}
    text: str = backend.to_str()
    if not unmarked:
        return text
    data = json.loads(text)
    for token in data["added_tokens"]:
        token["special"] = token["special"] or token["id"] in unmarked
    return json.dumps(data, ensure_ascii=False)
