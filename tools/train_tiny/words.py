"""Made-up words, names, numbers and dates in many scripts: values that the model can only copy."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import json
import random
from functools import cache

from config import ASSETS, lines, load_module
from scripts import SCRIPTS, SPACELESS, marked, of_script

vocabulary = load_module("weft.tiny.vocabulary")
LISTED: list[str] = [
    word
    for name in "FIRST LAST CITY JOB COLOR ITEM STREET LANGUAGE TOPIC BRAND FOOD THING".split()
    for word in getattr(vocabulary, name)
]  # fmt: skip

ONSETS = (
    "b c d f g h j k l m n p qu r s t v w x y z br cr dr fr gr pr tr str bl cl fl gl pl sl sch ch sh th ph "
    "kh wh zh sz cz st sp sk sm sn sw tw kn ng nd mb ts dz rh gh hj kv"
).split()
VOWELS = "a e i o u a e i o u a e i o u y aa ai au ee ea ei eu ie io oo ou oe ue ia ua".split()
CODAS = (
    ". . . n r s l m t d k g p b x z ng ck ll ss tt nn rt rd rk lm ld nt nd ns sk st ch sh th tz ff ph w y h "
    "v j mp gn ght"
).split()
PARTICLES = (
    "van de der von da di del la le bin al el ibn dos van-der du af zu ter O' Mc Mac Al- El- d' D' St."
).split()


@cache
def kept_out() -> tuple[frozenset[str], frozenset[str]]:
    """Return the measured names and their words, casefolded, without short words and names of the records."""
    names = lines("names.txt")
    words = {part.casefold() for name in names for part in name.replace("-", " ").split()}
    common = {w.casefold() for w in LISTED} | {w for w in words if w.isascii() and len(w) < 4}
    return frozenset(n.casefold() for n in names), frozenset(words - common)


@cache
def pieces() -> list[str]:
    """Return the texts of tokens that have only letters."""
    vocabulary = json.loads((ASSETS / "tokenizer.json").read_text())["model"]["vocab"]
    texts = (text.removeprefix("Ġ") for text in sorted(vocabulary))
    return sorted({t for t in texts if t.isascii() and t.isalpha()})


@cache
def beginnings() -> list[str]:
    """Return the texts of tokens that begin a word, capitalized ones first."""
    vocabulary = json.loads((ASSETS / "tokenizer.json").read_text())["model"]["vocab"]
    texts = {text.removeprefix("Ġ") for text in vocabulary if text.startswith("Ġ")}
    return sorted(t for t in texts if t.isascii() and t.isalpha() and t[0].isupper())


def of_pieces(r: random.Random) -> str:
    """Make a word that the tokenizer splits into its longer tokens."""
    begin = r.choice(beginnings()) if r.random() < 0.5 else r.choice(pieces()).capitalize()
    rest = [
        r.choice(pieces()) if r.random() < 0.6 else syllables(r)[:5] for _ in range(r.choice((0, 1, 1, 2)))
    ]
    return begin + "".join(rest)[:12].lower()


def echoing(r: random.Random, words: list[str]) -> list[str]:
    """Insert a part of one word into another, so that the previous text does not determine the next token."""
    one, other = r.choice(words), r.randrange(len(words))
    at, into = r.randrange(len(one)), r.randint(0, len(words[other]))
    part = one[at : at + r.randint(2, 4)].lower()
    return [*words[:other], words[other][:into] + part + words[other][into:], *words[other + 1 :]]


def cased(r: random.Random, word: str) -> str:
    """Capitalize the word, mostly."""
    x = r.random()
    if x < 0.72:
        return word[:1].upper() + word[1:]
    if x < 0.87:
        return word
    if x < 0.94:
        return word.upper()
    return "".join(r.choice((c.upper(), c)) for c in word)


def syllables(r: random.Random) -> str:
    """Make one to four syllables, as in names."""
    made = ""
    for _ in range(r.choice((1, 1, 2, 2, 2, 3, 3, 4))):
        made += r.choice(ONSETS) if made or r.random() < 0.8 else ""
        made += r.choice(VOWELS) + (r.choice(CODAS).strip(".") if r.random() < 0.6 else "")
    return made


def mistyped(r: random.Random) -> str:
    """Change, drop or add a letter or two of a listed word. The model must copy the result, not the listed word."""
    letters = list(r.choice(LISTED))
    for _ in range(r.choice((1, 1, 2))):
        at, new = r.randrange(len(letters)), r.choice("abcdefghijklmnoprstuvwyz")
        letters[at : at + r.choice((0, 1, 1))] = r.choice(([new], [new], [new], []))
        letters = letters or [new]
    return "".join(letters)


def repeating(r: random.Random, parts: list[str]) -> str:
    """Make a word of two or three of these parts, often repeated, so that the previous text does not determine the next
    part."""
    few = r.sample(parts, r.randint(2, 3))
    return "".join(r.choice(few) for _ in range(r.randint(3, 7)))


def latin(r: random.Random) -> str:
    """Make a word of Latin letters."""
    x = r.random()
    if x < 0.32:
        made = syllables(r)
    elif x < 0.38:
        made = repeating(r, [syllables(r)[:4] for _ in range(3)] + list("aeiounrst"))
    elif x < 0.70:
        made = of_pieces(r)
        if r.random() < 0.8:
            return made
    elif x < 0.78:
        made = "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(1, 10)))
    elif x < 0.92:
        made = mistyped(r).lower()
    else:
        made = r.choice(LISTED).lower()
    return cased(r, marked(r, made) if r.random() < 0.2 else made)


def _name(r: random.Random) -> str:
    if r.random() < 0.36:
        script = r.choice(tuple(SCRIPTS))
        words = [of_script(r, script) for _ in range(r.choice((1, 2, 2, 3)))]
        words = echoing(r, words) if r.random() < 0.15 else words
        if script in SPACELESS and r.random() < 0.7:
            return "".join(words[:2])
        return r.choice((" ", " ", " ", " ", "-")).join(words)
    words = [latin(r) for _ in range(r.choice((1, 2, 2, 2, 2, 3, 3, 4)))]
    words = echoing(r, words) if r.random() < 0.12 else words
    x = r.random()
    if x < 0.12:
        words.insert(-1, r.choice(PARTICLES))
    elif x < 0.19:
        words[:1] = [f"{r.choice('ABCDEFGHIJKLMNOPRSTUVWYZ')}." for _ in range(r.choice((1, 1, 2, 3)))]
    elif x < 0.22:
        words.append(r.choice(("Jr.", "Sr.", "II", "III", "PhD")))
    name = " ".join(words)
    for prefix in ("O'", "Mc", "Mac", "Al-", "El-", "d'", "D'"):
        name = name.replace(f"{prefix} ", prefix)
    if r.random() < 0.12:
        name = name.replace(" ", r.choice(("-", "-", "'", "\u2019")), 1)
    if r.random() < 0.02:
        name += " " + of_script(r, r.choice(tuple(SCRIPTS)))
    return name


def name(r: random.Random) -> str:
    """Make a name of one to four words that shares no word with a measured name."""
    whole, words = kept_out()
    while True:
        made = _name(r)
        folded = made.casefold()
        if not any(n in folded for n in whole) and words.isdisjoint(folded.replace("-", " ").split()):
            return made


def word(r: random.Random) -> str:
    """Make a word: the first of a name."""
    return name(r).split(" ")[0]


def integer(r: random.Random, digits: int = 9) -> int:
    """Make an integer of up to `digits` digits, mostly few, sometimes negative."""
    made = r.randrange(10 ** r.randint(1, r.choice((2, 3, 4, digits))))
    if r.random() < 0.08:
        made = int("".join(r.choice(str(made)[:2]) for _ in str(made)))
    return -made if r.random() < 0.05 else made


def number(r: random.Random) -> int | float:
    """Make a number with or without decimals."""
    places = r.choice((0, 1, 2, 2, 2, 3))
    return round(integer(r, 6) + r.randrange(10**places) / 10**places, places) if places else integer(r, 6)


def digits(r: random.Random) -> str:
    """Make a long string of digits, perhaps in groups."""
    ten = "0123456789" if r.random() < 0.8 else "".join(r.choice("0123456789") for _ in range(3))
    groups = ["".join(r.choice(ten) for _ in range(r.randint(2, 5))) for _ in range(r.randint(1, 4))]
    made = r.choice(("", " ", "-", "-", ".", "/")).join(groups)
    return r.choice(("", "", "", "+", "#", "(")) + made


def date(r: random.Random) -> str:
    """Make a date in one of several formats."""
    year, month, day = r.randint(1500, 2199), r.randint(1, 12), r.randint(1, 31)
    name = r.choice(
        ("January February March April May June July August September October November December " * 2
         + "Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec").split()
    )  # fmt: skip
    return r.choice(
        (
            f"{year}-{month:02d}-{day:02d}",
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}/{month:02d}/{year}",
            f"{month}/{day}/{year % 100:02d}",
            f"{day}.{month}.{year}",
            f"{day:02d}.{month:02d}.{year}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{name} {year}",
            f"{year}/{month:02d}/{day:02d}",
            f"{name} {day}",
            str(year),
        )
    )


def time(r: random.Random) -> str:
    """Make a time of day."""
    hour, minute = r.randint(0, 23), r.randint(0, 59)
    return r.choice(
        (
            f"{hour:02d}:{minute:02d}",
            f"{hour % 12 + 1}:{minute:02d} {r.choice(('am', 'pm'))}",
            f"{hour % 12 + 1}pm",
        )
    )


def code(r: random.Random) -> str:
    """Make a code of letters, digits and signs."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    parts = ["".join(r.choice(alphabet) for _ in range(r.randint(1, 6))) for _ in range(r.randint(1, 3))]
    made = r.choice(("", "-", "-", "_", "/", ".")).join(parts)
    return made if r.random() < 0.7 else made.lower()


def email(r: random.Random) -> str:
    """Make an email address."""
    local, host = (r.choice((syllables, mistyped))(r).lower() for _ in range(2))
    local += r.choice(("", "", str(r.randrange(1000)), "." + syllables(r), "_" + syllables(r)))
    return f"{local}@{host}.{r.choice(('com', 'org', 'net', 'de', 'io', 'co.uk', 'fr', 'jp'))}"


def phrase(r: random.Random) -> str:
    """Make a few words, as in a title or the name of a thing."""
    words = [latin(r) if r.random() < 0.8 else r.choice(LISTED) for _ in range(r.randint(1, 4))]
    if r.random() < 0.25:
        words.insert(r.randint(0, len(words)), str(integer(r, 4)))
    if r.random() < 0.25:
        words.insert(r.randint(0, len(words) - 1), r.choice(("of", "the", "and", "in", "with", "for", "&")))
    return " ".join(words)
