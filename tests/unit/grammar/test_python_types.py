"""Python types as guides: every text that a strict guide allows is an object of the type."""

from __future__ import annotations

import enum
import pickle
import random
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    TypeAdapter,
)
from pydantic import networks as net
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from support.grammar.grammars import small_vocabulary
from support.grammar.kept import LIBRARIES, backend, sampled, takes
from weft.errors import AnswerError, GuideError
from weft.grammar import Guide, GuideCompiler
from weft.grammar.kinds.after import After
from weft.grammar.limits import CompileLimits

T = TypeVar("T")
Level = enum.IntEnum("Level", {"LOW": 1, "HIGH": 2})
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str
    age: int


class Point(NamedTuple):
    x: int
    label: str = "p"


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@dataclass
class Order:
    amount: int
    tags: list[str]
    total: int = field(default=0, init=False)


@pydantic.dataclasses.dataclass
class Checked:
    amount: Annotated[int, Field(ge=0)]


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Number(BaseModel):
    kind: Literal["number"] = "number"
    value: int


class Plus(BaseModel):
    kind: Literal["plus"] = "plus"
    terms: list[Expression]


Expression = Annotated[Number | Plus, Field(discriminator="kind")]


class Up(BaseModel):
    way: Literal["up"] = Field("up", alias="Way")


class Down(BaseModel):
    way: Literal["down"] = Field("down", alias="Way")


class Tagged(BaseModel):
    """`Number` is a choice of a union, and the type of a field."""

    way: Annotated[Up | Down, Field(discriminator="way")]
    number: Number
    either: Expression | None = None


class Box(BaseModel, Generic[T]):
    item: T


class Tags(pydantic.RootModel[list[Color]]):
    pass


class Aliased(BaseModel):
    first: int = Field(alias="1st")
    second: int = Field(validation_alias=pydantic.AliasChoices(pydantic.AliasPath("a", 0), "2nd"))


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    first: int = Field(alias="1st")


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    when: date
    numbers: set[int]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: bool


