"""How a vocabulary spells its tokens, and the bytes that they stand for.

A byte-level vocabulary writes each byte as one of 256 characters. A byte-fallback one has pieces <0x00> to <0xFF> and
U+2581 for a space; what marks spaces with U+2581 alone is read like that too. A raw one has the texts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

Encoding = Literal["raw", "byte_fallback", "byte_level"]

SPACE = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
OF_DECODERS: dict[str, Encoding] = {"ByteLevel": "byte_level", "ByteFallback": "byte_fallback"}


def shown_by_texts(texts: Collection[str]) -> Encoding | None:
    """The encoding that texts of tokens leave no doubt about; None where there is none."""
    if sum(text.startswith("<0x") and bool(BYTE_PIECE.fullmatch(text)) for text in texts) >= 128:
        return "byte_fallback"
    alphabet = frozenset(_byte_level_table())
    spelled = sum(alphabet.issuperset(text) for text in texts)
    singles = sum(len(text) == 1 and text in alphabet for text in texts)
    return "byte_level" if singles >= 128 and spelled >= 0.99 * len(texts) else None


def named_by_decoder(tokenizer: Mapping[str, Any]) -> Encoding | None:
    """The encoding that the decoder of a tokenizer.json undoes: of the first that names one, in a sequence."""
    decoder = tokenizer.get("decoder")
    if not isinstance(decoder, dict):
        return None
    listed = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    kinds = [one.get("type") for one in listed or () if isinstance(one, dict)]
    return next((OF_DECODERS[kind] for kind in kinds if kind in OF_DECODERS), None)


def marks_spaces(texts: Collection[str]) -> bool:
    """Whether some token begins with the mark of a space."""
    return any(text.startswith(SPACE) for text in texts)


def decoder_of(encoding: Encoding) -> Callable[[str], bytes]:
    """What gives the bytes of a token's text."""
    if encoding == "raw":
        return str.encode
    if encoding == "byte_fallback":
        return _decode_sentencepiece
    table = _byte_level_table()
    alphabet, to_bytes = frozenset(table), str.maketrans(table)
    # A token outside the alphabet was added by hand and stands for its own text.
    return lambda text: (
        text.translate(to_bytes).encode("latin-1") if alphabet.issuperset(text) else text.encode()
    )


def _byte_level_table() -> dict[str, str]:
    """Which byte, as a Latin-1 character, each character of a byte-level vocabulary stands for: printable
    ones for themselves, the others shifted.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): chr(byte) for byte in kept} | {
        chr(256 + i): chr(byte) for i, byte in enumerate(shifted)
    }


def _decode_sentencepiece(text: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()
