"""What a strict guide accepts is valid by `jsonschema`, whichever library compiled it; what else is, has a note."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from support.products import each_value
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide, Matcher
from weft.grammar.auto import AutoBackend
from weft_bench.grammar.exact_verdict import INVALID, NO_JSON, verdict
from weft_bench.grammar.random_schemas import document, value

NICE = frozenset(3 + byte for byte in b'ab",:{}[]01 ')


@functools.cache
def backend() -> AutoBackend:
    return AutoBackend(small_vocabulary())


def walked(rng: random.Random, matcher: Matcher, steps: int = 120) -> str | None:
    """A text that the masks lead to; None where it did not end."""
    tokens: list[int] = []
    for _ in range(steps):
        row = new_row()
        choices = allowed(row) if matcher.fill(row) else list(range(3, 259))
        if END in choices and (len(choices) == 1 or rng.random() < 0.5):
            return small_vocabulary().decode(tokens).decode("utf-8", "surrogateescape")
        likely = [token for token in choices if token in NICE] if rng.random() < 0.95 else []
        tokens.append(rng.choice(likely or [token for token in choices if token != END]))
        assert matcher.accept(tokens[-1])
    return None


def accepted(rng: random.Random, compiled: CompiledGuide) -> Iterator[str]:
    """Texts of random values that it accepts, and some that its masks lead to."""
    for _ in range(40):
        text = json.dumps(value(rng))
        tokens = [*(3 + byte for byte in text.encode()), END]
        if compiled.matcher().validate(tokens) == len(tokens):
            yield text
    for _ in range(4):
        found = walked(rng, compiled.matcher())
        if found is not None:
            yield found


def is_valid(schema: Any, text: str) -> bool:
    return verdict(schema, text) not in (INVALID, NO_JSON)


def hold(seeds: range, open_objects: bool) -> int:
    """How many guides were tried."""
    count = 0
    for seed in seeds:
        rng = random.Random(seed)
        schema = document(rng)
        for library in backend().libraries.values():
            try:
                strict = library.compile(Guide.json_schema(schema, open_objects=open_objects))
            except GuideError:
                continue
            count += 1
            assert strict.notes == ()
            for text in accepted(rng, strict):
                assert is_valid(schema, text), ascii((seed, strict.backend, schema, text))
        try:
            loose = backend().compile(Guide.json_schema(schema, strict=False, open_objects=open_objects))
        except GuideError:
            continue  # nothing can satisfy it
        if not loose.notes:
            for text in accepted(rng, loose):
                assert is_valid(schema, text), ascii((seed, loose.backend, schema, text))
    return count


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 120), marks=pytest.mark.slow)])
@pytest.mark.parametrize("open_objects", [False, True])
def test_what_is_accepted_is_valid_or_has_a_note(open_objects: bool, seeds: range) -> None:
    assert hold(seeds, open_objects) > len(seeds) // 2


@pytest.mark.slow
@each_value
@pytest.mark.parametrize(
    "first",
    [*range(1000, 2000, 250), *(pytest.param(at, marks=pytest.mark.full) for at in range(2000, 5000, 250))],
)
@pytest.mark.parametrize("open_objects", [False, True])
def test_what_is_accepted_is_valid_or_has_a_note_at_length(open_objects: bool, first: int) -> None:
    assert hold(range(first, first + 250), open_objects) > 125


def test_the_test_sees_what_is_not_enforced() -> None:
    """Without a note it would find the answers that break a schema."""
    schema = {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [0, 1]}}
    compiled = backend().compile(Guide.json_schema(schema, strict=False))
    assert compiled.notes
    assert not all(is_valid(schema, text) for text in accepted(random.Random(0), compiled))


NOT_JSON: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "minLength": 1}, '"\t"'),
    ({"type": "string", "maxLength": 3}, '"\x01"'),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
        r'{"\u0061": 1}',
    ),
]


HALF = b"\xed\xa2\x8a"  # of a surrogate pair, spelled as if it were a character
TEXT = [r"^[^x].*$", "^.*$", r"^\S*$", r"^[\s\S]*$", r"^[^\d]*$", r"^(a|[\Wé])*$"]


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    "guide",
    [
        Guide.json_schema({"type": "string"}),
        Guide.json_schema({"type": "string", "minLength": 1, "maxLength": 9}),
        *(Guide.json_schema({"type": "string", "pattern": pattern}) for pattern in TEXT),
        *(Guide.regex(f'"{pattern[1:-1]}"') for pattern in TEXT),
        Guide.ebnf("""root ::= "\\"" [^\\"]* "\\"" """),
    ],
    ids=lambda guide: f"{guide.kind} {guide.source}",
)
def test_texts_are_utf8(library: str, guide: Guide) -> None:
    compiled = backend().libraries[library].compile(guide)
    for text, is_text in (("é語😀\ud7ff\ue000".encode(), True), (HALF, False), (b"\xff", False)):
        tokens = [*(3 + byte for byte in b'"' + text + b'"'), END]
        assert (compiled.matcher().validate(tokens) == len(tokens)) == is_text, text


