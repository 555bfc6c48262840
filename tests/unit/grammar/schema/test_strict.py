"""What a strict guide accepts is valid by `jsonschema`, whichever library compiled it; what else is, has a note."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from weft.bench.grammar.exact_verdict import INVALID, NO_JSON, verdict
from weft.bench.grammar.random_schemas import document, value
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide, Matcher
from weft.grammar.auto import AutoBackend

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


@pytest.mark.parametrize("open_objects", [False, True])
def test_what_is_accepted_is_valid_or_has_a_note(open_objects: bool) -> None:
    assert hold(range(120), open_objects) > 60


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("first", range(1000, 3000, 500))
@pytest.mark.parametrize("open_objects", [False, True])
def test_what_is_accepted_is_valid_or_has_a_note_at_length(open_objects: bool, first: int) -> None:
    assert hold(range(first, first + 500), open_objects) > 250


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


def takes(library: str, schema: Any, text: str) -> bool:
    compiled = backend().libraries[library].compile(Guide.json_schema(schema))
    tokens = [*(3 + byte for byte in text.encode("utf-8", "surrogateescape")), END]
    return compiled.matcher().validate(tokens) == len(tokens)


# Texts that a pattern matches, and others; those in bytes are no UTF-8.
MISTAKEN = [
    (r"^a(?:\.[0-9]+)?z$", ["az", "a.5z"], ["a5z", "a.z"]),
    (r"^(ab+)??$", ["", "abb"], ["b", "bb"]),
    (r"^(\(b+)?\)?c$", ["c", "(bb)c", ")c"], ["b)c", "bc"]),
    (r"^[^a]$", ["b", "é", "ࠀ", "😀"], ["a", "\udce0\udc9a\udc92", "\udcf0\udc80\udc80\udc80"]),
    (r"^[^\d]+$", ["bé"], ["b1", "\udce0\udc9a\udc92"]),
    (r"^\S.$", ["é😀"], [" a", "\u00a0a", "a\udce0\udc9a\udc92"]),
    (r"^[^é]+$", ["a", "ê", "語"], ["é"]),
    (r"^[^\u00e9\-\]]+$", ["a", "ê"], ["é", "-", "]"]),
    ('^[^"]+$', ["a"], ['"']),
    (r"^[^\\]+$", ["a"], ["\\", "a\\b"]),
    (r"^[^\x5c\x22]+$", ["a", "[", "]"], ["\\", '"', 'a"']),
]


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(("pattern", "good", "bad"), MISTAKEN, ids=lambda value: ascii(value))
def test_patterns_mean_the_same_to_both(library: str, pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    for text in good + bad:
        assert takes(library, schema, json.dumps(text, ensure_ascii=False)) == (text in good), ascii(text)
    for text in ('"""', '"\\"', '"\n"', '"\x01"', '"a"b"'):  # no JSON
        assert not takes(library, schema, text), text


@pytest.mark.parametrize("bounds", [{"minLength": 1}, {"maxLength": 2}, {"minLength": 2, "maxLength": 90}])
def test_bounded_strings_are_utf8(bounds: dict[str, int]) -> None:
    schema = {"type": "string", **bounds}
    for text in (b"\xe0\xa0\x80a", b"a\xf0\x9f\x98\x80", b"\xc3\xa9\x7f", b"\xed\x9f\xbf\xee\x80\x80"):
        assert takes("xgrammar", schema, f'"{text.decode()}"')
    for text in (
        b"\xe0\x9a\x92a",
        b"a\xf0\x89\xbc\x85",
        b"\xc1\xbfa",
        b"a\xed\xa0\x80",
        b"a\xf4\x90\x80\x80",
    ):
        assert not takes("xgrammar", schema, f'"{text.decode("utf-8", "surrogateescape")}"')


@pytest.mark.parametrize("pattern", [r"^[\x00-!]$", r"^[\x00-\x1f]$", r"^[^\s\S]|[\x00-\x5b]$"])
def test_classes_with_control_characters_hold_no_quotes_beside(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    texts = ["\x01", "\n", '"', "\\", "!", "a"]
    found = [text for text in texts if takes("llguidance", schema, json.dumps(text))]
    assert found == [text for text in texts if is_valid(schema, json.dumps(text))]


OF_FORMATS = [
    ("time", ["12:00:00Z", "00:00:00.5-01:30"], ["12:00:60Z", "23:59:60+01:00", "12:00:000Z"]),
    ("date-time", ["2024-02-29T12:00:00.5Z"], ["2024-02-29T12:00:005Z", "2024-02-29T12:00:60Z"]),
    ("ipv4", ["0.10.100.255"], ["01.2.3.4", "1.2.3.004", "1.2.3.256"]),
    ("email", ["a.b@c-d.e"], ["a..b@c", "a@-b", "a"]),
]


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(("form", "good", "bad"), OF_FORMATS)
def test_formats_mean_the_same_to_both(library: str, form: str, good: list[str], bad: list[str]) -> None:
    for text in good + bad:
        assert takes(library, {"type": "string", "format": form}, json.dumps(text)) == (text in good), ascii(
            text
        )


def test_pointers_are_strings_of_json() -> None:
    for form, good in (
        ("json-pointer", ["", "/", "/a~0b/~1é"]),
        ("relative-json-pointer", ["0", "1/a", "10#"]),
    ):
        schema = {"type": "string", "format": form}
        for text in [*good, "a", "/~", "/~2", "01", "0/~"]:
            assert takes("xgrammar", schema, json.dumps(text, ensure_ascii=False)) == (text in good), ascii(
                text
            )
        for text in ('"/\n"', '"0/"a"', '"/\\q"', '"0/\x00"'):
            assert not takes("xgrammar", schema, text), text


def test_emails_have_escapes_of_json_only() -> None:
    for text in (r'"\"\@\"@a"', r'"\"a\.b\"@c"'):
        assert not takes("xgrammar", {"type": "string", "format": "email"}, text)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("xgrammar", {"const": (1 << 64) - 1}, "18446744073709551615 has more digits"),
    ("llguidance", {"enum": ["a", {"b": [(1 << 53) + 1]}]}, "9007199254740993 has more digits"),
    ("xgrammar", {"type": "number", "maximum": (1 << 63) - 1}, "maximum 9223372036854775807 has more digits"),
    ("llguidance", {"type": "integer", "minimum": (1 << 53) + 1}, "minimum 9007199254740993 has more digits"),
    (
        "xgrammar",
        {"type": "integer", "multipleOf": (1 << 53) + 1},
        "multipleOf 9007199254740993 has more digits",
    ),
    ("xgrammar", {"type": "object", "patternProperties": {"a^b": {}}}, "without the anchors in its midst"),
]


@pytest.mark.parametrize(("library", "schema", "reason"), REFUSED)
def test_what_a_library_mistakes_is_refused(library: str, schema: Any, reason: str) -> None:
    with pytest.raises(GuideError, match=reason):
        backend().libraries[library].compile(Guide.json_schema(schema))


def test_integers_are_taken_as_far_as_they_are_held() -> None:
    most = (1 << 63) - 1
    assert takes("xgrammar", {"const": most}, str(most)) and not takes(
        "xgrammar", {"const": most}, str(most + 1)
    )
    for library in ("xgrammar", "llguidance"):
        schema = {"type": "integer", "maximum": most}
        assert takes(library, schema, str(most)) and not takes(library, schema, str(most + 1))
        assert takes(library, {"enum": [1 << 53, 0.1]}, str(1 << 53))


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
