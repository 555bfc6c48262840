"""Finds instructions that change tables, which a copy of memory and globals would miss.

Most function bodies do not even hold the bytes of one; only those that do are read instruction by instruction.
"""

from __future__ import annotations

import re

from weft.errors import GuideError
from weft.grammar.wasm.sections import Reader

# 0xFC and table.init, elem.drop, table.copy, table.grow or table.fill, however long the number is written.
SUSPICIOUS = re.compile(rb"\xfc(?:[\x0c-\x0f\x11]|[\x8c-\x8f\x91]\x80*\x00)")
CHANGING = {12: "table.init", 13: "elem.drop", 14: "table.copy", 15: "table.grow", 17: "table.fill"}

# How many numbers follow an opcode, where that is not none.
NUMBERS = {
    **dict.fromkeys((0x02, 0x03, 0x04, 0x0C, 0x0D, 0x10, *range(0x20, 0x26), 0x3F, 0x40, 0x41, 0x42), 1),
    **dict.fromkeys((0xD0, 0xD2), 1),
    **dict.fromkeys((0x11, *range(0x28, 0x3F)), 2),
}
PREFIXED_NUMBERS = {8: 2, 9: 1, 10: 2, 11: 1, 16: 1}


def refuse_table_changes(body: bytes) -> None:
    """Raise `GuideError` if a function body (its locals and instructions) changes a table."""
    if SUSPICIOUS.search(body) is None:
        return
    reader = Reader(body)
    for _ in range(reader.number()):  # the groups of locals
        reader.number()
        reader.byte()
    while not reader.is_done:
        _instruction(reader)


def _instruction(reader: Reader) -> None:
    opcode = reader.byte()
    if opcode == 0x26:
        raise GuideError("the WASM program changes a table (table.set), which weft can't take back")
    if opcode == 0x0E:  # br_table
        for _ in range(reader.number() + 1):
            reader.number()
    elif opcode == 0x1C:  # select with types
        reader.take(reader.number())
    elif opcode in (0x43, 0x44):
        reader.take(4 if opcode == 0x43 else 8)
    elif opcode == 0xFC:
        _prefixed(reader, reader.number())
    elif opcode == 0xFD:
        _vector(reader, reader.number())
    elif opcode in NUMBERS:
        for _ in range(NUMBERS[opcode]):
            reader.number(10)
    elif not (opcode <= 0xC4 or opcode == 0xD1):
        raise GuideError(
            f"the WASM program has the instruction 0x{opcode:02x}, which weft does not allow; compile it "
            "for plain wasm32"
        )


def _prefixed(reader: Reader, opcode: int) -> None:
    if opcode in CHANGING:
        raise GuideError(f"the WASM program changes a table ({CHANGING[opcode]}), which weft can't take back")
    for _ in range(PREFIXED_NUMBERS.get(opcode, 0)):
        reader.number()


def _vector(reader: Reader, opcode: int) -> None:
    """What follows an instruction of 128-bit vectors."""
    if opcode <= 11 or 84 <= opcode <= 93:  # loads and stores
        reader.number()
        reader.number()
    if opcode in (12, 13):  # a constant, a shuffle
        reader.take(16)
    elif 21 <= opcode <= 34 or 84 <= opcode <= 91:  # a lane
        reader.byte()
