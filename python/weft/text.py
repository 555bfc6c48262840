"""Text and tokens: the tokenizer of a model directory, stop words, and how a streamed piece is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from weft.core import Piece
from weft.errors import TokenizerError


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a Hugging Face directory, loaded without code of its own and without a network."""
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tekken.json")):
        raise TokenizerError(
            f"{path}: no tokenizer.json (nor tokenizer.model, tekken.json); copy the tokenizer there"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        raise TokenizerError(f"{path}: transformers can't load the tokenizer: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TokenizerError(f"{path}: the tokenizer is not a fast one; save it with a tokenizer.json")
    return tokenizer


class RunningText:
    """The text of tokens as they come, watched for `words`. `found_at` is where the word found last begins."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...] = ()) -> None:
        self.text = ""
        self.found_at = 0
        self._words = words
        self._longest = max((len(word) for word in words), default=0)
        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)

    def feed(self, token: int) -> str | None:
        """Take the next token; the word that it completes, if it does. Of several the first in the text."""
        searched = max(len(self.text) - self._longest + 1, 0)
        self.text += self._decoder.step(self._backend, [token]) or ""
        places = [(place, word) for word in self._words if (place := self.text.find(word, searched)) >= 0]
        if not places:
            return None
        self.found_at, word = min(places)
        return word

    @property
    def num_shown(self) -> int:
        """How many characters of the text can't become the start of a stop word."""
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            if any(word.startswith(self.text[-length:]) for word in self._words):
                return len(self.text) - length
        return len(self.text)


def word_tokens(tokenizer: PreTrainedTokenizerFast, word: str) -> set[tuple[int, ...]]:
    """The token sequences that a word is usually written as: by itself and after a space."""
    spellings = (tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
    return {tuple(tokens) for tokens in spellings if tokens}


def coloured(tokenizer: Any, piece: Piece) -> Text:
    """The piece with its drafted-and-accepted part in another colour; plain where tokens split a character."""
    drafted = [t for t, d in zip(piece.token_ids, piece.drafted, strict=True) if d]
    head = tokenizer.decode(drafted, skip_special_tokens=True)
    if not piece.text.startswith(head):
        return Text(piece.text)
    return Text.assemble((head, "green"), piece.text[len(head) :])
