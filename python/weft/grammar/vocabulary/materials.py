"""A vocabulary as other programs hand it on: the texts of its tokens by id, and the tokenizer's own JSON.

These are the materials that XGrammar's `TokenizerInfo` and LLGuidance's tokenizers are made of, and what programs for
TensorRT-LLM keep in a file. How the texts spell bytes is told as XGrammar tells it: by the texts themselves where they
leave no doubt, else by the tokenizer's decoder; without a tokenizer they are raw.
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
    """What a `Vocabulary` is made of where there is no tokenizer object.

    `encoded_vocab[i]` is the text of token i as the tokenizer spells it, "" for an id that no token has; bytes are
    taken as they are. `tokenizer_str` is the tokenizer's own JSON (the contents of tokenizer.json). One of the two may
    be None: the texts are then those of the JSON, or raw ones. `stop_token_ids` end a text (None: whatever ends the
    model's). Raises `InputError` for values that are none of these.
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
        """Those of a Hugging Face fast tokenizer: transformers', weft's, a `tokenizers.Tokenizer`, or a model
        directory. They make the vocabulary that `Vocabulary.from_huggingface` makes of it.

        The end ids are `end_ids`, or else what the files of `model_path` (or of the directory) and the tokenizer say;
        None where nobody says it. Tokens that the tokenizer names as special, but does not mark so, are marked in the
        JSON. Raises `TokenizerError` for a tokenizer that is none of these.
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
        """The three by name, for JSON: `VocabularyMaterials(**json.loads(json.dumps(...)))` are the same. Raises
        `InputError` where texts are bytes, which JSON has not."""
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
        """The vocabulary of a model with `vocab_size` tokens (None: as many as there are texts), which may be more than
        there are texts. `end_ids` stand in where there are no `stop_token_ids`.

        Special tokens, which no guide allows, are those that the JSON marks as special, and those with names that only
        such have. Raises `TokenizerError` for JSON that is no tokenizer, for texts that are not by id or not of this
        model, and where nobody says what ends a text.
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

    def _ends(self, otherwise: Iterable[int] | None, size: int) -> tuple[int, ...]:
        if self.stop_token_ids is None:
            if otherwise is None:
                raise TokenizerError(
                    "stop_token_ids is None, and nothing else says what ends a text; give it"
                )
            return tuple(otherwise)
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
    except Exception as error:  # tokenizers raises nothing more precise
        raise TokenizerError(
            f"tokenizer_str is not a tokenizer's JSON, as tokenizer.json holds it: {error}"
        ) from None


def _texts(numbers: Mapping[str, int]) -> list[str | bytes]:
    texts: list[str | bytes] = [""] * (max(numbers.values(), default=-1) + 1)
    for text, i in numbers.items():
        texts[i] = text
    return texts


def _check_numbers(texts: Sequence[str | bytes], numbers: Mapping[str, int]) -> None:
    """Raise `TokenizerError` where a text stands at another id than the tokenizer gives it: a list without the ids that
    no token has is such a one, and masks made of it allow other tokens."""
    for i, text in enumerate(texts):
        number = numbers.get(text, i) if isinstance(text, str) else i
        if number != i:
            raise TokenizerError(
                f"encoded_vocab has {text!r} at {i}, but it is token {number} of tokenizer_str; list the texts by id, "
                'with "" for an id that no token has'
            )


def _marked(backend: Tokenizer, specials: Iterable[int]) -> str:
    """The tokenizer's JSON, in which these tokens are special."""
    added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    bare = {i for i in specials if i in added and not added[i].special}
    text: str = backend.to_str()
    if not bare:
        return text
    data = json.loads(text)
    for token in data["added_tokens"]:
        token["special"] = token["special"] or token["id"] in bare
    return json.dumps(data, ensure_ascii=False)