class OpenAliased(BaseModel):
    model_config = ConfigDict(extra="allow", validate_by_name=True, alias_generator=to_camel)
    is_ok: bool = True
    first: int = Field(0, validation_alias=AliasChoices("a", "b"))


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class EncodedByHex(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex")
    data: Annotated[bytes, Field(max_length=2)]


class OnlyReadEncoded(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: bytes


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    long: Annotated[str, Field(min_length=2)]
    spaced: Annotated[str, Field(pattern="^[a ]{2}$")]


class Written(BaseModel):
    """pydantic's own JSON schema is that of the texts that it writes."""

    model_config = ConfigDict(json_schema_mode_override="serialization")
    first: int = Field(validation_alias="in", serialization_alias="out")


def lengths(low: int | None = None, high: int | None = None) -> Any:
    return Field(min_length=low, max_length=high)


TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "none": type(None), "any": Any, "object": object,
    "positive": Annotated[int, Field(ge=0)], "multiple": Annotated[int, Field(multiple_of=3, ge=-7, lt=40)],
    "halves": Annotated[float, Field(multiple_of=0.5, gt=0, lt=3)], "new type": UserId,
    "literal": Literal["yes", "no"], "mixed literal": Literal[1, "a", None, True], "enum": Color, "int enum": Level,
    "model": Person, "dataclass": Order, "pydantic dataclass": Checked, "typed dict": Movie, "named tuple": Point,
    "recursive": Node, "union of models": Cat | Dog, "discriminator": Owner, "generic": Box[date], "root": Tags,
    "callable discriminator": Annotated[
        Annotated[int, Tag("int")] | Annotated[str, Tag("str")], Discriminator(lambda value: type(value).__name__)
    ],
    "aliases": Aliased, "by name": ByName, "forbid": Closed, "allow": Open,
    "adapter": TypeAdapter(list[Person]), "optional": int | None, "union": int | str | list[bool],
    "list": list[Person], "bare list": list, "sequence": Sequence[int], "iterable": Iterable[int], "deque": deque[int],
    "set": set[str], "frozenset": frozenset[int], "one of a set": Annotated[set[int], lengths(1, 3)],
    "tuple": tuple[int, str], "variable tuple": tuple[int, ...], "long list": Annotated[list[int], lengths(2, 3)],
    "dict": dict[str, int], "bare dict": dict, "mapping": Mapping[str, bool], "ordered": OrderedDict[str, int],
    "default dict": defaultdict[str, list[int]], "counter": Counter[str], "any values": dict[str, Any],
    "int keys": dict[int, str], "bounded keys": dict[Annotated[int, Field(gt=0)], int], "bool keys": dict[bool, int],
    "float keys": dict[float, int], "literal keys": dict[Literal["a", "b"], int], "enum keys": dict[Color, int],
    "date keys": dict[date, int], "uuid keys": dict[UUID, int], "either key": dict[int | date | None, int],
    "long keys": dict[Annotated[str, lengths(2, 3)], int],
    "two keys": Annotated[dict[Literal["a", "b"], int], lengths(2)],
    "pattern keys": dict[Annotated[str, Field(pattern="^[a-z]{2}$")], int],
    "decimal": Decimal, "money": Annotated[Decimal, Field(ge=0, max_digits=8, decimal_places=2)],
    "bounds": Annotated[Decimal, Field(ge=0, le=100)], "places": Annotated[Decimal, Field(decimal_places=3)],
    "digits": Annotated[Decimal, Field(max_digits=4)],
    "many digits": Annotated[Decimal, Field(max_digits=30, decimal_places=2)],
    "digits, places": Annotated[Decimal, Field(max_digits=12, decimal_places=2)],
    "whole": Annotated[Decimal, Field(max_digits=3, decimal_places=0)],
    "quarters": Annotated[Decimal, Field(multiple_of=Decimal("0.25"))], "fraction": Fraction, "complex": complex,
    "datetime": datetime, "naive": pydantic.NaiveDatetime, "aware": pydantic.AwareDatetime, "date": date, "time": time,
    "timedelta": timedelta, "date or time": date | datetime,
    "chosen by a function": Annotated[
        Annotated[Number, Tag("v")] | Annotated[Plus, Tag("t")],
        Discriminator(lambda value: "v" if "value" in value else "t"),
    ],
    "open aliases": OpenAliased, "default tags": Tagged,
    "recursive tags": list[Expression], "read, not written": Written,
    "hex bytes": EncodedByHex, "only read as base64": OnlyReadEncoded, "base64 text": pydantic.Base64Str,
    "stripped fields": Stripped, "zone": ZoneInfo,
    "short url": Annotated[net.HttpUrl, net.UrlConstraints(max_length=20)],
    "positive digits": Annotated[Decimal, Field(gt=0, max_digits=4)],
    "percent digits": Annotated[Decimal, Field(ge=-100, le=100, max_digits=4)],
    "no whole digits": Annotated[Decimal, Field(max_digits=3, decimal_places=3)],
    "no whole digits, positive": Annotated[Decimal, Field(ge=0, max_digits=5, decimal_places=5)],
    "positive, many digits": Annotated[Decimal, Field(gt=0, max_digits=25, decimal_places=2)],
    "keys of a range": dict[Annotated[int, Field(ge=-5, lt=20, multiple_of=5)], int],
    "positive float keys": dict[Annotated[float, Field(ge=0)], int], "decimal keys": dict[Decimal, int],
    "no digits": Annotated[str, Field(pattern=r"^[^\d]\D\W[^\s]\S[\W]$")],
    "uuid": UUID, "uuid1": pydantic.UUID1, "uuid4": pydantic.UUID4, "path": Path, "bytes": bytes,
    "short bytes": Annotated[bytes, lengths(None, 3)], "base64": pydantic.Base64Bytes,
    "base64url": pydantic.Base64UrlBytes,
    "encoded bytes": Encoded, "regex": re.Pattern[str], "secret": pydantic.SecretStr, "byte size": pydantic.ByteSize,
    "pattern": Annotated[str, Field(pattern="^[a-z]+$", max_length=5)],
    "stripped": Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)],
    "http": net.HttpUrl, "url": net.AnyUrl, "file url": net.FileUrl, "websocket": net.WebsocketUrl,
    "postgres": net.PostgresDsn, "redis": net.RedisDsn, "mongo": net.MongoDsn,
    "ipv4": IPv4Address, "ipv6": IPv6Address, "interface": IPv4Interface, "interface 6": IPv6Interface,
    "network": IPv4Network, "network 6": IPv6Network, "ip": net.IPvAnyAddress, "any network": net.IPvAnyNetwork,
    "any interface": net.IPvAnyInterface,
}  # fmt: skip
LIKELY = [b'0123456789"-:,{}[].', b'"\\u0129abcdeABC', b'Z+-:T"./@ht', b' "{}[]ex']