# Patterns, a text that each matches, and one that it does not.
SPELLED = [
    (r"^[\\S]+$", '"SS"', '"a"'),
    (r"^[\D^a]$", '"^"', '"5"'),
    (r"^[\S^]$", '"^"', '" "'),
    (r"^[_\W-z]$", '"-"', '"b"'),
    (r"^[^-a]$", '"b"', '"-"'),
    (r"^[^a-]$", '"b"', '"-"'),
    (r"^[\D0-2x]$", '"1"', '"5"'),
    (r"^[a-c\uD800-\uDBFF][^d]*$", '"be"', '"bd"'),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), SPELLED)
def test_patterns_without_halves_match_what_they_did(pattern: str, good: str, bad: str) -> None:
    compiled = (
        backend()
        .libraries["xgrammar"]
        .compile(Guide.json_schema({"type": "string", "pattern": pattern}, strict=False))
    )
    half = json.dumps(json.loads(good)[:-1]).encode()[:-1] + HALF + b'"'
    for data, is_good in ((good.encode(), True), (bad.encode(), False), (half, False)):
        tokens = [*(3 + byte for byte in data), END]
        assert (compiled.matcher().validate(tokens) == len(tokens)) == is_good, data


@pytest.mark.parametrize("grammar", [r"[\ud000-\udbff]", r'[a-z\ud800-\udbff] [^"]*'])
def test_classes_lose_their_halves(grammar: str) -> None:
    compiled = backend().libraries["xgrammar"].compile(Guide.ebnf(f"root ::= {grammar}"))
    for before in (b"", b"a"):
        tokens = [3 + byte for byte in before + HALF]
        assert compiled.matcher().validate(tokens) < len(tokens)


@pytest.mark.parametrize(("schema", "text"), NOT_JSON)
@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_strings_are_json_and_names_have_one_spelling(library: str, schema: Any, text: str) -> None:
    compiled = backend().libraries[library].compile(Guide.json_schema(schema))
    tokens = [*(3 + byte for byte in text.encode()), END]
    assert compiled.matcher().validate(tokens) < len(tokens)


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "0004-02-29", "1999-12-31", "2023-04-30"],
            ["2023-02-29", "1900-02-29", "0000-01-10", "2023-04-31", "2023-00-01", "2023-13-01"],
        ),
        ("date-time", ["2024-02-29T23:59:59.5Z", "1999-12-31t00:00:00+05:30"], ["2023-02-29T00:00:00Z"]),
    ],
)
def test_dates_are_those_of_the_calendar(library: str, form: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "format": form}
    compiled = backend().libraries[library].compile(Guide.json_schema(schema))
    for date in good + bad:
        tokens = [*(3 + byte for byte in json.dumps(date).encode()), END]
        assert (compiled.matcher().validate(tokens) == len(tokens)) == (date in good), date
        if form == "date":
            assert is_valid(schema, json.dumps(date)) == (date in good)


def test_models_of_pydantic_are_strict() -> None:
    """What pydantic writes beside what is to hold are annotations."""
    import datetime
    from enum import Enum
    from typing import Annotated, Literal
    from uuid import UUID

    from pydantic import BaseModel, Field, SecretStr

    class Colour(Enum):
        red = "red"
        blue = "blue"

    class Inner(BaseModel):
        id: UUID
        born: datetime.date | None = None
        secret: SecretStr = SecretStr("x")
        data: bytes = b""

    class Outer(BaseModel):
        """A model."""

        name: Annotated[str, Field(min_length=1, max_length=9, description="who", examples=["Ada"])]
        colour: Colour = Colour.red
        kind: Literal["a", "b"] = "a"
        inner: list[Inner] = Field(default_factory=list, max_length=3)
        table: dict[str, int] = {}
        share: Annotated[float, Field(ge=0, le=1)] = 0.5
        parent: Outer | None = None

    compiled = backend().compile(Guide.json_schema(Outer))
    assert compiled.notes == ()
    text = Outer(name="Ada", inner=[Inner(id=UUID(int=1))], table={"x": 1}).model_dump_json()
    tokens = [*(3 + byte for byte in text.encode()), END]
    assert compiled.matcher().validate(tokens) == len(tokens)
