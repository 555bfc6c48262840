"""JSON as clients send it: counted before it is built, in UTF-8, and without what two readers may read differently."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from threading import Lock
from typing import Any

from weft.server.errors import ApiError, quoted
from weft.server.settings import ServerConfig

MOST_ENTRIES = ServerConfig.max_body_entries
LARGE_SHARE, LARGE = 4, "lists, objects, names and texts"
"""Of the entries of a body one in so many may be more than a number: these."""
SURROGATE, BOM = b"\\ud", "\ufeff"
SMALL = 64 << 10
"""Bytes of a body that is parsed at once. Python's parser holds the interpreter, on any thread; but beside the event
loop the loop has its turn between this, the look for surrogates, and letting go of it."""
_parsing = Lock()
"""One thread parses a large body at a time, since all would wait for the same interpreter, and the loop for each."""


def read_json(raw: bytes, most_entries: int) -> Any:
    """The data of a body. Raises `ApiError`."""
    if not raw:
        raise ApiError("the body is empty; send a JSON object")
    with _parsing if len(raw) > SMALL else nullcontext():
        return _read(raw, most_entries)


def _read(raw: bytes, most_entries: int) -> Any:
    check_entries(raw, most_entries)
    try:
        text = raw.decode()  # json.loads takes bytes that are half a character, and guesses at UTF-16
    except UnicodeDecodeError as error:
        raise ApiError(f"the body is no UTF-8: byte {error.start} can't be read") from None
    if text.startswith(BOM):
        raise ApiError("the body begins with a byte order mark; send UTF-8 without one")
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
        if SURROGATE in raw.lower():
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except RecursionError:
        raise ApiError("the body is not JSON that can be read: its brackets nest too deep") from None
    except UnicodeEncodeError:
        raise ApiError("the body has half a character (a surrogate), which UTF-8 can't hold") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None


def checked_text(text: str) -> str:
    """JSON in a text, which may have as many entries as a body. Raises `ApiError`."""
    check_entries(text.encode(), MOST_ENTRIES, "a text of JSON")
    return text


def check_entries(raw: bytes, most: int, what: str = "the body") -> None:
    """Raise `ApiError` for JSON of more entries than `most`, or of more lists, objects and texts than a part of them.
    They are counted before any is built, which would hold the interpreter for longer."""
    most_large, quotes = most // LARGE_SHARE, raw.count(b'"')
    if (quotes - raw.count(b'\\"')) // 2 > most_large:
        raise _too_many(what, most_large, LARGE)
    entries, brackets = raw.count(b","), raw.count(b"[") + raw.count(b"{")
    if entries > most or brackets + quotes // 2 > most_large:
        # Now without what is in texts: escapes first, and then each second part between quotes.
        parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[::2])
        entries, brackets = outside.count(b","), outside.count(b"[") + outside.count(b"{")
        if brackets + len(parts) // 2 > most_large:
            raise _too_many(what, most_large, LARGE)
    if entries > most:
        raise _too_many(what, most, "entries")


def _too_many(what: str, most: int, entries: str) -> ApiError:
    return ApiError(
        f"{what} has more than the {most} {entries} that are read (max_body_entries)", code="too_many_entries"
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises `ApiError` for a name that comes twice: who looked at the body before might believe the
    other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = quoted(names.most_common(1)[0][0])
        raise ApiError(
            f"the body has an object with {twice} more than once; give it once", code="duplicate_name"
        )
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")
