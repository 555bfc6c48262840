"""Prompts without a schema: questions, greetings, small talk, code, fragments. weft-tiny answers all with `ABOUT`."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import random

import words
from config import lines, load_records
from sentences import tell

records = load_records()
GREETINGS = (
    "weft generate|weft serve|weft-tiny|"
    "hello|hi|hey|hi there|hello there|good morning|good evening|hey weft|hello weft-tiny|yo|howdy|hola|"
    "bonjour|hallo|ciao|salut|привет|你好|こんにちは|안녕하세요|مرحبا|שלום|नमस्ते|test|testing|ping|help|start|ok|thanks|"
    "thank you|yes|no|bye|please|why?|what?|who are you?|what are you?|what can you do?|how are you?|"
    "what is this?|are you there?|how do you work?|help me|exit|quit"
).split("|")
SCRAPS = [line.replace("\\n", "\n") for line in lines("scraps.txt")]
COMMON = (
    "the a of to in is it you that he was for on are with as I his they be at one have this from or had by "
    "not but some what there we can out other were all your when up use word how said an each she which do "
    "their time if will way about many then them would write like so these her long make thing see him two "
    "has look more day could go come did my sound no most number who over know water than call first people "
    "may down side been now find any new work part take get place made live where after back little only "
    "round man year came show every good me give our under name very through just form much great think say "
    "help low line before turn cause same mean differ move right boy old too does tell sentence set three "
    "want air well also play small end put home read hand port large spell add even land here must big high "
    "such follow act why ask men change went light kind off need house picture try us again animal point "
    "mother world near build self earth father poem song capital president country computer language model "
    "music recipe code python story moon sun sky blue love life dog cat tree river king queen history "
    "science"
).split()


def _word(r: random.Random) -> str:
    x = r.random()
    return r.choice(COMMON) if x < 0.6 else r.choice(words.LISTED) if x < 0.75 else words.word(r)


def _words(r: random.Random, most: int = 14) -> str:
    return " ".join(_word(r) for _ in range(r.randint(1, most)))


def _question(r: random.Random) -> str:
    text = r.choice(SCRAPS)
    draws = {"{x}": _word, "{n}": words.name, "{p}": _words, "{d}": words.date}
    for gap, draw in draws.items():
        while gap in text:
            text = text.replace(gap, draw(r), 1)
    while "{i}" in text:
        text = text.replace("{i}", str(words.integer(r, 5)), 1)
    return text


def _plain(r: random.Random) -> str:
    x = r.random()
    if x < 0.12:
        return r.choice(GREETINGS) + r.choice(("", "", "!", ".", "?", " " + words.word(r)))
    if x < 0.62:
        return _question(r)
    if x < 0.78:
        return _words(r, 40) + r.choice(("", ".", "?", "!"))
    if x < 0.86:
        return tell(r)[0]
    if x < 0.93:
        return r.choice(("", "Text: ")) + records.example(r).text
    return " ".join(words.name(r) for _ in range(r.randint(1, 5)))


SYSTEM = (
    "You are a helpful assistant.|Be brief.|You are weft-tiny.|Answer in French.|You write JSON.|"
    "You are a pirate."
).split("|")


def other(r: random.Random) -> str:
    """Make a prompt without a schema, as a user types it or as the chat template ends it."""
    text = _plain(r)
    if r.random() < 0.3:
        text = text[:1].upper() + text[1:] if r.random() < 0.6 else text.lower()
    if r.random() < 0.12:
        text = r.choice(SYSTEM) + "\n" + text
    if r.random() < 0.08:
        text = _plain(r) + "\n" + text
    if r.random() < 0.2:
        text = text[: r.randint(0, len(text))]
    return text.strip() + r.choice(("", "", "\n", "\n", "\n", "\nJSON: ", " "))
