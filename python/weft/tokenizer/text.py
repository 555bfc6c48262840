"""Text and tokens: the tokenizer of a model directory, text as it comes, and how a streamed piece is shown."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from weft.core import Piece
from weft.tokenizer.stop_words import StopTexts
from weft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rich.text import Text

CUT = "\ufffd"
"""What a character decodes to whose bytes are not all there, or never fit."""


def decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens as they stand, without the special ones and with every space that they hold."""
    text: str = tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=True)
    return text


class RunningText:
    """The text of tokens as they come, watched for stop words. `text` is what the tokens so far decode to, less the
    replacement characters of a character cut short at its end; `found_at` is where in it the word found last begins.

    Tokens that stand for one byte decode together: a byte that doesn't fit changes the text of those before it. So
    text counts as settled only where a token that is no such byte ends on a whole character. Only what came since the
    last two such places is decoded again.
    """

    def __init__(self, tokenizer: Tokenizer, words: StopTexts | Sequence[str] = ()) -> None:
        self.text = ""
        self.found_at = 0
        self.words = words if isinstance(words, StopTexts) else StopTexts(words)
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_read = 0  # of the ids, those whose text is settled; they are the context of the others
        self._settled = 0  # characters
        self._is_plain = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
        self._state = self._next_state = 0  # of the words, after the settled text, and after all of it
        self._searched = ""  # text after the settled, as far as words have been looked for

    def feed(self, token: int) -> str | None:
        """Take the next token; the word that it completes, if it does. Of several the first in the text."""
        self._ids.append(token)
        after = decode(self._tokenizer, self._ids)
        is_whole = not after.endswith(CUT)
        # A token stands for the same bytes wherever it stands, or for what the tokens before it make of it.
        before = 0 if self._is_plain else len(decode(self._tokenizer, self._ids[: self._num_read]))
        new = after[before:] if is_whole else after[before:].rstrip(CUT)
        self.text = self.text[: self._settled] + new
        word = self._found(new) if self.words else None
        if new and is_whole and (self._is_plain or not self._is_byte(token)):
            self._settle()
        return word

    def _found(self, new: str) -> str | None:
        """The word that ends in text after the settled."""
        # What ended in text that was searched before was found, and passed over, then.
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
        """Another one that has seen the same tokens, for a text that goes on otherwise."""
        twin = copy(self)
        twin._ids = list(self._ids)
        return twin

    @property
    def num_shown(self) -> int:
        """How many characters of the text are settled and can't become the start of a stop word."""
        return self._settled - self.words.num_open(self._state)

    def _is_byte(self, token: int) -> bool:
        """Whether it is a byte of a vocabulary with byte fallback, written <0xE6>."""
        name = self._tokenizer.backend_tokenizer.id_to_token(token)
        return name is not None and len(name) == 6 and name.startswith("<0x")


def coloured(tokenizer: Tokenizer, piece: Piece) -> Text:
    """The piece with its drafted-and-accepted part in another colour; plain where tokens split a character."""
    from rich.text import Text

    drafted = [t for t, d in zip(piece.token_ids, piece.drafted, strict=True) if d]
    head = tokenizer.decode(drafted, skip_special_tokens=True)
    if not piece.text.startswith(head):
        return Text(piece.text)
    return Text.assemble((head, "green"), piece.text[len(head) :])