@pytest.mark.parametrize("name", TYPES)
def test_every_text_of_a_guide_is_an_object_of_the_type(name: str) -> None:
    guide = Guide.of(TYPES[name])
    compiled = backend().compile(guide)
    assert compiled.notes == ()
    count = 0
    for seed in range(12):
        text = sampled(compiled, seed, frozenset(LIKELY[seed % len(LIKELY)]))
        if text is not None:
            guide.parse(text)
            count += 1
    assert count


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_text_of_each_library_is_an_object_of_the_type(library: str) -> None:
    num_refused = 0
    for given in TYPES.values():
        guide = Guide.of(given)
        try:
            compiled = backend().libraries[library].compile(guide)
        except GuideError:
            num_refused += 1
            continue
        for seed in range(60):
            text = sampled(compiled, seed, frozenset(random.Random(seed).choice(LIKELY)))
            if text is not None:
                guide.parse(text)
    assert num_refused < len(TYPES) // 4


VALUES: dict[str, tuple[Any, str, Any]] = {
    "literal": (Literal["yes", "no"], '"yes"', "yes"),
    "enum": (Color, '"red"', Color["RED"]),
    "list": (list[Person], '[{"name":"A","age":1}]', [Person(name="A", age=1)]),
    "dataclass": (Order, '{"amount":1,"tags":["a"]}', Order(1, ["a"])),
    "typed dict": (Movie, '{"title":"M"}', {"title": "M"}),
    "named tuple": (Point, '[1]', Point(1)),
    "tuple": (tuple[int, str], '[1,"a"]', (1, "a")),
    "set": (set[str], '["a","a"]', {"a"}),
    "datetime": (datetime, '"2024-02-29T10:00:00"', datetime(2024, 2, 29, 10)),
    "duration": (timedelta, '"PT1H30M"', timedelta(hours=1.5)),
    "decimal": (Decimal, '"214.90"', Decimal("214.90")),
    "number": (Decimal, "214.9", Decimal("214.9")),
    "money": (Annotated[Decimal, Field(ge=0, max_digits=8, decimal_places=2)], "214.9", Decimal("214.9")),
    "uuid": (UUID, '"12345678-1234-4234-9234-123456789abc"', UUID("12345678-1234-4234-9234-123456789abc")),
    "int keys": (dict[int, str], '{"1":"a"}', {1: "a"}),
    "path": (Path, '"a/b.txt"', Path("a/b.txt")),
    "url": (net.HttpUrl, '"https://ada@example.org:8080/a?b=c#d"', net.HttpUrl("https://ada@example.org:8080/a?b=c#d")),
    "network": (IPv4Network, '"10.1.0.0/16"', IPv4Network("10.1.0.0/16")),
    "no spaces": (Annotated[str, Field(pattern=r"^[^\s@]+$")], '"caf\u00e9"', "caf\u00e9"),
    "iterable": (Iterable[int], "[1,2]", [1, 2]),
    "tags": (list[Expression], '[{"kind":"number","value":1}]', [Number(value=1)]),
    "key of a range": (dict[Annotated[int, Field(ge=-5, lt=20)], int], '{"-5":0,"15":1}', {-5: 0, 15: 1}),
    "extra": (OpenAliased, '{"isOk":true,"more":1}', OpenAliased.model_validate({"isOk": True, "more": 1})),
    "aliases": (Aliased, '{"1st":1,"2nd":2}', Aliased.model_validate({"1st": 1, "2nd": 2})),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_natural_text_is_allowed_and_gives_its_object(name: str) -> None:
    given, text, value = VALUES[name]
    guide = Guide.of(given)
    assert takes(backend().compile(guide), text)
    parsed = guide.parse(text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict[int, str], '{"a":"b"}'),
        (dict[Annotated[str, Field(pattern="^[a-z]$")], int], '{"A":1}'),
        (net.HttpUrl, '"ftp://a.b"'),
        (pydantic.NaiveDatetime, '"2024-02-29T10:00:00Z"'),
        (pydantic.AwareDatetime, '"2024-02-29T10:00:00"'),
        (pydantic.UUID4, '"12345678-1234-1234-9234-123456789abc"'),
        (IPv4Network, '"10.1.2.3/16"'),
        (Annotated[Decimal, Field(ge=0, max_digits=4, decimal_places=2)], "1.234"),
        (Annotated[Decimal, Field(max_digits=4, decimal_places=2)], '"123.45"'),
        (Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)], '"a  "'),
        (Literal["yes", "no"], "yes"),
        (list[Expression], '[{"value":1}]'),
        (OpenAliased, '{"is_ok":"no"}'),
        (OpenAliased, '{"b":"no"}'),
        (Annotated[str, Field(pattern=r"^\D+$")], '"\u0663"'),
        (Annotated[str, Field(pattern=r"^\W+$")], '"\u00e9"'),
        (Annotated[str, Field(pattern=r"^[^\w]+$")], '"\u00e9"'),
        (Annotated[str, StringConstraints(strip_whitespace=True, pattern="^[a ]{3}$")], '"aa "'),
        (Annotated[Decimal, Field(ge=0, max_digits=2, decimal_places=2)], "0"),
        (dict[Annotated[int, Field(ge=5, le=10)], int], '{"3":1}'),
    ],
)
def test_a_text_that_the_type_refuses_is_forbidden(given: Any, text: str) -> None:
    assert not takes(backend().compile(Guide.of(given)), text)


