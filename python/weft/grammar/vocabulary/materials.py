"""A vocabulary in the form in which other programs hand it on: the texts of its tokens by id, and the tokenizer's own
JSON.

XGrammar's `TokenizerInfo` and LLGuidance's tokenizers are made of these, and programs for TensorRT-LLM keep them in a
file. The spelling of bytes is found as XGrammar finds it: by the texts where they show it beyond doubt, else by the
tokenizer's decoder. Without a tokenizer the texts are raw.
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
    """The materials of a `Vocabulary` where there is no tokenizer object.

    `encoded_vocab[i]` is the text of token i as the tokenizer spells it, "" for an unused id; bytes are taken as they
    are. `tokenizer_str` is the tokenizer's own JSON (the contents of tokenizer.json). One of the two may be None: the
    texts are then those of the JSON, or raw. `stop_token_ids` end a text (None: the ids that end the model's texts).
    Raises `InputError` for other values.
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
        """The materials of a Hugging Face fast tokenizer: transformers', weft's, a `tokenizers.Tokenizer`, or a model
        directory. They make the same vocabulary as `Vocabulary.from_huggingface`.

        The end ids are `end_ids`, or else those in the files of `model_path` (or of the directory) and of the
        tokenizer; None where there are none. Tokens that are special by name only are marked as special in the JSON.
        Raises `TokenizerError` for any other tokenizer.
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
        """The three fields by name, for JSON: `VocabularyMaterials(**json.loads(json.dumps(...)))` restores them.
        Raises `InputError` where texts are bytes, which JSON can't hold."""
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
        """The vocabulary of a model with `vocab_size` tokens (None: the number of texts), which may exceed the number
        of texts. `end_ids` are used where there are no `stop_token_ids`.

        Special tokens, which no guide allows, are those marked in the JSON, and those with names that only special
        tokens have. Raises `TokenizerError` for JSON that is not a tokenizer, for texts that are not listed by id or
        not of this model, and where no end id is known.
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
    """Raise `TokenizerError` where a text has another id than in the tokenizer. A list without the unused ids is
    shifted in this way, and masks made from it would allow other tokens."""
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
