"""Decodes tokens to text, whole or incrementally. The incremental decoder also searches for stop words."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from weft.core import Piece
from weft.errors import for_terminal
from weft.tokenizer.stop_words import StopTexts, WordSearch
from weft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rich.text import Text

CUT = "\ufffd"
"""The replacement character: the decoding of an incomplete or invalid character."""

MAX_OPEN_TOKENS = 8
"""The number of last tokens among which `RunningText.skip` looks for one that completes a character."""


def decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Decode tokens without special tokens and without any clean-up of spaces. Markers of reasoning and calls stay."""
    if tokenizer.marker_ids:
        tokens = [token for token in tokens if token not in tokenizer.hidden_ids]
    text: str = tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=not tokenizer.marker_ids)
    return text


class RunningText:
    """Decodes tokens incrementally and watches the text for stop words.

    `text` is the decoded text of all tokens so far, without replacement characters for an incomplete character at its
    end. `found_at` is the index in `text` where the last word that was found begins.

    Consecutive byte tokens decode together: an invalid byte changes the text of the bytes before it. So text is settled
    only after a token that is not a byte token and that completes a character. Each step decodes only the tokens since
    the second to last such point.
    """

    def __init__(self, tokenizer: Tokenizer, words: StopTexts | Sequence[str] = ()) -> None:
        self.text = ""
        self.found_at = 0
        self.words = words if isinstance(words, StopTexts) else StopTexts(words)
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_read = (
            0  # number of ids whose text is settled; they are kept as context for decoding the others
        )
        self._settled = 0  # number of settled characters
        self._is_plain = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
        self._state = self._next_state = 0  # states of `words` after the settled text, and after all text
        self._searched = ""  # unsettled text that has been searched for words

    def feed(self, token: int) -> str | None:
        """Add the next token. Returns the word that it completes, or None. If it completes several, the first in the
        text is returned."""
        self._ids.append(token)
        after = decode(self._tokenizer, self._ids)
        is_whole = not after.endswith(CUT)
        # In a byte-level vocabulary a token has the same bytes everywhere. In others its text depends on the tokens
        # before it, so some of them are decoded again, and their text is cut off.
        before = 0 if self._is_plain else len(decode(self._tokenizer, self._ids[: self._num_read]))
        new = after[before:] if is_whole else after[before:].rstrip(CUT)
        self.text = self.text[: self._settled] + new
        word = self._found(new) if self.words else None
        if new and is_whole and (self._is_plain or not self._is_byte(token)):
            self._settle()
        return word

    @property
    def search(self) -> WordSearch | None:
        """The automata that find the tokens at which a word may end; None if only `feed` finds them."""
        return self.words.search if self._is_plain else None

    def skip(self, tokens: Sequence[int]) -> None:
        """Add the next tokens, without looking for words that they complete. In a byte-level vocabulary this is faster
        than `feed`."""
        start, ids = len(self._ids), [*self._ids, *tokens]
        settled = 0
        if self._is_plain:
            # Decode all tokens up to the last that completes a character at once. It is among the last few.
            for end in range(len(ids), max(start, len(ids) - MAX_OPEN_TOKENS), -1):
                new = decode(self._tokenizer, ids[:end])
                if new and not new.endswith(CUT):
                    self.text = self.text[: self._settled] + new
                    self._found(new)
                    self._settle()
                    settled = end
                    break
        for token in ids[settled or start :]:
            self.feed(token)

    def _found(self, new: str) -> str | None:
        """Search the unsettled text `new` for a word."""
        # Skip words that end in text which was searched before: they were found then.
        state, word, begin = self.words.find(self._state, new, self._searched)
        if word is not None:
            self.found_at = self._settled + begin
        if not self._searched.startswith(new):
            self._searched = new
        self._next_state = state
        return word

    def _settle(self) -> None:
        self._ids = [] if self._is_plain else self._ids[self._num_read :]
        self._num_read = len(self._ids)
        self._settled, self._state, self._searched = len(self.text), self._next_state, ""

    def fork(self) -> RunningText:
        """A copy that has seen the same tokens, for another continuation."""
        twin = copy(self)
        twin._ids = list(self._ids)
        return twin

    @property
    def num_shown(self) -> int:
        """The number of characters that are settled and can't be the beginning of a stop word."""
        return self._settled - self.words.num_open(self._state)

    def _is_byte(self, token: int) -> bool:
        """Whether a token is a byte of a vocabulary with byte fallback, such as <0xE6>."""
        name = self._tokenizer.backend_tokenizer.id_to_token(token)
        return name is not None and len(name) == 6 and name.startswith("<0x")


def coloured(tokenizer: Tokenizer, piece: Piece) -> Text:
    """The text of a piece for a terminal, with accepted draft tokens in green. It has no colours if a character spans
    drafted and other tokens. Control characters are escaped."""
    from rich.text import Text

    drafted = [t for t, d in zip(piece.token_ids, piece.drafted, strict=True) if d]
    head = tokenizer.decode(drafted, skip_special_tokens=True)
    if not piece.text.startswith(head):
        return Text(for_terminal(piece.text))
    return Text.assemble((for_terminal(head), "green"), for_terminal(piece.text[len(head) :]))