def test_email_addresses_have_a_pattern_of_their_own() -> None:
    guide = Guide.json_schema(
        TypeAdapter(Annotated[str, pydantic.WithJsonSchema({"type": "string", "format": "email"})])
    )
    compiled = backend().compile(guide)
    assert takes(compiled, '"ada.berg+x@mail.example.org"')
    assert not takes(compiled, '"ada@localhost"'), "email-validator wants a domain with a dot"


def test_an_own_hook_for_the_schema_is_respected() -> None:
    given = Annotated[int, pydantic.WithJsonSchema({"enum": [1, 2]})]
    compiled = backend().compile(Guide.of(given))
    assert takes(compiled, "1") and not takes(compiled, "3")


def test_a_set_with_several_elements_is_refused_by_name() -> None:
    guide = Guide.of(Annotated[set[int], lengths(2)])
    with pytest.raises(GuideError, match="uniqueItems"):
        backend().compile(guide)
    loose = Guide.json_schema(Annotated[set[int], lengths(2)], strict=False)
    assert backend().compile(loose).notes
    with pytest.raises(AnswerError, match="at least 2 items"):
        loose.parse("[1, 1]")


class Unfinished(BaseModel):
    other: Nowhere  # type: ignore[name-defined]  # noqa: F821


class OfRed(BaseModel):
    color: Literal[Color.RED]


