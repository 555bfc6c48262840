"""Whatever a guide lets through is read: the calls are of the tools, and their arguments obey the schemas."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import numpy as np
import pytest

from support.grammar.grammars import END, backend, new_row
from support.parsing.reading import read
from support.parsing.tools import guide_of, tools_of
from support.products import rest_slow
from weft import Guide
from weft.grammar import Matcher, tool_styles
from weft.grammar.kinds.tools import Reasoning
from weft.parsing import AnswerParser

# -- Answers that a guide lets through, found by chance: bytes that its masks permit, with a liking for markers

BYTES = slice(3, 259)
FREE = 100
"""Where so many bytes may come, the text is free."""
LITERALS = re.compile(r'"(?:begin|end|value|separator)": "((?:[^"\\]|\\.)*)"')
SNIPPETS = [
    "a",
    "Z",
    "7",
    " ",
    "\n",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "<",
    ">",
    "ß",
    "漢",
    "🙂",
    '"}',
    '"}}',
    "null",
]


def walk(guide: Guide, seed: int, max_bytes: int = 1500) -> tuple[str, bool]:
    """An answer, and whether it has ended by itself."""
    rng = random.Random(seed)
    matcher = backend().compile(guide).matcher()
    markers = [found.encode().decode("unicode_escape") for found in LITERALS.findall(guide.source)]
    wanted, text = b"", bytearray()
    while len(text) < max_bytes:
        permitted, may_end = _permitted(matcher)
        if may_end and (not permitted.size or rng.random() < 0.05 + len(text) / max_bytes):
            return text.decode(errors="replace"), True
        if not wanted or wanted[0] not in permitted:
            wanted = _wanted(rng, markers) if len(permitted) > FREE else b""
        ascii_bytes = permitted[permitted < 128]  # free text takes bytes that are no UTF-8, too
        choices = ascii_bytes if ascii_bytes.size else permitted
        byte = wanted[0] if wanted and wanted[0] in permitted else int(rng.choice(choices))
        wanted = wanted[1:]
        assert matcher.accept(BYTES.start + byte)
        text.append(byte)
    return text.decode(errors="replace"), False


def _permitted(matcher: Matcher) -> tuple[np.ndarray, bool]:
    """The bytes that may come, and whether the answer may end."""
    row = new_row()
    if not matcher.fill(row):
        return np.arange(256), True
    bits = np.unpackbits(np.asarray(row).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[BYTES]), bool(bits[END])


def _wanted(rng: random.Random, markers: list[str]) -> bytes:
    """What to write next, as long as it may come."""
    return (rng.choice(markers) if rng.random() < 0.5 else rng.choice(SNIPPETS)).encode()


# -- tests


def check(style: str, required: bool | str, reasoning: Reasoning, seed: int) -> None:
    guide = guide_of(style, required, reasoning, parallel=True)
    if guide is None:
        return
    tools = tools_of(style)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    text, has_ended = walk(guide, seed)
    answer = read(lambda: AnswerParser.of_tools(guide, tools), text)
    assert answer.calls or not required or not has_ended, text
    for call in answer.calls:
        assert call.name == required or not isinstance(required, str)
        if call.is_whole:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert not has_ended or all(call.is_whole for call in answer.calls), text


@rest_slow
@pytest.mark.parametrize("required", [False, True, "name"])
@pytest.mark.parametrize("style", tool_styles())
def test_calls_obey_their_schemas(style: str, required: bool | str) -> None:
    check(style, required, "disabled", 1)


@pytest.mark.slow
@pytest.mark.parametrize("reasoning", ["disabled", "enabled", "auto"])
@pytest.mark.parametrize("required", [False, True, "get", "get_all", "name"])
@pytest.mark.parametrize("style", tool_styles())
def test_many_calls_obey_their_schemas(style: str, required: bool | str, reasoning: Reasoning) -> None:
    for seed in range(12):
        check(style, required, reasoning, seed)
