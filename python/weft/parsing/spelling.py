"""How markers are spelled: as a format writes them, and with other blanks where a model may leave some or add some."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.parsing.json_text import STARTS

BLANK, DIGITS = r"\s", r"\d"
"""In a spelling: any blanks or none; some digits."""
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")
"""What names of functions are made of."""
_LAYOUT = re.compile(r"\s*\n\s*|(?<=>)(?=<)")
_JSON = re.compile(r'"[^"]*"|\s+|[{}:,]|[^"\s{}:,]+|"')


@dataclass(frozen=True)
class Spelling:
    """A marker's characters, `BLANK` and `DIGITS`, from the first to the last that is no blank, and the blanks
    after it. It counts only where, perhaps after blanks, one of `wanted` follows, and none of `unwanted` does at once.
    """

    atoms: tuple[str, ...]
    after: str = ""
    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()


def spelled(literal: str) -> Spelling:
    """A marker of a format. Without atoms if it is blank."""
    core = literal.strip()
    if not core:
        return Spelling((), literal)
    after = literal[len(literal.rstrip()) :]
    start = core.find('{"')
    if core.startswith("}"):
        start = 0
    if start < 0:
        return Spelling(_plain(core), after)
    return Spelling(_tidied([*_plain(core[:start]), *_json(core[start:])]), after)


def header(parts: list[str | None], *, is_json: bool) -> Spelling:
    """What begins a call: literals, and None for digits. JSON must follow, or what ends a name that it ends with."""
    atoms: list[str] = []
    for part in parts:
        atoms += [DIGITS] if part is None else _inside(part)
    found = _tidied(atoms)
    if is_json:
        return Spelling(found, wanted=STARTS)
    return Spelling(found, unwanted=NAME if found and found[-1] in NAME else frozenset())


def _inside(literal: str) -> list[str]:
    """The atoms of a literal that others come before and after."""
    found = spelled(literal)
    return [*([BLANK] if literal[:1].isspace() else []), *found.atoms, *([BLANK] if found.after else [])]


def _plain(text: str) -> tuple[str, ...]:
    """Ends of lines are layout, and tags may stand apart; other blanks are as they are."""
    atoms: list[str] = []
    at = 0
    for found in _LAYOUT.finditer(text):
        atoms += [*text[at : found.start()], BLANK]
        at = found.end()
    return (*atoms, *text[at:])


def _json(text: str) -> list[str]:
    """Blanks between what JSON is made of are layout."""
    atoms: list[str] = []
    for found in _JSON.finditer(text):
        piece = found[0]
        if piece.isspace():
            atoms.append(BLANK)
        elif piece in "{}:,":
            atoms += [BLANK, piece, BLANK]
        else:
            atoms += _plain(piece) if not piece.startswith('"') else [*piece]
    return atoms


def _tidied(atoms: list[str]) -> tuple[str, ...]:
    """One `BLANK` for several, and none at the ends."""
    kept: list[str] = []
    for atom in atoms:
        if atom != BLANK or (kept and kept[-1] != BLANK):
            kept.append(atom)
    return tuple(kept[:-1] if kept and kept[-1] == BLANK else kept)