class OfBlue(BaseModel):
    color: Literal[Color.BLUE]


class Door(enum.Enum):
    OPEN = "open"
    AJAR = (0, 1)


class OnlyPath(BaseModel):
    value: int = Field(validation_alias=pydantic.AliasPath("a", 0))


class Plain:
    """A class that pydantic does not know."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pydantic.Json[int], r"has no JSON schema.*use the inner type"),
        (type[int], r"type\[int\] has no JSON schema.*a class as a value"),
        (Callable[[], int], "has no JSON schema"),
        (OnlyPath, "OnlyPath has no JSON schema: .*AliasPath; give it a plain alias"),
        (dict[tuple[int, int], int], "keys of an object are texts"),
        (dict[Literal[1, 2], int], "keys of an object are texts"),
        (
            dict[Annotated[int, Field(ge=5)], int],
            r"^dict\[int, int\] has .*no pattern describes the constraints",
        ),
        (
            dict[Annotated[str, Field(pattern="^a", max_length=3)], int],
            "no pattern describes the constraints of its keys",
        ),
        (
            Literal[Color.RED],
            r"^Literal\[Color.RED\] has .*no JSON for Color.RED in a Literal; derive Color from str",
        ),
        (
            Annotated[OfRed | OfBlue, Field(discriminator="color")],
            r"^OfRed \| OfBlue has .*derive Color from str",
        ),
        (Door, r"no JSON value is Door.AJAR, which is \(0, 1\)"),
        (
            Annotated[str, Field(pattern=re.compile("a b", re.VERBOSE))],
            "^str has .*its pattern without re.VERBOSE",
        ),
        (set[Person], "a set's elements must be hashable, and Person is not; use a list"),
        (set[list[int]], "a set's elements must be hashable, and list is not; use a list"),
        (
            Unfinished,
            "Unfinished has .*a type in quotes that is not defined yet, or not here; name the class",
        ),
        (Plain, "Plain is no type for a guide: .*For a matcher of your own use Guide.matcher"),
        (list[Plain], r"list\[Plain\] is no type for a guide"),
        (Person(name="A", age=1), "Person is not a guide; use its type, Person$"),
        (Order(1, []), "Order is not a guide; use its type, Order$"),
        ({"type": "object"}, r"dict is not a guide; use Guide.json_schema\(...\) for a JSON schema"),
        ("[0-9]+", "str is not a guide; use Guide.regex, Guide.choice"),
        (re.compile("a"), r"Pattern is not a guide; use Guide.regex\('a'\)"),
        (["yes", "no"], r"list is not a guide; use Guide.choice\(\['yes', 'no'\]\)"),
        ([Person], "list is not a guide; use a single guide, or a list of prompts with a guide each"),
        (print, "is not a guide; use Guide.tools for calls of functions, or Guide.matcher"),
        (3, "int is not a guide; use Guide.json_schema, Guide.regex and the like, a Python type"),
    ],
)
def test_an_error_says_what_to_write(given: Any, message: str) -> None:
    with pytest.raises(GuideError, match=message):
        Guide.of(given)


def test_a_schema_is_no_object_of_a_model() -> None:
    with pytest.raises(GuideError, match="give its type, Person"):
        Guide.json_schema(Person(name="A", age=1))


def test_a_guide_without_a_type_parses_nothing() -> None:
    with pytest.raises(GuideError, match=r"as in Guide.json_schema\(Invoice\)"):
        Guide.json().parse("{}")


class Even(BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("it is odd")
        return number


def test_a_validator_refuses_an_answer() -> None:
    guide = Guide.of(list[Even])
    with pytest.raises(
        AnswerError, match=r"not a valid list\[Even\]: 1.number: Value error, it is odd$"
    ) as raised:
        guide.parse('[{"number": 2}, {"number": 3}]')
    assert isinstance(raised.value.__cause__, pydantic.ValidationError)
    with pytest.raises(AnswerError, match=r"; and 2 more$"):
        guide.parse('[{"number": 1}, {"number": 3}, {"number": 5}, {"number": 7}, {"number": 9}]')


def test_half_characters_are_replaced() -> None:
    guide = Guide.of(list[str])
    text = r'["\ud83d\ude00", "\ud83d", "\\ud83d"]'
    assert guide.parse(text) == ["😀", "\ufffd", r"\ud83d"]


def test_equal_schemas_compile_once() -> None:
    mine, theirs = Guide.of(Person), Guide.json_schema(Person.model_json_schema())
    assert mine.key == theirs.key and mine == theirs
    assert theirs.python_type is None
    with GuideCompiler(small_vocabulary()) as compiler:
        compiled = compiler.compile(mine)
        assert compiled is compiler.compile(theirs) is compiler.compile(Person)
        assert compiled.guide.python_type is None, "types with equal schemas share it"


def test_a_union_keeps_its_order() -> None:
    class Left(BaseModel):
        a: int

    class Right(BaseModel):
        a: int

    assert type(Guide.of(Left | Right).parse('{"a": 1}')) is Left
    assert type(Guide.of(Right | Left).parse('{"a": 1}')) is Right


def test_options_apply_to_the_schema_of_a_type() -> None:
    guide = Guide.json_schema(list[int], separators=(", ", ": "))
    compiled = backend().compile(guide)
    assert takes(compiled, "[1, 2]") and not takes(compiled, "[1,2]")
    assert repr(guide).endswith("python_type=list[int])")


def test_a_guide_after_a_trigger_keeps_the_type() -> None:
    guide = Guide.after("so", Guide.after("then", Person))
    assert guide.parse('{"name": "A", "age": 1}') == Person(name="A", age=1)
    inner = After.of(After.of(guide).guide).guide
    assert inner == Guide.of(Person) and inner.python_type is guide.python_type


def test_a_guide_is_compiled_where_the_type_is_unknown() -> None:
    class Local(BaseModel):
        a: int

    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(Guide.of(Local))
    assert pickle.loads(pickle.dumps(Guide.of(Person))).parse('{"name": "A", "age": 1}') == Person(
        name="A", age=1
    )
    with GuideCompiler(small_vocabulary(), untrusted=True, limits=CompileLimits(time_s=60)) as compiler:
        assert takes(compiler.compile(Local), '{"a":1}')
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as compiler:
        data = compiler.dump(compiler.compile(Local))
        assert takes(compiler.load(data), '{"a":1}')


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        (list[Person], "", None),
        (list[Person], "[", []),
        (list[Person], '[{"name": "A, [", "age": 1', []),
        (list[Person], '[{"name": "A", "age": 1}', [Person(name="A", age=1)]),
        (list[Person], '[{"name": "A", "age": 1}, {"name": "B", "age": 2', [Person(name="A", age=1)]),
        (list[int], "[1, 23", [1]),
        (list[str], r'["a\"]", "b', ['a"]']),
        (set[int], "[1, 2, 3", {1, 2}),
        (tuple[int, ...], "[1, 2, 3", (1, 2)),
        (dict[str, list[int]], '{"a": [1], "b": [1, 2', {"a": [1]}),
        (dict[str, int], '{"a": 1, "b"', {"a": 1}),
        (Movie, '{"title": "M", "year": 19', {"title": "M"}),
        (Person, '{"name": "A", "age": 1', None),
        (Person, '{"name": "A", "age": 1}', Person(name="A", age=1)),
        (int, "12", None),
        (str, '"ab', None),
        (Even, '{"number": 3}', None),
    ],
)  # fmt: skip
def test_the_beginning_of_a_text_gives_the_complete_elements(given: Any, text: str, value: Any) -> None:
    python_type = Guide.of(given).python_type
    assert python_type is not None
    assert python_type.parse_partial(text) == value
