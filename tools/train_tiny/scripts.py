"""Random words in many scripts."""

from __future__ import annotations

import random

MARKED = (
    "àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿāăąćčďđēėęěğģīįıķļłńņňőœŕřśşšșţťțūůűųźż"
    "žßơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"
)
# By script: ranges of its letters and of marks that follow letters, ends included, and the length of a word.
SCRIPTS: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], tuple[int, int]]] = {
    "cyrillic": ([(0x430, 0x44F)] * 6 + [(0x450, 0x45F), (0x490, 0x493)], [], (2, 11)),
    "greek": ([(0x3B1, 0x3C9)] * 4 + [(0x3AC, 0x3AF), (0x3CC, 0x3CE)], [], (2, 11)),
    "hebrew": ([(0x5D0, 0x5EA)], [], (2, 7)),
    "arabic": ([(0x627, 0x63A), (0x641, 0x64A), (0x622, 0x626), (0x67E, 0x6CC)], [], (2, 8)),
    "devanagari": ([(0x905, 0x939)], [(0x93E, 0x94D), (0x901, 0x903)], (2, 6)),
    "bengali": ([(0x995, 0x9A8), (0x9AA, 0x9B0), (0x985, 0x98B)], [(0x9BE, 0x9C3), (0x9CD, 0x9CD)], (2, 6)),
    "tamil": (
        [(0xB95, 0xB95), (0xB99, 0xB9A), (0xBA8, 0xBAA), (0xBAE, 0xBB9), (0xB85, 0xB8A)],
        [(0xBBE, 0xBC2), (0xBC6, 0xBC8), (0xBCD, 0xBCD)],
        (2, 6),
    ),
    "thai": ([(0xE01, 0xE2E), (0xE40, 0xE44)], [(0xE30, 0xE39), (0xE47, 0xE4C)], (2, 6)),
    "georgian": ([(0x10D0, 0x10F0)], [], (2, 9)),
    "armenian": ([(0x561, 0x586)], [], (2, 9)),
    "ethiopic": ([(0x1200, 0x1248), (0x1260, 0x12B0), (0x12C8, 0x1350)], [], (2, 5)),
    "hiragana": ([(0x3041, 0x3093)], [], (1, 5)),
    "katakana": ([(0x30A1, 0x30FA)], [(0x30FC, 0x30FC)], (2, 6)),
    "han": ([(0x4E00, 0x9FA5)], [], (1, 4)),
    "hangul": ([(0xAC00, 0xD7A3)], [], (1, 4)),
}
SPACELESS = ("han", "hiragana", "katakana", "hangul", "thai")


def marked(r: random.Random, word: str) -> str:
    """Replace some letters by letters with diacritics."""
    share = r.uniform(0.1, 0.5)
    return "".join(r.choice(MARKED) if r.random() < share else c for c in word)


def of_script(r: random.Random, script: str) -> str:
    """Make a word in one of SCRIPTS."""
    letters, marks, (least, most) = SCRIPTS[script]
    if r.random() < 0.04:
        letters = [
            (0xA1, 0xFF),
            (0x100, 0x58F),
            (0x5D0, 0x1FFF),
            (0x2C00, 0xD7FF),
            (0xF900, 0xFFFC),
            (0x1F300, 0x1F6FF),
        ]
    made = ""
    few = [chr(r.randint(*r.choice(letters))) for _ in range(r.randint(2, 4))] if r.random() < 0.25 else []
    for _ in range(r.randint(least, most)):
        made += r.choice(few) if few else chr(r.randint(*r.choice(letters)))
        if marks and r.random() < 0.4:
            made += chr(r.randint(*r.choice(marks)))
    return (
        made[0].upper() + made[1:]
        if script in ("cyrillic", "greek", "armenian") and r.random() < 0.85
        else made
    )
