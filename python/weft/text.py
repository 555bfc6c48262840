"""Text and tokens: the tokenizer of a model directory, stop words, and how a streamed piece is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice, takewhile
from math import inf
from operator import index
from pathlib import Path
from typing import Any

from rich.text import Text
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from weft.core import Piece
from weft.errors import TokenizerError

CUT = "\ufffd"
"""What a character decodes to whose bytes are not all there, or never fit."""


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


def decode(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """The text of tokens as they stand, without the special ones and with every space that they hold."""
    text: str = tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=True)
    return text


class RunningText:
    """The text of tokens as they come, watched for `words`. `text` is what the tokens so far decode to, less the
    replacement characters of a character cut short at its end; `found_at` is where in it the word found last begins.

    Tokens that stand for one byte decode together: a byte that doesn't fit changes the text of those before it. So
    text counts as settled only where a token that is no such byte ends on a whole character. Only what came since the
    last two such places is decoded again.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...] = ()) -> None:
        self.text = ""
        self.found_at = 0
        self._words = words
        self._longest = max((len(word) for word in words), default=0)
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_read = 0  # of the ids, those whose text is settled; they are the context of the others
        self._settled = 0  # characters
        self._searched = ""  # text behind the settled, as far as words have been looked for

    def feed(self, token: int) -> str | None:
        """Take the next token; the word that it completes, if it does. Of several the first in the text."""
        self._ids.append(token)
        before = decode(self._tokenizer, self._ids[: self._num_read])
        after = decode(self._tokenizer, self._ids)
        is_whole = not after.endswith(CUT)
        new = after[len(before) :].rstrip(CUT)
        self.text = self.text[: self._settled] + new
        word = None
        if not self._searched.startswith(new):
            same = takewhile(lambda pair: pair[0] == pair[1], zip(self._searched, new, strict=False))
            word = self._search(self._settled + sum(1 for _ in same))
            self._searched = new
        if new and is_whole and not self._is_byte(token):
            self._ids, self._num_read = self._ids[self._num_read :], len(self._ids) - self._num_read
            self._settled, self._searched = len(self.text), ""
        return word

    def fork(self) -> RunningText:
        """Another one that has seen the same tokens, for a text that goes on otherwise."""
        twin = copy(self)
        twin._ids = list(self._ids)
        return twin

    @property
    def num_shown(self) -> int:
        """How many characters of the text are settled and can't become the start of a stop word."""
        for length in range(min(self._longest - 1, self._settled), 0, -1):
            ending = self.text[self._settled - length : self._settled]
            if any(word.startswith(ending) for word in self._words):
                return self._settled - length
        return self._settled

    def _search(self, start: int) -> str | None:
        """The first word that ends behind `start` characters: what ended before was found, and passed over, then."""
        places = [
            (place, word)
            for word in self._words
            if (place := self.text.find(word, max(start - len(word) + 1, 0))) >= 0
        ]
        if not places:
            return None
        self.found_at, word = min(places)
        return word

    def _is_byte(self, token: int) -> bool:
        """Whether it is a byte of a vocabulary with byte fallback, written <0xE6>."""
        name = self._tokenizer.backend_tokenizer.id_to_token(token)
        return name is not None and len(name) == 6 and name.startswith("<0x")


class Speller:
    """The ways to write bad words in tokens. `tokens` are the bytes of each token of the vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tokens: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def bad_words(self, words: Sequence[str | Sequence[int]], room: int) -> set[tuple[int, ...]]:
        """Lists of token ids as they are; texts as `usual` and, while there is room, as `others` say, the shortest
        first. Each takes its tokens and one more of `room`; the usual ones come even where they do not fit."""
        texts = [word for word in words if isinstance(word, str)]
        found = {tuple(index(t) for t in word) for word in words if not isinstance(word, str)}
        found |= {spelling for text in texts for spelling in self.usual(text)}
        room -= sum(len(spelling) + 1 for spelling in found)
        others = {spelling for text in texts for spelling in self.others(text)} - found
        for spelling in sorted(others, key=lambda tokens: (len(tokens), tokens)):
            room -= len(spelling) + 1
            if room < 0:
                break
            found.add(spelling)
        return found

    def usual(self, word: str) -> set[tuple[int, ...]]:
        """As the tokenizer writes the word by itself and after a space."""
        spellings = (self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
        return {tuple(tokens) for tokens in spellings if tokens}

    def others(self, word: str, limit: int = 32) -> set[tuple[int, ...]]:
        """As tokens of the vocabulary join to the word, and to the word after a space: of each the `limit` shortest."""
        # A space that is a token of its own adds nothing: the word behind it is blocked without it.
        spaced = self._joined(f" {word}".encode(), without=b" ")
        return {*islice(self._joined(word.encode()), limit), *islice(spaced, limit)}

    def _joined(self, text: bytes, without: bytes = b"") -> Iterator[tuple[int, ...]]:
        """The sequences of tokens that join to `text` and do not begin with `without`, the shortest first."""
        size = len(text)
        fewest = [0.0] * (size + 1)  # tokens that are needed from each byte on
        steps: list[list[tuple[int, int]]] = [[] for _ in range(size)]  # token and where it ends
        for start in reversed(range(size)):
            for end in range(start + 1, size + 1):
                if start or text[:end] != without:
                    steps[start] += [(token, end) for token in self._ids.get(text[start:end], ())]
            fewest[start] = min((1 + fewest[end] for _, end in steps[start]), default=inf)
        # Best first, by the length of the whole sequence; of equals the one that has come furthest.
        queue: list[tuple[float, int, tuple[int, ...]]] = [(fewest[0], 0, ())]
        while queue and queue[0][0] < inf:
            _, place, tokens = heappop(queue)
            if place == -size:
                yield tokens
                continue
            for token, end in steps[-place]:
                heappush(queue, (len(tokens) + 1 + fewest[end], -end, (*tokens, token)))

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """The ids that stand for some bytes."""
        found: dict[bytes, list[int]] = {}
        for i, token in enumerate(self._tokens):
            if token:
                found.setdefault(token, []).append(i)
        return found


def coloured(tokenizer: Any, piece: Piece) -> Text:
    """The piece with its drafted-and-accepted part in another colour; plain where tokens split a character."""
    drafted = [t for t, d in zip(piece.token_ids, piece.drafted, strict=True) if d]
    head = tokenizer.decode(drafted, skip_special_tokens=True)
    if not piece.text.startswith(head):
        return Text(piece.text)
    return Text.assemble((head, "green"), piece.text[len(head) :])
